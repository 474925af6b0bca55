"""Deployments on a real server, on machines of a cloud on paper."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.client import WorkflowUpdateFailedError

from garrison.errors import ErrorCode
from garrison.failures import code_of
from garrison.models.deployment import DeploymentStatus, ReplicaState, ReplicaTemplate
from tests.workflows.conftest import Story
from tests.workflows.stub_pool import DeploymentStory, StubPool


@pytest.fixture
async def deployed(story: Story) -> AsyncIterator[DeploymentStory]:
    deployed = DeploymentStory(story)
    yield deployed
    await deployed.end()


async def test_a_replica_is_started_on_demand_and_given_back(deployed: DeploymentStory) -> None:
    async with deployed.working():
        nodes = await deployed.buy(1)
        pool = await deployed.pool("a", nodes)
        await deployed.create(deployed.spec("a"))
        at_zero = await deployed.until(lambda one: one.observed_generation == 1)

        await deployed.scale(1)
        up = await deployed.until(lambda one: one.ready == 1)
        ran = deployed.running()
        await deployed.scale(0)
        await deployed.until(lambda one: not one.replicas)
        await deployed.delete()
        await deployed.handle.result()

        demands = await pool.query(StubPool.demands)
        ended = await deployed.handle.describe()

    (replica,) = up.replicas
    assert (at_zero.desired, at_zero.replicas) == (0, ())
    assert up.reason == "scaled to 1 by ada"
    assert replica.state is ReplicaState.READY
    assert replica.endpoint == f"http://{nodes[0].private_address}:8000"
    assert (ran, deployed.running()) == ([replica.name], [])
    assert [len(one.replicas) for one in demands if not one.closing][-1] == 0
    assert demands[-1].closing
    assert await ended.memo_value("status") == "deleted"


async def test_a_replica_whose_node_is_lost_is_started_on_the_next(
    deployed: DeploymentStory,
) -> None:
    async with deployed.working():
        first, second = await deployed.buy(2)
        pool = await deployed.pool("a", [first])
        await deployed.create(deployed.spec("a"))
        await deployed.scale(1)
        before = await deployed.until(lambda one: one.ready == 1)

        deployed.story.console.kill(first.provider_id)
        await pool.signal(StubPool.have, [second])
        after = await deployed.until(
            lambda one: one.ready == 1 and one.replicas[0].node == second.provider_id
        )

    assert before.replicas[0].node == first.provider_id
    assert [one.name for one in after.replicas] == [one.name for one in before.replicas]
    assert deployed.running() == [after.replicas[0].name]


async def test_a_new_revision_replaces_the_old_one_without_a_gap(
    deployed: DeploymentStory,
) -> None:
    async with deployed.working():
        await deployed.pool("a", await deployed.buy(2))
        await deployed.create(deployed.spec("a"))
        await deployed.scale(1)
        old = await deployed.until(lambda one: one.ready == 1)

        changed = ReplicaTemplate(command=("serve", "better"), port=8000)
        await deployed.update(deployed.spec("a", template=changed))
        seen: list[int] = []

        def replaced(status: DeploymentStatus) -> bool:
            seen.append(sum(one.ready_at is not None for one in status.replicas))
            return [one.revision for one in status.replicas] == [2] and status.ready == 1

        last = await deployed.until(replaced)

    assert min(seen) >= 1
    assert last.rollout.state == "done"
    assert last.replicas[0].revision == 2
    assert last.replicas[0].name != old.replicas[0].name


async def test_what_was_asked_before_gets_the_first_answer(deployed: DeploymentStory) -> None:
    async with deployed.working():
        first = await deployed.create(deployed.spec("a"))
        again = await deployed.create(deployed.spec("a"))
        same = await deployed.create(deployed.spec("a"), request_id="another")
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await deployed.create(deployed.spec("a", description="x"), request_id="third")
        await deployed.handle.cancel()
        await deployed.handle.result()

    assert again == first
    assert (same.generation, same.message) == (1, "exists already, just so")
    assert code_of(refused.value.cause) is ErrorCode.NAME_IN_USE


async def test_a_long_history_is_ended_while_a_replica_goes_on(
    deployed: DeploymentStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garrison.workflows.deployment.RENEW_EVENTS", 60)
    async with deployed.working():
        await deployed.pool("a", await deployed.buy(1))
        await deployed.create(deployed.spec("a"))
        await deployed.scale(1)
        before = await deployed.until(lambda one: one.ready == 1)
        first = await deployed.handle.describe()
        for _ in range(15):
            await deployed.scale(1)
        after = await deployed.until(lambda one: one.observed_generation == 17)
        last = await deployed.handle.describe()

    assert first.run_id != last.run_id
    assert after.replicas == before.replicas
    assert await last.memo_value("ready") == 1
