"""The paths of which a history is kept, each walked by a worker as it ships.

A path's name is the claim that its file bears. It gives back the runs to keep: one under that
name, or several with what tells them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from temporalio.client import WorkflowHandle

from garrison.activities.watches import TemporalWatches, watch_id
from garrison.errors import InvalidSpec
from garrison.models.cluster_messages import TerminateRequest
from garrison.models.cluster_state import Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.models.group import NodeStatus
from garrison.models.observation import WatchAsk
from garrison.models.queues import TASK_QUEUE
from garrison.providers.simulated.faults import Call, Fault, When
from tests.workflows.conftest import SOON, Story, VirtualStory, in_phase, statuses
from tests.workflows.test_case_order import Halves

Run = WorkflowHandle[Any, Any]
Runs = Run | Mapping[str, Run]
VirtualPath = Callable[[VirtualStory], Awaitable[Runs]]
RealPath = Callable[[Story], Awaitable[Runs]]

NAME = "train"
ASKS = 30
"""More than the dev server takes before it suggests continue-as-new; half are for later."""
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


async def _terminated(virtual: VirtualStory) -> Run:
    await virtual.clusters.terminate(NAME)
    await virtual.ended(NAME)
    return virtual.handle(NAME)


async def _degraded(virtual: VirtualStory) -> ClusterStatus:
    virtual.console.kill(virtual.node_id(1))
    return await virtual.until(NAME, in_phase(Phase.DEGRADED))


async def _called(virtual: Story, call: Call) -> None:
    while not virtual.calls(call):
        await asyncio.sleep(0.01)


def _tried(attempts: int) -> Callable[[ClusterStatus], bool]:
    return lambda status: status.recovery.attempts == attempts and not status.recovery.in_progress


async def cluster_is_launched_and_given_back(virtual: VirtualStory) -> Runs:
    await virtual.running(name=NAME)
    return await _terminated(virtual)


async def cluster_expires_unlaunched(virtual: VirtualStory) -> Runs:
    await virtual.quote(name=NAME)
    await virtual.sleep(16 * MINUTE)
    return virtual.handle(NAME)


async def cluster_is_never_quoted(virtual: VirtualStory) -> Runs:
    try:
        await virtual.quote(name=NAME, accelerator="H1000")
    except InvalidSpec:
        return virtual.handle(NAME)
    raise AssertionError("there is no such accelerator")


async def cluster_is_quoted_again_and_given_back_unlaunched(virtual: VirtualStory) -> Runs:
    await virtual.quote(name=NAME)
    await virtual.quote(name=NAME, nodes=3)
    try:
        await virtual.quote(name=NAME, accelerator="H1000")
    except InvalidSpec:
        return await _terminated(virtual)
    raise AssertionError("there is no such accelerator")


async def cluster_is_not_bought_above_its_price(virtual: VirtualStory) -> Runs:
    quote = await virtual.quote(name=NAME)
    virtual.console.set_price(quote.offer.instance_type, Decimal(10_000))
    await virtual.clusters.launch(NAME)
    await virtual.ended(NAME)
    return virtual.handle(NAME)


async def cluster_fails_without_capacity(virtual: VirtualStory) -> Runs:
    virtual.fault(Call.LAUNCH, Fault.REFUSAL, rank=1)
    await virtual.launched(name=NAME)
    await virtual.ended(NAME)
    return virtual.handle(NAME)


async def cluster_fails_over_to_another_region(virtual: VirtualStory) -> Runs:
    virtual.fault(Call.LAUNCH, Fault.REFUSAL, region="sim-a", rank=1)
    await virtual.running(name=NAME, failover=True)
    return await _terminated(virtual)


async def cluster_fails_over_when_a_node_does_not_start(virtual: VirtualStory) -> Runs:
    virtual.fault(
        Call.LAUNCH,
        Fault.NODE_FAILS,
        rank=1,
        seconds=10,
        code="InsufficientInstanceCapacity",
        region="sim-a",
    )
    await virtual.running(name=NAME, failover=True)
    return await _terminated(virtual)


async def cluster_is_given_back_when_it_does_not_start_in_time(virtual: VirtualStory) -> Runs:
    virtual.fault(Call.PREPARE, code="ConnectionReset", times=None)
    await virtual.launched(name=NAME)
    await virtual.ended(NAME, every=3 * MINUTE)
    return virtual.handle(NAME)


async def cluster_asks_again_when_answers_are_lost(virtual: VirtualStory) -> Runs:
    virtual.fault(Call.LAUNCH, Fault.LOST_RESPONSE)
    virtual.fault(Call.LAUNCH, Fault.LATE_LIST, seconds=20)
    await virtual.running(name=NAME, recovery={"automatic": True})
    virtual.fault(Call.RESTART, Fault.LOST_RESPONSE)
    await _degraded(virtual)
    await virtual.until(NAME, in_phase(Phase.RUNNING))
    return await _terminated(virtual)


async def cluster_recovers_a_lost_node(virtual: VirtualStory) -> Runs:
    await virtual.running(name=NAME, recovery={"automatic": True})
    await _degraded(virtual)
    await virtual.until(NAME, in_phase(Phase.RUNNING))
    await virtual.watch(65 * MINUTE, every=10 * MINUTE)
    closed = await virtual.status(NAME)
    assert closed.recovery.episode is None
    return await _terminated(virtual)


async def cluster_is_recovered_by_hand(virtual: VirtualStory) -> Runs:
    await virtual.running(name=NAME)
    await _degraded(virtual)
    await virtual.clusters.recover(NAME)
    await virtual.until(NAME, in_phase(Phase.RUNNING))
    return await _terminated(virtual)


async def cluster_spends_its_recovery_budget(virtual: VirtualStory) -> Runs:
    virtual.fault(Call.RESTART, Fault.REFUSAL, times=3)
    await virtual.running(name=NAME, recovery={"automatic": True})
    await _degraded(virtual)
    await virtual.until(NAME, lambda status: status.last_error is not None)
    await virtual.clusters.recovery(NAME, max_attempts=4)
    await virtual.until(NAME, in_phase(Phase.RUNNING))
    return await _terminated(virtual)


async def cluster_tells_a_silent_provider_from_a_lost_node(virtual: VirtualStory) -> Runs:
    await virtual.running(name=NAME)
    virtual.fault(Call.LIST, code="InternalError", lasts_seconds=300, times=None)
    await virtual.watch(5 * MINUTE, every=MINUTE)
    virtual.fault(Call.STATUS, Fault.UNKNOWN, rank=0, times=None)
    await virtual.until(NAME, in_phase(Phase.DEGRADED))
    virtual.console.clear_faults()
    await virtual.until(NAME, in_phase(Phase.RUNNING))
    virtual.console.delete_node(virtual.node_id(1))
    lost = await virtual.until(NAME, in_phase(Phase.DEGRADED))
    assert NodeStatus.LOST in {node.status for node in lost.nodes}
    return await _terminated(virtual)


async def cluster_is_given_back_in_mid_purchase(virtual: VirtualStory) -> Runs:
    virtual.fault(Call.LAUNCH, Fault.LATENCY, when=When.AFTER, seconds=1)
    await virtual.launched(name=NAME)
    await _called(virtual, Call.LAUNCH)
    return await _terminated(virtual)


async def cluster_is_given_back_in_mid_recovery(virtual: VirtualStory) -> Runs:
    virtual.fault(Call.RESTART, Fault.LATENCY, when=When.AFTER, seconds=1)
    await virtual.running(name=NAME, recovery={"automatic": True})
    virtual.console.kill(virtual.node_id(1))
    await virtual.observe()
    await _called(virtual, Call.RESTART)
    return await _terminated(virtual)


async def cluster_takes_cancel_for_terminate(virtual: VirtualStory) -> Runs:
    await virtual.running(name=NAME)
    await virtual.handle(NAME).cancel()
    await virtual.ended(NAME)
    return virtual.handle(NAME)


async def cluster_takes_cancel_in_mid_purchase_for_terminate(virtual: VirtualStory) -> Runs:
    virtual.fault(Call.LAUNCH, Fault.LATENCY, when=When.AFTER, seconds=1)
    await virtual.launched(name=NAME)
    await _called(virtual, Call.LAUNCH)
    await virtual.handle(NAME).cancel()
    await virtual.ended(NAME)
    return virtual.handle(NAME)


async def cluster_is_given_back_by_signal(virtual: VirtualStory) -> Runs:
    running = await virtual.running(name=NAME)
    handle = virtual.handle(NAME)
    await handle.signal("observe", args=[])
    await handle.signal("terminate", TerminateRequest(request_id="x", uid=running.uid[::-1]))
    await handle.signal("terminate", args=[])
    await virtual.ended(NAME)
    return handle


async def cluster_is_blocked_until_deletes_work(virtual: VirtualStory) -> Runs:
    virtual.fault(Call.TERMINATE, code="InternalError", times=4)
    await virtual.running(name=NAME)
    return await _terminated(virtual)


async def cluster_asks_the_watch_again_when_it_hears_nothing(virtual: VirtualStory) -> Runs:
    await virtual.running(name=NAME)
    virtual.asks.losing = True
    await virtual.clusters.terminate(NAME)
    await virtual.watch(7 * MINUTE)
    virtual.asks.losing = False
    await virtual.ended(NAME)
    return virtual.handle(NAME)


async def cluster_starts_its_command_again_after_a_boot(virtual: VirtualStory) -> Runs:
    virtual.fault(Call.START_WORKLOAD, Fault.LOST_RESPONSE)
    await virtual.running(
        name=NAME, command=["train"], env={"TOKEN": "hidden"}, recovery={"automatic": True}
    )
    await virtual.watch(MINUTE)
    await _degraded(virtual)
    await virtual.until(NAME, in_phase(Phase.RUNNING))
    await virtual.watch(MINUTE)
    return await _terminated(virtual)


async def cluster_ends_when_its_command_is_done(virtual: VirtualStory) -> Runs:
    await virtual.running(name=NAME, command=["train"], when_done="terminate")
    await virtual.watch(MINUTE)
    for rank in range(2):
        virtual.console.exit_workload(virtual.node_id(rank), 0)
    await virtual.ended(NAME)
    return virtual.handle(NAME)


async def cluster_ends_with_its_lifetime(virtual: VirtualStory) -> Runs:
    await virtual.quote(name=NAME)
    await virtual.clusters.launch(NAME, max_lifetime=2 * HOUR)
    await virtual.until(NAME, in_phase(Phase.RUNNING))
    await virtual.watch(2 * HOUR, every=10 * MINUTE)
    await virtual.ended(NAME)
    return virtual.handle(NAME)


async def cluster_gives_up_an_endless_boot(virtual: VirtualStory) -> Runs:
    await virtual.running(name=NAME)
    await _degraded(virtual)
    virtual.use(boot=3 * HOUR)
    await virtual.provider.restart_node(virtual.node_id(1), "somebody's own")
    await virtual.until(NAME, lambda status: statuses(status)[1] == "failed")
    return await _terminated(virtual)


async def cluster_probes_the_watch_while_nothing_happens(virtual: VirtualStory) -> Runs:
    await virtual.running(name=NAME)
    await virtual.watch(20 * HOUR, every=HOUR)
    return await _terminated(virtual)


async def cluster_continues_as_new(story: Story) -> Runs:
    handle = story.handle(NAME)
    async with story.worker():
        await story.running(name=NAME, recovery={"automatic": True})
        before = (await handle.describe()).run_id
        number = 0
        while (await handle.describe()).run_id == before:
            number += 1
            await story.clusters.recovery(NAME, max_attempts=5, request_id=f"change-{number}")
        await story.clusters.recovery(NAME, max_attempts=9, request_id=f"change-{number}")
        story.console.kill(story.node_id(1))
        await story.until(NAME, lambda status: status.recovery.attempts == 1)
        await story.clusters.wait(NAME, phases={Phase.RUNNING}, timeout=SOON)
        await story.clusters.terminate(NAME)
        await story.clusters.wait(NAME, phases={Phase.TERMINATED}, timeout=SOON)
    return {
        "before": story.client.get_workflow_handle(handle.id, run_id=before),
        "after": story.client.get_workflow_handle(handle.id),
    }


async def cluster_hears_of_its_nodes_before_its_purchase_is_answered(story: Story) -> Runs:
    story.use(boot=0 * MINUTE)
    story.fault(Call.LAUNCH, Fault.LATENCY, when=When.BEFORE, seconds=2)
    async with Halves(story) as halves:
        await story.quote(name=NAME)
        await halves.together(NAME, Call.LAUNCH, story.clusters.launch(NAME))
        for _ in range(4):
            await halves.look()
            await asyncio.sleep(0.2)
    return story.handle(NAME)


async def watch_is_renewed_by_the_next_worker(story: Story) -> Runs:
    async with story.worker():
        await story.running(name=NAME)
    async with story.worker():
        await story.clusters.terminate(NAME)
        await story.clusters.wait(NAME, phases={Phase.TERMINATED}, timeout=SOON)
        handle = story.client.get_workflow_handle(watch_id(story.name))
        await handle.signal("ask", args=[])
        before = (await handle.describe()).run_id
        watches = TemporalWatches(story.client, task_queue=TASK_QUEUE)
        for number in range(ASKS):
            not_before = story.clock() + (HOUR if number % 2 else 0 * HOUR)
            ask = WatchAsk(owner=f"cluster/{number % 6}", uid="x", not_before=not_before)
            await watches.ask(story.name, ask)
        async with asyncio.timeout(SOON.total_seconds()):
            while (await handle.describe()).run_id == before:
                await asyncio.sleep(0.05)
            late = WatchAsk(owner="cluster/6", uid="x", not_before=story.clock() + HOUR)
            await watches.ask(story.name, late)
            while len((await handle.query("get"))["asks"]) != 4:
                await asyncio.sleep(0.05)
    return {
        "before": story.client.get_workflow_handle(handle.id, run_id=before),
        "after": story.client.get_workflow_handle(handle.id),
    }


VIRTUAL: tuple[VirtualPath, ...] = (
    cluster_is_launched_and_given_back,
    cluster_expires_unlaunched,
    cluster_is_never_quoted,
    cluster_is_quoted_again_and_given_back_unlaunched,
    cluster_is_not_bought_above_its_price,
    cluster_fails_without_capacity,
    cluster_fails_over_to_another_region,
    cluster_fails_over_when_a_node_does_not_start,
    cluster_is_given_back_when_it_does_not_start_in_time,
    cluster_asks_again_when_answers_are_lost,
    cluster_recovers_a_lost_node,
    cluster_is_recovered_by_hand,
    cluster_spends_its_recovery_budget,
    cluster_tells_a_silent_provider_from_a_lost_node,
    cluster_is_given_back_in_mid_purchase,
    cluster_is_given_back_in_mid_recovery,
    cluster_takes_cancel_for_terminate,
    cluster_takes_cancel_in_mid_purchase_for_terminate,
    cluster_is_given_back_by_signal,
    cluster_is_blocked_until_deletes_work,
    cluster_asks_the_watch_again_when_it_hears_nothing,
    cluster_starts_its_command_again_after_a_boot,
    cluster_ends_when_its_command_is_done,
    cluster_ends_with_its_lifetime,
    cluster_gives_up_an_endless_boot,
    cluster_probes_the_watch_while_nothing_happens,
)
"""Walked on the time-skipping server, where hours pass at once."""

CLOUDS: Mapping[VirtualPath, Mapping[str, object]] = {
    cluster_asks_the_watch_again_when_it_hears_nothing: {"settle": MINUTE}
}
"""What the cloud of a path is like, where it is not as usual."""

REAL: tuple[RealPath, ...] = (
    cluster_continues_as_new,
    cluster_hears_of_its_nodes_before_its_purchase_is_answered,
    watch_is_renewed_by_the_next_worker,
)
"""Walked on the dev server, told to suggest continue-as-new early."""
