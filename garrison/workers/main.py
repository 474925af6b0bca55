"""One process that hosts all queues, or some of them; the only place that chooses adapters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from garrison.activities.heartbeat import BEATS
from garrison.activities.installation import InstallationActivities
from garrison.activities.load import Deployments, LoadActivities
from garrison.activities.loads import Loads, ManualLoads, TemporalLoads
from garrison.activities.log_keeper import LogKeeper
from garrison.activities.lost_pools import LostPools
from garrison.activities.messages import MessageActivities
from garrison.activities.models import ModelActivities
from garrison.activities.orphans import OrphanActivities
from garrison.activities.owners import TemporalOwners
from garrison.activities.pool import PoolActivities
from garrison.activities.provider import ProviderActivities
from garrison.activities.publishing import PublishActivities
from garrison.activities.replicas import ReplicaActivities
from garrison.activities.watch import WatchActivities
from garrison.activities.watches import ManualWatches, TemporalWatches, Watches
from garrison.activities.workload import OpenEnv, WorkloadActivities
from garrison.catalog.instances import available_resources
from garrison.errors import Unsupported
from garrison.load.base import LoadSource
from garrison.load.prometheus import PrometheusSource
from garrison.load.routers import Routers, RouterSource
from garrison.load.scrape import ScrapeSource
from garrison.models.cluster_messages import QuoteTerms
from garrison.models.deployment import LoadKind
from garrison.models.queues import LOAD_QUEUE, TASK_QUEUE, WATCH_QUEUE, provider_queue
from garrison.providers.base import Provider
from garrison.providers.pacing import PacedProvider, behind_gate
from garrison.settings import PrometheusSettings, Settings
from garrison.workers.metrics import Metrics, meter_of
from garrison.workers.unreported import Forget, ForgetfulRunner
from garrison.workflows.cluster import ClusterWorkflow
from garrison.workflows.compute_cluster import ComputeClusterWorkflow
from garrison.workflows.deployment import DeploymentWorkflow
from garrison.workflows.load_watch import LoadWatchWorkflow
from garrison.workflows.nodepool import NodepoolWorkflow
from garrison.workflows.provider_watch import ProviderWatchWorkflow

KEEP_WATCHES_EVERY = timedelta(seconds=30)
STICKY_TIMEOUT = timedelta(seconds=2)
GRACE = timedelta(seconds=10)
WATCH_GRACE = timedelta(seconds=1)
"""A watch never ends by itself, so that this passes whenever a worker stops."""
HEARTBEAT_THROTTLE = timedelta(seconds=3)
"""A cancel reaches an activity with its next heartbeat, so a terminate must not wait for long."""
WORKFLOW_TASKS = 20
CACHED_WORKFLOWS = 3_000
WORKFLOWS = (
    ClusterWorkflow,
    ComputeClusterWorkflow,
    DeploymentWorkflow,
    LoadWatchWorkflow,
    NodepoolWorkflow,
    ProviderWatchWorkflow,
)

logger = logging.getLogger(__name__)


def now_utc() -> datetime:
    """Return the time of this host."""
    return datetime.now(UTC)


ProviderFor = Callable[[str, str], AbstractAsyncContextManager[Provider]]


def _no_provider_for(name: str, installation: str) -> AbstractAsyncContextManager[Provider]:
    raise Unsupported(f"this worker sees {name} only as its own installation does")


@dataclass(frozen=True)
class Parts:
    """What a worker is built from.

    Attributes:
        providers: Adapters by the name they are configured under.
        open_env: Opens sealed environments.
        authorized_keys: The installation's SSH public keys.
        public_key: The sealing key, which the watches publish.
        clock: Of this host; tests give another.
        queues: Which queues to serve, by name; all by default.
        installation: The id that machines are tagged with.
        provider_for: Opens a configured provider, by name, as another installation sees it.
        routers: Addresses of all routers; `router_token` and `router_secret` open them.
    """

    settings: Settings
    providers: Mapping[str, Provider]
    open_env: OpenEnv
    authorized_keys: tuple[str, ...] = ()
    public_key: str | None = None
    clock: Callable[[], datetime] = now_utc
    queues: frozenset[str] | None = None
    installation: str = ""
    provider_for: ProviderFor = _no_provider_for
    routers: tuple[str, ...] = ()
    router_token: str | None = None
    router_secret: str | None = None

    def serves(self, queue: str) -> bool:
        """Whether this process hosts a queue."""
        return self.queues is None or queue in self.queues


@dataclass
class GarrisonWorker:
    """All workers of one process, run and drained together.

    Attributes:
        watches: Where owners' asks go; by hand when built without a watch.
        starts: Starts each watch that this process keeps running.
    """

    workers: Sequence[Worker]
    watches: Watches
    providers: Mapping[str, Provider]
    traffic: Traffic
    starts: Sequence[Callable[[], Awaitable[None]]]
    metrics: Metrics

    async def __aenter__(self) -> GarrisonWorker:
        """Start polling all queues, and every watch."""
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.metrics.refreshing())
            for worker in self.workers:
                await stack.enter_async_context(worker)
            stack.push_async_callback(self.traffic.routers.aclose)
            if self.starts:
                await stack.enter_async_context(self._keeping_watches())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Drain: finish running activities, then stop polling."""
        await self._stack.__aexit__(*error)

    @contextlib.asynccontextmanager
    async def _keeping_watches(self) -> AsyncIterator[None]:
        await self._start_watches()
        task = asyncio.create_task(self._keep_watches())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _keep_watches(self) -> None:
        # A watch that somebody terminated in the UI must not stay away.
        while True:
            await asyncio.sleep(KEEP_WATCHES_EVERY.total_seconds())
            await self._start_watches()

    async def _start_watches(self) -> None:
        for start in self.starts:
            try:
                await start()
            except RPCError as error:  # the service is away; the next round tries again
                logger.warning("a watch was not started", extra={"error": str(error)})


