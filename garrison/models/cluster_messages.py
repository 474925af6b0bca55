"""Inputs and answers of the `Cluster` workflow; public, so fields are only added."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, JsonValue

from garrison.errors import ErrorCode
from garrison.models.base import Message, Money, Name, Seconds, Time
from garrison.models.cluster import ClusterShape, ClusterSpec, ShapeLimits
from garrison.models.cluster_state import ClusterState, Phase
from garrison.models.cluster_status import QuoteStatus
from garrison.models.group import Group, GroupRequest, Node, Refusal, RestartPolicy, RestartResult
from garrison.models.offer import Offer
from garrison.models.provider import ProviderFacts
from garrison.models.quote import Considered, QuoteRefusal


class ClusterInput(Message):
    """Start a life, or continue one.

    Attributes:
        state: Everything so far, when continued as new.
        revision: Which way the run goes where ways differ, see `docs/changing-workflows.md`; an
            input that does not say is asked for markers.
    """

    name: str
    uid: str
    owner: str = ""
    revision: int = 0
    state: ClusterState | None = None


class QuoteRequest(Message):
    """Ask for a price; env values of the spec are sealed."""

    request_id: str
    quote_id: str
    spec: ClusterSpec


class QuoteAck(Message):
    """The quote is being made; poll `get_quote` with its id."""

    name: str
    uid: str
    quote_id: str


class LaunchRequest(Message):
    """Accept a quote.

    Attributes:
        quote_id: The accepted quote; None accepts the current one.
        uid: Pins the life; None takes the living one.
        priced: Fields of the quoted shape, repeated; any difference is `price_changed`.
        workload: Settings that replace the quoted ones, field by field.
        max_hourly_usd: Refuse a quote above this rate.
        failover: Overrides the quoted wish.
    """

    request_id: str
    quote_id: str | None = None
    uid: str | None = None
    priced: dict[str, JsonValue] = Field(default_factory=dict)
    workload: dict[str, JsonValue] = Field(default_factory=dict)
    max_hourly_usd: Money | None = None
    max_lifetime: Seconds | None = None
    failover: bool | None = None
    by: str = ""


class ActionAck(Message):
    """An accepted change.

    Attributes:
        accepted_at: When it was first accepted; repeating the request does not change it.
    """

    name: str
    uid: str
    accepted_at: Time
    phase: Phase | None = None
    message: str = ""


class TerminateRequest(Message):
    """Give every machine back and end the life."""

    request_id: str
    uid: str | None = None
    by: str = ""


class TerminateAck(Message):
    """The terminate stands; the same answer however often it is asked."""

    name: str
    uid: str
    accepted_at: Time


class RecoverRequest(Message):
    """Start one recovery attempt now."""

    request_id: str
    uid: str | None = None
    by: str = ""


class RecoverySwitch(Message):
    """Turn automatic recovery on or off, or change its budget."""

    request_id: str
    uid: str | None = None
    automatic: bool | None = None
    max_attempts: int | None = Field(default=None, ge=1, le=100)
    by: str = ""


class QuoteQuery(Message):
    """Which quote is asked about."""

    quote_id: str


class QuoteAnswer(Message):
    """What became of a quote: still pending, made, or refused."""

    pending: bool = False
    quote: QuoteStatus | None = None
    refusal: QuoteRefusal | None = None


class QuoteTerms(Message):
    """What the installation allows and configures, for pricing.

    Attributes:
        providers: Configured providers, by name.
        heartbeat: How long after a worker died its calls are given to another.
    """

    providers: dict[str, ProviderFacts]
    limits: ShapeLimits
    valid_for: Seconds = timedelta(minutes=15)
    deadman: Seconds = timedelta(hours=6)
    heartbeat: Seconds = timedelta(seconds=30)


class PlaceRequest(Message):
    """Find the best offers of one provider for a shape."""

    shape: ClusterShape
    provider: str
    limits: ShapeLimits


class PlaceAnswer(Message):
    """Offers that fit, best first, or why there are none."""

    provider: str
    offers: tuple[Offer, ...] = ()
    gpus_per_node: int = 0
    considered: tuple[Considered, ...] = ()
    refusal: QuoteRefusal | None = None


class PurchaseRequest(Message):
    """Buy a group; the answer is a group, a refusal, or a coded failure.

    Attributes:
        locked_usd_per_hour: The accepted rate of one node.
    """

    provider: str
    request: GroupRequest


class PurchaseAnswer(Message):
    """What the provider said, and when the call ended by the caller's clock.

    Attributes:
        effects_until: Until when an earlier try, whose answer was lost, can still have an effect;
            None when this was the only one.
    """

    group: Group | None = None
    refusal: Refusal | None = None
    ended_at: Time
    effects_until: Time | None = None


class PrepareRequest(Message):
    """Reach every node and install what it needs.

    Attributes:
        envs: What each rank is told of its cluster.
    """

    provider: str
    owner: str
    nodes: tuple[Node, ...]
    authorized_keys: tuple[str, ...] = ()
    envs: dict[int, dict[str, str]] = Field(default_factory=dict)
    hostfile: str = ""


class PrepareAnswer(Message):
    """The nodes, with their SSH host keys."""

    nodes: tuple[Node, ...]


class NodeWorkload(Message):
    """The workload of one node; env values are still sealed.

    Attributes:
        env: Set by Garrison, plain.
    """

    node: Node
    env: dict[str, str]


class StartWorkloadsRequest(Message):
    """Start the command on some nodes.

    Attributes:
        sealed_env: The user's variables, as sealed by the client.
    """

    provider: str
    owner: str
    uid: str
    name: str
    generation: int
    command: tuple[str, ...]
    image: str | None = None
    sealed_env: dict[str, str] = Field(default_factory=dict)
    hostfile: str = ""
    restart: RestartPolicy = RestartPolicy.ON_FAILURE
    max_restarts: int = 3
    nodes: tuple[NodeWorkload, ...] = ()


class StartWorkloadsAnswer(Message):
    """Which ranks have it now, and what failed on the others for good."""

    started: tuple[int, ...] = ()
    failed: dict[int, str] = Field(default_factory=dict)


class RestartRequest(Message):
    """Bring one node back in place."""

    provider: str
    owner: str
    uid: str
    rank: int
    provider_id: str
    token: str


class RestartAnswer(Message):
    """What became of it, and when the call ended."""

    result: RestartResult
    message: str | None = None
    ended_at: Time


class DeleteRequest(Message):
    """Delete everything under some tokens, then ask the watch for a look.

    Attributes:
        look_at: The earliest begin of the pass to be told.
    """

    provider: str
    owner: str
    uid: str
    tokens: tuple[str, ...]
    look_at: Time | None = None


class DeleteAnswer(Message):
    """When the last delete ended."""

    ended_at: Time


class LookRequest(Message):
    """Ask the watch of a provider for a look, starting it if it does not run."""

    provider: str
    owner: str
    uid: str
    not_before: Time


class SaveLogsRequest(Message):
    """Fetch the logs of all nodes into the log directory before they are deleted."""

    provider: str
    cluster: str
    uid: str
    workload: str
    nodes: tuple[Node, ...]


class SaveLogsAnswer(Message):
    """Bytes saved by rank, and what could not be fetched."""

    saved: dict[int, int] = Field(default_factory=dict)
    failed: dict[int, str] = Field(default_factory=dict)


class ReadLogRequest(Message):
    """Read part of a workload's log on one node, or of its saved copy."""

    provider: str
    cluster: Name
    uid: str = Field(pattern=r"^[0-9a-fA-F-]{36}$")
    workload: str
    rank: int
    node: Node | None = None
    offset: int = 0
    limit: int = 65_536


class CodedError(Message):
    """An error as it is stored in an answer."""

    code: ErrorCode
    message: str
