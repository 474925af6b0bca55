"""Recovery in place: only dead nodes, only so often, and only when somebody wants it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from garrison.errors import ConflictPhase, ErrorCode, RecoveryExhausted
from garrison.models.cluster_state import Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.providers.simulated.faults import Call, Fault
from tests.workflows.conftest import Claim, Story, VirtualStory, in_phase, reasons, statuses

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def _exhausted(status: ClusterStatus) -> bool:
    error = status.last_error
    return error is not None and error.code is ErrorCode.RECOVERY_EXHAUSTED


def _has_tried(attempts: int) -> Claim:
    """The claim that so many attempts were made, and none is under way."""
    return lambda status: status.recovery.attempts == attempts and not status.recovery.in_progress


async def _degraded(virtual: VirtualStory, name: str, rank: int = 1) -> ClusterStatus:
    virtual.console.kill(virtual.node_id(rank))
    return await virtual.until(name, in_phase(Phase.DEGRADED))


async def test_a11_single_failed_reads_after_a_recovery_start_no_other_one(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running(recovery={"automatic": True})
        await virtual.watch(2.5 * MINUTE)
        virtual.fault(Call.STATUS, Fault.UNKNOWN, rank=0, times=None)
        trying = await virtual.until(running.name, lambda s: s.recovery.attempts > 0)
        tried = await virtual.until(running.name, lambda s: not s.recovery.in_progress)
        virtual.console.clear_faults()
        seen = []
        for _ in range(12):
            virtual.fault(Call.STATUS, Fault.UNKNOWN, rank=0)
            await virtual.watch(MINUTE)
            seen.append(await virtual.status(running.name))
            await virtual.watch(119 * MINUTE, every=60 * MINUTE)
            seen.append(await virtual.status(running.name))

    assert trying.recovery.episode == 1
    assert tried.recovery.reason is not None
    assert "unreachable" in tried.recovery.reason
    assert tried.recovery.last_error is not None
    assert len(virtual.calls(Call.RESTART)) == 1
    assert {one.phase for one in seen} == {Phase.RUNNING}
    assert max(one.recovery.attempts for one in seen) == 1
    assert seen[-1].recovery.episode is None
    assert seen[-1].recovery.attempts == 0
    assert virtual.console.peak(uid=running.uid) == 2


async def test_recovery_is_off_unless_somebody_wants_it(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running()
        await _degraded(virtual, running.name)
        await virtual.watch(HOUR, every=5 * MINUTE)
        left = await virtual.status(running.name)
        calls_before = len(virtual.calls(Call.RESTART))
        await virtual.clusters.recovery(running.name, automatic=True)
        whole = await virtual.until(running.name, in_phase(Phase.RUNNING))

    assert left.phase is Phase.DEGRADED
    assert left.recovery.attempts == 0
    assert calls_before == 0
    assert whole.recovery.attempts == 1
    assert len(virtual.calls(Call.RESTART)) == 1


async def test_recovery_that_is_turned_off_starts_no_attempt(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running(recovery={"automatic": True})
        await virtual.clusters.recovery(running.name, automatic=False)
        await _degraded(virtual, running.name)
        await virtual.watch(HOUR, every=5 * MINUTE)
        left = await virtual.status(running.name)

    assert left.phase is Phase.DEGRADED
    assert virtual.calls(Call.RESTART) == []


async def test_an_automatic_attempt_restarts_only_the_dead_node_and_in_place(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running(nodes=3, recovery={"automatic": True})
        before = virtual.machines(running.uid)
        await _degraded(virtual, running.name)
        whole = await virtual.until(running.name, in_phase(Phase.RUNNING))

    after = virtual.machines(running.uid)
    kept = ("provider_id", "private_address")
    assert [[m[key] for key in kept] for m in after] == [[m[key] for key in kept] for m in before]
    assert [m["incarnation"] for m in after] == [1, 2, 1]
    assert [node.restarts for node in whole.nodes] == [0, 1, 0]
    assert len(virtual.calls(Call.RESTART)) == 1
    assert whole.hourly_usd == running.hourly_usd
    assert whole.charging_since == running.charging_since


async def test_a_manual_recover_restarts_the_dead_node_once(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running()
        with pytest.raises(ConflictPhase):
            await virtual.clusters.recover(running.name)
        await _degraded(virtual, running.name)
        first = await virtual.clusters.recover(running.name, request_id="once")
        again = await virtual.clusters.recover(running.name, request_id="once")
        whole = await virtual.until(running.name, in_phase(Phase.RUNNING))
        late = await virtual.clusters.recover(running.name, request_id="once")

    assert first == again == late
    assert whole.recovery.attempts == 1
    assert not whole.recovery.automatic
    assert len(virtual.calls(Call.RESTART)) == 1


async def test_a_node_that_cannot_be_brought_back_is_skipped(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running(nodes=3, recovery={"automatic": True})
        for rank in (0, 2):
            virtual.console.kill(virtual.node_id(rank))
        virtual.fault(Call.RESTART, Fault.REFUSAL, rank=0, times=None)
        tried = await virtual.until(running.name, _has_tried(1))

    assert tried.phase is Phase.DEGRADED
    assert statuses(tried) == ["stopped", "running", "running"]
    assert tried.recovery.last_error is not None
    assert "no_capacity" in tried.recovery.last_error
    assert [m["incarnation"] for m in virtual.machines(running.uid)] == [1, 1, 2]


async def test_a_spent_budget_is_said_and_the_provider_is_left_alone(
    virtual: VirtualStory,
) -> None:
    virtual.fault(Call.RESTART, Fault.REFUSAL, times=None)

    async with virtual.worker():
        running = await virtual.running(recovery={"automatic": True})
        begun = virtual.clock()
        await _degraded(virtual, running.name)
        spent = await virtual.until(running.name, _exhausted)
        ended_after = virtual.clock() - begun
        attempts = len(virtual.calls(Call.RESTART))
        await virtual.watch(3 * HOUR, every=10 * MINUTE)
        with pytest.raises(RecoveryExhausted):
            await virtual.clusters.recover(running.name)
        later = await virtual.status(running.name)

    first, second, third = (call.at for call in virtual.calls(Call.RESTART))
    assert 0.8 * MINUTE <= second - first <= 1.2 * MINUTE + timedelta(seconds=16)
    assert 4 * MINUTE <= third - second <= 6 * MINUTE + timedelta(seconds=16)
    assert ended_after < 9 * MINUTE
    assert attempts == len(virtual.calls(Call.RESTART)) == 3
    assert spent.phase is later.phase is Phase.DEGRADED
    assert later.recovery.attempts == later.recovery.max_attempts == 3
    assert later.recovery.next_attempt_at is None
    assert list(reasons(later)).count("RecoveryExhausted") == 1
    assert len(virtual.machines(running.uid)) == 2


async def test_a_budget_spent_by_hand_is_said_too(virtual: VirtualStory) -> None:
    virtual.fault(Call.RESTART, Fault.REFUSAL, times=None)

    async with virtual.worker():
        running = await virtual.running(recovery={"max_attempts": 2})
        await _degraded(virtual, running.name)
        for number in (1, 2):
            await virtual.clusters.recover(running.name)
            await virtual.until(running.name, _has_tried(number))
        with pytest.raises(RecoveryExhausted):
            await virtual.clusters.recover(running.name)
        spent = await virtual.status(running.name)

    assert spent.phase is Phase.DEGRADED
    assert _exhausted(spent)
    assert len(virtual.calls(Call.RESTART)) == 2


async def test_a_raised_budget_lets_a_spent_episode_go_on(virtual: VirtualStory) -> None:
    virtual.fault(Call.RESTART, Fault.REFUSAL, times=1)

    async with virtual.worker():
        running = await virtual.running(recovery={"automatic": True, "max_attempts": 1})
        await _degraded(virtual, running.name)
        await virtual.until(running.name, _exhausted)
        await virtual.clusters.recovery(running.name, max_attempts=2)
        whole = await virtual.until(running.name, in_phase(Phase.RUNNING))

    assert whole.last_error is None
    assert len(virtual.calls(Call.RESTART)) == 2


async def test_a_cluster_that_fails_again_within_the_hour_goes_on_with_the_same_budget(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running(recovery={"automatic": True, "max_attempts": 2})
        for _ in range(2):
            await _degraded(virtual, running.name)
            await virtual.until(running.name, in_phase(Phase.RUNNING))
            await virtual.watch(30 * MINUTE, every=5 * MINUTE)
        third = await _degraded(virtual, running.name)
        spent = await virtual.until(running.name, _exhausted)

    assert third.recovery.episode == spent.recovery.episode == 1
    assert len(virtual.calls(Call.RESTART)) == 2


async def test_an_hour_of_health_closes_the_episode(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running(recovery={"automatic": True})
        await _degraded(virtual, running.name)
        whole = await virtual.until(running.name, in_phase(Phase.RUNNING))
        await virtual.watch(61 * MINUTE, every=10 * MINUTE)
        closed = await virtual.status(running.name)
        again = await _degraded(virtual, running.name)

    assert (whole.recovery.episode, whole.recovery.attempts) == (1, 1)
    assert (closed.recovery.episode, closed.recovery.attempts) == (None, 0)
    assert again.recovery.episode == 2


async def test_restarts_that_are_never_answered_are_an_attempt_that_ends(story: Story) -> None:
    story.use(start_timeout=timedelta(seconds=2))
    story.fault(Call.RESTART, code="ConnectionReset", times=None)

    async with story.worker():
        running = await story.running(recovery={"automatic": True})
        story.console.kill(story.node_id(1))
        tried = await story.until(running.name, _has_tried(1))
        calls = len(story.calls(Call.RESTART))
        await asyncio.sleep(2)

    (answer,) = [event.message for event in tried.events if event.reason == "NodeRestart"]
    assert "did not answer in time" in answer
    assert tried.phase is Phase.DEGRADED
    assert tried.recovery.next_attempt_at is not None
    assert len(story.calls(Call.RESTART)) == calls


async def test_a_node_that_comes_back_ends_the_restart_that_was_still_tried(story: Story) -> None:
    story.fault(Call.RESTART, code="ConnectionReset", times=None)

    async with story.worker():
        running = await story.running(recovery={"automatic": True})
        story.console.kill(story.node_id(1))
        await story.until(running.name, in_phase(Phase.DEGRADED))
        story.console.revive(story.node_id(1))
        whole = await story.until(running.name, in_phase(Phase.RUNNING))
        calls = len(story.calls(Call.RESTART))
        await asyncio.sleep(2)

    assert not whole.recovery.in_progress
    assert len(story.calls(Call.RESTART)) == calls
    assert [m["incarnation"] for m in story.machines(running.uid)] == [1, 2]


async def test_recovery_does_not_wait_for_a_command_that_cannot_be_started(story: Story) -> None:
    story.fault(Call.START_WORKLOAD, code="ConnectionReset", rank=0, times=None)

    async with story.worker():
        running = await story.running(command=["train"])
        story.console.kill(story.node_id(1))
        await story.until(running.name, in_phase(Phase.DEGRADED))
        await story.clusters.recover(running.name)
        whole = await story.until(running.name, in_phase(Phase.RUNNING))

    assert [node.restarts for node in whole.nodes] == [0, 1]


async def test_a_lost_answer_to_a_restart_does_not_restart_twice(virtual: VirtualStory) -> None:
    virtual.fault(Call.RESTART, Fault.LOST_RESPONSE, times=2)

    async with virtual.worker():
        running = await virtual.running(recovery={"automatic": True})
        await _degraded(virtual, running.name)
        whole = await virtual.until(running.name, in_phase(Phase.RUNNING))

    assert len(virtual.calls(Call.RESTART)) == 3
    assert [m["incarnation"] for m in virtual.machines(running.uid)] == [1, 2]
    assert whole.recovery.attempts == 1