def build_worker(
    client: Client, parts: Parts, *, watch: bool = True, cached_workflows: int = CACHED_WORKFLOWS
) -> GarrisonWorker:
    """Wire a worker. Tests call this too, so what they run is what ships.

    Args:
        client: Connected with `DATA_CONVERTER`.
        parts: Adapters, keys and settings.
        watch: False builds no watch: asks are only written down, and observations are fed by
            hand through `ProviderWatcher.observe_once`.
        cached_workflows: How many workflows stay in memory.
    """
    watches = _watches(client, parts) if watch else ManualWatches()
    traffic = _traffic(client, parts, watch=watch)
    metrics = Metrics(meter_of(client), parts.clock)
    paced = {
        name: behind_gate(provider, meter=metrics.calls(name))
        for name, provider in parts.providers.items()
    }
    workers = []
    if parts.serves(TASK_QUEUE):
        workers.append(_workflow_worker(client, parts, watches, traffic, metrics, cached_workflows))
    workers += [
        _provider_worker(client, parts, provider, watches, metrics)
        for name, provider in paced.items()
        if parts.serves(provider_queue(name))
    ]
    keeps = watch and parts.serves(WATCH_QUEUE)
    if keeps:
        workers.append(_watch_worker(client, parts, paced, watches, metrics))
    counts = watch and parts.serves(LOAD_QUEUE)
    if counts:
        workers.append(_load_worker(client, parts, traffic, metrics))
    starts = [partial(watches.start, name) for name in parts.providers] if keeps else []
    starts += [partial(traffic.loads.start, LoadKind.ROUTER)] if counts and parts.routers else []
    return GarrisonWorker(
        workers,
        watches,
        parts.providers,
        traffic=traffic,
        starts=starts,
        metrics=metrics,
    )


