"""Nodepools on a real server, with a cloud on paper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer

from garrison.errors import ErrorCode
from garrison.failures import DATA_CONVERTER
from garrison.models.offer import CapacityType
from garrison.models.placement import PlacementState
from garrison.providers.simulated.faults import Call, Fault
from garrison.workers.main import now_utc, workflow_runner
from garrison.workflows.nodepool import NodepoolWorkflow
from tests.workflows.conftest import Story
from tests.workflows.pool_story import PoolStory


@pytest.fixture
async def pools(story: Story) -> AsyncIterator[PoolStory]:
    pools = PoolStory(story)
    yield pools
    await pools.end()


async def test_a_pool_at_zero_costs_nothing(pools: PoolStory) -> None:
    async with pools.working():
        await pools.begin()
        status = await pools.until(lambda one: one.phase == "active")

    assert (status.provider, status.region) == (pools.story.name, "sim-a")
    assert status.hourly_usd == 0
    assert (status.desired, pools.story.machines()) == (0, [])


async def test_a_replica_gets_a_machine_which_goes_when_it_is_withdrawn(pools: PoolStory) -> None:
    async with pools.working():
        await pools.begin()
        deployment = await pools.deploy("d", "r1", port=8000)
        placed = await pools.placed(deployment, lambda one: one.state is PlacementState.PLACED)
        used = await pools.status()
        await pools.want(deployment)
        empty = await pools.until(lambda one: not one.nodes)

    (node,) = used.nodes
    assert (placed.machine, placed.devices, placed.port) == (node.name, (0,), 8000)
    assert placed.node is not None
    assert [one.replica for one in node.replicas] == ["r1"]
    assert used.hourly_usd == node.usd_per_hour
    assert empty.hourly_usd == 0
    assert pools.story.machines() == []


async def test_a15_ten_deployments_at_once_never_pass_the_maximum(pools: PoolStory) -> None:
    async with pools.working():
        await pools.begin(max_instances=3)
        ids = [pools.deploy(f"d{number}", "r") for number in range(10)]
        deployments = await asyncio.gather(*ids)
        status = await pools.until(lambda one: one.ready == 3 and one.pending == 7)
        told = [await pools.placed(one, lambda _: True) for one in deployments]

    waiting = [one.reason for one in told if one.state is PlacementState.PENDING and not one.node]
    assert pools.story.console.peak(uid=status.uid) == 3
    assert waiting.count("pool at max (3)") == 7
    assert status.desired == 3


async def test_a12_on_demand_is_bought_at_once_when_spot_is_refused(pools: PoolStory) -> None:
    pools.story.fault(Call.LAUNCH, Fault.ERROR, code="MaxSpotInstanceCountExceeded", times=1)
    async with pools.working():
        await pools.begin(capacity_types=("spot", "on_demand"), max_instances=1)
        deployment = await pools.deploy("d", "r1")
        await pools.placed(deployment, lambda one: one.state is PlacementState.PLACED)
        status = await pools.status()

    (node,) = status.nodes
    assert node.capacity_type is CapacityType.ON_DEMAND
    assert node.fallback is ErrorCode.QUOTA_EXCEEDED


async def test_what_a_terminated_deployment_had_goes_at_the_next_look(pools: PoolStory) -> None:
    async with pools.working():
        await pools.begin(release_after=3600)
        deployment = await pools.deploy("d", "r1")
        other = await pools.deploy("e", "r2")
        for one in (deployment, other):
            await pools.placed(one, lambda one: one.state is PlacementState.PLACED)
        await passes(pools, 1)  # by then the pool has nothing more to tell

        await pools.handle(deployment).terminate("in the UI")
        began = now_utc()
        left = await pools.until(lambda one: len(one.nodes) == 1)
        passed = now_utc() - began

    assert [one.replica for one in left.nodes[0].replicas] == ["r2"]
    assert len(pools.story.machines()) == 1
    assert "DeploymentGone" in [event.reason for event in left.events]
    assert passed < timedelta(seconds=10)


async def passes(pools: PoolStory, count: int) -> None:
    """Return after so many further passes of the watch."""
    before = len(pools.story.calls(Call.LIST))
    while len(pools.story.calls(Call.LIST)) < before + count:
        await asyncio.sleep(0.05)


async def test_a_deleted_pool_ends_once_everything_is_given_back(pools: PoolStory) -> None:
    async with pools.working():
        await pools.begin(min_instances=2)
        await pools.until(lambda one: one.ready == 2)
        await pools.delete(pools.pool)
        await pools.handle(pools.pool).result()
        cluster = await pools.handle(pools.cluster).query("get")

    assert pools.story.machines() == []
    assert cluster["nodepools"] == []


async def test_a_pool_without_its_compute_cluster_ends_with_the_reason(pools: PoolStory) -> None:
    async with pools.working():
        await pools.create_pool()
        with pytest.raises(WorkflowFailureError) as failed:
            await pools.handle(pools.pool).result()

    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == ErrorCode.NOT_FOUND
    assert pools.place in str(failed.value.cause)


async def test_a_pool_goes_over_into_new_runs_and_nobody_notices(
    pools: PoolStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garrison.workflows.nodepool.RENEW_EVENTS", 40)
    async with pools.working():
        await pools.begin()
        first = (await pools.handle(pools.pool).describe()).run_id
        deployment = await pools.deploy("d", "r1")
        await pools.placed(deployment, lambda one: one.state is PlacementState.PLACED)
        await pools.want(deployment)
        await pools.until(lambda one: not one.nodes)
        described = await pools.handle(pools.pool).describe()
        runs = [
            await pools.client.get_workflow_handle(pools.pool, run_id=run).fetch_history()
            for run in (first, described.run_id)
        ]

    assert described.run_id != first
    assert (await described.memo())["nodes"] == 0
    for run in runs:
        await Replayer(
            workflows=[NodepoolWorkflow],
            workflow_runner=workflow_runner(),
            data_converter=DATA_CONVERTER,
        ).replay_workflow(run)
