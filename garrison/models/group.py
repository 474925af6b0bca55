"""Machines as a provider sells and lists them: groups of nodes under one token."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from garrison.errors import ErrorCode
from garrison.models.base import Message, Money, Time
from garrison.models.offer import CapacityType


class NodeStatus(StrEnum):
    """State of one machine.

    `unknown` is said only by a provider whose complete list cannot tell this node's state;
    `lost` and `unreachable` are conclusions of the owner, never of a provider.
    """

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    UNREACHABLE = "unreachable"
    STOPPED = "stopped"
    LOST = "lost"
    TERMINATED = "terminated"
    FAILED = "failed"
    UNKNOWN = "unknown"


class WorkloadState(StrEnum):
    """State of one workload on one node."""

    PENDING = "pending"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class WorkloadStatus(Message):
    """One workload on one node, as the node's supervisor says."""

    name: str
    state: WorkloadState
    exit_code: int | None = None
    restarts: int = 0
    message: str | None = None


class SshEndpoint(Message):
    """Where a node's SSH server listens, as the worker reaches it.

    Attributes:
        host_key: The server's public key in OpenSSH form, once seen.
    """

    host: str
    port: int = 22
    user: str = "root"
    host_key: str | None = None


class Node(Message):
    """One machine as its provider lists it.

    Attributes:
        provider_id: The provider's own id.
        incarnation: Counts boots; a restart in place raises it.
        private_address: Interconnect address, the same after a restart in place.
        first_port: First of the ports that are this node's own where nodes share an address.
        workloads: What runs on it, None where listing does not tell.
        failure: The code of a failed start, `insufficient_capacity` say.
        message: The provider's own words.
        notice_at: When the provider gave notice that it will take the machine; None if it did not.
        notice_ends_at: When it will take it, None where it does not say.
    """

    rank: int
    provider_id: str
    status: NodeStatus
    incarnation: int = 1
    private_address: str | None = None
    public_address: str | None = None
    first_port: int | None = None
    ssh: SshEndpoint | None = None
    workloads: tuple[WorkloadStatus, ...] | None = None
    failure: ErrorCode | None = None
    message: str | None = None
    notice_at: Time | None = None
    notice_ends_at: Time | None = None


class Group(Message):
    """The machines bought under one token.

    Attributes:
        owner: Workflow id of the owner, `cluster/train-1`.
        uid: The life of the owner.
        usd_per_node_hour: What the provider charges, None where it does not say.
    """

    token: str
    owner: str
    uid: str
    region: str
    zone: str | None = None
    instance_type: str
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    usd_per_node_hour: Money | None = None
    created_at: Time
    nodes: tuple[Node, ...] = ()


class GroupRequest(Message):
    """Buy `count` identical machines in one place, all or nothing.

    Attributes:
        token: Idempotency key, at most 64 ASCII characters; the same token is the same purchase.
        name: For names that people see at the provider.
        max_usd_per_node_hour: The locked rate; nothing is bought above it, and no spot bid is.
        ports: Open between the nodes.
        expose: CIDRs that may reach those ports from outside.
        options: The adapter's own part of `provider_options`.
    """

    token: str
    owner: str
    uid: str
    name: str
    region: str
    zone: str | None = None
    instance_type: str
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    count: int
    gpus_per_node: int = 0
    root_disk_gb: int | None = None
    max_usd_per_node_hour: Money
    ports: tuple[int, ...] = ()
    expose: tuple[str, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)


class Refusal(Message):
    """The provider has no capacity: a value, since the caller goes on from it."""

    code: ErrorCode = ErrorCode.INSUFFICIENT_CAPACITY
    message: str


class RestartResult(StrEnum):
    """What became of a restart in place.

    A provider never returns `failed`: it stands for a call that failed for good.
    """

    RESTARTED = "restarted"
    ALREADY_RUNNING = "already_running"
    GONE = "gone"
    NO_CAPACITY = "no_capacity"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"


class RestartPolicy(StrEnum):
    """When a node's supervisor starts a workload again."""

    NEVER = "never"
    ON_FAILURE = "on_failure"
    ALWAYS = "always"


class LogChunk(Message):
    """Part of a workload's log on one node.

    Attributes:
        data: Bytes exactly as the workload wrote them.
        offset: Where `data` begins.
        ended: The workload has ended and `data` reaches the end of its log.
        saved: It is a copy that was made before the workload or its machine went.
    """

    offset: int
    data: bytes
    ended: bool = False
    saved: bool = False

    @property
    def next_offset(self) -> int:
        """Where to read on."""
        return self.offset + len(self.data)
