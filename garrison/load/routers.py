"""The routers, as workers talk to them: they are told where replicas answer, and asked what waits.

A router that does not answer has no requests that anybody could see: what it should know it reads
by itself when it starts, and again after 30 seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import httpx
from pydantic import ValidationError

from garrison.models.base import Message
from garrison.models.deployment_state import DeploymentEndpoints
from garrison.models.load import Followed, LoadCounts, RouterDeployment, RouterLoad

TIMEOUT = httpx.Timeout(5.0, connect=2.0)
logger = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)


class Routers:
    """All routers of an installation.

    Args:
        addresses: Such as `http://127.0.0.1:8000`.
        token: What they want to see before they answer, None where they want nothing.
        secret: By which they know workers.
    """

    def __init__(
        self, addresses: Sequence[str], *, token: str | None = None, secret: str | None = None
    ) -> None:
        self._secret = secret
        self._addresses = tuple(address.rstrip("/") for address in addresses)
        self._token = token
        self._client: httpx.AsyncClient | None = None
        self._silent: set[str] = set()

    async def tell(self, endpoints: DeploymentEndpoints) -> list[RouterDeployment | None]:
        """Tell each router where a deployment's replicas answer.

        Returns:
            What each knows of the deployment, None for one that does not answer.
        """
        path = f"/-/endpoints/{endpoints.id.lower()}"
        body = endpoints.model_dump_json()
        answers = await asyncio.gather(
            *(self._ask("PUT", address, path, body) for address in self._addresses)
        )
        return [None if one is None else _read(RouterDeployment, one) for one in answers]

    async def loads(self) -> list[RouterLoad | None]:
        """Return what each router has counted, None for one that does not answer."""
        answers = await asyncio.gather(
            *(self._ask("GET", address, "/-/load") for address in self._addresses)
        )
        return [None if one is None else _read(RouterLoad, one) for one in answers]

    async def aclose(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _ask(self, method: str, address: str, path: str, body: str = "") -> bytes | None:
        try:
            answer = await self._connected().request(method, address + path, content=body)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            if address not in self._silent:
                self._silent.add(address)
                logger.warning("the router at %s does not answer: %s", address, error)
            return None
        self._silent.discard(address)
        return answer.content

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            headers = {"content-type": "application/json"}
            if self._token is not None:
                headers["authorization"] = f"Bearer {self._token}"
            if self._secret is not None:
                headers["garrison-control"] = self._secret
            # Not through a proxy of the environment: routers are ours.
            self._client = httpx.AsyncClient(timeout=TIMEOUT, headers=headers, trust_env=False)
        return self._client


def _read(kind: type[M], content: bytes) -> M | None:
    try:
        return kind.model_validate_json(content)
    except ValidationError:
        logger.warning("a router answers what cannot be read", extra={"kind": kind.__name__})
        return None


class RouterSource:
    """Load as the routers count it; a `LoadSource`.

    Counters of a router that was started anew go on where the former one's ended, so that the
    requests of the others are not counted twice. While one is silent, what the others count is the
    least that there is; one that was silent for `GONE_AFTER` counts as gone. While all are silent
    nobody knows anything.
    """

    def __init__(self, routers: Routers, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._routers = routers
        self._clock = clock
        self._ended: dict[str, LoadCounts] = {}
        self._seen: dict[int, RouterLoad] = {}
        self._silent_since: dict[int, float] = {}

    async def read(self, followed: Sequence[Followed]) -> Mapping[str, LoadCounts]:
        """See `LoadSource.read`; a deployment that no router has seen has no traffic."""
        answers = dict(enumerate(await self._routers.loads()))
        partial = self._note(answers)
        if all(load is None for load in answers.values()):
            return {}
        return {one.id: self._total(one.id, answers, partial=partial) for one in followed}

    def _note(self, answers: Mapping[int, RouterLoad | None]) -> bool:
        """Keep what each router said; return whether one is silent that may have requests."""
        now = self._clock()
        for place, load in answers.items():
            if load is None:
                self._silent_since.setdefault(place, now)
                continue
            self._silent_since.pop(place, None)
            before = self._seen.get(place)
            if before is not None and before.router != load.router:
                self._end(before)
            self._seen[place] = load
        return any(now - since < GONE_AFTER for since in self._silent_since.values())

    def _end(self, load: RouterLoad) -> None:
        for deployment, counts in load.deployments.items():
            ended = self._ended.get(deployment, NOTHING)
            self._ended[deployment] = _sum((ended, _counters(counts)))

    def _total(
        self, deployment: str, answers: Mapping[int, RouterLoad | None], *, partial: bool
    ) -> LoadCounts:
        parts = [self._ended.get(deployment, NOTHING)]
        for place, load in self._seen.items():
            counts = load.deployments.get(deployment, NOTHING)
            # What a silent one counted so far stays counted; what it does now is not known.
            parts.append(counts if answers.get(place) is not None else _counters(counts))
        total: LoadCounts = _sum(parts).replace(partial=partial)
        return total


GONE_AFTER = 300.0
"""Seconds; whatever requests a router had when it fell silent have ended by then, or are lost."""
NOTHING = LoadCounts(running=0, queued=0, arrivals=0, completions=0)


def _counters(counts: LoadCounts) -> LoadCounts:
    only: LoadCounts = counts.replace(running=0, queued=0)
    return only


def _sum(parts: Sequence[LoadCounts]) -> LoadCounts:
    return LoadCounts(
        running=sum(part.running for part in parts),
        queued=sum(part.queued for part in parts),
        arrivals=sum(part.arrivals for part in parts),
        completions=sum(part.completions or 0 for part in parts),
    )
