"""A deployment: replicas of one workload over nodepools, and what is asked of it."""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum, StrEnum

from pydantic import Field

from garrison.models.base import Message, Name, Rate, Seconds, Time
from garrison.models.cluster_status import BlockedStatus, ErrorStatus
from garrison.models.compute_cluster import PRIVATE
from garrison.models.group import RestartPolicy, SshEndpoint
from garrison.models.nodepool import PoolEvent
from garrison.models.resources import Resources


class SchedulingChoice(IntEnum):
    """How nodepools of the same priority are chosen among; numbers are the public API's."""

    FAIL = 1
    RANDOM = 2
    PRICE = 3
    PERFORMANCE = 4
    NETWORK = 5
    UTILIZATION = 6
    PREFER_SPOT = 7
    PREFER_ONDEMAND = 8


class LoadKind(StrEnum):
    """Who counts a deployment's requests.

    `router`: Garrison's own. `prometheus`: a Prometheus server that scrapes the replicas.
    `scrape`: Garrison asks the replicas themselves.
    """

    ROUTER = "router"
    PROMETHEUS = "prometheus"
    SCRAPE = "scrape"


class LoadPreset(StrEnum):
    """Servers whose metric names are known."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    TRITON = "triton"
    RAY_SERVE = "ray_serve"


class LoadQueries(Message):
    """Own PromQL, each giving one number over all replicas; over a preset's where both are given.

    Attributes:
        up: How many replicas the numbers are of; fewer than are ready means that they are partial.
    """

    running: str | None = None
    queued: str | None = None
    arrivals: str | None = None
    completions: str | None = None
    up: str | None = None


class LoadConfig(Message):
    """Where the load of a deployment is read.

    Attributes:
        preset: Which server it is; needed for `scrape`.
        model: Value of the server's label for models or applications, None takes all.
        job: Prometheus' own label `job` of the replicas, to tell how many were scraped.
        path: Where replicas answer a scrape.
        queries: For `prometheus`.
    """

    source: LoadKind = LoadKind.ROUTER
    preset: LoadPreset | None = None
    model: str | None = None
    job: str | None = None
    path: str = "/metrics"
    queries: LoadQueries = LoadQueries()


class AutoscaleConfig(Message):
    """How many replicas there may be, and how they follow the load.

    Attributes:
        hold_boots: How many boot times an unneeded replica is kept; 0 leaves the delays alone.
        concurrency: Requests that one replica serves at a time.
    """

    min_replicas: int = Field(default=0, ge=0)
    max_replicas: int = Field(default=5, ge=0)
    soft_min_replicas: int = Field(default=0, ge=0)
    traffic_history: Seconds = timedelta(seconds=300)
    scale_up_delay: Seconds = timedelta(seconds=300)
    scale_down_delay: Seconds = timedelta(seconds=300)
    scale_to_zero_delay: Seconds = timedelta(seconds=1800)
    hold_boots: float = Field(default=0, ge=0, allow_inf_nan=False)
    concurrency: int = Field(default=16, ge=1)
    disable_packing: bool = False
    load: LoadConfig = LoadConfig()


class HealthProbe(Message):
    """When a replica counts as ready: an HTTP GET that answers 2xx or 3xx.

    Attributes:
        path: None asks only whether the port accepts connections.
        start_timeout: How long a replica may take from its start until it is ready.
        interval: Pause between two questions.
        timeout: Of one question.
    """

    path: str | None = None
    start_timeout: Seconds = timedelta(minutes=10)
    interval: Seconds = timedelta(seconds=1)
    timeout: Seconds = timedelta(seconds=5)


class ReplicaTemplate(Message):
    """What one replica is; any difference makes a new revision.

    Attributes:
        command: Argument vector, None where an image has its own.
        env: Sealed values, as the client sent them.
        port: Where it listens; the node's own port is in its variable `PORT`.
        health: None counts a replica as ready once its process runs.
        model: The model it serves, for people; `model_version` is the version asked for.
    """

    command: tuple[str, ...] | None = None
    image: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    port: int | None = None
    resources: Resources = Resources()
    health: HealthProbe | None = None
    restart: RestartPolicy = RestartPolicy.ALWAYS
    max_restarts: int = 3
    model: str | None = None
    model_version: str | None = None


class DeploymentPool(Message):
    """A nodepool that a deployment may use; a higher `priority` (0-9) goes first."""

    compute_cluster: Name
    nodepool: Name
    priority: int = Field(default=0, ge=0, le=9)


class DeploymentSpec(Message):
    """What a deployment should be, its model already resolved to a template.

    Attributes:
        drain_timeout: How long requests may go on at a replica that is to be stopped.
    """

    id: Name
    description: str = ""
    template: ReplicaTemplate
    autoscale: AutoscaleConfig = AutoscaleConfig()
    drain_timeout: Seconds = timedelta(seconds=30)
    scheduling_choice: SchedulingChoice = SchedulingChoice.PERFORMANCE
    nodepools: tuple[DeploymentPool, ...] = Field(min_length=1)
    visibility: int = PRIVATE


class EnvComparison(Message):
    """Two sealed environments of one deployment, to be compared (activity `keep_sealed`)."""

    known: dict[str, str]
    wanted: dict[str, str]


class SealedEnv(Message):
    """An environment whose values are sealed."""

    env: dict[str, str]


class DeploymentRequest(Message):
    """Create or update a deployment (updates `create` and `update`)."""

    request_id: str
    spec: DeploymentSpec
    uid: str | None = None
    by: str = ""


class ScaleRequest(Message):
    """Hold a fixed count of replicas (update `scale`); None gives the count back to autoscaling."""

    request_id: str
    replicas: int | None = Field(default=None, ge=0)
    uid: str | None = None
    by: str = ""


class EnableRequest(Message):
    """Enable or disable a deployment (updates `enable` and `disable`)."""

    request_id: str
    uid: str | None = None
    by: str = ""


class DeploymentAck(Message):
    """An accepted change; `generation` is what readers compare with the observed one."""

    id: str
    uid: str
    generation: int
    accepted_at: Time
    message: str = ""


class ReplicaState(StrEnum):
    """Where a replica is in its life."""

    PENDING = "pending"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class ReplicaStatus(Message):
    """One replica.

    Attributes:
        name: Its id.
        revision: Of the template that it runs.
        reason: Why it is where it is, in words.
        nodepool: `<compute cluster>/<nodepool>`, None before it was assigned to one.
        node: The pool's name for its node.
        endpoint: `http://address:port` as workers reach it, None before it listens.
        restarts: By the node's supervisor and by the deployment together.
    """

    name: str
    revision: int
    state: ReplicaState
    reason: str = ""
    nodepool: str | None = None
    node: str | None = None
    provider: str | None = None
    ssh: SshEndpoint | None = None
    endpoint: str | None = None
    restarts: int = 0
    created_at: Time
    ready_at: Time | None = None


class RolloutStatus(Message):
    """How far a new revision has replaced the old ones.

    Attributes:
        state: `done`, `rolling` or `stopped`.
        updated: Ready replicas of the newest revision.
        reason: Why it stopped, or what it waits for.
    """

    state: str = "done"
    revision: int = 1
    updated: int = 0
    reason: str = ""


class DeploymentStatus(Message):
    """What `get` on a deployment answers.

    Attributes:
        status: `enabled`, `disabled` or `deleting`.
        desired: Replicas wanted now; `ready` of them answer.
        fixed: The count that `scale` holds, None under autoscaling.
        reason: Of the last change of `desired`, in words.
        autoscaled: The load decides how many there are.
        demand: Replicas that the load needs, in parts of one, as last told; None before.
        load_source: Who counts the requests.
        boot_seconds: From the wish for a replica until it was ready, as it lately was.
    """

    id: str
    uid: str
    status: str
    spec: DeploymentSpec
    generation: int
    observed_generation: int
    owner: str = ""
    created_at: Time
    desired: int = 0
    ready: int = 0
    fixed: int | None = None
    reason: str = ""
    autoscaled: bool = True
    demand: float | None = None
    load_source: LoadKind = LoadKind.ROUTER
    boot_seconds: float | None = None
    hourly_usd: Rate | None = None
    rollout: RolloutStatus = RolloutStatus()
    blocked: BlockedStatus | None = None
    last_error: ErrorStatus | None = None
    replicas: tuple[ReplicaStatus, ...] = ()
    events: tuple[PoolEvent, ...] = ()
