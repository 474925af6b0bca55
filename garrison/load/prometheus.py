"""Load as a Prometheus server has it, which scrapes the replicas."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import httpx

from garrison.load.bounded import Body, NoAnswerError, gather_within, read_body, trusted
from garrison.load.promql import Answer, plan_questions, read_answer, read_load, read_refusal
from garrison.load.reading import Tally, shorten
from garrison.models.load import Followed, LoadCounts

TIMEOUT = timedelta(seconds=5)
MAX_BYTES = 8 * 2**20
AT_ONCE = 8
LONGEST_GET = 2000
"""Characters of a question; proxies refuse longer addresses than some 8,000."""
REFUSED = (400, 422)
UNSET = "no Prometheus server is set; give `load: {prometheus: {url: ...}}` in garrison.yaml"
_TOKEN = re.compile(rb"[!-~]{1,65536}")
logger = logging.getLogger(__name__)


class PrometheusSource:
    """Load from instant queries; a `LoadSource`.

    A look takes at most two timeouts, and asks `AT_ONCE` questions at a time.

    Args:
        url: Of the server, with any path before `/api/v1`; None while none is set.
        token_file: Holds what to send as a bearer token; read at each look, as it may change.
        timeout: Of one question.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        url: str | None,
        *,
        token_file: Path | None = None,
        timeout: timedelta = TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = None if url is None else f"{url.rstrip('/')}/api/v1/query"
        self._token_file = token_file
        self._seconds = timeout.total_seconds()
        self._clock = clock
        self._tally = Tally()
        self._is_silent = False

    async def read(self, followed: Sequence[Followed]) -> Mapping[str, LoadCounts]:
        """See `LoadSource.read`; who has no ready replica is left out too."""
        ready = [one for one in followed if one.ready]
        asked = plan_questions(ready)
        questions = {question for one in asked.values() for question in one.all()}
        answers = await self._ask(sorted(questions))
        self._say(answers)
        now = self._clock()
        found = {
            one.id.lower(): self._tally.count(one, read_load(one, asked[one.id], answers), now)
            for one in ready
        }
        self._tally.forget(followed, now)
        return {id: counts for id, counts in found.items() if counts is not None}

    async def _ask(self, questions: Sequence[str]) -> Mapping[str, Answer]:
        if not questions:
            return {}
        if self._url is None:
            return dict.fromkeys(questions, Answer(failure=UNSET, of_server=True))
        try:
            token = await self._token()
        except NoAnswerError as error:
            return dict.fromkeys(questions, Answer(failure=str(error), of_server=True))
        late = Answer(failure=f"no answer within {2 * self._seconds:g} s", of_server=True)
        gate = asyncio.Semaphore(AT_ONCE)
        # Not through a proxy of the environment, as whatever workers ask on their own.
        async with httpx.AsyncClient(verify=trusted(), trust_env=False) as client:
            asking = {one: self._ask_one(client, gate, one, token) for one in questions}
            answers = await gather_within(asking, 2 * self._seconds)
        return {one: answers.get(one, late) for one in questions}

    async def _token(self) -> str | None:
        if self._token_file is None:
            return None
        try:
            token = (await asyncio.to_thread(self._token_file.read_bytes)).strip()
        except OSError as error:
            raise NoAnswerError(f"the token file cannot be read: {error.strerror}") from None
        if not _TOKEN.fullmatch(token):
            raise NoAnswerError("the token file holds no token: one word of ASCII characters")
        return token.decode("ascii")

    async def _ask_one(
        self, client: httpx.AsyncClient, gate: asyncio.Semaphore, question: str, token: str | None
    ) -> Answer:
        async with gate:
            try:
                request = self._request(client, question, token)
                body = await read_body(client, request, seconds=self._seconds, most=MAX_BYTES)
            except (NoAnswerError, httpx.InvalidURL) as error:
                return Answer(failure=str(error), of_server=True)
        if body.status == 200:
            return read_answer(body.content, self._clock())
        return _refusal(body, token)

    def _request(
        self, client: httpx.AsyncClient, question: str, token: str | None
    ) -> httpx.Request:
        assert self._url is not None, "asked only where there is one"
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        form = {"query": question, "timeout": f"{self._seconds:g}s"}
        if len(question) <= LONGEST_GET:
            return client.build_request("GET", self._url, params=form, headers=headers)
        return client.build_request("POST", self._url, data=form, headers=headers)

    def _say(self, answers: Mapping[str, Answer]) -> None:
        failures = sorted({str(one.failure) for one in answers.values() if one.of_server})
        if failures and not self._is_silent:
            self._is_silent = True
            logger.warning("load cannot be read from Prometheus: %s", shorten(failures[0]))
        elif answers and not failures and self._is_silent:
            self._is_silent = False
            logger.warning("load is read from Prometheus again")


def _refusal(body: Body, token: str | None) -> Answer:
    said = read_refusal(body.content)
    if token:
        said = said.replace(token, "***")
    failure = f"the server answers {body.status}" + (f": {said}" if said else "")
    return Answer(failure=failure, of_server=body.status not in REFUSED)
