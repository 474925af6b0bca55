"""A nodepool that has the nodes it is given, and a deployment that runs on them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from garrison.domain.resource_ids import deployment_workflow_id, nodepool_workflow_id
from garrison.models.base import Message
from garrison.models.compute_cluster import DeleteAccepted, DeleteRequested
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentAck,
    DeploymentPool,
    DeploymentRequest,
    DeploymentSpec,
    DeploymentStatus,
    EnableRequest,
    ReplicaTemplate,
    ScaleRequest,
)
from garrison.models.deployment_state import DeploymentInput
from garrison.models.group import Group, GroupRequest, Node, NodeStatus, WorkloadState
from garrison.models.placement import (
    Demand,
    Placement,
    Placements,
    PlacementState,
    PlacementsTold,
    PoolSummary,
)
from garrison.models.queues import TASK_QUEUE
from garrison.models.resources import Resources
from garrison.workers.main import now_utc
from garrison.workflows.deployment import DeploymentWorkflow
from tests.workflows.conftest import SOON, Story

Claim = Callable[[DeploymentStatus], bool]


class StubInput(Message):
    """The pool's provider, and its nodes with one place each."""

    provider: str
    nodes: tuple[Node, ...] = ()


@workflow.defn(name="StubPool")
class StubPool:
    """Put each replica that is wanted on the next free node."""

    @workflow.init
    def __init__(self, given: StubInput) -> None:
        self.provider, self.nodes = given.provider, list(given.nodes)
        self.heard: list[Demand] = []
        self.generation = self.told = 0
        self.places: dict[str, Node | None] = {}

    @workflow.run
    async def run(self, given: StubInput) -> None:
        while True:
            await workflow.wait_condition(lambda: self.told < self.generation)
            self.told = self.generation
            said = PlacementsTold(deployment=self.heard[-1].deployment, placements=self.say())
            await workflow.execute_activity(
                "tell_deployment",
                said,
                task_queue=TASK_QUEUE,
                start_to_close_timeout=timedelta(seconds=10),
            )

    @workflow.signal
    def demand(self, demand: Demand) -> None:
        if not self.heard or demand.generation > self.heard[-1].generation:
            self.places = {r.replica: self.places.get(r.replica) for r in demand.replicas}
            self.generation += 1
        self.heard.append(demand)
        self.fill()

    @workflow.signal
    def have(self, nodes: list[Node]) -> None:
        """Have other nodes from now on; replicas on those that are gone are lost."""
        self.nodes = nodes
        kept = {node.provider_id for node in nodes}
        self.places = {
            name: node if node is not None and node.provider_id in kept else None
            for name, node in self.places.items()
        }
        self.fill()
        self.generation += 1

    @workflow.query
    def demands(self) -> list[Demand]:
        return self.heard

    def fill(self) -> None:
        for name, node in self.places.items():
            if node is None:
                taken = [one.provider_id for one in self.places.values() if one is not None]
                free = (one for one in self.nodes if one.provider_id not in taken)
                self.places[name] = next(free, None)

    def say(self) -> Placements:
        latest = self.heard[-1]
        full = len(self.places) >= len(self.nodes)
        return Placements(
            nodepool=workflow.info().workflow_id,
            uid=workflow.info().run_id,
            deployment_uid=latest.uid,
            generation=self.generation,
            demand_generation=latest.generation,
            placements=tuple(self.place(*item) for item in self.places.items()),
            pool=PoolSummary(provider=self.provider, full=full),
        )

    def place(self, replica: str, node: Node | None) -> Placement:
        if node is None:
            return Placement(replica=replica, state=PlacementState.PENDING, reason="pool at max")
        return Placement(
            replica=replica,
            state=PlacementState.PLACED,
            machine=node.provider_id,
            node=node,
            port=8000,
        )


