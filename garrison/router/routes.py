"""All deployments that the router knows, and how it learns of them.

What is known is served, whether or not anybody can be asked: the directory is read when a
deployment is met for the first time, beside a request when what is known is old, and again and
again while requests wait. Changes are told besides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from garrison.errors import GarrisonError, ServiceUnreachable
from garrison.models.deployment_state import DeploymentEndpoints
from garrison.router.base import Directory
from garrison.router.config import RouterConfig
from garrison.router.metrics import RouterMetrics
from garrison.router.route import RETRY_AFTER, Crowd, Route

logger = logging.getLogger(__name__)

MOST_MISSING = 1000
MOST_ASKING = 1000
T = TypeVar("T")
START_PAUSES = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    said: T


class Routes:
    """The routes by deployment. A context: inside, it keeps them fresh."""

    def __init__(self, config: RouterConfig, directory: Directory, metrics: RouterMetrics) -> None:
        self._config = config
        self._directory = directory
        self._metrics = metrics
        self._crowd = Crowd(config.held_all)
        self._routes: dict[str, Route] = {}
        self._missing: dict[str, float] = {}
        self._looks: dict[str, asyncio.Task[bool]] = {}
        self._keepers: dict[Route, asyncio.Task[None]] = {}
        self._asking = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._silent = False

    @contextlib.asynccontextmanager
    async def fresh(self) -> AsyncIterator[None]:
        """Learn of all deployments in the background, and end all background work afterwards."""
        self._spawn(self._learn_all())
        try:
            yield
        finally:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def __iter__(self) -> Iterator[Route]:
        return iter(tuple(self._routes.values()))

    def __contains__(self, deployment: str) -> bool:
        return deployment in self._routes

    def known(self, deployment: str) -> Route | None:
        """Return a deployment's route if it is known, and have it read anew if that is old."""
        route = self._routes.get(deployment)
        if route is not None and self._is_old(route):
            route.asked_at = _now()
            self._look(deployment)
        return route

    def _is_old(self, route: Route) -> bool:
        pace, now = self._config.pace, _now()
        return now - route.heard_at > pace.stale and now - route.asked_at > pace.held[-1]

    async def find(self, deployment: str, until: float) -> Route | None:
        """Return a deployment's route, asking for it; None when there is no such deployment.

        Raises:
            ServiceUnreachable: Nobody could be asked in time.
        """
        if self._asking >= MOST_ASKING:
            raise _unknown(deployment)
        self._asking += 1
        try:
            return await self._find(deployment, until)
        finally:
            self._asking -= 1

    async def _find(self, deployment: str, until: float) -> Route | None:
        for pause in _repeating(self._config.pace.held):
            if (route := self.known(deployment)) is not None or self._is_missing(deployment):
                return route
            if await asyncio.shield(self._look(deployment)):
                continue
            if _now() + pause > until:
                raise _unknown(deployment)
            await asyncio.sleep(pause)
        raise AssertionError("pauses do not end")

    def take(self, told: DeploymentEndpoints) -> Route:
        """Learn what is said of a deployment, unless something newer is known."""
        deployment = told.id.lower()
        self._missing.pop(deployment, None)
        route = self._routes.get(deployment)
        if route is None:
            route = self._routes[deployment] = Route(told, self._config, self._crowd, _now())
        else:
            route.take(told, _now())
        return route

    def keep_asking(self, route: Route) -> None:
        """Wake a deployment, and read it again and again, as long as requests wait for it."""
        if route not in self._keepers:
            self._keepers[route] = self._spawn(self._keep(route))

    def refresh(self, route: Route) -> None:
        """Have a deployment read anew, beside what goes on."""
        self._look(route.id)

    def stop(self) -> None:
        """Let nobody wait any more."""
        for route in self:
            route.stop()

    async def _learn_all(self) -> None:
        pauses = _repeating(START_PAUSES)
        while (answer := await self._ask(self._directory.running())) is None:
            await asyncio.sleep(next(pauses))
        for deployment in answer.said:
            if deployment not in self._routes:
                await asyncio.shield(self._look(deployment))

    async def _keep(self, route: Route) -> None:
        woken_at: float | None = None
        try:
            for pause in _repeating(self._config.pace.held):
                # What was known may be old, so that only the look shows that it is at zero.
                woken_at = await self._wake(route, woken_at)
                await asyncio.shield(self._look(route.id))
                woken_at = await self._wake(route, woken_at)
                await asyncio.sleep(pause)
                if not route.queued:
                    return
        finally:
            del self._keepers[route]

    async def _wake(self, route: Route, woken_at: float | None) -> float | None:
        """Wake a deployment that wants no replica, if that is due; return when it was woken."""
        due = woken_at is None or _now() - woken_at >= self._config.pace.wake
        if route.told.desired or not route.queued or not due:
            return woken_at
        if await self._ask(self._directory.wake(route.told.id, route.told.uid)) is None:
            return woken_at
        self._metrics.woke(route.id)
        return _now()

    def _look(self, deployment: str) -> asyncio.Task[bool]:
        """Read a deployment once, however many ask for it; whether somebody answered."""
        if deployment not in self._looks:
            self._looks[deployment] = self._spawn(self._read(deployment))
        return self._looks[deployment]

    async def _read(self, deployment: str) -> bool:
        try:
            answer = await self._ask(self._directory.endpoints(deployment))
        finally:
            del self._looks[deployment]
        if answer is None:
            return False
        if answer.said is None:
            self._forget(deployment)
        else:
            self.take(answer.said)
        return True

    async def _ask(self, question: Awaitable[T]) -> _Answer[T] | None:
        """Return what the directory answers, None where it does not."""
        try:
            answer = _Answer(await question)
        except GarrisonError as error:
            if not self._silent:
                logger.warning("deployments cannot be read; what is known is served: %s", error)
            self._silent = True
            return None
        except Exception:
            # Nobody would ask again for those that wait.
            logger.exception("deployments cannot be read, by a fault of ours")
            return None
        self._silent = False
        return answer

    def _forget(self, deployment: str) -> None:
        while len(self._missing) >= MOST_MISSING:
            del self._missing[next(iter(self._missing))]
        self._missing[deployment] = _now()
        route = self._routes.pop(deployment, None)
        if route is not None:
            route.forget()
            self._metrics.forget(deployment)

    def _is_missing(self, deployment: str) -> bool:
        since = self._missing.get(deployment)
        if since is not None and _now() - since > self._config.pace.missing:
            del self._missing[deployment]
            return False
        return since is not None

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _repeating(pauses: tuple[float, ...]) -> Iterator[float]:
    yield from pauses
    while True:
        yield pauses[-1]


def _unknown(deployment: str) -> ServiceUnreachable:
    error = ServiceUnreachable(f"nobody could be asked whether there is a deployment {deployment}")
    error.retry_after_seconds = RETRY_AFTER
    return error


def _now() -> float:
    return asyncio.get_running_loop().time()
