"""A deployment and a nodepool as they ship, from nothing to nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest.mock import ANY

import pytest

from garrison.client.garrison import Garrison
from garrison.errors import NotFound
from garrison.models.deployment import DeploymentPool, ReplicaState
from tests.workflows.conftest import Story
from tests.workflows.pool_story import PoolStory
from tests.workflows.stub_pool import DeploymentStory


@pytest.fixture
async def pools(story: Story) -> AsyncIterator[PoolStory]:
    pools = PoolStory(story)
    yield pools
    await pools.end()


@pytest.fixture
async def deployed(story: Story) -> AsyncIterator[DeploymentStory]:
    deployed = DeploymentStory(story)
    yield deployed
    await deployed.end()


async def saved_log(pools: PoolStory, deployment: str, replica: str) -> tuple[bytes, list[str]]:
    """The log of a replica, and of which one it was said that it is a saved one."""
    told: list[str] = []
    deployments = Garrison(pools.client, pools.story.settings).deployments
    read = deployments.logs(deployment, replica=replica, on_saved=told.append)
    return b"".join([data async for data in read]), told


async def test_scaling_to_one_buys_a_machine_and_to_zero_gives_it_back(
    pools: PoolStory, deployed: DeploymentStory
) -> None:
    where = DeploymentPool(compute_cluster=pools.place, nodepool="p")
    async with pools.working():
        await pools.begin()
        await deployed.create(deployed.spec(nodepools=(where,)))
        await deployed.until(lambda one: one.observed_generation == 1)
        at_zero = pools.story.machines()

        await deployed.scale(1)
        up = await deployed.until(lambda one: one.ready == 1)
        used = await pools.status()
        ran = deployed.running()

        await deployed.scale(0)
        await deployed.until(lambda one: not one.replicas)
        empty = await pools.until(lambda one: not one.nodes)
        kept = await saved_log(pools, up.id, up.replicas[0].name)
        await deployed.delete()
        await deployed.handle.result()
        kept_longer = await saved_log(pools, up.id, up.replicas[0].name)
        with pytest.raises(NotFound):
            await saved_log(pools, up.id, f"{up.replicas[0].name}0")

    (replica,), (node,) = up.replicas, used.nodes
    assert at_zero == []
    assert replica.state is ReplicaState.READY
    assert (replica.node, ran) == (node.name, [replica.name])
    assert [one.replica for one in node.replicas] == [replica.name]
    assert up.hourly_usd is not None
    assert 0 < up.hourly_usd <= (node.usd_per_hour or 0)
    assert empty.hourly_usd == 0
    assert kept == kept_longer == (ANY, [replica.name])
    assert kept[0]
    assert pools.story.machines() == []


async def test_a_nodepool_that_was_terminated_is_missed_at_the_next_look_and_holds_up_no_delete(
    pools: PoolStory, deployed: DeploymentStory
) -> None:
    where = DeploymentPool(compute_cluster=pools.place, nodepool="p")
    async with pools.working():
        await pools.begin()
        await deployed.create(deployed.spec(nodepools=(where,)))
        await deployed.scale(1)
        await deployed.until(lambda one: one.ready == 1)
        await pools.handle(pools.pool).terminate("in the UI")

        missing = await deployed.until(lambda one: one.ready == 0)
        await deployed.delete()
        await deployed.handle.result()

    assert [one.reason for one in missing.replicas][-1].startswith("nodepool_not_found")
    assert pools.story.machines() == []
