"""The paths of compute clusters, nodepools and deployments of which histories are kept.

Each is walked on a dev server and gives back the runs to keep by what tells them apart, as one path
has several workflows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError

from garrison.activities.loads import TemporalLoads, load_watch_id
from garrison.models.compute_cluster import (
    ComputeClusterInput,
    ComputeClusterRequest,
    ComputeClusterSpec,
    ComputeClusterStatus,
)
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentAck,
    DeploymentPool,
    EnableRequest,
    LoadConfig,
    LoadKind,
    ReplicaState,
    ReplicaTemplate,
)
from garrison.models.deployment_state import DeploymentEndpoints, DeploymentInput
from garrison.models.load import Followed, TargetChanged, WakeRequest
from garrison.models.nodepool import NodepoolAck
from garrison.models.nodepool_state import NodepoolInput
from garrison.models.queues import TASK_QUEUE
from garrison.providers.simulated.faults import Call, Fault, When
from garrison.workers.main import now_utc
from tests.histories.place import COMPUTE_CLUSTER, DEPLOYMENT, NODEPOOL, Place, Runs
from tests.workflows.conftest import SOON, Story
from tests.workflows.pool_story import GPU_TYPE, PoolStory

ElasticPath = Callable[[Story], Awaitable[Runs]]


async def _called(story: Story, call: Call) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        while not story.calls(call):
            await asyncio.sleep(0.01)


async def _enable(place: Place) -> None:
    request = EnableRequest(request_id="enable", by="ada")
    await place.deployed.handle.execute_update("enable", request, result_type=DeploymentAck)


async def _describe(place: Place, text: str) -> None:
    """Change a compute cluster's description."""
    given = {"id": place.pools.place, "provider": place.story.name, "region": "sim-a"}
    spec = ComputeClusterSpec.model_validate({**given, "description": text})
    request = ComputeClusterRequest(request_id=text, spec=spec)
    await place.pools.update(place.pools.cluster, "update", request, ComputeClusterStatus)


async def _limit(place: Place, machines: int) -> None:
    request = place.pools.pool_request(max_instances=machines)
    await place.pools.update(place.pools.pool, "update", request, NodepoolAck)


async def elastic_is_used_and_deleted(story: Story) -> Runs:
    place = Place(story)
    async with place.begun():
        await place.ready(1)
        await place.change(command=("serve", "better"))
        await place.deployed.until(
            lambda one: one.rollout.state == "done" and [r.revision for r in one.replicas] == [2]
        )
        await place.deployed.disable()
        await place.deployed.until(lambda one: not one.replicas)
        await place.empty()
        await _enable(place)
        await place.deployed.until(lambda one: one.ready == 1)
        await place.ready(0)
        await place.empty()
        await _describe(place, "for tests")
        await place.deployed.delete()
        await place.deployed.handle.result()
        await place.pools.delete(place.pools.pool)
        await place.handles[NODEPOOL].result()
        await place.pools.delete(place.pools.cluster)
        await place.handles[COMPUTE_CLUSTER].result()
    return place.runs(COMPUTE_CLUSTER, NODEPOOL, DEPLOYMENT)


async def elastic_goes_with_its_compute_cluster(story: Story) -> Runs:
    place = Place(story)
    async with place.begun(min_instances=1):
        await place.ready(2)
        await place.pools.delete(place.pools.cluster, cascade=True)
        for which in (NODEPOOL, COMPUTE_CLUSTER):
            await place.handles[which].result()
        await place.deployed.until(
            lambda one: {r.state for r in one.replicas} == {ReplicaState.PENDING}
        )
        await place.deployed.delete()
        await place.deployed.handle.result()
    return place.runs(COMPUTE_CLUSTER, NODEPOOL, DEPLOYMENT)


async def elastic_takes_cancel_for_delete(story: Story) -> Runs:
    place = Place(story)
    async with place.begun():
        await place.ready(1)
        for which in (DEPLOYMENT, NODEPOOL, COMPUTE_CLUSTER):
            await place.handles[which].cancel()
        for which in (DEPLOYMENT, NODEPOOL, COMPUTE_CLUSTER):
            await place.handles[which].result()
    return place.runs(COMPUTE_CLUSTER, NODEPOOL, DEPLOYMENT)


