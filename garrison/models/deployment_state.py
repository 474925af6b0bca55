"""The one serialisable state of a deployment's life, and the parts it is made of."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field

from garrison.models.base import Message, Seconds, Time
from garrison.models.cluster_state import Blocked, Failure
from garrison.models.deployment import DeploymentSpec, LoadKind, ReplicaState, ReplicaTemplate
from garrison.models.nodepool import PoolEvent
from garrison.models.placement import Placement, PoolSummary, ReplicaDemand

SCHEMA_VERSION = 1


class RunState(StrEnum):
    """How far a replica's process has come."""

    CALLED = "called"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class Run(Message):
    """A replica's process in one boot of one node; it is gone when the boot is.

    Attributes:
        machine: The pool's name for the node; `incarnation` is the boot.
        generation: Of the workload on the node; rises with each start of the replica.
        called: Before the start is sent: from then on the process may run.
        doubted: Its pool says that the process has ended, which is looked at.
        retry_at: When it is started again, None where it is not.
        given_up: It failed too often; only a person's word starts it again.
    """

    provider: str
    machine: str
    incarnation: int
    generation: int
    state: RunState = RunState.CALLED
    started_at: Time
    ready_at: Time | None = None
    doubted: bool = False
    reason: str = ""
    retry_at: Time | None = None
    given_up: bool = False


class Replica(Message):
    """One replica of a deployment, from the wish for it until its pool has let go of it.

    Attributes:
        pool: Workflow id of the pool that it belongs to, None before it was given to one.
        withdrawn: Generation of the first demand without it, None while it is demanded.
        leaving: Why it goes away for good; None while it is wanted.
        placement: The pool's last word on it, without what else runs on the node.
        placed: It was on a node once; then it never moves to another pool.
        run: Its process, as far as this deployment started one that can still be there.
        starts: How often it was started, in any boot.
        node_restarts: How often nodes started its processes again by themselves, all its
            processes together; `node_restarts_seen` is what was last told of the present one.
        restarted_at: The times in the last hour when it was started again after a failure.
        waiting_since: Since when it has no place, None while it has one.
        left: Full pools that it moved away from, and from when on it may go back.
        moves: How often it moved.
        trouble: What a call about it fails with.
    """

    id: str
    revision: int
    created_at: Time
    pool: str | None = None
    withdrawn: int | None = None
    leaving: str | None = None
    placement: Placement | None = None
    placed: bool = False
    run: Run | None = None
    starts: int = 0
    restarts: int = 0
    node_restarts: int = 0
    node_restarts_seen: int = 0
    restarted_at: tuple[Time, ...] = ()
    waiting_since: Time | None = None
    left: dict[str, Time] = Field(default_factory=dict)
    moves: int = 0
    trouble: Blocked | None = None


class PoolTalk(Message):
    """What was said between a deployment and one pool.

    Attributes:
        listed: What the newest demand asks for; `generation` is its number, 0 before any.
        uid: The pool's life, None before any answer; `past` are lives before it.
        seen: Generation of the last placements taken from that life.
        answered: Generation of the demand that they answer.
        missing: Nobody lived under the pool's id when it was last told.
        tells: How often the newest demand was told.
        tell_due: When it is told (again), None while nothing is left to say.
        opened_at: Since when it is talked to.
    """

    pool: str
    generation: int = 0
    listed: tuple[ReplicaDemand, ...] = ()
    closing: bool = False
    uid: str | None = None
    past: tuple[str, ...] = ()
    seen: int = 0
    answered: int = 0
    summary: PoolSummary | None = None
    pool_closing: bool = False
    missing: bool = False
    tells: int = 0
    tell_due: Time | None = None
    opened_at: Time
    trouble: Blocked | None = None


class Rollout(Message):
    """The replacement of older replicas by those of the newest revision.

    Attributes:
        rolling: Older ones were there when the revision rose, and not all are replaced yet.
        stopped: Why it goes no further, None while it does.
    """

    rolling: bool = False
    stopped: str | None = None


class DeploymentState(Message):
    """All of a deployment's life that must survive continue-as-new.

    The one mutable message: its workflow is the single writer.

    Attributes:
        accepted_at: When the spec was first accepted.
        revision: Of the template; `templates` has those of all revisions that replicas run.
        fixed: The count that `scale` holds, `fixed_by` whose word it is.
        target: What autoscaling wants, None while nothing has decided; `target_reason` says why.
        demand: What the load needed when that was decided, in replicas and parts of one.
        wish: Rises when a person or a router says what is wanted; what the load asked for before
            is dropped.
        boot: From the wish for a replica until it is ready, as it lately was.
        desired: Replicas wanted, as last decided; `reason` says why.
        sources: Who was ever to count its requests.
        view: Digest of what routers and the watch of the load are told; `version` is its number,
            `published` that of the newest that they were told.
        changed: What a person last changed, in words.
        replicas: By id.
        next_replica: Number of the next one; used once.
        pools: What was said with each pool, by workflow id; those of the spec and former ones.
        answers: Answers by request id, the last 200.
    """

    model_config = ConfigDict(frozen=False, validate_assignment=False)

    schema_version: int = SCHEMA_VERSION
    id: str
    uid: str
    owner: str = ""
    created_at: Time
    accepted_at: Time | None = None
    spec: DeploymentSpec | None = None
    generation: int = 0
    observed_generation: int = 0
    revision: int = 0
    templates: dict[int, ReplicaTemplate] = Field(default_factory=dict)
    enabled: bool = True
    enabled_by: str = ""
    fixed: int | None = None
    fixed_by: str = ""
    target: int | None = None
    target_reason: str = ""
    demand: float | None = None
    wish: int = 0
    boot: Seconds | None = None
    desired: int = 0
    reason: str = ""
    sources: tuple[LoadKind, ...] = ()
    view: str = ""
    version: int = 0
    published: int = 0
    replicas: dict[str, Replica] = Field(default_factory=dict)
    next_replica: int = 1
    pools: dict[str, PoolTalk] = Field(default_factory=dict)
    rollout: Rollout = Rollout()
    deadman: Seconds | None = None
    heartbeat: Seconds = timedelta(seconds=30)
    deadman_at: Time | None = None
    delete_accepted_at: Time | None = None
    ended_at: Time | None = None
    last_error: Failure | None = None
    trouble: Blocked | None = None
    events: list[PoolEvent] = Field(default_factory=list)
    answers: dict[str, dict[str, Any]] = Field(default_factory=dict)


class DeploymentInput(Message):
    """Start a deployment's life, or continue one.

    Attributes:
        revision: Which way the run goes where ways differ, see `docs/changing-workflows.md`.
    """

    id: str
    uid: str
    owner: str = ""
    revision: int = 0
    state: DeploymentState | None = None


class ReplicaEndpoint(Message):
    """Where one replica answers, for the router.

    Attributes:
        endpoint: `http://address:port`, None before it listens.
    """

    name: str
    state: ReplicaState
    endpoint: str | None = None
    revision: int


class DeploymentEndpoints(Message):
    """What the query `endpoints` answers, and what routers are told.

    Attributes:
        created_at: Of the life; what is said of a later one replaces what is known.
        version: Rises with each change within a life; an older one than known is dropped.
        wakeable: A request would bring replicas; `reason` says why there are none, or so few.
    """

    id: str
    uid: str
    created_at: Time | None = None
    version: int = 0
    enabled: bool
    desired: int
    generation: int
    wakeable: bool = True
    reason: str = ""
    replicas: tuple[ReplicaEndpoint, ...] = ()
