"""What people and programs see of a cluster: stable JSON.

Money is a decimal string, times are RFC 3339 UTC, absent is null.
"""

from __future__ import annotations

from decimal import Decimal

from pydantic import Field

from garrison.errors import ErrorCode
from garrison.models.base import Message, Money, Time
from garrison.models.cluster_state import ClusterEvent, Phase, PhaseTransition
from garrison.models.group import NodeStatus, WorkloadState
from garrison.models.offer import CapacityType, Offer
from garrison.models.quote import Considered, QuotePart


class ErrorStatus(Message):
    """A failure with its stable code."""

    code: ErrorCode
    message: str


class BlockedStatus(Message):
    """What stops progress now, since when, and when it is tried again."""

    code: ErrorCode
    message: str
    since: Time
    tries: int
    retry_at: Time


class RecoveryStatus(Message):
    """Recovery as a reader needs it.

    Attributes:
        episode: Number of the open unhealthy episode; None when there is none.
        attempts: Attempts used in this episode, of `max_attempts`.
        in_progress: An attempt is under way.
        next_attempt_at: When the next automatic attempt starts, if one is due.
        reason: What opened the episode, or made it go on.
        healthy_since: All nodes run again since then; the episode closes after an hour of it.
    """

    automatic: bool
    max_attempts: int
    episode: int | None = None
    attempts: int = 0
    in_progress: bool = False
    next_attempt_at: Time | None = None
    reason: str | None = None
    healthy_since: Time | None = None
    last_error: str | None = None


class SshStatus(Message):
    """How to log in to a node."""

    host: str
    port: int
    user: str
    host_key: str | None = None


class NodeWorkloadStatus(Message):
    """The workload of one node."""

    state: WorkloadState
    exit_code: int | None = None
    restarts: int = 0
    message: str | None = None


class ClusterNodeStatus(Message):
    """One node as a reader sees it; `restarts` are restarts in place by Garrison."""

    rank: int
    status: NodeStatus
    provider_id: str | None = None
    private_address: str | None = None
    ssh: SshStatus | None = None
    restarts: int = 0
    message: str | None = None
    workload: NodeWorkloadStatus | None = None


class PurchaseStatus(Message):
    """One place that was tried, and what it answered."""

    provider: str
    region: str | None
    instance_type: str
    answer: str | None = None
    code: ErrorCode | None = None
    emptied_at: Time | None = None


class ClusterStatus(Message):
    """A cluster at one moment.

    Attributes:
        hourly_usd: The locked rate of the whole cluster.
        provider_hourly_usd: What the provider charges now; differs after a failover.
        cost_usd: Charged so far, exact.
        charged_seconds: Charged time of the intervals that have ended.
        charging_since: Start of the charged interval that is open, None while nothing is charged.
        billed_until: End of charging; None while it goes on or never began.
        provider_type: Which adapter, `local` say.
        simulated: The machines are on paper or on this computer.
    """

    name: str
    uid: str
    phase: Phase | None
    provider: str | None = None
    provider_type: str | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    accelerator: str | None = None
    capacity_type: CapacityType | None = None
    simulated: bool = False
    nodes_wanted: int = 0
    gpus_per_node: int = 0
    hourly_usd: Money | None = None
    provider_hourly_usd: Money | None = None
    cost_usd: Money = Field(default=0, validate_default=True)
    charged_seconds: Decimal = Decimal(0)
    charging_since: Time | None = None
    account: str = "default"
    owner: str = ""
    quote_id: str | None = None
    created_at: Time
    quoted_at: Time | None = None
    expires_at: Time | None = None
    ready_at: Time | None = None
    billed_until: Time | None = None
    ended_at: Time | None = None
    terminate_accepted_at: Time | None = None
    recovery: RecoveryStatus
    last_error: ErrorStatus | None = None
    blocked: BlockedStatus | None = None
    volume: str | None = None
    has_command: bool = False
    nodes: tuple[ClusterNodeStatus, ...] = ()
    purchases: tuple[PurchaseStatus, ...] = ()
    phase_transitions: tuple[PhaseTransition, ...] = ()
    events: tuple[ClusterEvent, ...] = ()


class QuoteStatus(Message):
    """A quote as `cluster quote` answers it.

    Attributes:
        availability: Stock signal for one node; joint stock is known only at launch.
        at_most: The rate is an upper bound (spot without a known price).
    """

    name: str
    uid: str
    quote_id: str
    nodes: int
    gpus_per_node: int
    hourly_usd: Money
    at_most: bool = False
    parts: tuple[QuotePart, ...]
    availability: str
    expires_at: Time
    offer: Offer
    alternatives: tuple[Offer, ...] = ()
    considered: tuple[Considered, ...] = ()


class ClusterRow(Message):
    """One line of a list; read from visibility and memo alone.

    Attributes:
        shape: `2 x 8 H100`.
        cost_usd: Charged until now at the locked rate.
    """

    name: str
    uid: str
    phase: Phase | None
    shape: str = ""
    provider: str | None = None
    provider_type: str | None = None
    region: str | None = None
    instance_type: str | None = None
    hourly_usd: Money | None = None
    cost_usd: Money | None = None
    owner: str = ""
    created_at: Time | None = None
    ready_at: Time | None = None
    ended_at: Time | None = None
    simulated: bool = False
    last_error: str | None = None


class Connection(Message):
    """How to reach one node.

    Attributes:
        command: An `ssh` command line that works with the OpenSSH client.
        private_address: Where the other nodes reach it.
    """

    rank: int
    status: NodeStatus
    private_address: str | None = None
    ssh: SshStatus | None = None
    command: str | None = None
