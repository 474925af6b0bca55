"""What deployments and nodepools tell each other: demand one way, placements the other.

Both are whole, numbered statements, so that a lost, repeated or late one does no harm; the rules
that they follow are in `docs/placement.md`.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum

from garrison.models.base import Message, Money, Time
from garrison.models.group import Node, WorkloadStatus
from garrison.models.offer import CapacityType
from garrison.models.resources import Resources


class ReplicaDemand(Message):
    """One replica that a deployment wants to have in a pool.

    Attributes:
        replica: Its id, never used for another replica, at most 63 characters; it also names the
            workload on the node.
        exclusive: The node is its own (`disable_packing`).
        port: Where it would like to listen, None where it does not listen.
    """

    replica: str
    resources: Resources = Resources()
    exclusive: bool = False
    port: int | None = None


class Demand(Message):
    """The full set of replicas that one deployment wants in one pool (signal `demand`).

    Attributes:
        deployment: Workflow id of the deployment; `uid` is its life.
        generation: Rises with each change of `replicas`; an older one than known is dropped.
        pool_uid: The life of the pool that `placements_seen` is about, None before any answer.
        placements_seen: Generation of the last placements taken from that life; acknowledges them
            and all before.
        closing: The deployment goes away and wants nothing; the pool forgets it once it has
            answered this.
    """

    deployment: str
    uid: str
    generation: int
    replicas: tuple[ReplicaDemand, ...] = ()
    pool_uid: str | None = None
    placements_seen: int = 0
    closing: bool = False


class PlacementState(StrEnum):
    """How far a pool has come with a replica.

    `pending`: no node yet, `reason` says why. `placed`: the node is up and reachable. `draining`:
    it is placed, but the node will go (`reason` says why): replace it, then withdraw it. `lost`:
    its node is gone, and what ran there with it; it waits for another node as `pending` does.
    """

    PENDING = "pending"
    PLACED = "placed"
    DRAINING = "draining"
    LOST = "lost"


class Placement(Message):
    """Where one demanded replica is.

    Attributes:
        machine: The pool's own name for the node, its purchase token; None without a node. Another
            token, or another `node.incarnation`, is another boot: what ran before is gone.
        node: As the provider's adapter knows it, prepared and with its SSH host key.
        port: Free on that node and reserved for this replica, None if it wanted none.
        devices: Indexes of the accelerators that are its own.
        workload: What the provider's list last said of the replica's process, None if nothing.
        usd_per_hour: Its share of the node's price: that of the resource of which it needs the
            largest part; all of it for an exclusive one. None where the price is unknown.
        reason: In words for people: `pool at max (3)`, `no spot capacity`, `starting a node`.
        coming: A machine that is kept for it is on its way; it need not look elsewhere.
        must_go: A person decided that the node goes (the pool is deleted, its limit was lowered),
            so `draining` ends though no successor finds a place.
        ends_at: When its provider takes the node, as it said in a notice.
    """

    replica: str
    state: PlacementState
    machine: str | None = None
    node: Node | None = None
    port: int | None = None
    devices: tuple[int, ...] = ()
    workload: WorkloadStatus | None = None
    usd_per_hour: Money | None = None
    reason: str = ""
    coming: bool = False
    must_go: bool = False
    ends_at: Time | None = None


class PoolSummary(Message):
    """What a deployment needs to know of a pool to choose between several.

    Attributes:
        provider: Whose nodes these are; names the task queue for workloads.
        usd_per_hour: Of the machine that the pool would buy next, None if it would buy none.
        utilization: Share of the pool's accelerators (of its cores, if it has none) in use, 0 to 1.
        full: No further replica like those that wait can be placed, and no machine bought.
        capacity_types: What it may buy.
    """

    provider: str
    region: str = ""
    usd_per_hour: Money | None = None
    utilization: Decimal = Decimal(0)
    full: bool = False
    capacity_types: tuple[CapacityType, ...] = (CapacityType.ON_DEMAND,)


class Placements(Message):
    """A pool's full answer to one deployment (signal `placements`).

    Attributes:
        nodepool: Workflow id of the pool; `uid` is its life.
        deployment_uid: The life of the deployment that is told.
        generation: The pool's own count for this deployment; rises with each change.
        demand_generation: The demand that this answers, in full.
        closing: The pool goes away: nothing new is placed, everything placed is draining.
    """

    nodepool: str
    uid: str
    deployment_uid: str
    generation: int
    demand_generation: int
    placements: tuple[Placement, ...] = ()
    pool: PoolSummary | None = None
    closing: bool = False


class TellAnswer(Message):
    """Whether somebody lives under the id that was told something."""

    found: bool


class DemandTold(Message):
    """Tell a pool what is wanted of it (activity `tell_nodepool`)."""

    nodepool: str
    demand: Demand


class PlacementsTold(Message):
    """Tell a deployment where its replicas are (activity `tell_deployment`)."""

    deployment: str
    placements: Placements
