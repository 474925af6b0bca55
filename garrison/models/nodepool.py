"""A nodepool: an elastic set of like machines, and what is asked of it."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from pydantic import Field

from garrison.errors import ErrorCode
from garrison.models.base import Message, Name, Rate, Seconds, Time
from garrison.models.cluster_messages import DeleteRequest
from garrison.models.cluster_status import BlockedStatus, ErrorStatus, SshStatus
from garrison.models.compute_cluster import PRIVATE
from garrison.models.group import Node, NodeStatus
from garrison.models.offer import CapacityType, Offer
from garrison.models.resources import Resources


class PoolPhase(StrEnum):
    """Where a nodepool is in its life.

    `pending`: not yet in its compute cluster. `disabled`: its `max_instances` is 0.
    """

    PENDING = "pending"
    ACTIVE = "active"
    DISABLED = "disabled"
    DELETING = "deleting"


class NodepoolSpec(Message):
    """What a nodepool should be.

    Attributes:
        instance_types: In order of preference.
        capacity_types: Both means spot first, on-demand in the same pass when spot is refused.
        min_instances: Held, and refilled after losses.
        max_instances: Never passed by requested, starting, running and terminating machines
            together; 0 disables the pool.
        warm_instances: Empty machines kept ready, within `max_instances`.
        on_demand_base: How many of its machines are on demand, where both capacity types are.
        on_demand_fallback: While spot machines that are wanted are not ready, others on demand
            stand in for them.
        max_usd_per_hour: The most that one machine may cost an hour, None for no limit.
        release_after: How long a machine stays empty before it is given back.
        ssh_keys: OpenSSH public keys that may log in to its nodes.
    """

    id: Name
    compute_cluster: Name
    description: str = ""
    instance_types: tuple[str, ...] = Field(min_length=1)
    capacity_types: tuple[CapacityType, ...] = (CapacityType.ON_DEMAND,)
    min_instances: int = Field(default=0, ge=0)
    max_instances: int = Field(default=1, ge=0)
    warm_instances: int = Field(default=0, ge=0)
    on_demand_base: int = Field(default=0, ge=0)
    on_demand_fallback: bool = False
    max_usd_per_hour: Rate | None = None
    release_after: Seconds = timedelta(minutes=5)
    visibility: int = PRIVATE
    ssh_keys: tuple[str, ...] = ()


class NodepoolRequest(Message):
    """Create or update a nodepool (updates `create` and `update`).

    Attributes:
        uid: Pins the life; None takes the living one.
    """

    request_id: str
    spec: NodepoolSpec
    uid: str | None = None
    by: str = ""


class NodepoolAck(Message):
    """An accepted create or update; `generation` is what readers compare with the observed one."""

    id: str
    uid: str
    generation: int
    accepted_at: Time


class PoolOffer(Message):
    """An offer that a pool may buy, and what one such machine offers to replicas."""

    offer: Offer
    capacity: Resources


class PoolOffersRequest(Message):
    """Ask a provider what a pool may buy (activity `pool_offers`)."""

    provider: str
    region: str
    instance_types: tuple[str, ...]
    capacity_types: tuple[CapacityType, ...]


class PoolOffersAnswer(Message):
    """Every offer of the wanted types in the region, priced or not, in no special order.

    Attributes:
        unknown_types: Instance types that the provider does not sell there.
    """

    offers: tuple[PoolOffer, ...] = ()
    unknown_types: tuple[str, ...] = ()


class MachineDeletion(Message):
    """Delete one machine by its token (activity `delete_machine`).

    Attributes:
        node: As it was last reached, None where nothing can run on it.
        replicas: What still runs there, as its deployment did not stop it: whose logs are saved.
    """

    request: DeleteRequest
    node: Node | None = None
    replicas: tuple[str, ...] = ()


class NodepoolReplicaStatus(Message):
    """A replica on one of a pool's nodes."""

    deployment: str
    replica: str


class NodepoolNodeStatus(Message):
    """One machine of a pool.

    Attributes:
        name: The pool's own name for it: its purchase token.
        state: `requested`, `starting`, `running`, `draining` or `terminating`.
        status: By the provider's word.
        capacity_type: As bought; `fallback` is the code of the refusal after which it was bought
            instead of spot.
        empty_since: None while a replica is on it.
        notice_at: When the provider said that it will take it, at `notice_ends_at`.
    """

    name: str
    state: str
    status: NodeStatus
    provider_id: str | None = None
    instance_type: str
    zone: str | None = None
    capacity_type: CapacityType
    fallback: ErrorCode | None = None
    usd_per_hour: Rate | None = None
    private_address: str | None = None
    ssh: SshStatus | None = None
    created_at: Time
    ready_at: Time | None = None
    empty_since: Time | None = None
    notice_at: Time | None = None
    notice_ends_at: Time | None = None
    message: str | None = None
    replicas: tuple[NodepoolReplicaStatus, ...] = ()


class PoolEvent(Message):
    """Something that happened in a pool or a deployment, for people.

    Attributes:
        about: The node or replica it concerns, None for the whole.
        reason: One CamelCase word, `NodeBought`.
        by: Who caused it: a user, `garrison`, or the provider's name.
    """

    time: Time
    about: str | None = None
    reason: str
    message: str
    by: str = "garrison"


class NodepoolStatus(Message):
    """What `get` on a nodepool answers.

    Attributes:
        phase: `pending` (not yet in its compute cluster), `active`, `disabled` (max 0) or
            `deleting`.
        generation: Of the spec; `observed_generation` is the one that was last acted on.
        desired: Machines that it wants now.
        ready: Machines that run and can be reached.
        pending: Replicas that wait for a place.
        hourly_usd: What its machines cost an hour, with those on their way in or out.
    """

    id: str
    compute_cluster: str
    uid: str
    phase: str
    spec: NodepoolSpec
    generation: int
    observed_generation: int
    provider: str | None = None
    region: str | None = None
    owner: str = ""
    created_at: Time
    desired: int = 0
    ready: int = 0
    pending: int = 0
    hourly_usd: Rate | None = None
    blocked: BlockedStatus | None = None
    last_error: ErrorStatus | None = None
    warning: str | None = None
    nodes: tuple[NodepoolNodeStatus, ...] = ()
    events: tuple[PoolEvent, ...] = ()
