"""Load as the replicas themselves tell it, in the text format of Prometheus."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

import httpx
from prometheus_client.parser import text_string_to_metric_families

from garrison.domain.autoscaling.series import Sample
from garrison.load.bounded import NoAnswerError, gather_within, read_body, trusted
from garrison.load.presets import PRESETS, Named, ServerMetrics, assign_roles
from garrison.load.reading import Reading, Tally
from garrison.models.deployment import ReplicaState
from garrison.models.deployment_state import ReplicaEndpoint
from garrison.models.load import Followed, LoadCounts

TIMEOUT = timedelta(seconds=5)
MAX_BYTES = 8 * 2**20
MAX_AGE_SECONDS = 60
AT_ONCE = 32


class ScrapeSource:
    """Load from the replicas' own `/metrics`; a `LoadSource`.

    All ready replicas of a deployment must answer, else it is missing. A look takes at most two
    timeouts, and asks `AT_ONCE` replicas at a time.

    Args:
        timeout: Of one replica.
        clock: Seconds since the epoch.
    """

    def __init__(
        self, *, timeout: timedelta = TIMEOUT, clock: Callable[[], float] = time.time
    ) -> None:
        self._seconds = timeout.total_seconds()
        self._clock = clock
        self._tally = Tally()

    async def read(self, followed: Sequence[Followed]) -> Mapping[str, LoadCounts]:
        """See `LoadSource.read`; who has no ready replica is left out too."""
        ready = [one for one in followed if one.ready]
        texts = await self._ask({url: None for one in ready for url in _addresses(one).values()})
        now = self._clock()
        found = {
            one.id.lower(): self._tally.count(one, read_scrape(one, texts, now), now)
            for one in ready
        }
        self._tally.forget(followed, now)
        return {id: counts for id, counts in found.items() if counts is not None}

    async def _ask(self, urls: Mapping[str, None]) -> Mapping[str, bytes | NoAnswerError]:
        gate = asyncio.Semaphore(AT_ONCE)
        # Not through a proxy of the environment: replicas are on a network of ours.
        async with httpx.AsyncClient(verify=trusted(), trust_env=False) as client:
            asking = {url: self._ask_one(client, gate, url) for url in urls}
            return await gather_within(asking, 2 * self._seconds)

    async def _ask_one(
        self, client: httpx.AsyncClient, gate: asyncio.Semaphore, url: str
    ) -> bytes | NoAnswerError:
        async with gate:
            try:
                request = client.build_request("GET", url, headers={"accept": "text/plain"})
                body = await read_body(client, request, seconds=self._seconds, most=MAX_BYTES)
            except (NoAnswerError, httpx.InvalidURL) as error:
                return NoAnswerError(str(error))
        if body.status != 200:
            return NoAnswerError(f"it answers {body.status}")
        return body.content


def read_scrape(one: Followed, texts: Mapping[str, bytes | NoAnswerError], now: float) -> Reading:
    """Return what the replicas' answers say of a deployment, by address."""
    load = one.autoscale.load
    if load.preset is None:
        return Reading(missing="a scrape needs `load.preset`")
    metrics = PRESETS[load.preset]
    named: list[Named] = []
    for replica, url in _addresses(one).items():
        text = texts.get(url, NoAnswerError("no answer in time"))
        try:
            if isinstance(text, NoAnswerError):
                raise text
            named += _named(metrics, replica, text, now=now, model=load.model)
        except (NoAnswerError, ValueError) as error:
            return Reading(missing=f"replica {replica}: {error}")
    return Reading(look=assign_roles(metrics, named))


def _addresses(one: Followed) -> dict[str, str]:
    replicas: tuple[ReplicaEndpoint, ...] = () if one.endpoints is None else one.endpoints.replicas
    return {
        replica.name: f"{replica.endpoint}{one.autoscale.load.path}"
        for replica in replicas
        if replica.state is ReplicaState.READY and replica.endpoint is not None
    }


def _named(
    metrics: ServerMetrics, replica: str, text: bytes, *, now: float, model: str | None
) -> Iterator[Named]:
    names = frozenset(metrics.all_names())
    label = None if model is None else metrics.label
    # Types are left out, with which the parser gives some counters another name.
    for family in text_string_to_metric_families("\n".join(_lines(text, names))):
        for sample in family.samples:
            if label is not None and sample.labels.get(label) != model:
                continue
            if (
                sample.timestamp is not None
                and not abs(now - float(sample.timestamp)) <= MAX_AGE_SECONDS
            ):
                raise ValueError(f"{sample.name} is {now - float(sample.timestamp):.0f} s old")
            series = json.dumps([sample.name, sorted(sample.labels.items())])
            yield Named(sample.name, Sample(replica, series, float(sample.value)))


def _lines(text: bytes, names: frozenset[str]) -> Iterator[str]:
    """Yield the lines with the wanted metrics: parsing all would take a hundred times longer."""
    for line in text.decode("utf-8").split("\n"):
        name = line.lstrip(" \t").partition("{")[0].split(None, 1)
        if name and name[0] in names:
            yield line