@dataclass(frozen=True)
class Traffic:
    """How this process learns of deployments' requests, and tells who carries them.

    Attributes:
        loads: Where deployments' words go; by hand when built without a watch.
    """

    loads: Loads
    routers: Routers


def _traffic(client: Client, parts: Parts, *, watch: bool) -> Traffic:
    routers = Routers(parts.routers, token=parts.router_token, secret=parts.router_secret)
    heartbeat = parts.settings.heartbeat_timeout
    if not watch:
        return Traffic(ManualLoads(), routers)
    return Traffic(TemporalLoads(client, task_queue=TASK_QUEUE, heartbeat=heartbeat), routers)


def _watches(client: Client, parts: Parts) -> TemporalWatches:
    watches = TemporalWatches(client, task_queue=TASK_QUEUE)
    for provider in parts.providers.values():
        watches.announce(
            provider.facts,
            {"public_key": parts.public_key},
            heartbeat=parts.settings.heartbeat_timeout,
        )
    return watches


def _throttle(settings: Settings) -> timedelta:
    return min(HEARTBEAT_THROTTLE, settings.heartbeat_timeout / BEATS)


def workflow_runner(forget: Forget = lambda run_id: None) -> SandboxedWorkflowRunner:
    """Return the sandbox with our own modules passed through.

    Args:
        forget: Has the worker forget a run, see `garrison.workers.unreported`.
    """
    return ForgetfulRunner(
        forget=forget,
        # They are asked with each pass, and command one thing.
        spared=frozenset({"ProviderWatch", "LoadWatch"}),
        restrictions=SandboxRestrictions.default.with_passthrough_modules(
            "garrison", "pydantic", "pydantic_core", "annotated_types"
        ),
    )


def _workflow_worker(
    client: Client,
    parts: Parts,
    watches: Watches,
    traffic: Traffic,
    metrics: Metrics,
    cached: int,
) -> Worker:
    settings = parts.settings
    terms = QuoteTerms(
        providers={name: provider.facts for name, provider in parts.providers.items()},
        limits=settings.limits,
        valid_for=settings.quote_valid,
        deadman=settings.deadman,
        heartbeat=settings.heartbeat_timeout,
    )
    installation = InstallationActivities(terms, watches)
    messages = MessageActivities(client)
    models = ModelActivities(settings.models, parts.open_env)
    publishing = PublishActivities(traffic.loads, traffic.routers)

    def forget(run_id: str) -> None:
        worker._bridge_worker.request_workflow_eviction(run_id)  # there is no public way

    worker = Worker(
        client,
        task_queue=TASK_QUEUE,
        workflows=WORKFLOWS,
        activities=[
            installation.quote_terms,
            installation.ensure_watch,
            models.resolve_deployment,
            models.keep_sealed,
            messages.tell_nodepool,
            messages.tell_deployment,
            messages.join_compute_cluster,
            messages.leave_compute_cluster,
            messages.delete_nodepool,
            publishing.publish_load,
            publishing.drain_replica,
        ],
        workflow_runner=workflow_runner(forget),
        max_cached_workflows=cached,
        max_concurrent_workflow_tasks=WORKFLOW_TASKS,
        max_concurrent_activities=100,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        interceptors=[metrics.interceptor],
        graceful_shutdown_timeout=GRACE,
    )
    return worker


