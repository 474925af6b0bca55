"""The one serialisable state of a nodepool's life, and the parts it is made of."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field

from garrison.errors import ErrorCode
from garrison.models.base import Message, Seconds, Time
from garrison.models.cluster_state import Blocked, Cleanup, ClusterNode, Failure
from garrison.models.group import Node, WorkloadStatus
from garrison.models.nodepool import NodepoolSpec, PoolEvent, PoolOffer
from garrison.models.placement import Demand, Placements, ReplicaDemand
from garrison.models.provider import ProviderFacts

SCHEMA_VERSION = 1


class MachineState(StrEnum):
    """Where a machine is on its way; all of these count against the limit."""

    REQUESTED = "requested"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    TERMINATING = "terminating"


class Machine(Message):
    """One machine of a pool, from the decision to buy it until it is proven gone.

    Attributes:
        name: The purchase token.
        fallback: Of the refusal after which it was bought instead of spot.
        node: As the lists showed it; a group of one has rank 0.
        prepared: The node as it was last reached, with its SSH host key; what placements name.
        workloads: Of its replicas, by the word of the last list.
        called: The purchase was sent; from then on it may have an effect.
        call_ended_at: When our last call about it ended; what older passes lack says nothing.
        why: Of its draining or its end, in words.
        must_go: It drains by a person's decision, also where its replicas find no other place.
        trouble: What our calls about it fail with.
        successors: Under notice: the machines ordered for its replicas, none where others have
            the room; None while there is no room for them.
    """

    name: str
    number: int
    offer: PoolOffer
    fallback: ErrorCode | None = None
    state: MachineState = MachineState.REQUESTED
    node: ClusterNode = ClusterNode(rank=0)
    prepared: Node | None = None
    workloads: tuple[WorkloadStatus, ...] = ()
    created_at: Time
    called: bool = False
    call_ended_at: Time | None = None
    effects_until: Time | None = None
    start_deadline: Time | None = None
    ready_at: Time | None = None
    empty_since: Time | None = None
    cleanup: Cleanup | None = None
    why: str = ""
    must_go: bool = False
    trouble: Blocked | None = None
    successors: tuple[str, ...] | None = None


class Seat(Message):
    """A replica in a pool, and the machine that is kept for it.

    Attributes:
        machine: None while there is none.
        lost: Its last machine is gone, and it was not placed since.
        reason: Why it has no machine, in words.
        since: Since when it waits for a machine that is up, None while it has one.
    """

    demand: ReplicaDemand
    machine: str | None = None
    devices: tuple[int, ...] = ()
    port: int | None = None
    lost: bool = False
    reason: str = ""
    since: Time | None = None


class Customer(Message):
    """One life of a deployment, what it wants and what it was told.

    Attributes:
        demand: The newest one taken.
        said: The newest statement, None before the first.
        acknowledged: Generation of the last statement that it has taken.
        named: The last statement that placed something on a machine, by machine.
        turned_away: A replica like those that it withdrew as there was no room for them; it is told
            once there is.
        tells: How often the newest statement was told.
        tell_due: When it is told (again), None while nothing is left to say.
    """

    demand: Demand
    seats: dict[str, Seat] = Field(default_factory=dict)
    said: Placements | None = None
    acknowledged: int = 0
    named: dict[str, int] = Field(default_factory=dict)
    turned_away: ReplicaDemand | None = None
    tells: int = 0
    tell_due: Time | None = None


class RefusedOffer(Message):
    """An offer that the provider refused a short while ago.

    Attributes:
        tries: How often in a row it was tried in vain.
    """

    at: Time
    code: ErrorCode
    message: str
    tries: int = 1


class PoolMarket(Message):
    """What a pool may buy, as the provider said at a time.

    Attributes:
        refused: Refusals by the offer's key.
    """

    asked_at: Time | None = None
    offers: tuple[PoolOffer, ...] = ()
    unknown_types: tuple[str, ...] = ()
    refused: dict[str, RefusedOffer] = Field(default_factory=dict)


class NodepoolState(Message):
    """All of a nodepool's life that must survive continue-as-new.

    Mutable: its workflow is the single writer.

    Attributes:
        provider: Of the compute cluster, None before the pool has joined it.
        accepted_at: When the spec was accepted.
        next_number: Of the next machine; used once.
        release_at: When the next empty machine can go, None if none can.
        customers: By uid.
        strikes: Machines in a row that did not live for long; `buy_after` is the pause for them.
        asked: The pass that the watch was last asked for, None once it was seen.
        statements: How many statements were made; the generation of the newest one.
        farewells: The last statement to customers that wanted nothing more, by uid, the last 200.
        market_trouble: What asking for prices fails with.
        closing: Why the life ends with an error.
        answers: Answers by request id, the last 200.
    """

    model_config = ConfigDict(frozen=False, validate_assignment=False)

    schema_version: int = SCHEMA_VERSION
    id: str
    compute_cluster: str
    uid: str
    owner: str = ""
    created_at: Time
    spec: NodepoolSpec | None = None
    accepted_at: Time | None = None
    generation: int = 0
    observed_generation: int = 0
    provider: str | None = None
    region: str = ""
    facts: ProviderFacts | None = None
    deadman: Seconds = timedelta(hours=6)
    heartbeat: Seconds = timedelta(seconds=30)
    deadman_at: Time | None = None
    machines: dict[str, Machine] = Field(default_factory=dict)
    next_number: int = 0
    desired: int = 0
    release_at: Time | None = None
    customers: dict[str, Customer] = Field(default_factory=dict)
    statements: int = 0
    farewells: dict[str, int] = Field(default_factory=dict)
    market: PoolMarket = PoolMarket()
    market_trouble: Blocked | None = None
    wants_offers: bool = False
    strikes: int = 0
    last_strike_at: Time | None = None
    buy_after: Time | None = None
    observed_at: Time | None = None
    asked: Time | None = None
    last_used_at: Time | None = None
    blocked: Blocked | None = None
    last_error: Failure | None = None
    delete_accepted_at: Time | None = None
    left: bool = False
    closing: Failure | None = None
    events: list[PoolEvent] = Field(default_factory=list)
    answers: dict[str, dict[str, Any]] = Field(default_factory=dict)


class NodepoolInput(Message):
    """Start a nodepool's life, or continue one.

    Attributes:
        id: As its owner writes it; its workflow id is in lower case.
        revision: Which way the run goes where ways differ, see `docs/changing-workflows.md`.
        state: Everything so far, when continued as new.
    """

    compute_cluster: str
    id: str
    uid: str
    owner: str = ""
    revision: int = 0
    state: NodepoolState | None = None