async def elastic_replaces_a_lost_node(story: Story) -> Runs:
    place = Place(story)
    async with place.begun():
        (before,) = (await place.ready(1)).replicas
        story.console.kill(story.machines()[0]["provider_id"])
        await place.deployed.until(
            lambda one: one.ready == 1 and one.replicas[0].node != before.node
        )
        await place.end()
    return place.runs(NODEPOOL, DEPLOYMENT)


async def elastic_leaves_a_node_that_is_deleted_by_hand(story: Story) -> Runs:
    place = Place(story)
    async with place.begun(min_instances=1, warm_instances=1):
        await place.ready(1)
        for machine in story.machines():
            story.console.delete_node(machine["provider_id"], vanish=False)
        await place.pools.until(lambda one: one.ready == 2 and one.pending == 0)
        await place.deployed.until(lambda one: one.ready == 1)
        await place.end()
    return place.runs(NODEPOOL, DEPLOYMENT)


async def elastic_waits_at_the_limit_until_it_is_raised(story: Story) -> Runs:
    place = Place(story)
    async with place.begun():
        await _limit(place, 0)
        await place.pools.until(lambda one: one.phase == "disabled")
        await _limit(place, 1)
        await place.deployed.scale(2)
        await place.deployed.until(lambda one: one.ready == 1)
        await place.pools.until(lambda one: one.pending == 1)
        await _limit(place, 2)
        await place.deployed.until(lambda one: one.ready == 2)
        await place.end()
    return place.runs(NODEPOOL, DEPLOYMENT)


async def elastic_waits_for_a_nodepool_that_is_made_later(story: Story) -> Runs:
    place = Place(story)
    async with place.pools.working():
        await place.deployed.create(place.spec())
        await place.deployed.scale(1)
        await place.deployed.until(
            lambda one: bool(one.replicas) and "nodepool_not_found" in one.replicas[0].reason
        )
        await place.pools.begin()
        await place.deployed.until(lambda one: one.ready == 1)
        await place.end()
    return place.runs(NODEPOOL, DEPLOYMENT)


async def elastic_goes_on_to_the_next_nodepool(story: Story) -> Runs:
    place, other = Place(story), PoolStory(story)
    second = DeploymentPool(compute_cluster=other.place, nodepool="p")
    async with place.begun(max_instances=1):
        await other.begin()
        await place.deployed.update(place.spec(second))
        await place.ready(2)
        await place.ready(0)
        await other.delete(other.cluster, cascade=True)
        await other.handle(other.cluster).result()
        await place.end()
    return {DEPLOYMENT: place.handles[DEPLOYMENT], "second-nodepool": other.handle(other.pool)}


async def elastic_gives_up_a_replica_before_it_runs(story: Story) -> Runs:
    story.fault(Call.LAUNCH, Fault.LATENCY, when=When.AFTER, seconds=1)
    story.fault(Call.START_WORKLOAD, Fault.LATENCY, when=When.AFTER, seconds=1)
    place = Place(story)
    async with place.begun():
        await place.deployed.scale(1)
        await _called(story, Call.LAUNCH)
        await place.deployed.scale(0)
        await place.deployed.until(lambda one: not one.replicas)
        await place.empty()
        await place.deployed.scale(1)
        await _called(story, Call.START_WORKLOAD)
        await place.deployed.scale(0)
        await place.deployed.until(lambda one: not one.replicas)
        await place.end()
    return place.runs(NODEPOOL, DEPLOYMENT)


async def elastic_asks_again_when_answers_are_lost(story: Story) -> Runs:
    story.fault(Call.LIST_OFFERS, code="InternalError")
    for call in (Call.LAUNCH, Call.START_WORKLOAD, Call.STOP_WORKLOAD, Call.TERMINATE):
        story.fault(call, Fault.LOST_RESPONSE)
    place = Place(story)
    async with place.begun():
        await place.ready(1)
        await place.ready(0)
        await place.empty()
        await place.end()
    return place.runs(NODEPOOL, DEPLOYMENT)


