"""What the watch tells and what a call answers come in any order, also in one workflow task.

The workflow's worker is away while both arrive, so that it is handed both at once; the signal is
then applied before the outcome of the call, although it tells of the time after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta

from temporalio.api.enums.v1 import EventType

from garrison.activities.owners import TemporalOwners
from garrison.activities.watch import ProviderWatcher
from garrison.models.cluster_state import Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.models.queues import TASK_QUEUE, provider_queue
from garrison.providers.simulated.faults import Call, Fault, When
from garrison.workers.main import GarrisonWorker, build_worker, now_utc
from tests.workflows.conftest import SOON, Story

QUICKLY = timedelta(seconds=20)
"""Far less than any timeout after which the workflow would ask once more."""


class Halves:
    """Two workers for one story, the workflow's and the provider's, and a watch by hand."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._provider = self._half(provider_queue(story.name))
        self._workflow = self._half(TASK_QUEUE)
        self._read = 0
        self._watcher = ProviderWatcher(
            story.provider, TemporalOwners(story.client), self._provider.watches, clock=now_utc
        )

    def _half(self, queue: str) -> GarrisonWorker:
        parts = replace(self._story.parts, queues=frozenset({queue}))
        return build_worker(self._story.client, parts, watch=False)

    async def __aenter__(self) -> Halves:
        await self._provider.__aenter__()
        await self._workflow.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._workflow.__aexit__(None, None, None)
        await self._provider.__aexit__(None, None, None)

    async def look(self) -> None:
        """Make a pass, which also answers what the workflow's own worker was asked for."""
        new = await self._workflow.watches.asks(self._story.name, since=self._read)
        self._read = new.last
        for ask in new.asks:
            await self._provider.watches.ask(self._story.name, ask)
        await self._watcher.observe_once()

    async def until(self, name: str, *phases: Phase) -> ClusterStatus:
        """Go on looking until a cluster is in one of these phases."""
        async with asyncio.timeout(QUICKLY.total_seconds()):
            while (status := await self._story.status(name)).phase not in phases:
                await self.look()
                await asyncio.sleep(0.1)
        return status

    async def together(self, name: str, call: Call, step: Awaitable[object]) -> None:
        """Take a step, and have its call's answer and the news of its effect come together."""
        before = len(self._story.calls(call))
        await step
        async with asyncio.timeout(SOON.total_seconds()):
            while len(self._story.calls(call)) == before:
                await asyncio.sleep(0.01)
            await self._workflow.__aexit__(None, None, None)
            while not await self._waits(name, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED):
                await asyncio.sleep(0.05)
            await self.look()
            assert await self._waits(name, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
        self._workflow, self._read = self._half(TASK_QUEUE), 0
        await self._workflow.__aenter__()

    async def _waits(self, name: str, kind: EventType.ValueType) -> bool:
        """Return whether an event of a kind waits for the workflow's worker."""
        waiting: set[int] = set()
        async for event in self._story.handle(name).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                waiting.clear()
            waiting.add(event.event_type)
        return kind in waiting


async def test_nodes_that_were_seen_running_before_the_purchase_was_answered_are_running(
    story: Story,
) -> None:
    story.use(boot=timedelta(0))
    story.fault(Call.LAUNCH, Fault.LATENCY, when=When.BEFORE, seconds=2)

    async with Halves(story) as halves:
        quote = await story.quote()
        await halves.together(quote.name, Call.LAUNCH, story.clusters.launch(quote.name))
        running = await halves.until(quote.name, Phase.RUNNING)

    assert [node.status for node in running.nodes] == ["running", "running"]


async def test_a_place_that_was_seen_empty_before_the_delete_was_answered_is_empty(
    story: Story,
) -> None:
    async with Halves(story) as halves:
        quote = await story.launched()
        await halves.until(quote.name, Phase.RUNNING)
        story.fault(Call.TERMINATE, Fault.LATENCY, when=When.BEFORE, seconds=2)
        await halves.together(quote.name, Call.TERMINATE, story.clusters.terminate(quote.name))
        await halves.until(quote.name, Phase.TERMINATED)

    assert story.machines() == []


async def test_a_node_that_was_seen_running_before_its_restart_was_answered_is_running(
    story: Story,
) -> None:
    story.fault(Call.RESTART, Fault.LATENCY, when=When.AFTER, seconds=2)

    async def kill() -> None:
        story.console.kill(story.node_id(1))
        await halves.look()

    async with Halves(story) as halves:
        quote = await story.launched(recovery={"automatic": True})
        await halves.until(quote.name, Phase.RUNNING)
        await halves.together(quote.name, Call.RESTART, kill())
        again = await halves.until(quote.name, Phase.RUNNING)

    assert [node.restarts for node in again.nodes] == [0, 1]
    assert again.recovery.attempts == 1
