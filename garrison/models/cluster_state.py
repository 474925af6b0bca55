"""The one serialisable state of a cluster's life, and the parts it is made of."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field

from garrison.errors import ErrorCode, Problem
from garrison.models.base import Message, Seconds, Time
from garrison.models.billing import Meter
from garrison.models.cluster import ClusterSpec
from garrison.models.group import NodeStatus, RestartResult, SshEndpoint, WorkloadStatus
from garrison.models.offer import Offer
from garrison.models.quote import Quote

SCHEMA_VERSION = 1


class Phase(StrEnum):
    """Where a cluster is in its life."""

    QUOTED = "quoted"
    LAUNCHING = "launching"
    PROVISIONING = "provisioning"
    RUNNING = "running"
    DEGRADED = "degraded"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    EXPIRED = "expired"
    FAILED = "failed"


CLOSED_PHASES = frozenset({Phase.TERMINATED, Phase.EXPIRED, Phase.FAILED})
UP_PHASES = frozenset({Phase.RUNNING, Phase.DEGRADED})


class PhaseTransition(Message):
    """When a phase began."""

    phase: Phase
    time: Time


class ClusterEvent(Message):
    """Something that happened, for people.

    Attributes:
        node: Rank, None when it concerns the whole cluster.
        reason: One CamelCase word, `NodeLost`.
        by: Who caused it: a user, `garrison`, or the provider's name.
    """

    time: Time
    node: int | None = None
    reason: str
    message: str
    by: str = "garrison"


class Doubt(Message):
    """A node that a complete list lacks, or whose state it cannot tell, since a pass.

    Attributes:
        latest: When the last pass counted in `passes` began; None means `since`.
    """

    missing: bool
    since: Time
    latest: Time | None = None
    passes: int = 1


class ClusterNode(Message):
    """One node of a cluster, as its owner knows it.

    Attributes:
        seen: Whether any list has ever shown it.
        since: When its status was last seen to change.
        restarts: Restarts in place that Garrison ordered.
        started: Boot and command generation for which the workload was last started.
        notice_at: When the provider gave notice that it will take the node, as the lists last
            said; `notice_ends_at` is when it will, None where it does not say.
    """

    rank: int
    status: NodeStatus = NodeStatus.PENDING
    provider_id: str | None = None
    private_address: str | None = None
    public_address: str | None = None
    first_port: int | None = None
    ssh: SshEndpoint | None = None
    incarnation: int = 1
    restarts: int = 0
    seen: bool = False
    since: Time | None = None
    doubt: Doubt | None = None
    failure: ErrorCode | None = None
    message: str | None = None
    workload: WorkloadStatus | None = None
    started: tuple[int, int] | None = None
    notice_at: Time | None = None
    notice_ends_at: Time | None = None


class Purchase(Message):
    """One try to buy the cluster in one place, under one token.

    Attributes:
        ended: The call is over; until then it may still be under way.
        effects_until: After this time the call can no longer have an effect.
        answer: Why the place did not work out, in the provider's words.
        emptied_at: When the place was proven empty.
    """

    token: str
    offer: Offer
    called: bool = False
    ended: bool = False
    effects_until: Time | None = None
    code: ErrorCode | None = None
    answer: str | None = None
    emptied_at: Time | None = None


class Cleanup(Message):
    """The proof, under way, that nothing of a purchase is left.

    Attributes:
        quiet_at: When the last possible effect has settled into the provider's lists.
        deletes: Deletes that succeeded so far.
        delete_due: When to delete (again); None while the last delete is believed.
        empty_at: When the pass of the first empty list began.
    """

    quiet_at: Time
    deletes: int = 0
    delete_due: Time | None = None
    last_deleted_at: Time | None = None
    empty_at: Time | None = None
    asked_for: Time | None = None
    proven: bool = False


class Attempt(Message):
    """One recovery attempt under way: one pass over all nodes that were not running."""

    number: int
    started_at: Time
    deadline: Time
    results: dict[int, RestartResult] = Field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    called: bool = False


class Episode(Message):
    """One stretch of ill health with one budget of attempts."""

    id: int
    opened_at: Time
    attempts: int = 0
    next_attempt_at: Time | None = None
    healthy_since: Time | None = None
    reason: str = ""
    last_error: str | None = None


class Recovery(Message):
    """Policy, budget and progress of recovery.

    Attributes:
        episodes: How many episodes this life has had.
        requested: Somebody asked for an attempt now.
        held: The last observation was not confirmed; nothing starts.
    """

    automatic: bool = False
    max_attempts: int = 3
    episode: Episode | None = None
    episodes: int = 0
    attempt: Attempt | None = None
    requested: bool = False
    held: bool = False


class Blocked(Message):
    """What stops progress at the moment; tried again until it works."""

    code: ErrorCode
    message: str
    since: Time
    tries: int = 1
    retry_at: Time


class Failure(Message):
    """Why a life ends, or what went wrong last.

    Attributes:
        problems: The mistakes by field, where the input has any.
    """

    code: ErrorCode
    message: str
    problems: tuple[Problem, ...] = ()


class QuoteIntent(Message):
    """A quote that was asked for and is not priced yet."""

    request_id: str
    quote_id: str
    spec: ClusterSpec


class LaunchTerms(Message):
    """What was accepted at launch."""

    failover: bool = False
    max_lifetime: Seconds | None = None
    accepted_at: Time
    by: str = ""


class ClusterState(Message):
    """All of a cluster's life that must survive continue-as-new.

    The one mutable message: its workflow is the single writer.

    Attributes:
        spec: As quoted, plus the workload settings of the launch; env values are sealed.
        observed_at: When the pass of the last accepted observation began.
        call_ended_at: When our last call that changes machines ended; older passes say nothing.
        ask_due: The next time that an observation must be asked for, whatever was told before.
        deadman: How long to wait for word of the machines before asking for it.
        heartbeat: How long after a worker died its calls are given to another.
        closing: Why the life will end `failed` once the clean-up is proven.
        answers: Answers by request id, the last 200.
    """

    model_config = ConfigDict(frozen=False, validate_assignment=False)

    schema_version: int = SCHEMA_VERSION
    name: str
    uid: str
    owner: str = ""
    created_at: Time
    phase: Phase | None = None
    phase_transitions: list[PhaseTransition] = Field(default_factory=list)
    events: list[ClusterEvent] = Field(default_factory=list)
    spec: ClusterSpec | None = None
    pending_quote: QuoteIntent | None = None
    quote: Quote | None = None
    refusal: Failure | None = None
    refused_quote_id: str | None = None
    terms: LaunchTerms | None = None
    purchases: list[Purchase] = Field(default_factory=list)
    cleanup: Cleanup | None = None
    nodes: list[ClusterNode] = Field(default_factory=list)
    observed_at: Time | None = None
    call_ended_at: Time | None = None
    ask_due: Time | None = None
    deadman: Seconds = timedelta(hours=6)
    heartbeat: Seconds = timedelta(seconds=30)
    deadman_at: Time | None = None
    start_deadline: Time | None = None
    prepared: bool = False
    ready_at: Time | None = None
    meter: Meter | None = None
    recovery: Recovery = Recovery()
    generation: int = 1
    terminate_accepted_at: Time | None = None
    logs_saved: bool = False
    closing: Failure | None = None
    ended_at: Time | None = None
    last_error: Failure | None = None
    blocked: Blocked | None = None
    answers: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @property
    def purchase(self) -> Purchase | None:
        """The current purchase: the last one tried."""
        return self.purchases[-1] if self.purchases else None
