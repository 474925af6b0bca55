"""Terminate is accepted in every phase, always with the same answer, and leaves no machine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from garrison.client.clusters import Clusters
from garrison.errors import NotFound
from garrison.models.cluster_messages import TerminateAck
from garrison.models.cluster_state import Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.models.observation import Observation
from garrison.models.queues import TASK_QUEUE, WATCH_QUEUE, provider_queue
from garrison.providers.simulated.faults import Call, Fault, When
from garrison.workers.main import build_worker
from tests.workflows.conftest import SOON, Story, VirtualStory, in_phase, phases, reasons, statuses

MINUTE = timedelta(minutes=1)


async def _gone(virtual: VirtualStory, name: str, ack: TerminateAck) -> ClusterStatus:
    """The end of a terminated life, checked on both sides, also ten minutes later."""
    ended = await virtual.ended(name)
    again = await virtual.clusters.terminate(name)
    assert ended.phase is Phase.TERMINATED
    assert ended.terminate_accepted_at == ack.accepted_at
    assert again == ack
    assert virtual.machines(ended.uid) == []
    assert ended.blocked is None
    assert ended.last_error is None
    return ended


async def test_a7a_terminate_before_the_first_purchase_is_sent(story: Story) -> None:
    elsewhere = replace(story.parts, queues=frozenset({TASK_QUEUE, WATCH_QUEUE}))

    async with story.worker():
        quote = await story.quote()
    async with build_worker(story.client, elsewhere):
        await story.clusters.launch(quote.name)
        ack = await story.clusters.terminate(quote.name)
    async with story.worker():
        ended = await story.clusters.wait(quote.name, phases={Phase.TERMINATED}, timeout=SOON)
        again = await story.clusters.terminate(quote.name)

    assert phases(ended) == ["quoted", "launching", "terminating", "terminated"]
    assert story.calls(Call.LAUNCH) == []
    assert story.machines() == []
    assert ended.cost_usd == Decimal(0)
    assert again == ack


async def test_a7a_terminate_that_comes_with_the_launch_buys_nothing(story: Story) -> None:
    async with story.worker():
        quote = await story.quote()
    launching = asyncio.create_task(story.clusters.launch(quote.name))
    terminating = asyncio.create_task(story.clusters.terminate(quote.name))
    await asyncio.sleep(0)
    async with story.worker():
        await asyncio.wait({launching})
        await terminating
        ended = await story.clusters.wait(quote.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert story.calls(Call.LAUNCH) == []
    assert story.machines() == []
    assert ended.ready_at is None


@pytest.mark.parametrize("side", list(When))
async def test_a7b_terminate_while_the_purchase_is_under_way(
    virtual: VirtualStory, side: When
) -> None:
    virtual.fault(Call.LAUNCH, Fault.LATENCY, when=side, seconds=1)

    async with virtual.worker():
        quote = await virtual.launched()
        while not virtual.calls(Call.LAUNCH):
            await asyncio.sleep(0.01)
        ack = await virtual.clusters.terminate(quote.name)
        at_once = await virtual.status(quote.name)
        ended = await _gone(virtual, quote.name, ack)

    assert at_once.phase is Phase.TERMINATING
    assert phases(ended) == ["quoted", "launching", "terminating", "terminated"]
    assert virtual.console.peak(uid=quote.uid) == 2
    assert ended.cost_usd == Decimal(0)


async def test_a7b_a_purchase_that_takes_effect_after_it_was_given_up_is_given_back(
    story: Story,
) -> None:
    story.use(effect_bound=timedelta(seconds=3))
    story.fault(Call.LAUNCH, Fault.DELAYED_EFFECT, seconds=2, times=None)

    async with story.worker():
        quote = await story.launched()
        while not story.calls(Call.LAUNCH):
            await asyncio.sleep(0.01)
        ack = await story.clusters.terminate(quote.name)
        ended = await story.clusters.wait(quote.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert ended.terminate_accepted_at == ack.accepted_at
    assert story.console.peak(uid=ended.uid) == 2
    assert story.machines() == []


async def test_a7c_terminate_when_two_of_three_nodes_exist(virtual: VirtualStory) -> None:
    virtual.fault(Call.LAUNCH, Fault.REFUSAL, rank=2)
    virtual.fault(Call.LAUNCH, Fault.LATENCY, when=When.AFTER, seconds=1)

    async with virtual.worker():
        quote = await virtual.launched(nodes=3, failover=True)
        while len(virtual.machines(quote.uid)) < 2:
            await asyncio.sleep(0.01)
        ack = await virtual.clusters.terminate(quote.name)
        await _gone(virtual, quote.name, ack)

    assert len(virtual.calls(Call.LAUNCH)) == 1
    assert virtual.console.peak(uid=quote.uid) == 2


async def test_a7d_terminate_when_all_nodes_are_up_but_not_reached(story: Story) -> None:
    story.fault(Call.PREPARE, code="ConnectionReset", times=None)

    async with story.worker():
        quote = await story.launched()
        before = await story.until(quote.name, lambda one: statuses(one) == ["running"] * 2)
        ack = await story.clusters.terminate(quote.name)
        ended = await story.clusters.wait(quote.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert before.phase is Phase.PROVISIONING
    assert ended.terminate_accepted_at == ack.accepted_at
    assert ended.ready_at is None
    assert ended.cost_usd == Decimal(0)
    assert story.machines() == []


async def test_a7d_terminate_in_the_moment_in_which_the_last_node_is_reached(
    story: Story,
) -> None:
    story.fault(Call.PREPARE, Fault.LATENCY, when=When.AFTER, seconds=2)
    deciding = replace(story.parts, queues=frozenset({TASK_QUEUE}))
    doing = replace(story.parts, queues=frozenset({provider_queue(story.name), WATCH_QUEUE}))

    async with build_worker(story.client, doing):
        async with build_worker(story.client, deciding):
            quote = await story.launched()
            async with asyncio.timeout(SOON.total_seconds()):
                while not story.calls(Call.PREPARE):
                    await asyncio.sleep(0.02)
        terminating = asyncio.create_task(story.clusters.terminate(quote.name))
        await asyncio.sleep(2.5)
        async with build_worker(story.client, deciding):
            await terminating
            ended = await story.clusters.wait(quote.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert ended.ready_at is None
    assert ended.cost_usd == Decimal(0)
    assert story.machines() == []


@pytest.mark.parametrize("moment", ["in_the_call", "in_the_boot"])
async def test_a7e_terminate_during_a_recovery_attempt(virtual: VirtualStory, moment: str) -> None:
    if moment == "in_the_call":
        virtual.fault(Call.RESTART, Fault.LATENCY, when=When.AFTER, seconds=1)

    async with virtual.worker():
        running = await virtual.running(recovery={"automatic": True})
        virtual.console.kill(virtual.node_id(1))
        await virtual.observe()
        while not virtual.calls(Call.RESTART):
            await asyncio.sleep(0.01)
        during = await virtual.status(running.name)
        ack = await virtual.clusters.terminate(running.name)
        ended = await _gone(virtual, running.name, ack)

    assert during.recovery.in_progress
    assert phases(ended)[-3:] == ["degraded", "terminating", "terminated"]
    assert ended.billed_until == ack.accepted_at
    assert virtual.console.peak(uid=running.uid) == 2


@pytest.mark.parametrize("code", ["404", "AlreadyTerminating", "InvalidInstanceID.NotFound", None])
async def test_a8_a_machine_that_is_already_gone_is_no_error(
    virtual: VirtualStory, code: str | None
) -> None:
    if code is not None:
        virtual.fault(Call.TERMINATE, code=code, times=None)

    async with virtual.worker():
        running = await virtual.running()
        virtual.console.delete_node(virtual.node_id(1))
        ack = await virtual.clusters.terminate(running.name)
        ended = await _gone(virtual, running.name, ack)

    assert len(virtual.calls(Call.TERMINATE)) == 1
    assert "Blocked" not in reasons(ended)
    assert ended.ended_at is not None
    assert ended.ended_at - ack.accepted_at < MINUTE


@pytest.mark.parametrize("arguments", [[], [None]], ids=["none", "null"])
async def test_a_terminate_signal_from_temporals_ui_needs_no_argument(
    virtual: VirtualStory, arguments: list[None]
) -> None:
    async with virtual.worker():
        running = await virtual.running()
        await virtual.handle(running.name).signal("terminate", args=arguments)
        ended = await virtual.ended(running.name)

    assert ended.phase is Phase.TERMINATED
    assert virtual.machines(running.uid) == []


async def test_news_that_comes_in_the_moment_in_which_a_life_ends_is_dropped(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running()
        ack = await virtual.clusters.terminate(running.name)
        while "ok" not in [call.result for call in virtual.calls(Call.TERMINATE)]:
            await asyncio.sleep(0.01)
        await virtual.sleep(timedelta(seconds=1))
        handle = virtual.handle(running.name)
        seen = Observation(
            owner=handle.id, uid=running.uid, provider=virtual.name, begun_at=virtual.clock()
        )
        later = [
            seen.model_copy(update={"begun_at": seen.begun_at + timedelta(milliseconds=number)})
            for number in range(30)
        ]
        telling = [handle.signal("observe", observation) for observation in later]
        await asyncio.gather(*telling, return_exceptions=True)
        await _gone(virtual, running.name, ack)


async def test_asks_that_got_lost_are_asked_again(virtual: VirtualStory) -> None:
    virtual.use(settle=MINUTE)

    async with virtual.worker():
        running = await virtual.running()
        virtual.asks.losing = True
        ack = await virtual.clusters.terminate(running.name)
        await virtual.watch(4 * MINUTE)
        virtual.asks.losing = False
        stuck = await virtual.status(running.name)
        await _gone(virtual, running.name, ack)

    assert stuck.phase is Phase.TERMINATING


async def test_a_cluster_that_was_quoted_only_is_terminated_at_once(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        quote = await virtual.quote()
        ack = await virtual.clusters.terminate(quote.name)
        ended = await _gone(virtual, quote.name, ack)

    assert phases(ended) == ["quoted", "terminating", "terminated"]
    assert virtual.calls(Call.TERMINATE) == []


async def test_a_terminate_for_another_life_is_refused(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running()
        with pytest.raises(NotFound):
            await virtual.clusters.terminate(running.name, uid=running.uid[::-1])
        after = await virtual.status(running.name)

    assert after.phase is Phase.RUNNING
    assert len(virtual.machines(running.uid)) == 2


async def test_deletes_go_on_without_end_while_the_provider_refuses_them(
    virtual: VirtualStory,
) -> None:
    virtual.fault(Call.TERMINATE, code="InternalError", times=None)

    async with virtual.worker():
        running = await virtual.running()
        ack = await virtual.clusters.terminate(running.name)
        await virtual.watch(timedelta(minutes=40), every=timedelta(minutes=4))
        late = await virtual.status(running.name)
        still_there = virtual.machines(running.uid)
        virtual.console.clear_faults()
        await _gone(virtual, running.name, ack)

    assert late.phase is Phase.TERMINATING
    assert late.blocked is not None
    assert "InternalError" in late.blocked.message
    assert late.blocked.tries > 30
    assert len(still_there) == 2


async def test_a_machine_that_will_not_go_is_deleted_until_it_does(virtual: VirtualStory) -> None:
    virtual.fault(Call.TERMINATE, Fault.DELAYED_EFFECT, seconds=45, times=3)

    async with virtual.worker():
        running = await virtual.running()
        ack = await virtual.clusters.terminate(running.name)
        await _gone(virtual, running.name, ack)


async def test_temporals_cancel_is_a_clean_terminate(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running()
        await virtual.handle(running.name).cancel()
        ended = await virtual.ended(running.name)
        result = await virtual.handle(running.name).result()

    assert ended.phase is Phase.TERMINATED
    assert result["phase"] == "terminated"
    assert virtual.machines(running.uid) == []
    assert "cancelled in Temporal" in [event.message for event in ended.events]


async def test_temporals_cancel_in_the_moment_of_a_purchase_is_a_clean_terminate(
    virtual: VirtualStory,
) -> None:
    virtual.fault(Call.LAUNCH, Fault.LATENCY, when=When.AFTER, seconds=1)

    async with virtual.worker():
        quote = await virtual.launched()
        while not virtual.machines(quote.uid):
            await asyncio.sleep(0.01)
        await virtual.handle(quote.name).cancel()
        ended = await virtual.ended(quote.name)

    assert ended.phase is Phase.TERMINATED
    assert virtual.machines(quote.uid) == []
    assert virtual.console.peak(uid=quote.uid) == 2


async def test_machines_of_a_life_that_temporal_terminated_are_reaped(story: Story) -> None:
    async with story.worker():
        running = await story.running()
        before = story.machines(running.uid)
        await story.handle(running.name).terminate("in the UI")
        async with asyncio.timeout(SOON.total_seconds()):
            while story.machines(running.uid):
                await asyncio.sleep(0.1)

    assert len(before) == 2
    assert story.console.peak(uid=running.uid) == 2


async def test_terminate_is_accepted_at_once_behind_ten_updates(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running()
        updates = [
            asyncio.create_task(virtual.clusters.recovery(running.name, max_attempts=1 + number))
            for number in range(10)
        ]
        asked_at = virtual.clock()
        ack = await virtual.clusters.terminate(running.name)
        await asyncio.gather(*updates, return_exceptions=True)
        await _gone(virtual, running.name, ack)

    assert ack.accepted_at - asked_at < timedelta(seconds=1)


async def test_terminate_reaches_a_workflow_whose_ten_update_slots_are_taken(
    story: Story,
) -> None:
    async with story.worker():
        running = await story.running()
    updates = [
        asyncio.create_task(story.clusters.recovery(running.name, max_attempts=1 + number))
        for number in range(10)
    ]
    await asyncio.sleep(0.2)
    hasty = Clusters(story.client, story.settings, call_timeout=timedelta(seconds=1))
    ack = await hasty.terminate(running.name)
    async with story.worker():
        ended = await story.clusters.wait(running.name, phases={Phase.TERMINATED}, timeout=SOON)
        await asyncio.gather(*updates, return_exceptions=True)
        again = await story.clusters.terminate(running.name)

    assert ack.uid == running.uid
    assert ended.terminate_accepted_at == again.accepted_at
    assert story.machines(running.uid) == []
    assert in_phase(Phase.TERMINATED)(ended)
