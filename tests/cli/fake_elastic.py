"""Compute clusters, nodepools and deployments that answer from memory and keep what was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from garrison.client.apply import ApplyPlan, Planned
from garrison.client.entity import Made
from garrison.client.pool_market import PoolPreview
from garrison.errors import NotFound, WaitTimeout
from garrison.models.apply import ApplyAction, ApplyStep, Difference, ResourceNoun
from garrison.models.compute_cluster import (
    ComputeClusterSpec,
    ComputeClusterStatus,
    DeleteAccepted,
)
from garrison.models.deployment import (
    DeploymentAck,
    DeploymentPool,
    DeploymentSpec,
    DeploymentStatus,
    ReplicaState,
    ReplicaStatus,
    ReplicaTemplate,
)
from garrison.models.elastic_rows import (
    ComputeClusterBranch,
    ComputeClusterRow,
    DeploymentRow,
    NodepoolBranch,
    NodepoolRow,
    ResourceTree,
)
from garrison.models.group import NodeStatus
from garrison.models.nodepool import (
    NodepoolAck,
    NodepoolNodeStatus,
    NodepoolReplicaStatus,
    NodepoolSpec,
    NodepoolStatus,
    PoolEvent,
)
from garrison.models.offer import CapacityType, Offer

NOW = datetime(2030, 5, 17, 12, 0, 0, tzinfo=UTC)
UID = "0b2f6c1e-5d0a-4c53-9a53-6d7f0e9b1a22"
EVENT = PoolEvent(time=NOW, reason="NodeBought", message="bought a g5.2xlarge", about="node-0")
OFFER = Offer(
    provider="aws",
    region="us-east-1",
    instance_type="g5.2xlarge",
    usd_per_hour=Decimal("1.212"),
    simulated=True,
)
NODE = NodepoolNodeStatus(
    name="token-0",
    state="running",
    status=NodeStatus.RUNNING,
    provider_id="i-0",
    instance_type="g5.2xlarge",
    capacity_type=CapacityType.ON_DEMAND,
    usd_per_hour=Decimal("1.212"),
    private_address="10.0.0.1",
    created_at=NOW,
    replicas=(NodepoolReplicaStatus(deployment="deployment/llama", replica="llama-1"),),
)
POOL_SPEC = NodepoolSpec(
    id="a10g", compute_cluster="gpus", instance_types=("g5.2xlarge",), max_instances=3
)
DEPLOYMENT_SPEC = DeploymentSpec(
    id="llama",
    template=ReplicaTemplate(command=("serve",), model="meta/Llama-3/Llama"),
    nodepools=(DeploymentPool(compute_cluster="gpus", nodepool="a10g"),),
)


def compute_cluster(**overrides: Any) -> ComputeClusterStatus:
    """Return a compute cluster with one nodepool."""
    given: dict[str, Any] = {
        "id": "gpus",
        "uid": UID,
        "phase": "active",
        "provider": "aws",
        "region": "us-east-1",
        "created_at": NOW,
        "nodepools": ("a10g",),
    }
    return ComputeClusterStatus(**{**given, **overrides})


def nodepool(**overrides: Any) -> NodepoolStatus:
    """Return a nodepool with one machine."""
    given: dict[str, Any] = {
        "id": "a10g",
        "compute_cluster": "gpus",
        "uid": UID,
        "phase": "active",
        "spec": POOL_SPEC,
        "generation": 1,
        "observed_generation": 1,
        "provider": "aws",
        "region": "us-east-1",
        "owner": "ada",
        "created_at": NOW,
        "desired": 1,
        "ready": 1,
        "hourly_usd": Decimal("1.212"),
        "nodes": (NODE,),
        "events": (EVENT,),
    }
    return NodepoolStatus(**{**given, **overrides})


def deployment(**overrides: Any) -> DeploymentStatus:
    """Return a deployment with one ready replica."""
    replica = ReplicaStatus(
        name="llama-1",
        revision=1,
        state=ReplicaState.READY,
        nodepool="gpus/a10g",
        node="token-0",
        endpoint="http://10.0.0.1:8000",
        created_at=NOW,
    )
    given: dict[str, Any] = {
        "id": "llama",
        "uid": UID,
        "status": "enabled",
        "spec": DEPLOYMENT_SPEC,
        "generation": 2,
        "observed_generation": 2,
        "owner": "ada",
        "created_at": NOW,
        "desired": 1,
        "ready": 1,
        "fixed": 1,
        "reason": "scaled to 1 by ada",
        "hourly_usd": Decimal("1.212"),
        "replicas": (replica,),
        "events": (EVENT,),
    }
    return DeploymentStatus(**{**given, **overrides})


POOL_ROW = NodepoolRow(
    id="a10g",
    compute_cluster="gpus",
    uid=UID,
    phase="active",
    provider="aws",
    region="us-east-1",
    instance_types=("g5.2xlarge",),
    capacity_types=(CapacityType.ON_DEMAND, CapacityType.SPOT),
    max_instances=3,
    desired=1,
    ready=1,
    nodes=1,
    hourly_usd=Decimal("1.212"),
    simulated=True,
)
DEPLOYMENT_ROW = DeploymentRow(
    id="llama",
    uid=UID,
    status="enabled",
    what="meta/Llama-3/Llama",
    nodepools=("gpus/a10g",),
    max_replicas=5,
    desired=1,
    ready=1,
    revision=2,
    rollout="rolling",
    hourly_usd=Decimal("1.212"),
    reason="scaled to 1 by ada",
)
TREE = ResourceTree(
    compute_clusters=(
        ComputeClusterBranch(
            id="gpus",
            phase="active",
            provider="aws",
            region="us-east-1",
            hourly_usd=Decimal("1.212"),
            nodepools=(
                NodepoolBranch(
                    id="a10g",
                    phase="active",
                    desired=1,
                    ready=1,
                    hourly_usd=Decimal("1.212"),
                    nodes=(NODE,),
                ),
            ),
        ),
    ),
    hourly_usd=Decimal("1.212"),
)

List = list  # the fakes have methods of that name


@dataclass
class _Fake:
    """What the fakes have in common.

    Attributes:
        calls: Method name and arguments of every call.
        error: Raised by every call, if set.
        began: What `make` says: nobody else was first.
    """

    calls: List[tuple[str, dict[str, Any]]] = field(default_factory=List)
    error: BaseException | None = None
    began: bool = True

    def named(self, method: str) -> List[dict[str, Any]]:
        """Return the arguments of each call of a method."""
        return [arguments for name, arguments in self.calls if name == method]

    def _called(self, method: str, **arguments: Any) -> None:
        self.calls.append((method, arguments))
        if self.error is not None:
            raise self.error


def _follow(story: List[Any], on_change: Callable[[Any], None] | None) -> Any:
    for status in story:
        if on_change is not None:
            on_change(status)
    return story[-1]


@dataclass
class FakeComputeClusters(_Fake):
    """Compute clusters of a made-up service."""

    found: ComputeClusterStatus | None = field(default_factory=compute_cluster)
    rows: List[List[ComputeClusterRow]] = field(default_factory=List)

    async def check(self, spec: ComputeClusterSpec) -> None:
        self._called("check", spec=spec)

    async def create(self, spec: ComputeClusterSpec) -> ComputeClusterStatus:
        self._called("create", spec=spec)
        return compute_cluster(**spec.model_dump())

    async def make(self, spec: ComputeClusterSpec) -> Made[ComputeClusterStatus]:
        return Made(await self.create(spec), self.began)

    async def update(
        self, spec: ComputeClusterSpec, *, uid: str | None = None
    ) -> ComputeClusterStatus:
        self._called("update", spec=spec, uid=uid)
        return compute_cluster(**spec.model_dump())

    async def get(self, name: str, *, uid: str | None = None) -> ComputeClusterStatus:
        self._called("get", name=name, uid=uid)
        if self.found is None:
            raise NotFound(f"there is no compute cluster {name}")
        return self.found

    async def find(self, name: str) -> ComputeClusterStatus | None:
        self._called("find", name=name)
        return self.found

    async def list(self) -> List[ComputeClusterRow]:
        return self.rows.pop(0)

    async def delete(
        self, name: str, *, cascade: bool = False, uid: str | None = None
    ) -> DeleteAccepted:
        self._called("delete", name=name, cascade=cascade, uid=uid)
        return DeleteAccepted(id=name, uid=UID, accepted_at=NOW)

    async def wait_deleted(self, name: str, **how: Any) -> None:
        self._called("wait_deleted", name=name, uid=how["uid"])


@dataclass
class FakeNodepools(_Fake):
    """Nodepools of a made-up service.

    Attributes:
        story: What `wait` sees, one status after another.
    """

    story: List[NodepoolStatus] = field(default_factory=lambda: [nodepool()])
    rows: List[List[NodepoolRow]] = field(default_factory=lambda: [[POOL_ROW]])
    warnings: tuple[str, ...] = ()
    usd_per_hour: Decimal | None = Decimal("1.212")

    async def preview(
        self,
        spec: NodepoolSpec,
        *,
        claims: Mapping[str, Any] | None = None,
        compute_cluster: ComputeClusterSpec | None = None,
        before: NodepoolSpec | None = None,
    ) -> PoolPreview:
        self._called("preview", spec=spec, claims=claims, compute_cluster=compute_cluster)
        return PoolPreview(
            provider="aws",
            region="us-east-1",
            offer=OFFER,
            usd_per_hour=self.usd_per_hour,
            machines=max(spec.min_instances - (before.min_instances if before else 0), 0),
            warnings=self.warnings,
        )

    async def create(self, spec: NodepoolSpec) -> NodepoolAck:
        self._called("create", spec=spec)
        return NodepoolAck(id=spec.id, uid=UID, generation=1, accepted_at=NOW)

    async def make(self, spec: NodepoolSpec) -> Made[NodepoolAck]:
        return Made(await self.create(spec), self.began)

    async def find(self, compute_cluster: str, name: str) -> NodepoolStatus | None:
        self._called("find", compute_cluster=compute_cluster, name=name)
        return self.story[0]

    async def update(self, spec: NodepoolSpec, *, uid: str | None = None) -> NodepoolAck:
        self._called("update", spec=spec, uid=uid)
        return NodepoolAck(id=spec.id, uid=UID, generation=2, accepted_at=NOW)

    async def get(
        self, compute_cluster: str, name: str, *, uid: str | None = None
    ) -> NodepoolStatus:
        self._called("get", compute_cluster=compute_cluster, name=name, uid=uid)
        return self.story[0]

    async def list(self, compute_cluster: str | None = None) -> List[NodepoolRow]:
        self._called("list", compute_cluster=compute_cluster)
        if not self.rows:
            raise KeyboardInterrupt
        return self.rows.pop(0)

    async def delete(
        self, compute_cluster: str, name: str, *, uid: str | None = None
    ) -> DeleteAccepted:
        self._called("delete", compute_cluster=compute_cluster, name=name, uid=uid)
        return DeleteAccepted(id=name, uid=UID, accepted_at=NOW)

    async def wait(self, compute_cluster: str, name: str, **how: Any) -> NodepoolStatus:
        self._called("wait", name=name, generation=how["generation"])
        found: NodepoolStatus = _follow(self.story, how["on_change"])
        return found

    async def wait_deleted(self, compute_cluster: str, name: str, **how: Any) -> None:
        self._called("wait_deleted", name=name)
        _follow(self.story, how["on_change"])


@dataclass
class FakeDeployments(_Fake):
    """Deployments of a made-up service.

    Attributes:
        story: What `wait` sees, one status after another; it times out if that is empty.
    """

    story: List[DeploymentStatus] = field(default_factory=lambda: [deployment()])
    rows: List[List[DeploymentRow]] = field(default_factory=lambda: [[DEPLOYMENT_ROW]])
    missing: tuple[str, ...] = ()
    log: tuple[bytes, ...] = ()
    log_is_saved: bool = False

    async def missing_nodepools(self, wanted: Any) -> tuple[str, ...]:
        return self.missing

    async def create(self, wanted: Any) -> DeploymentAck:
        self._called("create", wanted=wanted)
        return self._ack("accepted")

    async def make(self, wanted: Any) -> Made[DeploymentAck]:
        return Made(await self.create(wanted), self.began)

    async def update(self, wanted: Any, *, uid: str | None = None) -> DeploymentAck:
        self._called("update", wanted=wanted, uid=uid)
        return self._ack("accepted")

    async def scale(
        self, name: str, replicas: int | None, *, uid: str | None = None
    ) -> DeploymentAck:
        self._called("scale", name=name, replicas=replicas, uid=uid)
        return self._ack(f"scaled to {replicas} by ada")

    async def enable(self, name: str, *, uid: str | None = None) -> DeploymentAck:
        self._called("enable", name=name, uid=uid)
        return self._ack("enabled by ada")

    async def disable(self, name: str, *, uid: str | None = None) -> DeploymentAck:
        self._called("disable", name=name, uid=uid)
        return self._ack("disabled by ada")

    async def get(self, name: str, *, uid: str | None = None) -> DeploymentStatus:
        self._called("get", name=name, uid=uid)
        return self.story[0]

    async def list(self) -> List[DeploymentRow]:
        if not self.rows:
            raise KeyboardInterrupt
        return self.rows.pop(0)

    async def events(self, name: str, *, uid: str | None = None) -> tuple[PoolEvent, ...]:
        return self.story[0].events

    async def logs(
        self,
        name: str,
        *,
        replica: str | None = None,
        follow: bool = False,
        on_saved: Callable[[str], None],
    ) -> AsyncIterator[bytes]:
        self._called("logs", name=name, replica=replica, follow=follow)
        if self.log_is_saved:
            on_saved(str(replica))
        for data in self.log:
            yield data

    async def delete(self, name: str, *, uid: str | None = None) -> DeleteAccepted:
        self._called("delete", name=name, uid=uid)
        return DeleteAccepted(id=name, uid=UID, accepted_at=NOW)

    async def wait(
        self, name: str, *, timeout: timedelta | None = None, **how: Any
    ) -> DeploymentStatus:
        self._called("wait", name=name, generation=how["generation"], timeout=timeout)
        if not self.story:
            raise WaitTimeout(f"deployment {name} is not there yet")
        found: DeploymentStatus = _follow(self.story, how["on_change"])
        return found

    async def wait_deleted(self, name: str, **how: Any) -> None:
        self._called("wait_deleted", name=name)

    def _ack(self, message: str) -> DeploymentAck:
        return DeploymentAck(id="llama", uid=UID, generation=2, accepted_at=NOW, message=message)


STEPS = (
    ApplyStep(
        noun=ResourceNoun.COMPUTE_CLUSTER,
        name="gpus",
        action=ApplyAction.UNCHANGED,
        source="gpus.yaml",
    ),
    ApplyStep(
        noun=ResourceNoun.NODEPOOL,
        name="gpus/a10g",
        action=ApplyAction.CREATE,
        source="pool.yaml",
        machines=2,
        hourly_usd=Decimal("2.424"),
        warnings=("g5.2xlarge: the file says 40Gi accelerator memory, the catalogue 22.49Gi",),
    ),
    ApplyStep(
        noun=ResourceNoun.DEPLOYMENT,
        name="llama",
        action=ApplyAction.UPDATE,
        source="llama.yaml",
        differences=(Difference(field="max_replicas", before="5", after="7"),),
    ),
)


@dataclass
class FakeApply:
    """A plan that is always the same.

    Attributes:
        beaten: Somebody else makes everything first.
    """

    steps: tuple[ApplyStep, ...] = STEPS
    files: List[Mapping[str, bytes]] = field(default_factory=List)
    beaten: bool = False
    done: List[ApplyStep] = field(default_factory=List)

    async def plan(self, files: Mapping[str, bytes]) -> ApplyPlan:
        self.files.append(files)
        return ApplyPlan(tuple(Planned(step, POOL_SPEC) for step in self.steps))

    async def carry_out(self, plan: ApplyPlan) -> AsyncIterator[ApplyStep]:
        for planned in plan.steps:
            changes = planned.step.action is not ApplyAction.UNCHANGED
            step = planned.step.model_copy(update={"done": changes})
            if self.beaten and step.action is ApplyAction.CREATE:
                step = step.model_copy(update={"action": ApplyAction.UNCHANGED})
            self.done.append(step)
            yield step
