"""What a nodepool does over minutes and days, on a server on which they pass at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from garrison.models.group import NodeStatus
from garrison.models.placement import PlacementState
from garrison.providers.simulated.faults import Call, Fault
from tests.workflows.conftest import VirtualStory
from tests.workflows.virtual_pool import VirtualPool


@pytest.fixture
async def pool(virtual: VirtualStory) -> AsyncIterator[VirtualPool]:
    pool = VirtualPool(virtual)
    yield pool
    await pool.end()


async def test_machines_of_the_minimum_that_are_lost_are_bought_again(pool: VirtualPool) -> None:
    async with pool.working():
        await pool.begin(min_instances=2)
        first = await pool.wait(lambda one: one.ready == 2)
        for node in first.nodes:
            pool.story.console.delete_node(str(node.provider_id), vanish=False)
        await pool.wait(lambda one: one.ready == 0)
        again = await pool.wait(lambda one: one.ready == 2 and len(one.nodes) == 2)

    assert {node.name for node in first.nodes}.isdisjoint(node.name for node in again.nodes)
    assert again.desired == 2
    assert len(pool.story.machines()) == 2
    assert pool.story.console.peak(uid=again.uid) <= 3


async def test_a_warm_machine_is_there_at_once_and_another_takes_its_place(
    pool: VirtualPool,
) -> None:
    async with pool.working():
        await pool.begin(warm_instances=1, max_instances=2)
        await pool.wait(lambda one: one.ready == 1)
        asked_at = pool.virtual.clock()
        deployment = await pool.deploy("d", "r1")
        placed = await pool.placed(deployment, lambda one: one.state is PlacementState.PLACED)
        waited = pool.virtual.clock() - asked_at
        warm = await pool.wait(lambda one: one.ready == 2)
        await pool.want(deployment)
        await pool.wait(lambda one: len(one.nodes) == 1)

    assert waited < timedelta(seconds=10)
    assert placed.machine == warm.nodes[0].name
    assert [len(node.replicas) for node in warm.nodes] == [1, 0]
    assert len(pool.story.machines()) == 1


async def test_a_pool_that_nobody_used_for_a_day_says_so_and_gives_nothing_back_by_itself(
    pool: VirtualPool,
) -> None:
    async with pool.working():
        await pool.begin(min_instances=1)
        await pool.wait(lambda one: one.ready == 1)
        await pool.virtual.sleep(timedelta(hours=23, minutes=30))
        early = (await pool.status()).warning
        await pool.virtual.sleep(timedelta(hours=1))
        described = await pool.handle(pool.pool).describe()
        late = await pool.status()

    assert early is None
    assert str(late.warning).startswith("no replica has used it for 24 h, at ")
    assert (await described.memo())["reason"] == late.warning
    assert len(pool.story.machines()) == 1


async def test_a_node_that_is_out_of_reach_for_ten_minutes_is_left_and_given_back(
    pool: VirtualPool,
) -> None:
    async with pool.working():
        await pool.begin(release_after=60)
        deployment = await pool.deploy("d", "r1")
        placed = await pool.wait_placed(deployment, lambda one: one.state is PlacementState.PLACED)
        node = (await pool.status()).nodes[0]
        pool.story.fault(Call.STATUS, Fault.UNKNOWN, node=node.provider_id, times=None)
        await pool.wait(lambda one: one.nodes[0].status is NodeStatus.UNREACHABLE)
        await pool.pass_time(timedelta(minutes=9))
        early = await pool.told(deployment)
        await pool.pass_time(timedelta(minutes=1))
        late = await pool.wait_placed(deployment, lambda one: one.state is PlacementState.DRAINING)
        await pool.want(deployment, "r2")
        other = await pool.wait_placed(deployment, lambda one: one.state is PlacementState.PLACED)
        left = await pool.wait(lambda one: len(one.nodes) == 1)

    assert early is not None
    assert early.placements[0].state is PlacementState.PLACED
    assert (late.machine, late.reason) == (placed.machine, "could not be reached for 10 minutes")
    assert left.nodes[0].name == other.machine != placed.machine
    assert len(pool.story.machines()) == 1


async def test_a_spot_node_that_nobody_could_replace_is_taken_and_its_replica_goes_on(
    pool: VirtualPool,
) -> None:
    async with pool.working():
        await pool.begin(max_instances=1, capacity_types=("spot",))
        deployment = await pool.deploy("d", "r1")
        placed = await pool.wait_placed(deployment, lambda one: one.state is PlacementState.PLACED)
        node = (await pool.status()).nodes[0]
        pool.story.console.notice(str(node.provider_id), 120)
        told = await pool.wait_placed(deployment, lambda one: one.state is PlacementState.DRAINING)
        again = await pool.wait_placed(deployment, lambda one: one.state is PlacementState.PLACED)
        status = await pool.status()

    assert told.machine == placed.machine
    assert told.reason.startswith("spot notice: will be taken at ")
    assert again.machine != placed.machine
    assert (status.ready, len(pool.story.machines())) == (1, 1)
    assert pool.story.console.peak(uid=status.uid) == 1


async def test_machines_on_demand_stand_in_for_spot_until_that_has_been_ready_for_a_while(
    pool: VirtualPool,
) -> None:
    async with pool.working():
        await pool.begin(capacity_types=("spot", "on_demand"), on_demand_fallback=True)
        deployment = await pool.deploy("d", "r1")
        await pool.wait_placed(deployment, lambda one: one.state is PlacementState.PLACED)
        begun = [str(node.capacity_type) for node in (await pool.status()).nodes]
        await pool.pass_time(timedelta(minutes=9))
        early = len((await pool.status()).nodes)
        await pool.pass_time(timedelta(minutes=2))
        (spot,) = (await pool.status()).nodes
        pool.story.console.notice(str(spot.provider_id), 3600)
        await pool.wait_placed(deployment, lambda one: one.state is PlacementState.DRAINING)
        again = await pool.status()
        await pool.want(deployment, "r2")
        await pool.wait_placed(deployment, lambda one: one.state is PlacementState.PLACED)
        await pool.pass_time(timedelta(minutes=11))
        late = await pool.status()

    assert (sorted(begun), early) == (["on_demand", "spot"], 2)
    kinds = [str(node.capacity_type) for node in again.nodes if node.name != spot.name]
    assert sorted(kinds) == ["on_demand", "spot"]
    (left,) = late.nodes
    assert str(left.capacity_type) == "spot"
    assert [one.replica for one in left.replicas] == ["r2"]
    assert pool.story.console.peak(uid=late.uid) == 3