class DeploymentStory:
    """One deployment, over pools of machines that were bought by hand."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.client: Client = story.client
        self.key = uuid.uuid4().hex[:8]
        self.name = f"d{self.key}"
        self.uid = str(uuid.uuid4())
        self.ids: list[str] = [deployment_workflow_id(self.name)]

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the worker as it ships, and one for the pools."""
        pools = Worker(
            self.client,
            task_queue=f"pools-{self.key}",
            workflows=[StubPool],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with self.story.worker(), pools:
            yield

    async def buy(self, count: int) -> list[Node]:
        """Buy machines, and return them once they run."""
        request = GroupRequest(
            token=uuid.uuid4().hex,
            owner="cluster/by-hand",
            uid=uuid.uuid4().hex,
            name="by-hand",
            region="sim-a",
            instance_type="g5.2xlarge",
            count=count,
            max_usd_per_node_hour=100,
        )
        group = await self.story.provider.launch_group(request)
        assert isinstance(group, Group)
        while True:
            found = next(
                one for one in await self.story.provider.list_groups() if one.token == group.token
            )
            if all(node.status is NodeStatus.RUNNING for node in found.nodes):
                return list(found.nodes)
            await asyncio.sleep(0.05)

    async def pool(self, name: str, nodes: list[Node]) -> WorkflowHandle[Any, Any]:
        """Begin a pool that has these nodes."""
        workflow_id = nodepool_workflow_id(self.key, name)
        self.ids.append(workflow_id)
        given = StubInput(provider=self.story.name, nodes=tuple(nodes))
        return await self.client.start_workflow(
            StubPool.run, given, id=workflow_id, task_queue=f"pools-{self.key}"
        )

    def spec(self, *pools: str, **fields: Any) -> DeploymentSpec:
        given: dict[str, Any] = {
            "id": self.name,
            "template": ReplicaTemplate(
                command=("serve",), port=8000, resources=Resources(cpu_milli=1000)
            ),
            "autoscale": AutoscaleConfig(max_replicas=3),
            "nodepools": tuple(
                DeploymentPool(compute_cluster=self.key, nodepool=pool) for pool in pools
            ),
            **fields,
        }
        return DeploymentSpec(**given)

    async def create(self, spec: DeploymentSpec, *, request_id: str = "create") -> DeploymentAck:
        start = WithStartWorkflowOperation(
            DeploymentWorkflow.run,
            DeploymentInput(id=self.name, uid=self.uid, owner="ada"),
            id=self.handle.id,
            task_queue=TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            memo={"uid": self.uid},
        )
        return await self.client.execute_update_with_start_workflow(
            DeploymentWorkflow.create,
            DeploymentRequest(request_id=request_id, spec=spec, by="ada"),
            start_workflow_operation=start,
        )

    async def update(self, spec: DeploymentSpec) -> DeploymentAck:
        request = DeploymentRequest(request_id=uuid.uuid4().hex, spec=spec, by="ada")
        return await self.handle.execute_update(DeploymentWorkflow.update, request)

    async def scale(self, replicas: int | None) -> DeploymentAck:
        request = ScaleRequest(request_id=uuid.uuid4().hex, replicas=replicas, by="ada")
        return await self.handle.execute_update(DeploymentWorkflow.scale, request)

    async def disable(self) -> DeploymentAck:
        request = EnableRequest(request_id=uuid.uuid4().hex, by="ada")
        return await self.handle.execute_update(DeploymentWorkflow.disable, request)

    async def delete(self) -> DeleteAccepted:
        request = DeleteRequested(request_id=uuid.uuid4().hex, by="ada")
        return await self.handle.execute_update(DeploymentWorkflow.delete, request)

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(deployment_workflow_id(self.name))

    async def status(self) -> DeploymentStatus:
        return await self.handle.query(DeploymentWorkflow.get)

    async def until(self, claim: Claim) -> DeploymentStatus:
        """Return the first status of which a claim is true."""
        end = now_utc() + SOON
        while True:
            status = await self.status()
            if claim(status):
                return status
            assert now_utc() < end, f"not in time: {status.model_dump_json(indent=1)}"
            await asyncio.sleep(0.03)

    def running(self) -> list[str]:
        """Which replicas run, by the cloud's own word."""
        return sorted(
            work.name
            for machine in self.story.machines()
            if machine["status"] == "running"
            for work in self.story.console.list_workloads(machine["provider_id"])
            if work.state is WorkloadState.RUNNING
        )

    async def end(self) -> None:
        """Leave nothing behind that a later test's worker would be given to do."""
        for workflow_id in self.ids:
            try:
                await self.client.get_workflow_handle(workflow_id).terminate("the test is over")
            except RPCError:
                continue  # it ended by itself, or never began
