"""A nodepool on a server on which hours pass at once; its watch is made by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.service import RPCError

from garrison.activities.owners import Life, Owner, TemporalOwners
from garrison.activities.watch import ProviderWatcher
from garrison.models.nodepool import NodepoolStatus
from garrison.models.placement import Placement
from garrison.workers.main import GarrisonWorker
from tests.workflows.conftest import VirtualStory
from tests.workflows.pool_story import PoolStory

A_WHILE = timedelta(minutes=20)


class OnePool(TemporalOwners):
    """The one owner, as lists are not implemented on the time-skipping server."""

    def __init__(self, pool: VirtualPool) -> None:
        super().__init__(pool.client)
        self._pool = pool

    async def running(self, provider: str) -> Sequence[Owner]:
        try:
            status = await self._pool.status()
        except RPCError:
            return []
        return [Owner(self._pool.pool, status.uid, status.phase, len(status.nodes))]

    async def life_of(self, workflow_id: str, uid: str) -> Life:
        return Life.LIVING


class VirtualPool(PoolStory):
    """A pool story under a watch that looks when it is asked to, or every so often."""

    def __init__(self, virtual: VirtualStory) -> None:
        super().__init__(virtual)
        self.virtual = virtual

    @asynccontextmanager
    async def working(self) -> AsyncIterator[GarrisonWorker]:
        async with super().working() as worker:
            self.asks = worker.watches
            self.watcher = ProviderWatcher(
                self.virtual.provider, OnePool(self), self.asks, clock=self.virtual.clock
            )
            yield worker

    async def pass_time(self, time: timedelta, *, every: timedelta = timedelta(seconds=15)) -> None:
        """Let time pass under the watch."""
        end = self.virtual.clock() + time
        while (now := self.virtual.clock()) < end:
            asked = self.watcher.next_ask_at
            pause = every if asked is None else min(every, asked - now)
            await self.virtual.sleep(min(max(pause, timedelta(seconds=1)), end - now))
            await self.watcher.observe_once()

    async def wait(self, claim: Callable[[NodepoolStatus], bool]) -> NodepoolStatus:
        """Let time pass until a claim is true of the pool."""
        end = self.virtual.clock() + A_WHILE
        while not claim(status := await self.status()):
            assert self.virtual.clock() < end, f"not within {A_WHILE}: {status}"
            await self.pass_time(timedelta(seconds=5))
        return status

    async def wait_placed(self, id: str, claim: Callable[[Placement], bool]) -> Placement:
        """Let time pass until a claim is true of the first replica of a deployment."""
        end = self.virtual.clock() + A_WHILE
        while True:
            told = await self.told(id)
            if told is not None and told.placements and claim(told.placements[0]):
                return told.placements[0]
            assert self.virtual.clock() < end, f"not within {A_WHILE}: {told}"
            await self.pass_time(timedelta(seconds=5))
