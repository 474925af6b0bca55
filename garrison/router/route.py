"""One deployment as the router knows it: where it answers, who waits, and what was counted.

Counts are kept by contexts, so that each falls again however a request ends: one that stayed up
would keep a machine for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator
from datetime import UTC, datetime

from garrison.errors import DeploymentDisabled, NoReplica, NotFound, TooManyRequests
from garrison.models.deployment_state import DeploymentEndpoints
from garrison.models.load import LoadCounts
from garrison.router.config import RouterConfig
from garrison.router.metrics import Gauges
from garrison.router.replicas import Replica, Replicas

RETRY_AFTER = 5.0
"""Seconds after which a client that was turned away should come again."""

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class Crowd:
    """How many requests wait, for whatever deployment."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0


class Route:
    """The way to one deployment.

    Attributes:
        id: In lower case.
        told: The newest that is known of it.
        heard_at: When that was last confirmed, on the loop's clock; `asked_at` when it was last
            asked for.
        gone: There is no such deployment any more.
        arrivals: Requests that were accepted, `completions` those of them that ended.
        queued: Those that wait for a replica.
    """

    def __init__(
        self, told: DeploymentEndpoints, config: RouterConfig, crowd: Crowd, now: float
    ) -> None:
        self.id = told.id.lower()
        self.told = told
        self.heard_at = self.asked_at = now
        self.gone = False
        self.replicas = Replicas(config.pace.aside)
        self.arrivals = 0
        self.completions = 0
        self.queued = 0
        self._config = config
        self._crowd = crowd
        self._stopping = False
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.replicas.take(told.replicas)

    def take(self, told: DeploymentEndpoints, now: float) -> None:
        """Learn what is said, unless something newer is known."""
        if _age(told) < _age(self.told):
            return
        self.told = told
        self.heard_at = now
        self.replicas.take(told.replicas)
        self._look_again()

    def forget(self) -> None:
        """The deployment is gone: who waits for it is told so."""
        self.gone = True
        self._look_again()

    def stop(self) -> None:
        """The router ends: nobody waits any more."""
        self._stopping = True
        self._look_again()

    def check(self) -> None:
        """Check that requests are taken now.

        Raises:
            NotFound, DeploymentDisabled, NoReplica: They are not.
        """
        if self.gone:
            raise NotFound(f"there is no deployment {self.told.id}")
        if self._stopping:
            raise NoReplica("the router is being stopped", retry_after_seconds=1)
        if not self.told.enabled:
            raise DeploymentDisabled(f"deployment {self.told.id} is disabled")
        if not self.told.wakeable and not self.replicas.ready:
            why = self.told.reason or "it has no replica and will get none"
            raise NoReplica(f"deployment {self.told.id}: {why}", retry_after_seconds=RETRY_AFTER)

    @contextlib.contextmanager
    def accepted(self) -> Iterator[None]:
        """Count a request from its arrival to its end."""
        self.arrivals += 1
        try:
            yield
        finally:
            self.completions += 1

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Count a request among those that wait.

        Raises:
            TooManyRequests: Too many wait already.
        """
        each, most = self._config.held_each, self._crowd.most
        if self.queued >= each or self._crowd.size >= most:
            raise TooManyRequests(
                f"{self.queued} requests wait for deployment {self.told.id} already, and "
                f"{self._crowd.size} in all; at most {each} and {most} may",
                retry_after_seconds=RETRY_AFTER,
            )
        self.queued += 1
        self._crowd.size += 1
        try:
            yield
        finally:
            self.queued -= 1
            self._crowd.size -= 1

    async def changed(self, until: float) -> None:
        """Return when a replica may be ready, or when nobody should wait any more.

        Raises:
            NoReplica: The time has passed.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            async with asyncio.timeout_at(until):
                await waiter
        except TimeoutError:
            raise NoReplica(
                f"no replica of deployment {self.told.id} was ready within "
                f"{self._config.hold_seconds:g} s",
                retry_after_seconds=RETRY_AFTER,
            ) from None
        finally:
            self._waiting.pop(waiter, None)

    def choose(self, avoid: Collection[Replica] = ()) -> Replica | None:
        """Return the replica for a request, see `Replicas.choose`."""
        return self.replicas.choose(_now(), avoid)

    def put_aside(self, replica: Replica) -> None:
        """Give a replica that took no connection a rest."""
        until = self.replicas.put_aside(replica, _now())
        asyncio.get_running_loop().call_at(until, self._look_again)

    def gauges(self) -> Gauges:
        """Return what Prometheus is shown."""
        replicas = self.replicas
        return Gauges(self.id, held=self.queued, running=replicas.running, ready=replicas.ready)

    def counts(self) -> LoadCounts:
        """Return what autoscaling is told."""
        return LoadCounts(
            running=self.replicas.running,
            queued=self.queued,
            arrivals=self.arrivals,
            completions=self.completions,
        )

    def _look_again(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


def _age(told: DeploymentEndpoints) -> tuple[datetime, int]:
    return told.created_at or _LONG_AGO, told.version


def _now() -> float:
    return asyncio.get_running_loop().time()