async def elastic_probes_while_nothing_happens(story: Story) -> Runs:
    story.settings = story.settings.model_copy(update={"deadman_hours": 1 / 3600})
    story.use()
    place = Place(story)
    async with place.begun():
        await place.ready(1)
        await asyncio.sleep(4)
        await place.end()
    return place.runs(NODEPOOL, DEPLOYMENT)


async def nodepool_buys_on_demand_when_spot_is_refused(story: Story) -> Runs:
    story.fault(Call.LAUNCH, code="MaxSpotInstanceCountExceeded", times=1)
    place = Place(story)
    async with place.begun(capacity_types=("spot", "on_demand"), max_instances=1):
        await place.ready(1)
        await place.end()
    return place.runs(NODEPOOL)


async def nodepool_is_deleted_in_mid_purchase(story: Story) -> Runs:
    story.fault(Call.LAUNCH, Fault.LATENCY, when=When.AFTER, seconds=1)
    place = Place(story)
    async with place.begun(min_instances=1):
        await _called(story, Call.LAUNCH)
        await place.end()
    return place.runs(NODEPOOL)


async def nodepool_buys_another_type_when_a_machine_does_not_start(story: Story) -> Runs:
    story.fault(Call.LAUNCH, Fault.NODE_FAILS, rank=0, seconds=0)
    place = Place(story)
    async with place.begun(instance_types=(GPU_TYPE, "g5.4xlarge"), min_instances=1):
        await place.pools.until(lambda one: one.ready == 1)
        await place.end()
    return place.runs(NODEPOOL)


async def nodepool_cannot_reach_a_machine_at_first(story: Story) -> Runs:
    story.fault(Call.PREPARE, code="AccessDenied", times=1)
    place = Place(story)
    async with place.begun(min_instances=1):
        await place.pools.until(lambda one: one.ready == 1)
        await place.end()
    return place.runs(NODEPOOL)


async def nodepool_has_no_compute_cluster(story: Story) -> Runs:
    place = Place(story)
    async with place.pools.working():
        await place.pools.create_pool()
        try:
            await place.handles[NODEPOOL].result()
        except WorkflowFailureError:
            return place.runs(NODEPOOL)
    raise AssertionError("there is no such compute cluster")


async def deployment_restarts_a_replica_that_cannot_be_started(story: Story) -> Runs:
    story.fault(Call.START_WORKLOAD, code="InvalidParameterValue", times=1)
    place = Place(story)
    async with place.begun():
        await place.ready(1)
        await place.end()
    return place.runs(DEPLOYMENT)


async def deployment_is_refused_and_never_made(story: Story) -> Runs:
    place = Place(story)
    async with place.pools.working():
        try:
            await place.deployed.create(place.deployed.spec("p", template=ReplicaTemplate()))
        except WorkflowUpdateFailedError:
            await place.handles[DEPLOYMENT].cancel()
            await place.handles[DEPLOYMENT].result()
            return place.runs(DEPLOYMENT)
    raise AssertionError("there is nothing to run")


async def elastic_is_never_made(story: Story) -> Runs:
    place = Place(story)
    who = {"uid": "x", "owner": "ann"}
    inputs = {
        COMPUTE_CLUSTER: ("ComputeCluster", ComputeClusterInput(id=place.pools.place, **who)),
        NODEPOOL: (
            "Nodepool",
            NodepoolInput(compute_cluster=place.pools.place, id="p", **who),
        ),
        DEPLOYMENT: ("Deployment", DeploymentInput(id=place.deployed.name, **who)),
    }
    async with place.pools.working():
        for which, (kind, begun) in inputs.items():
            workflow_id = place.handles[which].id
            await story.client.start_workflow(kind, begun, id=workflow_id, task_queue=TASK_QUEUE)
        for which in inputs:
            await place.handles[which].result()
    return place.runs(*inputs)


async def _renewed(place: Place, which: str, before: str, again: Callable[[int], Any]) -> None:
    """Make a change again until the run is another one."""
    number = 0
    while await place.first_run(which) == before:
        number += 1
        await again(number)


