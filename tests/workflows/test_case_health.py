"""Nodes that are lost are seen at once; nodes that nobody can tell of are not lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal

import pytest

from garrison.models.cluster_state import Phase
from garrison.providers.simulated.faults import Call, Fault
from tests.workflows.conftest import SOON, Story, VirtualStory, in_phase, phases, reasons, statuses

MINUTE = timedelta(minutes=1)
HEALTHY = ["quoted", "launching", "provisioning", "running"]


async def test_a9_a_dead_node_degrades_the_cluster_at_the_next_pass(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running(nodes=4, command=["python", "train.py"])
        await virtual.watch(MINUTE)
        virtual.console.kill(virtual.node_id(2))
        await virtual.observe()
        degraded = await virtual.status(running.name)
        await virtual.watch(MINUTE)
        later = await virtual.status(running.name)

    told = [event for event in degraded.events if event.reason == "NodeStopped"]
    assert degraded.phase is Phase.DEGRADED
    assert statuses(degraded) == ["running", "running", "stopped", "running"]
    assert [event.node for event in told] == [2]
    assert degraded.hourly_usd == running.hourly_usd
    assert degraded.charging_since == running.charging_since
    assert degraded.billed_until is None
    assert later.phase is Phase.DEGRADED
    assert virtual.calls(Call.RESTART) == []
    assert [m["status"] for m in virtual.machines(running.uid)].count("running") == 3


async def test_a_node_that_comes_back_by_itself_makes_the_cluster_whole(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running(recovery={"automatic": False})
        virtual.console.kill(virtual.node_id(0))
        await virtual.until(running.name, in_phase(Phase.DEGRADED))
        virtual.console.revive(virtual.node_id(0))
        whole = await virtual.until(running.name, in_phase(Phase.RUNNING))

    assert phases(whole) == [*HEALTHY, "degraded", "running"]
    assert virtual.calls(Call.RESTART) == []
    assert whole.nodes[0].restarts == 0
    assert whole.last_error is None


async def test_a_killed_node_is_seen_within_one_interval_of_the_watch(story: Story) -> None:
    async with story.worker():
        running = await story.running()
        await asyncio.sleep(0)
        killed_at = story.clock()
        story.console.kill(story.node_id(1))
        degraded = await story.clusters.wait(running.name, phases={Phase.DEGRADED}, timeout=SOON)

    seen_after = degraded.phase_transitions[-1].time - killed_at
    assert seen_after < story.settings.watch_interval + timedelta(seconds=1)
    assert statuses(degraded) == ["running", "stopped"]


async def test_a10a_a_node_that_cannot_be_told_of_for_20_s_changes_nothing(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running()
        virtual.fault(Call.STATUS, Fault.UNKNOWN, rank=1, times=None, lasts_seconds=20)
        await virtual.watch(3 * MINUTE, every=timedelta(seconds=10))
        after = await virtual.status(running.name)

    assert phases(after) == HEALTHY
    assert statuses(after) == ["running", "running"]


async def test_a10b_a_node_that_cannot_be_told_of_for_5_min_is_unreachable(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running()
        begun = virtual.clock()
        virtual.fault(Call.STATUS, Fault.UNKNOWN, rank=1, times=None, lasts_seconds=300)
        degraded = await virtual.until(running.name, in_phase(Phase.DEGRADED))
        whole = await virtual.until(running.name, in_phase(Phase.RUNNING))

    grace = degraded.phase_transitions[-1].time - begun
    assert statuses(degraded) == ["running", "unreachable"]
    assert 2 * MINUTE <= grace <= 3 * MINUTE
    assert degraded.charging_since is not None
    assert phases(whole) == [*HEALTHY, "degraded", "running"]


@pytest.mark.parametrize("code", ["Timeout", "ConnectionReset"])
async def test_a10c_a_provider_that_does_not_answer_degrades_nothing(
    virtual: VirtualStory, code: str
) -> None:
    async with virtual.worker():
        clusters = [await virtual.running(recovery={"automatic": True}) for _ in range(2)]
        virtual.fault(Call.LIST, code=code, times=None, lasts_seconds=180)
        await virtual.watch(5 * MINUTE, every=MINUTE / 2)
        after = [await virtual.status(one.name) for one in clusters]

    assert [phases(one) for one in after] == [HEALTHY] * 2
    assert [statuses(one) for one in after] == [["running", "running"]] * 2
    assert virtual.calls(Call.RESTART) == []


async def test_a10c_a_list_that_can_tell_nothing_of_any_node_degrades_nothing(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        clusters = [await virtual.running(recovery={"automatic": True}) for _ in range(2)]
        virtual.fault(Call.STATUS, Fault.UNKNOWN, times=None, lasts_seconds=180)
        await virtual.watch(5 * MINUTE, every=MINUTE / 2)
        after = [await virtual.status(one.name) for one in clusters]

    assert [phases(one) for one in after] == [HEALTHY] * 2
    assert virtual.calls(Call.RESTART) == []


async def test_a_late_list_loses_no_node(virtual: VirtualStory) -> None:
    virtual.use(settle=timedelta(minutes=2))
    virtual.fault(Call.LAUNCH, Fault.LATE_LIST, seconds=110)

    async with virtual.worker():
        running = await virtual.running()

    assert phases(running) == HEALTHY
    assert virtual.console.peak(uid=running.uid) == 2


async def test_a_machine_that_vanished_is_lost_after_two_minutes_and_its_cluster_degraded(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running()
        begun = virtual.clock()
        virtual.console.delete_node(virtual.node_id(0))
        degraded = await virtual.until(running.name, in_phase(Phase.DEGRADED))

    assert statuses(degraded) == ["lost", "running"]
    assert degraded.phase_transitions[-1].time - begun >= 2 * MINUTE


async def test_nothing_is_charged_while_no_node_runs(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running()
        await virtual.watch(60 * MINUTE, every=20 * MINUTE)
        for rank in (0, 1):
            virtual.console.kill(virtual.node_id(rank))
        await virtual.until(running.name, in_phase(Phase.DEGRADED))
        dark = await virtual.status(running.name)
        await virtual.watch(60 * MINUTE, every=20 * MINUTE)
        ack = await virtual.clusters.terminate(running.name)
        ended = await virtual.ended(running.name)

    assert running.hourly_usd is not None
    assert dark.charging_since is None
    assert ended.cost_usd == dark.cost_usd
    assert running.hourly_usd <= ended.cost_usd < running.hourly_usd * Decimal("1.02")
    assert ended.billed_until == ack.accepted_at
    assert "ChargePaused" in reasons(ended)


async def test_no_recovery_starts_on_a_mass_failure_until_a_second_pass_confirms_it(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        clusters = [await virtual.running(recovery={"automatic": True}) for _ in range(3)]
        for machine in virtual.machines():
            virtual.console.kill(str(machine["provider_id"]))
        await virtual.observe()
        first = [await virtual.status(one.name) for one in clusters]
        called_after_one_pass = len(virtual.calls(Call.RESTART))
        await virtual.sleep(timedelta(seconds=15))
        await virtual.observe()
        whole = [await virtual.until(one.name, in_phase(Phase.RUNNING)) for one in clusters]

    assert [one.phase for one in first] == [Phase.DEGRADED] * 3
    assert called_after_one_pass == 0
    assert [one.recovery.attempts for one in whole] == [1, 1, 1]
    assert len(virtual.calls(Call.RESTART)) == 6
