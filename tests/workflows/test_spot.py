"""A deployment on a nodepool whose machines the provider takes back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from garrison.models.deployment import DeploymentPool
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


async def test_a_replica_under_notice_answers_until_its_successor_does_on_another_machine(
    pools: PoolStory, deployed: DeploymentStory
) -> None:
    where = DeploymentPool(compute_cluster=pools.place, nodepool="p")
    async with pools.working():
        await pools.begin(capacity_types=("spot",))
        await deployed.create(deployed.spec(nodepools=(where,)))
        await deployed.scale(1)
        (before,) = (await deployed.until(lambda one: one.ready == 1)).replicas
        (old,) = pools.story.machines()

        pools.story.console.notice(old["provider_id"], 3600)
        second = await deployed.until(
            lambda one: one.ready == 1 and [r.name for r in one.replicas] != [before.name]
        )
        await deployed.until(lambda one: len(one.replicas) == 1)
        left = await pools.until(lambda one: len(one.nodes) == 1)
        runs = pools.story.console.workload_runs()

    after = next(one for one in second.replicas if one.name != before.name)
    ended = next(run.ended_at for run in runs if run.name == before.name)
    begun = next(run.begun_at for run in runs if run.name == after.name)
    assert ended is not None
    assert begun < ended
    assert [one["provider_id"] for one in pools.story.machines()] != [old["provider_id"]]
    assert left.nodes[0].name == after.node
    assert pools.story.console.peak(uid=left.uid) == 2
