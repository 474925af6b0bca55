"""What is known of a deployment's traffic, who tells it, and what is decided from it."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from garrison.models.autoscale import AutoscaleState
from garrison.models.base import Message, Seconds, Time
from garrison.models.deployment import AutoscaleConfig, LoadKind
from garrison.models.deployment_state import DeploymentEndpoints


class LoadCounts(Message):
    """The traffic of one deployment as one source counts it.

    Attributes:
        running: Requests at a replica now, `queued` those that wait for one.
        arrivals: Requests since the source began to count, `completions` those that ended; they
            begin anew when the source does. None where a source cannot tell.
        partial: There may be more, as a part of the source is silent.
    """

    running: float = Field(ge=0, allow_inf_nan=False)
    queued: float = Field(ge=0, allow_inf_nan=False)
    arrivals: float = Field(ge=0, allow_inf_nan=False)
    completions: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    partial: bool = False


class RouterLoad(Message):
    """What one router has counted (`GET /-/load`).

    Attributes:
        router: Made anew at each start, so that counters that begin anew are recognised.
        deployments: By id in lower case; those that it has seen requests of.
    """

    router: str
    deployments: dict[str, LoadCounts] = Field(default_factory=dict)


class RouterDeployment(Message):
    """What one router knows of a deployment (`GET` and `PUT /-/endpoints/<id>`).

    Attributes:
        replicas: Requests under way at each replica that it knows, or still has requests at.
    """

    router: str
    queued: int = 0
    replicas: dict[str, int] = Field(default_factory=dict)


class Followed(Message):
    """A deployment as the watch of its load knows it (signal `follow`).

    Attributes:
        id: In lower case.
        workflow_id: Of the deployment; `uid` is its life.
        created_at: Of the life: a later one follows an earlier one.
        version: Rises with each change; an older one than known is dropped.
        generation: Rises when somebody else than the load decides what is wanted: a person, or a
            router that wakes it. `desired` is then what autoscaling goes on from.
        autoscaled: The load decides; False while a person holds a count, or it is disabled.
        desired: Replicas wanted now.
        ready: Of those the ones that answer, `starting` the ones that will.
        boot: From the wish for a replica until it is ready, as it lately was; None before any.
        endpoints: Where its replicas answer.
        former_sources: Who counted its requests before, and does not any more.
        closed: It is gone, and nothing of it need be kept.
    """

    id: str
    workflow_id: str
    uid: str
    created_at: Time
    version: int
    generation: int = 0
    autoscale: AutoscaleConfig = AutoscaleConfig()
    autoscaled: bool = True
    desired: int = 0
    ready: int = 0
    starting: int = 0
    boot: Seconds | None = None
    endpoints: DeploymentEndpoints
    former_sources: tuple[LoadKind, ...] = ()
    closed: bool = False


class TargetChanged(Message):
    """How many replicas the load asks for from now on (signal `autoscale` of a deployment).

    Attributes:
        generation: Of what was followed; one that is older is dropped.
        demand: What the load needs, in replicas and parts of one; None where nobody knows.
    """

    uid: str
    generation: int
    target: int = Field(ge=0)
    reason: str
    demand: float | None = None


class WakeRequest(Message):
    """A request waits at a deployment that has no replica (signal `wake`)."""

    uid: str | None = None
    asked_at: Time
    by: str = "router"


class LoadMemory(Message):
    """What the watch of a load remembers of one deployment between two looks.

    Attributes:
        generation: Of what was followed when it was last looked at.
        told: The target that the deployment was last told, and `told_at` when.
    """

    uid: str
    generation: int = 0
    state: AutoscaleState = AutoscaleState()
    told: int | None = None
    told_at: Time | None = None


class LoadWatchInput(Message):
    """Start the watch of a source of load, or continue it.

    Attributes:
        source: Who counts: `router`, `prometheus`, `scrape`.
        followed: Who is followed.
        memories: See `garrison.activities.load.pack`; empty at first.
    """

    source: str
    heartbeat: Seconds = timedelta(seconds=20)
    followed: tuple[Followed, ...] = ()
    memories: str = ""


class LoadWatchResult(Message):
    """What the long activity gives back when its workflow is to be renewed.

    Attributes:
        gone: Lives that no longer run; nobody follows them any more.
    """

    memories: str = ""
    gone: tuple[str, ...] = ()


class LoadWatchReport(Message):
    """What the long activity says of itself with each heartbeat.

    Attributes:
        at: Time of the last look.
        followed: How many deployments it decides for, `missing` those of unknown load.
    """

    at: Time
    followed: int = 0
    missing: int = 0
    memories: str = ""


class FollowedChanges(Message):
    """Who is followed, as far as it changed (query `followed`).

    Attributes:
        last: Number of the newest change.
        renew: The history is long; the activity is to return.
    """

    changed: tuple[Followed, ...] = ()
    last: int = 0
    renew: bool = False


class LoadWatchStatus(Message):
    """What `get` on the watch of a load answers."""

    source: str
    followed: tuple[str, ...] = ()


class DrainRequest(Message):
    """Wait until no router has a request at a replica any more (activity `drain_replica`).

    Attributes:
        within: After so long it is not waited for any longer.
    """

    replica: str
    endpoints: DeploymentEndpoints
    within: Seconds


class DrainAnswer(Message):
    """How a drain ended.

    Attributes:
        left: Requests that were still under way when the time was over.
    """

    left: int = 0
