"""An example of each public message of compute clusters, nodepools and deployments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from garrison.errors import ErrorCode
from garrison.models.base import Message
from garrison.models.cluster_status import BlockedStatus, ErrorStatus, SshStatus
from garrison.models.compute_cluster import (
    ComputeClusterInput,
    ComputeClusterRequest,
    ComputeClusterSpec,
    ComputeClusterStatus,
    DeleteAccepted,
    DeleteRequested,
    JoinAnswer,
    JoinRequest,
    NodepoolMember,
)
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentAck,
    DeploymentPool,
    DeploymentRequest,
    DeploymentSpec,
    DeploymentStatus,
    EnableRequest,
    HealthProbe,
    ReplicaState,
    ReplicaStatus,
    ReplicaTemplate,
    RolloutStatus,
    ScaleRequest,
)
from garrison.models.deployment_state import (
    DeploymentEndpoints,
    DeploymentInput,
    DeploymentState,
    ReplicaEndpoint,
)
from garrison.models.elastic_file import DeploymentFile
from garrison.models.group import Node, NodeStatus, SshEndpoint, WorkloadState, WorkloadStatus
from garrison.models.load import (
    Followed,
    FollowedChanges,
    LoadCounts,
    LoadWatchInput,
    LoadWatchStatus,
    RouterDeployment,
    RouterLoad,
    TargetChanged,
    WakeRequest,
)
from garrison.models.nodepool import (
    NodepoolAck,
    NodepoolNodeStatus,
    NodepoolReplicaStatus,
    NodepoolRequest,
    NodepoolSpec,
    NodepoolStatus,
    PoolEvent,
)
from garrison.models.nodepool_state import NodepoolInput
from garrison.models.offer import CapacityType
from garrison.models.placement import (
    Demand,
    Placement,
    Placements,
    PlacementState,
    PoolSummary,
    ReplicaDemand,
)
from garrison.models.resources import Resources

UID = "0b5a2f5e-7d0c-4c3e-9a39-3f0f6f1c2d11"
POOL_UID = "6c1c0d0e-52e2-4f4b-8a53-0d3f5a1b7e22"
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SEALED = "sealed:0123456789abcdef:" + "QUJD" * 21
MACHINE = f"{POOL_UID}-0"
RATE = Decimal("1.212")

COMPUTE_CLUSTER_SPEC = ComputeClusterSpec(
    id="gpus", provider="aws", region="us-east-1", description="for inference"
)
NODEPOOL_SPEC = NodepoolSpec(
    id="a10g",
    compute_cluster="gpus",
    instance_types=("g5.2xlarge",),
    capacity_types=(CapacityType.ON_DEMAND, CapacityType.SPOT),
    max_instances=3,
    max_usd_per_hour=Decimal("1.50"),
)
NEED = Resources(
    cpu_milli=2000,
    memory_bytes=8 * 2**30,
    accelerators=1,
    accelerator_memory_bytes=16 * 2**30,
    accelerator_types=("NVIDIA-*",),
)
DEPLOYMENT_SPEC = DeploymentSpec(
    id="llama",
    template=ReplicaTemplate(
        command=("serve", "--port", "8000"),
        env={"TOKEN": SEALED, "LEVEL": "plain:info"},
        port=8000,
        resources=NEED,
        health=HealthProbe(path="/health"),
        model="meta/Llama-3/Llama-3_2-3B-Instruct",
        model_version="fe271b43266a45a5b068766b6437687f",
    ),
    autoscale=AutoscaleConfig(max_replicas=5),
    nodepools=(DeploymentPool(compute_cluster="gpus", nodepool="a10g", priority=1),),
)
DEPLOYMENT_STATE = DeploymentState(id="llama", uid=UID, created_at=NOW, spec=DEPLOYMENT_SPEC)
EVENT = PoolEvent(time=NOW, about=MACHINE, reason="NodeBought", message="bought a g5.2xlarge")
SSH = SshEndpoint(host="10.0.0.1", host_key="ssh-ed25519 AAAA")
BLOCKED = BlockedStatus(
    code=ErrorCode.PROVIDER_UNREACHABLE,
    message="no answer in time",
    since=NOW,
    tries=2,
    retry_at=NOW + timedelta(seconds=4),
)
ERROR = ErrorStatus(code=ErrorCode.PROVIDER_UNREACHABLE, message="no answer in time")
NODEPOOL_STATUS = NodepoolStatus(
    id="a10g",
    compute_cluster="gpus",
    uid=POOL_UID,
    phase="active",
    spec=NODEPOOL_SPEC,
    generation=1,
    observed_generation=1,
    provider="aws",
    region="us-east-1",
    owner="ada",
    created_at=NOW,
    desired=1,
    ready=1,
    hourly_usd=RATE,
    blocked=BLOCKED,
    last_error=ERROR,
    warning="no replica has used it for 24 h",
    nodes=(
        NodepoolNodeStatus(
            name=MACHINE,
            state="running",
            status=NodeStatus.RUNNING,
            provider_id="i-1",
            instance_type="g5.2xlarge",
            zone="us-east-1a",
            capacity_type=CapacityType.ON_DEMAND,
            fallback=ErrorCode.INSUFFICIENT_CAPACITY,
            usd_per_hour=RATE,
            private_address="10.0.0.1",
            ssh=SshStatus(host="10.0.0.1", port=22, user="root", host_key="ssh-ed25519 AAAA"),
            created_at=NOW,
            ready_at=NOW,
            replicas=(NodepoolReplicaStatus(deployment="deployment/llama", replica="llama-1"),),
        ),
    ),
    events=(EVENT,),
)
DEPLOYMENT_STATUS = DeploymentStatus(
    id="llama",
    uid=UID,
    status="enabled",
    spec=DEPLOYMENT_SPEC,
    generation=2,
    observed_generation=2,
    owner="ada",
    created_at=NOW,
    desired=1,
    ready=1,
    fixed=1,
    reason="scaled to 1 by ada",
    rollout=RolloutStatus(state="rolling", revision=2, updated=1, reason="1 of 1 is updated"),
    blocked=BLOCKED,
    last_error=ERROR,
    replicas=(
        ReplicaStatus(
            name="llama-1",
            revision=2,
            state=ReplicaState.READY,
            nodepool="gpus/a10g",
            node=MACHINE,
            provider="aws",
            ssh=SSH,
            endpoint="http://10.0.0.1:8000",
            created_at=NOW,
            ready_at=NOW,
        ),
    ),
    events=(EVENT,),
)
PLACEMENTS = Placements(
    nodepool="nodepool/gpus/a10g",
    uid=POOL_UID,
    deployment_uid=UID,
    generation=3,
    demand_generation=2,
    placements=(
        Placement(
            replica="llama-1",
            state=PlacementState.PLACED,
            machine=MACHINE,
            node=Node(
                rank=0,
                provider_id="i-1",
                status=NodeStatus.RUNNING,
                private_address="10.0.0.1",
                ssh=SSH,
            ),
            port=8000,
            devices=(0,),
            workload=WorkloadStatus(name="llama-1", state=WorkloadState.RUNNING),
        ),
        Placement(replica="llama-2", state=PlacementState.PENDING, reason="pool at max (3)"),
    ),
    pool=PoolSummary(
        provider="aws", region="us-east-1", usd_per_hour=RATE, utilization=Decimal("0.5")
    ),
)

COMPUTE_CLUSTER_MESSAGES: tuple[Message, ...] = (
    ComputeClusterInput(id="gpus", uid=UID, owner="ada"),
    ComputeClusterRequest(request_id="r-1", spec=COMPUTE_CLUSTER_SPEC, uid=UID, by="ada"),
    ComputeClusterStatus(
        uid=UID,
        phase="active",
        owner="ada",
        created_at=NOW,
        nodepools=("a10g",),
        **COMPUTE_CLUSTER_SPEC.model_dump(),
    ),
    JoinRequest(request_id="r-2", member=NodepoolMember(owner="nodepool/gpus/a10g", uid=POOL_UID)),
    JoinAnswer(uid=UID, provider="aws", region="us-east-1"),
    DeleteRequested(request_id="r-3", uid=UID, cascade=True, by="ada"),
    DeleteAccepted(id="gpus", uid=UID, accepted_at=NOW),
)
NODEPOOL_MESSAGES: tuple[Message, ...] = (
    NodepoolInput(compute_cluster="gpus", id="a10g", uid=POOL_UID, owner="ada"),
    NodepoolRequest(request_id="r-1", spec=NODEPOOL_SPEC, uid=POOL_UID, by="ada"),
    NodepoolAck(id="a10g", uid=POOL_UID, generation=1, accepted_at=NOW),
    NODEPOOL_STATUS,
    Demand(
        deployment="deployment/llama",
        uid=UID,
        generation=2,
        replicas=(
            ReplicaDemand(replica="llama-1", resources=NEED, port=8000),
            ReplicaDemand(replica="llama-2", resources=NEED, exclusive=True),
        ),
        pool_uid=POOL_UID,
        placements_seen=2,
    ),
)
ENDPOINTS = DeploymentEndpoints(
    id="llama",
    uid=UID,
    created_at=NOW,
    version=4,
    enabled=True,
    desired=1,
    generation=2,
    reason="up: 1 needed for 60 s; demand 0.4",
    replicas=(
        ReplicaEndpoint(
            name="llama-1",
            state=ReplicaState.READY,
            endpoint="http://10.0.0.1:8000",
            revision=2,
        ),
    ),
)
FOLLOWED = Followed(
    id="llama",
    workflow_id="deployment/llama",
    uid=UID,
    created_at=NOW,
    version=4,
    generation=1,
    desired=1,
    ready=1,
    boot=timedelta(seconds=95),
    endpoints=ENDPOINTS,
)
LOAD_MESSAGES: tuple[Message, ...] = (
    LoadCounts(running=2, queued=0, arrivals=120, completions=118),
    RouterLoad(
        router="5f3a",
        deployments={
            "llama": LoadCounts(running=2, queued=0, arrivals=120, completions=118),
        },
    ),
    RouterDeployment(router="5f3a", queued=0, replicas={"llama-1": 2}),
    FOLLOWED,
    FollowedChanges(changed=(FOLLOWED,), last=7),
    LoadWatchInput(source="router"),
    LoadWatchStatus(source="router", followed=("llama",)),
    TargetChanged(
        uid=UID, generation=1, target=2, reason="up: 2 needed for 60 s; demand 1.6", demand=1.6
    ),
    WakeRequest(uid=UID, asked_at=NOW, by="router"),
)
DEPLOYMENT_MESSAGES: tuple[Message, ...] = (
    DeploymentInput(id="llama", uid=UID, owner="ada"),
    DeploymentRequest(request_id="r-1", spec=DEPLOYMENT_SPEC, uid=UID, by="ada"),
    DeploymentAck(id="llama", uid=UID, generation=2, accepted_at=NOW, message="scaled to 1 by ada"),
    ScaleRequest(request_id="r-2", replicas=1, uid=UID, by="ada"),
    EnableRequest(request_id="r-3", uid=UID, by="ada"),
    DEPLOYMENT_STATUS,
    PLACEMENTS,
    ENDPOINTS,
    DeploymentFile(
        id="llama",
        model="meta/Llama-3/Llama-3_2-3B-Instruct",
        model_version="fe271b43266a45a5b068766b6437687f",
        nodepools=DEPLOYMENT_SPEC.nodepools,
    ),
)
ELASTIC_MESSAGES = (
    *COMPUTE_CLUSTER_MESSAGES,
    *NODEPOOL_MESSAGES,
    *DEPLOYMENT_MESSAGES,
    *LOAD_MESSAGES,
)
