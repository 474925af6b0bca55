"""Nodepools on a story's cloud, and deployments that only want and remember."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from garrison.domain.resource_ids import (
    compute_cluster_workflow_id,
    deployment_workflow_id,
    nodepool_workflow_id,
)
from garrison.models.base import Message
from garrison.models.compute_cluster import (
    ComputeClusterInput,
    ComputeClusterRequest,
    ComputeClusterSpec,
    ComputeClusterStatus,
    DeleteAccepted,
    DeleteRequested,
)
from garrison.models.nodepool import NodepoolAck, NodepoolRequest, NodepoolSpec, NodepoolStatus
from garrison.models.nodepool_state import NodepoolInput
from garrison.models.placement import Demand, Placement, Placements, ReplicaDemand
from garrison.models.queues import TASK_QUEUE
from garrison.models.resources import Resources
from garrison.workers.main import GarrisonWorker, now_utc
from tests.workflows.conftest import SOON, Story

M = TypeVar("M", bound=Message)
S = TypeVar("S")

GPU_TYPE = "g5.2xlarge"
NODE = Resources(cpu_milli=4000, accelerators=1)


class Wish(Message):
    """What a stub deployment is to want of a pool."""

    nodepool: str
    replicas: tuple[ReplicaDemand, ...] = ()


@workflow.defn(name="StubDeployment")
class StubDeployment:
    """Want what one is told to, take every placement, acknowledge it."""

    @workflow.init
    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._demand: Demand | None = None
        self._nodepool = ""
        self._told: Placements | None = None
        self._changes = 0
        self._said = 0

    @workflow.run
    async def run(self, uid: str) -> None:
        while True:
            await workflow.wait_condition(lambda: self._changes != self._said)
            self._said = self._changes
            if self._demand is not None:
                handle: Any = workflow.get_external_workflow_handle(self._nodepool)
                await handle.signal("demand", self._demand)

    @workflow.update
    def want(self, wish: Wish) -> None:
        before = self._demand
        self._nodepool = wish.nodepool
        self._demand = Demand(
            deployment=workflow.info().workflow_id,
            uid=self._uid,
            generation=before.generation + 1 if before else 1,
            replicas=wish.replicas,
            pool_uid=before.pool_uid if before else None,
            placements_seen=before.placements_seen if before else 0,
        )
        self._changes += 1

    @workflow.signal
    def placements(self, told: Placements) -> None:
        if self._told is not None and told.generation <= self._told.generation:
            return
        self._told = told
        if self._demand is not None:
            self._demand = self._demand.model_copy(
                update={"pool_uid": told.uid, "placements_seen": told.generation}
            )
            self._changes += 1

    @workflow.query
    def told(self) -> Placements | None:
        return self._told


class PoolStory:
    """One compute cluster and one nodepool in it, on a story's cloud."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.client = story.client
        self.place = f"cc{uuid.uuid4().hex[:8]}"
        self.queue = f"stub-{self.place}"
        self.pool = nodepool_workflow_id(self.place, "p")
        self.cluster = compute_cluster_workflow_id(self.place)
        self._ids = [self.pool, self.cluster]

    @asynccontextmanager
    async def working(self) -> AsyncIterator[GarrisonWorker]:
        """A worker as it ships, and one for the stub deployments."""
        stub = Worker(
            self.client,
            task_queue=self.queue,
            workflows=[StubDeployment],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with self.story.worker() as worker, stub:
            yield worker

    async def begin(self, **spec: Any) -> NodepoolAck:
        """Create the compute cluster and the nodepool."""
        await self.create_cluster()
        return await self.create_pool(**spec)

    async def create_cluster(self, **fields: Any) -> ComputeClusterStatus:
        given = {"id": self.place, "provider": self.story.name, "region": "sim-a", **fields}
        request = ComputeClusterRequest(
            request_id=uuid.uuid4().hex, spec=ComputeClusterSpec.model_validate(given)
        )
        uid = str(uuid.uuid4())
        begun = ComputeClusterInput(id=self.place, uid=uid, owner="ann")
        return await self._create(
            "ComputeCluster", self.cluster, begun, uid, request, ComputeClusterStatus
        )

    async def create_pool(self, **spec: Any) -> NodepoolAck:
        uid = str(uuid.uuid4())
        begun = NodepoolInput(compute_cluster=self.place, id="p", uid=uid, owner="ann")
        return await self._create(
            "Nodepool", self.pool, begun, uid, self.pool_request(**spec), NodepoolAck
        )

    def pool_request(self, **spec: Any) -> NodepoolRequest:
        given = {
            "id": "p",
            "compute_cluster": self.place,
            "instance_types": (GPU_TYPE,),
            "max_instances": 3,
            "release_after": 0.2,
            **spec,
        }
        return NodepoolRequest(request_id=uuid.uuid4().hex, spec=NodepoolSpec.model_validate(given))

    async def _create(
        self, kind: str, id: str, begun: Message, uid: str, request: Message, answer: type[M]
    ) -> M:
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            kind,
            begun,
            id=id,
            task_queue=TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            memo={"uid": uid},
        )
        try:
            made: M = await self.client.execute_update_with_start_workflow(
                "create", request, start_workflow_operation=start, result_type=answer
            )
        except WorkflowUpdateFailedError as error:
            raise error.cause from None
        return made

    async def update(self, id: str, name: str, request: Message, answer: type[M]) -> M:
        try:
            made: M = await self.handle(id).execute_update(name, request, result_type=answer)
        except WorkflowUpdateFailedError as error:
            raise error.cause from None
        return made

    async def delete(self, id: str, *, cascade: bool = False) -> DeleteAccepted:
        request = DeleteRequested(request_id=uuid.uuid4().hex, cascade=cascade)
        return await self.update(id, "delete", request, DeleteAccepted)

    async def deploy(self, name: str, *replicas: str, **fields: Any) -> str:
        """Begin a stub deployment that wants these replicas; return its workflow id."""
        id = deployment_workflow_id(f"{self.place}-{name}")
        uid = str(uuid.uuid4())
        await self.client.start_workflow(
            "StubDeployment", uid, id=id, task_queue=self.queue, memo={"uid": uid}
        )
        self._ids.append(id)
        await self.want(id, *replicas, **fields)
        return id

    async def want(self, id: str, *replicas: str, **fields: Any) -> None:
        wanted = tuple(
            ReplicaDemand(replica=name, **{"resources": NODE, **fields}) for name in replicas
        )
        await self.handle(id).execute_update("want", Wish(nodepool=self.pool, replicas=wanted))

    async def told(self, id: str) -> Placements | None:
        told: Placements | None = await self.handle(id).query(
            "told",
            result_type=Placements | None,  # type: ignore[arg-type]
        )
        return told

    async def placed(self, id: str, claim: Callable[[Placement], bool]) -> Placement:
        """Return the placement of the one replica of a deployment once a claim is true of it."""

        async def ask() -> Placement | None:
            told = await self.told(id)
            return told.placements[0] if told is not None and told.placements else None

        found = await self._until(ask, lambda one: one is not None and claim(one))
        assert found is not None
        return found

    async def status(self) -> NodepoolStatus:
        status: NodepoolStatus = await self.handle(self.pool).query(
            "get", result_type=NodepoolStatus
        )
        return status

    async def until(self, claim: Callable[[NodepoolStatus], bool]) -> NodepoolStatus:
        """Return the first status of the pool of which a claim is true."""
        return await self._until(self.status, claim)

    async def _until(self, ask: Callable[[], Awaitable[S]], claim: Callable[[S], bool]) -> S:
        end = now_utc() + SOON
        while True:
            found = await ask()
            if claim(found):
                return found
            assert now_utc() < end, f"not within {SOON}: {found}"
            await asyncio.sleep(0.05)

    def handle(self, id: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(id)

    async def end(self) -> None:
        for id in self._ids:
            try:
                await self.handle(id).terminate("the test is over")
            except RPCError:
                continue  # it ended by itself, or never began
