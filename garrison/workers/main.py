"""One process that hosts all queues, or some of them; the only place that chooses adapters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from garrison.activities.installation import InstallationActivities
from garrison.activities.log_keeper import LogKeeper
from garrison.activities.owners import TemporalOwners
from garrison.activities.provider import ProviderActivities
from garrison.activities.watch import WatchActivities
from garrison.activities.watches import ManualWatches, TemporalWatches, Watches
from garrison.activities.workload import OpenEnv, WorkloadActivities
from garrison.models.cluster_messages import QuoteTerms
from garrison.models.queues import TASK_QUEUE, WATCH_QUEUE, provider_queue
from garrison.providers.base import Provider
from garrison.settings import Settings
from garrison.workflows.cluster import ClusterWorkflow
from garrison.workflows.provider_watch import ProviderWatchWorkflow

KEEP_WATCHES_EVERY = timedelta(seconds=30)
STICKY_TIMEOUT = timedelta(seconds=2)
GRACE = timedelta(seconds=10)
HEARTBEAT_THROTTLE = timedelta(seconds=3)
"""A cancel reaches an activity with its next heartbeat, so a terminate must not wait for long."""
WORKFLOW_TASKS = 20
CACHED_WORKFLOWS = 3_000

logger = logging.getLogger(__name__)


def now_utc() -> datetime:
    """Return the time of this host."""
    return datetime.now(UTC)


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
    """

    settings: Settings
    providers: Mapping[str, Provider]
    open_env: OpenEnv
    authorized_keys: tuple[str, ...] = ()
    public_key: str | None = None
    clock: Callable[[], datetime] = now_utc
    queues: frozenset[str] | None = None

    def serves(self, queue: str) -> bool:
        """Whether this process hosts a queue."""
        return self.queues is None or queue in self.queues


@dataclass
class GarrisonWorker:
    """All workers of one process, run and drained together.

    Attributes:
        watches: Where owners' asks go; by hand when built without a watch.
    """

    workers: Sequence[Worker]
    watches: Watches
    providers: Mapping[str, Provider]
    keeps_watches: bool

    async def __aenter__(self) -> GarrisonWorker:
        """Start polling all queues, and every watch."""
        async with contextlib.AsyncExitStack() as stack:
            for worker in self.workers:
                await stack.enter_async_context(worker)
            if self.keeps_watches:
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
        for name in self.providers:
            try:
                await self.watches.start(name)
            except RPCError as error:  # the service is away; the next round tries again
                logger.warning("watch not started", extra={"watch": name, "error": str(error)})


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
    workers = []
    if parts.serves(TASK_QUEUE):
        workers.append(_workflow_worker(client, parts, watches, cached_workflows))
    workers += [
        _provider_worker(client, parts, provider, watches)
        for name, provider in parts.providers.items()
        if parts.serves(provider_queue(name))
    ]
    if watch and parts.serves(WATCH_QUEUE):
        workers.append(_watch_worker(client, parts, watches))
    keeps = watch and parts.serves(WATCH_QUEUE)
    return GarrisonWorker(workers, watches, parts.providers, keeps_watches=keeps)


def _watches(client: Client, parts: Parts) -> TemporalWatches:
    watches = TemporalWatches(client, task_queue=TASK_QUEUE)
    for provider in parts.providers.values():
        watches.announce(provider.facts, {"public_key": parts.public_key})
    return watches


def workflow_runner() -> SandboxedWorkflowRunner:
    """Return the sandbox with our own modules passed through."""
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(
            "garrison", "pydantic", "pydantic_core", "annotated_types"
        )
    )


def _workflow_worker(client: Client, parts: Parts, watches: Watches, cached: int) -> Worker:
    settings = parts.settings
    terms = QuoteTerms(
        providers={name: provider.facts for name, provider in parts.providers.items()},
        limits=settings.limits,
        valid_for=settings.quote_valid,
        deadman=settings.deadman,
    )
    installation = InstallationActivities(terms, watches)
    return Worker(
        client,
        task_queue=TASK_QUEUE,
        workflows=[ClusterWorkflow, ProviderWatchWorkflow],
        activities=[installation.quote_terms, installation.ensure_watch],
        workflow_runner=workflow_runner(),
        max_cached_workflows=cached,
        max_concurrent_workflow_tasks=WORKFLOW_TASKS,
        max_concurrent_activities=100,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        graceful_shutdown_timeout=GRACE,
    )


def _provider_worker(client: Client, parts: Parts, provider: Provider, watches: Watches) -> Worker:
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
        ],
        max_concurrent_activities=100,
        max_task_queue_activities_per_second=provider.facts.calls_per_second,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=GRACE,
    )


def _watch_worker(client: Client, parts: Parts, watches: Watches) -> Worker:
    activities = WatchActivities(
        dict(parts.providers),
        TemporalOwners(client),
        watches,
        interval=parts.settings.watch_interval,
        busy_interval=parts.settings.watch_interval_busy,
        clock=parts.clock,
        keeper=LogKeeper(parts.settings.log_dir),
    )
    return Worker(
        client,
        task_queue=WATCH_QUEUE,
        activities=[activities.watch_provider],
        max_concurrent_activities=50,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=timedelta(seconds=1),
    )