def _provider_worker(
    client: Client, parts: Parts, provider: PacedProvider, watches: Watches, metrics: Metrics
) -> Worker:
    name = provider.facts.name
    price = parts.settings.providers[name].price if name in parts.settings.providers else None
    calls = ProviderActivities(
        provider,
        watches,
        authorized_keys=parts.authorized_keys,
        own_price=price,
        clock=parts.clock,
    )
    workloads = WorkloadActivities(
        provider,
        watches,
        open_env=parts.open_env,
        log_dir=parts.settings.log_dir,
        clock=parts.clock,
    )
    pools = PoolActivities(
        calls,
        effect_bound=provider.facts.effect_bound,
        clock=parts.clock,
        capacity_of=available_resources,
        workloads=provider.workloads,
        keeper=LogKeeper(parts.settings.log_dir),
    )
    replicas = ReplicaActivities(
        provider, open_env=parts.open_env, clock=parts.clock, log_dir=parts.settings.log_dir
    )
    orphans = OrphanActivities(
        provider,
        TemporalOwners(client),
        watches,
        installation=parts.installation,
        provider_for=lambda installation: _beside(provider, parts, installation),
        clock=parts.clock,
        keeper=LogKeeper(parts.settings.log_dir),
    )
    return Worker(
        client,
        task_queue=provider_queue(name),
        activities=[
            calls.list_offers,
            calls.place_cluster,
            calls.purchase_group,
            calls.prepare_nodes,
            calls.restart_node,
            calls.delete_groups,
            workloads.start_workloads,
            workloads.save_logs,
            workloads.read_log,
            pools.pool_offers,
            pools.buy_machine,
            pools.delete_machine,
            replicas.start_replica,
            replicas.await_replica,
            replicas.stop_replica,
            replicas.read_replica_log,
            orphans.list_orphans,
            orphans.sweep_orphans,
        ],
        # No rate here: the queue's own would count what is no call, and know no urgency.
        max_concurrent_activities=100,
        interceptors=[metrics.interceptor],
        max_heartbeat_throttle_interval=_throttle(parts.settings),
        graceful_shutdown_timeout=GRACE,
    )


@contextlib.asynccontextmanager
async def _beside(
    provider: PacedProvider, parts: Parts, installation: str
) -> AsyncIterator[Provider]:
    async with parts.provider_for(provider.facts.name, installation) as other:
        yield provider.beside(other)


def _watch_worker(
    client: Client,
    parts: Parts,
    providers: Mapping[str, Provider],
    watches: Watches,
    metrics: Metrics,
) -> Worker:
    activities = WatchActivities(
        dict(providers),
        TemporalOwners(client),
        watches,
        interval=parts.settings.watch_interval,
        busy_interval=parts.settings.watch_interval_busy,
        clock=parts.clock,
        keeper=LogKeeper(parts.settings.log_dir),
        meter=metrics.watches,
        lost_pools=LostPools(client),
    )
    return Worker(
        client,
        task_queue=WATCH_QUEUE,
        activities=[activities.watch_provider],
        interceptors=[metrics.interceptor],
        max_concurrent_activities=50,
        max_heartbeat_throttle_interval=_throttle(parts.settings),
        graceful_shutdown_timeout=WATCH_GRACE,
    )


def _prometheus(server: PrometheusSettings) -> PrometheusSource:
    timeout = timedelta(seconds=server.timeout_seconds)
    return PrometheusSource(server.url, token_file=server.token_file, timeout=timeout)


def _load_worker(client: Client, parts: Parts, traffic: Traffic, metrics: Metrics) -> Worker:
    server = parts.settings.load.prometheus
    asked = PrometheusSource(None) if server is None else _prometheus(server)
    sources: dict[str, LoadSource] = {
        LoadKind.ROUTER: RouterSource(traffic.routers),
        LoadKind.PROMETHEUS: asked,
        LoadKind.SCRAPE: ScrapeSource(),
    }
    activities = LoadActivities(
        sources,
        traffic.loads,
        Deployments(client),
        interval=parts.settings.load_interval,
        busy_interval=parts.settings.load_interval_busy,
        clock=parts.clock,
        meter=metrics.loads,
    )
    return Worker(
        client,
        task_queue=LOAD_QUEUE,
        activities=[activities.watch_load],
        interceptors=[metrics.interceptor],
        max_concurrent_activities=10,
        max_heartbeat_throttle_interval=_throttle(parts.settings),
        graceful_shutdown_timeout=WATCH_GRACE,
    )