async def elastic_continues_as_new(story: Story) -> Runs:
    place, which = Place(story), (COMPUTE_CLUSTER, NODEPOOL, DEPLOYMENT)
    async with place.begun(min_instances=1):
        first = {one: await place.first_run(one) for one in which}
        await place.ready(1)

        async def described(number: int) -> None:
            await _describe(place, f"the {number}th time")

        async def bounded(number: int) -> None:
            request = place.pools.pool_request(min_instances=1, max_instances=3 + number % 2)
            await place.pools.update(place.pools.pool, "update", request, NodepoolAck)

        async def scaled(number: int) -> None:
            await place.deployed.scale(1)

        for one, again in zip(which, (described, bounded, scaled), strict=True):
            await _renewed(place, one, first[one], again)
        await place.ready(2)
        last = {one: await place.first_run(one) for one in which}
        await place.end()
    return {
        f"{one}.{when}": story.client.get_workflow_handle(place.handles[one].id, run_id=run)
        for when, runs in (("before", first), ("after", last))
        for one, run in runs.items()
    }


async def _woken(place: Place) -> None:
    await place.deployed.handle.signal("wake", WakeRequest(asked_at=now_utc()))
    await place.deployed.until(lambda one: one.ready == 1)


async def _target(place: Place, target: int, generation: int) -> None:
    said = TargetChanged(
        uid=place.deployed.uid, generation=generation, target=target, reason="as the load asks"
    )
    await place.deployed.handle.signal("autoscale", said)
    await place.deployed.until(lambda one: one.desired == one.ready == target)


async def deployment_follows_its_load(story: Story) -> Runs:
    place = Place(story)
    async with place.begun():
        await _woken(place)
        await _target(place, 2, generation=1)
        await place.deployed.handle.signal("introduce")
        await _target(place, 0, generation=1)
        await place.end()
    return place.runs(DEPLOYMENT)


async def load_watch_continues_as_new(story: Story) -> Runs:
    place = Place(story)
    watch = story.client.get_workflow_handle(load_watch_id(LoadKind.SCRAPE))
    async with place.begun():
        loads = TemporalLoads(story.client, task_queue=TASK_QUEUE, heartbeat=timedelta(seconds=30))
        status = await place.deployed.status()
        said = Followed(
            id=status.id,
            workflow_id=place.deployed.handle.id,
            uid=status.uid,
            created_at=status.created_at,
            version=1,
            autoscale=AutoscaleConfig(load=LoadConfig(source=LoadKind.SCRAPE)),
            endpoints=DeploymentEndpoints(
                id=status.id, uid=status.uid, enabled=True, desired=0, generation=1
            ),
        )
        for version in range(1, 121):
            await loads.follow(said.replace(version=version))
        first = (await watch.describe()).run_id
        async with asyncio.timeout(SOON.total_seconds()):
            while (last := (await watch.describe()).run_id) == first:
                await asyncio.sleep(0.1)
        await place.end()
        await watch.terminate()
    return {
        when: story.client.get_workflow_handle(watch.id, run_id=run)
        for when, run in (("before", first), ("after", last))
    }


ELASTIC: tuple[ElasticPath, ...] = (
    elastic_is_used_and_deleted,
    elastic_goes_with_its_compute_cluster,
    elastic_takes_cancel_for_delete,
    elastic_replaces_a_lost_node,
    elastic_leaves_a_node_that_is_deleted_by_hand,
    elastic_waits_at_the_limit_until_it_is_raised,
    elastic_waits_for_a_nodepool_that_is_made_later,
    elastic_goes_on_to_the_next_nodepool,
    elastic_gives_up_a_replica_before_it_runs,
    elastic_asks_again_when_answers_are_lost,
    elastic_probes_while_nothing_happens,
    elastic_is_never_made,
    nodepool_buys_on_demand_when_spot_is_refused,
    nodepool_is_deleted_in_mid_purchase,
    nodepool_buys_another_type_when_a_machine_does_not_start,
    nodepool_cannot_reach_a_machine_at_first,
    nodepool_has_no_compute_cluster,
    deployment_restarts_a_replica_that_cannot_be_started,
    deployment_is_refused_and_never_made,
    deployment_follows_its_load,
)
"""Walked on a dev server that suggests continue-as-new when real ones do."""

RENEWING: tuple[ElasticPath, ...] = (elastic_continues_as_new, load_watch_continues_as_new)
"""Walked on the dev server, told to suggest continue-as-new early."""
