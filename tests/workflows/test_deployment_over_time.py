"""What a deployment does over minutes and days, on a server on which they pass at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowUpdateFailedError

from garrison.errors import ErrorCode
from garrison.failures import code_of
from garrison.models.deployment import ReplicaState, ReplicaTemplate
from garrison.providers.simulated.faults import Call, Fault
from tests.workflows.conftest import VirtualStory
from tests.workflows.stub_pool import DeploymentStory

PROBE = Counter(
    TIMER_FIRED=1,
    TIMER_STARTED=1,
    ACTIVITY_TASK_SCHEDULED=2,
    ACTIVITY_TASK_STARTED=2,
    ACTIVITY_TASK_COMPLETED=2,
    WORKFLOW_TASK_SCHEDULED=3,
    WORKFLOW_TASK_STARTED=3,
    WORKFLOW_TASK_COMPLETED=3,
    WORKFLOW_PROPERTIES_MODIFIED=3,
)
"""What one deadman probe adds to a history: all is said again, to the pool and to routers."""


@pytest.fixture
async def deployed(virtual: VirtualStory) -> AsyncIterator[DeploymentStory]:
    deployed = DeploymentStory(virtual)
    yield deployed
    await deployed.end()


async def history(deployed: DeploymentStory) -> Counter[str]:
    found: Counter[str] = Counter()
    async for event in deployed.handle.fetch_history_events():
        found[EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")] += 1
    return found


async def test_an_idle_deployment_adds_nothing_but_deadman_probes(
    virtual: VirtualStory, deployed: DeploymentStory
) -> None:
    virtual.use(boot=timedelta(0))
    async with deployed.working():
        await deployed.pool("a", await deployed.buy(1))
        await deployed.create(deployed.spec("a"))
        await deployed.scale(1)
        await deployed.until(lambda one: one.ready == 1)
        await virtual.sleep(timedelta(minutes=2))
        before = await history(deployed)
        await virtual.sleep(timedelta(hours=24))
        grown = await history(deployed) - before

    probes = grown["TIMER_FIRED"]
    assert 3 <= probes <= 5
    assert grown <= Counter({kind: count * probes for kind, count in PROBE.items()})


async def test_replicas_wait_for_a_nodepool_that_is_made_later(
    virtual: VirtualStory, deployed: DeploymentStory
) -> None:
    virtual.use(boot=timedelta(0))
    async with deployed.working():
        nodes = await deployed.buy(1)
        await deployed.create(deployed.spec("a"))
        await deployed.scale(1)
        waiting = await deployed.until(
            lambda one: bool(one.replicas) and "nodepool_not_found" in one.replicas[0].reason
        )
        await virtual.sleep(timedelta(hours=1))
        await deployed.pool("a", nodes)
        await virtual.sleep(timedelta(minutes=1, seconds=5))
        ready = await deployed.until(lambda one: one.ready == 1)

    assert waiting.replicas[0].state is ReplicaState.PENDING
    assert ready.replicas[0].name == waiting.replicas[0].name


async def test_a_failing_replica_is_restarted_a_bounded_number_of_times(
    virtual: VirtualStory, deployed: DeploymentStory
) -> None:
    virtual.use(boot=timedelta(0))
    virtual.fault(Call.START_WORKLOAD, Fault.ERROR, code="InvalidParameterValue", times=6)
    async with deployed.working():
        await deployed.pool("a", await deployed.buy(1))
        await deployed.create(deployed.spec("a"))
        await deployed.scale(1)
        failed = await deployed.until(
            lambda one: bool(one.replicas) and one.replicas[0].state is ReplicaState.FAILED
        )
        await virtual.sleep(timedelta(minutes=30))
        given_up = await deployed.until(lambda one: one.replicas[0].restarts == 5)
        calls = len(virtual.calls(Call.START_WORKLOAD))
        await virtual.sleep(timedelta(hours=3))
        after = len(virtual.calls(Call.START_WORKLOAD))
        await deployed.scale(1)
        ready = await deployed.until(lambda one: one.ready == 1)

    assert "cannot be started" in failed.replicas[0].reason
    assert "restarted 5 times within an hour" in given_up.replicas[0].reason
    assert (calls, after) == (6, 6)
    assert ready.replicas[0].name == failed.replicas[0].name


async def test_a_life_whose_first_wish_was_refused_ends_by_itself(
    virtual: VirtualStory, deployed: DeploymentStory
) -> None:
    async with deployed.working():
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await deployed.create(deployed.spec("a", template=ReplicaTemplate()))
        await virtual.sleep(timedelta(minutes=2))
        result = await deployed.handle.result()

    assert code_of(refused.value.cause) is ErrorCode.INVALID_SPEC
    assert result is None
