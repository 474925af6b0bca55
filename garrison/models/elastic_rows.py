"""Lines of the lists of compute clusters, nodepools and deployments, and of the tree of all.

A list is made of memos alone. Money is a decimal string, times are RFC 3339 UTC, absent is null.
"""

from __future__ import annotations

from decimal import Decimal

from pydantic import Field

from garrison.models.base import Message, Rate, Time
from garrison.models.compute_cluster import PRIVATE
from garrison.models.deployment import ReplicaStatus
from garrison.models.nodepool import NodepoolNodeStatus
from garrison.models.offer import CapacityType


class ComputeClusterRow(Message):
    """One line of `computecluster list`.

    Attributes:
        nodepools: Ids of its nodepools.
        hourly_usd: What the machines of its nodepools cost an hour, None where that is not known.
    """

    id: str
    uid: str
    phase: str | None = None
    provider: str | None = None
    region: str | None = None
    description: str = ""
    visibility: int = PRIVATE
    owner: str = ""
    created_at: Time | None = None
    nodepools: tuple[str, ...] = ()
    hourly_usd: Rate | None = None


class NodepoolRow(Message):
    """One line of `nodepool list`.

    Attributes:
        desired: Machines that it wants now; `ready` of them run and can be reached.
        nodes: Machines that it owns, those on their way in or out too.
        pending: Replicas that wait for a place.
    """

    id: str
    compute_cluster: str
    uid: str
    phase: str | None = None
    provider: str | None = None
    provider_type: str | None = None
    region: str | None = None
    simulated: bool = False
    description: str = ""
    instance_types: tuple[str, ...] = ()
    capacity_types: tuple[CapacityType, ...] = ()
    min_instances: int = 0
    max_instances: int = 0
    warm_instances: int = 0
    desired: int = 0
    ready: int = 0
    nodes: int = 0
    pending: int = 0
    hourly_usd: Rate | None = None
    reason: str = ""
    owner: str = ""
    created_at: Time | None = None


class DeploymentRow(Message):
    """One line of `deployment list`.

    Attributes:
        what: The model, or the command or image where there is none.
        nodepools: `<compute cluster>/<nodepool>`, in the file's order.
        fixed: The count that `scale` holds, None under autoscaling.
        rollout: `done`, `rolling` or `stopped`.
    """

    id: str
    uid: str
    status: str | None = None
    what: str = ""
    nodepools: tuple[str, ...] = ()
    min_replicas: int = 0
    max_replicas: int = 0
    desired: int = 0
    ready: int = 0
    fixed: int | None = None
    revision: int = 1
    rollout: str = "done"
    hourly_usd: Rate | None = None
    reason: str = ""
    owner: str = ""
    created_at: Time | None = None


class NodepoolBranch(Message):
    """A nodepool in the tree, with its machines and the replicas on them."""

    id: str
    phase: str | None = None
    desired: int = 0
    ready: int = 0
    pending: int = 0
    hourly_usd: Rate | None = None
    nodes: tuple[NodepoolNodeStatus, ...] = ()


class ComputeClusterBranch(Message):
    """A compute cluster in the tree, with its nodepools.

    Attributes:
        phase: None where nodepools name a compute cluster that is not there.
        hourly_usd: Of all its nodepools; None where a price is not known.
    """

    id: str
    phase: str | None = None
    provider: str | None = None
    region: str | None = None
    hourly_usd: Rate | None = None
    nodepools: tuple[NodepoolBranch, ...] = ()


class DeploymentLoss(Message):
    """A deployment that loses nodepools.

    Attributes:
        replicas: Those that lose their places.
        nodepools: What it has left, where they move to; without any they wait.
    """

    id: str
    replicas: tuple[str, ...] = ()
    nodepools: tuple[str, ...] = ()


class DeletePreview(Message):
    """What goes with a resource that is deleted.

    Attributes:
        uid: Of the life that was looked at, None where there is none.
        nodepools: With their machines, which are given back.
        deployments: Those that lose nodepools; only named here, they stay.
        replicas: Of a deployment; they are stopped.
        hourly_usd: What all of it costs an hour, None where a price is not known.
    """

    uid: str | None = None
    nodepools: tuple[NodepoolBranch, ...] = ()
    deployments: tuple[DeploymentLoss, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()
    hourly_usd: Rate | None = Field(default=Decimal(0))


class ResourceTree(Message):
    """Everything that deployments run on, from above to below.

    Attributes:
        hourly_usd: Of all; None where a price is not known.
    """

    compute_clusters: tuple[ComputeClusterBranch, ...] = ()
    hourly_usd: Rate | None = Field(default=Decimal(0))
