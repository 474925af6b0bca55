"""The way of one request: accepted, held if need be, sent to a replica, answered, counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import aiohttp
from starlette.types import Receive, Scope

from garrison.errors import NotFound, ReplicaUnreachable
from garrison.router.access_log import Entry
from garrison.router.answer import Answer
from garrison.router.config import RouterConfig
from garrison.router.headers import (
    Framing,
    Origin,
    Raw,
    check_upgrade,
    for_client,
    for_replica,
    framing_of,
    may_repeat,
)
from garrison.router.incoming import Budget, ClientGone, Incoming
from garrison.router.metrics import RouterMetrics
from garrison.router.replicas import Replica
from garrison.router.route import Route
from garrison.router.routes import Routes
from garrison.router.target import Target
from garrison.router.upstream import NoAnswer, NotSent, Upstream

MOST_SENT = 3
"""How often a request is sent at most that no replica answers."""


class BrokenOff(Exception):
    """The answer had begun and cannot be ended; the client must see that."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it goes to whichever replica.

    Attributes:
        until: When it has waited long enough, on the loop's clock.
    """

    method: str
    target: Target
    headers: tuple[tuple[str, str], ...]
    framing: Framing
    repeatable: bool
    until: float
    incoming: Incoming
    entry: Entry

    def body(self) -> bytes | AsyncIterator[bytes] | None:
        """The body from its beginning."""
        if not self.framing.has_body:
            return None
        whole = self.incoming.complete
        return self.incoming.pieces() if whole is None else whole

    def framed(self) -> tuple[tuple[str, str], ...]:
        """All headers: the length too, where the client said it."""
        if self.framing.length is None:
            return self.headers
        return (*self.headers, ("content-length", self.framing.length))


class Proxy:
    """Carries requests to replicas and answers back."""

    def __init__(
        self, config: RouterConfig, routes: Routes, upstream: Upstream, metrics: RouterMetrics
    ) -> None:
        self._config = config
        self._routes = routes
        self._upstream = upstream
        self._metrics = metrics
        self._budget = Budget(config.replay_bytes_all)

    async def serve(
        self, scope: Scope, receive: Receive, target: Target, answer: Answer, entry: Entry
    ) -> None:
        """Serve one request of a deployment.

        Raises:
            GarrisonError: It was refused, or no replica answered.
            ClientGone: The client went away.
            BrokenOff: The answer began and could not be ended.
        """
        headers: tuple[Raw, ...] = tuple(scope["headers"])
        framing = framing_of(headers)
        check_upgrade(headers)
        until = _now() + self._config.hold_seconds
        route = self._routes.known(target.deployment)
        if route is not None:
            route.check()  # before the client is told to send its body
        client = scope.get("client")
        origin = Origin(client[0] if client else None, scope["scheme"], target.prefix)
        async with Incoming(
            receive,
            keep=self._config.replay_bytes,
            budget=self._budget,
            stall=self._config.stall_seconds,
        ) as incoming:
            asked = Asked(
                method=scope["method"],
                target=target,
                headers=tuple(for_replica(headers, origin, self._config.token)),
                framing=framing,
                repeatable=may_repeat(scope["method"], headers),
                until=until,
                incoming=incoming,
                entry=entry,
            )
            route = route or await self._find(target, until)
            await self._accept(route, asked, answer)

    async def _find(self, target: Target, until: float) -> Route:
        route = await self._routes.find(target.deployment, until)
        if route is None:
            raise NotFound(f"there is no deployment {target.prefix[1:]}")
        route.check()
        return route

    async def _accept(self, route: Route, asked: Asked, answer: Answer) -> None:
        asked.entry.deployment, asked.entry.path = route.id, asked.target.path
        with route.accepted():
            await self._relay(route, asked, answer)

    async def _relay(self, route: Route, asked: Asked, answer: Answer) -> None:
        """Send a request until a replica answers, and carry its answer."""
        failed: list[Replica] = []
        while True:
            replica = await self._replica(route, asked, failed)
            with replica.serving():
                try:
                    response = await self._send(replica, asked)
                except NotSent as error:
                    route.put_aside(replica)
                    _check_whole(asked, replica, error)
                except NoAnswer as error:
                    failed.append(replica)
                    _check_repeatable(asked, replica, error, sent=len(failed))
                else:
                    replica.refused = 0
                    try:
                        await self._carry(response, asked, answer)
                    finally:
                        response.close()
                    return
            asked.incoming.rewind()
            self._routes.refresh(route)
            self._metrics.retried(route.id)

    async def _replica(self, route: Route, asked: Asked, failed: Sequence[Replica]) -> Replica:
        """Return the replica to send a request to, once there is one."""
        replica = route.choose(failed)
        if replica is not None and replica not in failed:
            return replica
        began = _now()
        try:
            with route.holding():
                self._routes.keep_asking(route)
                if replica is not None:
                    # It has just failed, and is the only one.
                    await asyncio.sleep(self._config.pace.retry)
                return await _held(route, asked, failed)
        finally:
            asked.entry.waited += _now() - began
            if not route.gone:
                self._metrics.held(route.id, _now() - began)

    async def _send(self, replica: Replica, asked: Asked) -> aiohttp.ClientResponse:
        asked.entry.replica = replica.name
        asked.entry.tries += 1
        if asked.framing.has_body:
            await asked.incoming.begin()
        address = f"{replica.endpoint}{asked.target.rest}"
        return await self._upstream.send(asked.method, address, asked.framed(), asked.body())

    async def _carry(self, response: aiohttp.ClientResponse, asked: Asked, answer: Answer) -> None:
        """Carry an answer to the client, each piece as it comes.

        Raises:
            ReplicaUnreachable: It is none that could be carried.
            BrokenOff: It ended before its end.
        """
        if not 200 <= response.status <= 599:
            raise ReplicaUnreachable(f"the replica answered with status {response.status}")
        await answer.begin(response.status, for_client(response.raw_headers))
        try:
            async for piece in response.content.iter_any():
                last = response.content.at_eof()
                if last:
                    asked.incoming.finish()
                await self._pass_on(answer, piece, more=not last)
                if last:
                    return
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOff(str(error)) from error
        asked.incoming.finish()
        await self._pass_on(answer, b"", more=False)

    async def _pass_on(self, answer: Answer, piece: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._config.stall_seconds):
                await answer.go_on(piece, more=more)
        except TimeoutError:
            raise ClientGone from None


async def _held(route: Route, asked: Asked, failed: Sequence[Replica]) -> Replica:
    while True:
        route.check()
        if (replica := route.choose(failed)) is not None:
            return replica
        await route.changed(asked.until)


def _check_whole(asked: Asked, replica: Replica, error: Exception) -> None:
    if not asked.incoming.whole:
        raise ReplicaUnreachable(
            f"replica {replica.name} takes no connection ({error}), and the request is too long "
            "to have been kept"
        ) from error


def _check_repeatable(asked: Asked, replica: Replica, error: Exception, *, sent: int) -> None:
    if asked.repeatable and asked.incoming.whole and sent < MOST_SENT:
        return
    if not asked.repeatable:
        why = "it may have been executed, so it is not repeated"
    elif not asked.incoming.whole:
        why = "it is too long to have been kept"
    else:
        why = f"it was sent {sent} times"
    raise ReplicaUnreachable(
        f"replica {replica.name} had the request and did not answer ({error}); {why}"
    ) from error


def _now() -> float:
    return asyncio.get_running_loop().time()
