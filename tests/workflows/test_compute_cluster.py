"""Compute clusters on a real server: they cost nothing, and do not go away under a nodepool."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.exceptions import ApplicationError

from garrison.errors import ErrorCode
from garrison.models.compute_cluster import (
    ComputeClusterRequest,
    ComputeClusterSpec,
    ComputeClusterStatus,
)
from tests.workflows.conftest import Story
from tests.workflows.pool_story import PoolStory


@pytest.fixture
async def pools(story: Story) -> AsyncIterator[PoolStory]:
    pools = PoolStory(story)
    yield pools
    await pools.end()


async def test_a_compute_cluster_is_created_once_and_changed_only_where_nothing_depends_on_it(
    pools: PoolStory,
) -> None:
    async with pools.working():
        first = await pools.create_cluster()
        again = await pools.create_cluster()
        with pytest.raises(ApplicationError) as other:
            await pools.create_cluster(region="sim-b")
        with pytest.raises(ApplicationError) as moved:
            await change(pools, region="sim-b")
        changed = await change(pools, region="sim-a", description="for tests")
        await pools.delete(pools.cluster)
        ended = await pools.handle(pools.cluster).result()

    assert again == first
    assert other.value.type == ErrorCode.NAME_IN_USE
    assert moved.value.type == ErrorCode.INVALID_SPEC
    assert "region: is fixed; it is sim-a" in str(moved.value)
    assert (changed.description, changed.uid) == ("for tests", first.uid)
    assert ended["phase"] == "deleting"


async def change(pools: PoolStory, **fields: object) -> ComputeClusterStatus:
    given = {"id": pools.place, "provider": pools.story.name, **fields}
    request = ComputeClusterRequest(
        request_id=str(fields), spec=ComputeClusterSpec.model_validate(given)
    )
    return await pools.update(pools.cluster, "update", request, ComputeClusterStatus)


async def test_a_compute_cluster_goes_with_its_nodepools_only_if_it_is_told_so(
    pools: PoolStory,
) -> None:
    async with pools.working():
        await pools.begin(min_instances=1)
        await pools.until(lambda one: one.ready == 1)
        with pytest.raises(ApplicationError) as refused:
            await pools.delete(pools.cluster)
        await pools.delete(pools.cluster, cascade=True)
        await pools.handle(pools.cluster).result()
        await pools.handle(pools.pool).result()

    assert refused.value.type == ErrorCode.CONFLICT_PHASE
    assert "has nodepools: p" in str(refused.value)
    assert pools.story.machines() == []


async def test_a_nodepool_that_was_ended_by_force_does_not_hold_up_its_compute_cluster(
    pools: PoolStory,
) -> None:
    async with pools.working():
        await pools.begin()
        await pools.until(lambda one: one.phase == "active")
        await pools.handle(pools.pool).terminate("by hand")
        await pools.delete(pools.cluster, cascade=True)
        ended = await pools.handle(pools.cluster).result()

    assert ended["nodepools"] == []
