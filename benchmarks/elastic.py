"""Deployments over nodepools: up, at rest, half of them down and up again, and their end."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import WorkflowHandle

from benchmarks.arms import all_at_once, patiently
from benchmarks.figures import Figure
from benchmarks.idle import Window, rest_figures, watch
from benchmarks.installation import Installation, installed
from benchmarks.processes import WorkerProcess
from garrison.client.garrison import Garrison
from garrison.models.compute_cluster import ComputeClusterSpec
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentSpec,
    ReplicaTemplate,
)
from garrison.models.nodepool import NodepoolSpec
from garrison.models.resources import Resources

AT_ONCE = 24
PATIENCE = 300.0
ALL = "WorkflowType IN ('ComputeCluster', 'Nodepool', 'Deployment')"
CAUSE = "WORKFLOW_TASK_FAILED_CAUSE_"
LIVING = f"{ALL} AND ExecutionStatus = 'Running'"


@dataclass(frozen=True, slots=True)
class Size:
    """How many of what.

    Attributes:
        replicas: Of each deployment, each on a node of its own; all together they fill all pools.
        port: Where replicas listen, so that a router can count their requests; None for nowhere.
    """

    pools: int
    deployments: int
    replicas: int = 2
    port: int | None = None

    @property
    def nodes(self) -> int:
        """Machines in all."""
        return self.deployments * self.replicas


@dataclass(frozen=True, slots=True)
class Scaled:
    """A change of the count of replicas of many deployments at once.

    Attributes:
        acked: Seconds until all changes were acknowledged.
        ready: Until every deployment had the replicas that it wants, and only those.
        machines: Until the cloud had the machines that are wanted, and only those, and the pools
            knew it.
        cpu: Seconds of the worker and the server until then.
    """

    acked: float
    ready: float
    machines: float
    cpu: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Rest:
    """A stretch of time in which nothing is to do.

    Attributes:
        empty: The same server and worker before anything was there.
        kilobytes: Of the worker's memory, for each workflow.
        events: By which all histories grew in the window.
        machines: Those that ran.
    """

    empty: Window
    full: Window
    kilobytes: float
    events: int
    machines: int


@dataclass(frozen=True, slots=True)
class End:
    """What is left once everything was deleted.

    Attributes:
        stuck: Lives that were not over in time.
        machines: What the cloud still has.
        kinds: Events of all histories by kind.
        failures: The failed workflow tasks among them by cause.
        activities: The activities among them by name.
    """

    seconds: float
    stuck: int
    machines: int
    kinds: Counter[str]
    failures: Counter[str]
    activities: Counter[str]


@dataclass(frozen=True, slots=True)
class Story:
    """All that was seen of one size."""

    size: Size
    created: float
    up: Scaled
    rest: Rest
    down: Scaled
    again: Scaled
    peaks: tuple[int, int]
    end: End


async def measure(
    *, size: Size, settle: float, window: float, say: Callable[[str], None]
) -> list[Figure]:
    """Return the figures of deployments that come, rest, change and go.

    Args:
        size: How many of what.
        settle: Seconds from the last start to the window of rest.
        window: Seconds.
        say: Prints progress.
    """
    async with installed() as installation:
        worker = await installation.worker()
        await _warm_up(installation, worker)
        await asyncio.sleep(min(settle, 30))
        empty, rss = await watch(installation, worker, window), worker.rss
        say(f"idle server {empty.server:.2f} %, worker {empty.worker:.2f} %, {rss >> 20} MiB")
        estate = Estate(installation, worker, size, "bench")
        created = await estate.create()
        say(f"{size.pools} pools and {size.deployments} deployments after {created:.1f} s")
        up = await estate.scale(estate.deployments, size.replicas, nodes=size.nodes)
        say(f"{size.nodes} replicas: {up}")
        await asyncio.sleep(settle)
        rest = await _rest(estate, empty, rss, window)
        say(f"at rest: {rest}")
        half = estate.deployments[::2]
        down = await estate.scale(half, 0, nodes=size.nodes - len(half) * size.replicas)
        say(f"half of them to zero: {down}")
        again = await estate.scale(half, size.replicas, nodes=size.nodes)
        say(f"and back: {again}")
        peaks = await estate.peaks()
        end = await estate.end()
        say(f"{end.seconds:.1f} s to the end; {end}")
    return figures(Story(size, created, up, rest, down, again, peaks, end))


async def _warm_up(installation: Installation, worker: WorkerProcess) -> None:
    estate = Estate(installation, worker, Size(pools=1, deployments=1), "warm-up")
    await estate.create()
    await estate.scale(estate.deployments, 2, nodes=2)
    await estate.end()


async def _rest(estate: Estate, empty: Window, rss: int, window: float) -> Rest:
    size, worker = estate.size, estate.worker
    before = await estate.events()
    full = await watch(estate.installation, worker, window)
    events = await estate.events() - before
    each = (worker.rss - rss) / (size.pools + size.deployments + 1) / 1000
    return Rest(empty, full, each, events, estate.machines)


class Estate:
    """A compute cluster with pools and deployments, through the SDK that users have.

    Args:
        installation: On which it is.
        worker: That serves it.
        size: How much of everything.
        place: The id of the compute cluster, with which the other ids begin.
    """

    def __init__(
        self, installation: Installation, worker: WorkerProcess, size: Size, place: str
    ) -> None:
        self.installation = installation
        self.worker = worker
        self.size = size
        self.deployments = [f"{place}-{number}" for number in range(size.deployments)]
        self._place = place
        self._pools = [f"pool-{number}" for number in range(size.pools)]
        self._garrison = Garrison(installation.client, installation.settings)

    @property
    def machines(self) -> int:
        """How many the cloud has, by its own books."""
        return len(self.installation.console.inventory())

    async def create(self) -> float:
        """Create everything, without replicas; return how many seconds that took."""
        began = time.monotonic()
        place = ComputeClusterSpec(id=self._place, provider="simulated", region="sim-a")
        await self._garrison.compute_clusters.create(place)
        await all_at_once(self._create_pool, self._pools, at_once=AT_ONCE)
        await all_at_once(self._create_deployment, self.deployments, at_once=AT_ONCE)
        return time.monotonic() - began

    async def _create_pool(self, name: str) -> None:
        spec = NodepoolSpec(
            id=name,
            compute_cluster=self._place,
            instance_types=("g5.2xlarge",),
            max_instances=self.size.nodes // self.size.pools,
            release_after=timedelta(seconds=1),
        )
        key = uuid.uuid4().hex
        await patiently(lambda: self._garrison.nodepools.create(spec, request_id=key))

    async def _create_deployment(self, name: str) -> None:
        spec = DeploymentSpec(
            id=name,
            template=ReplicaTemplate(
                command=("serve",),
                port=self.size.port,
                resources=Resources(cpu_milli=1000, accelerators=1),
            ),
            autoscale=AutoscaleConfig(max_replicas=self.size.replicas, disable_packing=True),
            nodepools=tuple(self._pools_of(name)),
        )
        key = uuid.uuid4().hex
        await patiently(lambda: self._garrison.deployments.create(spec, request_id=key))

    def _pools_of(self, name: str) -> Iterable[DeploymentPool]:
        """Return the pool of a deployment, and the next one as its second choice."""
        number = self.deployments.index(name)
        for choice in range(min(2, self.size.pools)):
            pool = self._pools[(number + choice) % self.size.pools]
            yield DeploymentPool(compute_cluster=self._place, nodepool=pool)

    async def scale(self, names: list[str], replicas: int, *, nodes: int) -> Scaled:
        """Scale deployments at once, and wait until as many machines run as that takes."""
        began, cpu = time.monotonic(), self._cpu()

        async def one(name: str) -> None:
            key = uuid.uuid4().hex
            deployments = self._garrison.deployments
            await patiently(lambda: deployments.scale(name, replicas, request_id=key))

        async def ready() -> bool:
            return await self._have(names, replicas)

        async def bought() -> bool:
            rows = await self._garrison.nodepools.list(self._place)
            return self.machines == nodes == sum(row.nodes for row in rows)

        await all_at_once(one, names, at_once=AT_ONCE)
        acked = time.monotonic() - began
        await _until(ready, f"{replicas} replicas are ready")
        settled = time.monotonic() - began
        await _until(bought, f"there are {nodes} machines")
        took, after = time.monotonic() - began, self._cpu()
        return Scaled(acked, settled, took, (after[0] - cpu[0], after[1] - cpu[1]))

    async def _have(self, names: list[str], replicas: int) -> bool:
        """Ask one list, and no workflow."""
        counts = {
            row.id: (row.desired, row.ready) for row in await self._garrison.deployments.list()
        }
        return all(counts.get(name) == (replicas, replicas) for name in names)

    def _cpu(self) -> tuple[float, float]:
        return self.worker.cpu, self.installation.server_cpu

    async def events(self) -> int:
        """Return how long the histories of all that lives are together."""
        living = self.installation.client.list_workflows(LIVING)
        return sum([(await self._handle(one.id).describe()).history_length async for one in living])

    async def peaks(self) -> tuple[int, int]:
        """Return the most machines that all pools, and that any one pool, ever had at once.

        The first is the sum over pools: at no instant were there more.
        """
        rows = await self._garrison.nodepools.list(self._place)
        peaks = [self.installation.console.peak(uid=row.uid) for row in rows]
        return sum(peaks), max(peaks)

    async def end(self) -> End:
        """Delete everything at once, and wait until all of it is over."""
        began = time.monotonic()

        async def one(name: str) -> None:
            key = uuid.uuid4().hex
            await patiently(lambda: self._garrison.deployments.delete(name, request_id=key))

        await all_at_once(one, self.deployments, at_once=AT_ONCE)
        await self._garrison.compute_clusters.delete(self._place, cascade=True)
        stuck = await self._until_over()
        seconds, machines = time.monotonic() - began, self.machines
        return End(seconds, stuck, machines, *await self._histories())

    async def _until_over(self) -> int:
        """Return how many lives are not over after all, once they are or time is up."""
        end = time.monotonic() + PATIENCE
        while True:
            living = (await self.installation.client.count_workflows(LIVING)).count
            if not living or time.monotonic() > end:
                return living
            await asyncio.sleep(0.25)

    async def _histories(self) -> tuple[Counter[str], Counter[str], Counter[str]]:
        kinds: Counter[str] = Counter()
        causes: Counter[str] = Counter()
        activities: Counter[str] = Counter()
        async for one in self.installation.client.list_workflows(ALL):
            handle = self._handle(one.id, one.run_id)
            async for event in handle.fetch_history_events():
                kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
                kinds[kind] += 1
                if kind == "WORKFLOW_TASK_FAILED":
                    cause = event.workflow_task_failed_event_attributes.cause
                    causes[WorkflowTaskFailedCause.Name(cause).removeprefix(CAUSE)] += 1
                if kind == "ACTIVITY_TASK_SCHEDULED":
                    begun = event.activity_task_scheduled_event_attributes
                    activities[begun.activity_type.name] += 1
        return kinds, causes, activities

    def _handle(self, id: str, run_id: str | None = None) -> WorkflowHandle[Any, Any]:
        return self.installation.client.get_workflow_handle(id, run_id=run_id)


async def _until(claim: Callable[[], Awaitable[bool]], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not await claim():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {PATIENCE:g} s: {what}")
        await asyncio.sleep(0.25)


def figures(story: Story) -> list[Figure]:
    """Return what the table shows of a story."""
    return [*_busy_figures(story), *_rest_figures(story), *_end_figures(story)]


def _busy_figures(story: Story) -> list[Figure]:
    size, up, down, again = story.size, story.up, story.down, story.again
    most, most_of_one = story.peaks
    limit = size.nodes // size.pools
    return [
        Figure(
            f"{size.deployments} deployments on {size.pools} nodepools: until all"
            f" {size.nodes} replicas are ready",
            up.ready,
            "s",
            detail=f"asked for within {up.acked:.1f} s; {_cpu_text(up, size.nodes)}",
        ),
        Figure(
            "the same: machines at once, at most",
            most,
            goal=size.nodes,
            detail=f"{story.rest.machines} at rest; most of one pool {most_of_one} of {limit}",
        ),
        Figure(
            "the same: half of them to zero, until their machines are proven gone",
            down.machines,
            "s",
            detail=f"no replica after {down.ready:.1f} s; {_cpu_text(down, size.nodes // 2)}",
        ),
        Figure(
            "the same: and back, until all are ready",
            again.ready,
            "s",
            detail=_cpu_text(again, size.nodes // 2),
        ),
    ]


def _cpu_text(scaled: Scaled, replicas: int) -> str:
    worker, server = (seconds / replicas * 1000 for seconds in scaled.cpu)
    return f"CPU a replica: worker {worker:.0f} ms, server {server:.0f} ms"


def _rest_figures(story: Story) -> list[Figure]:
    rest, empty, full = story.rest, story.rest.empty, story.rest.full
    return [
        *rest_figures("the same, at rest", empty, full),
        Figure(
            "the same: worker memory above an empty worker",
            rest.kilobytes,
            "kB a workflow",
            detail=f"{story.size.pools + story.size.deployments + 1} workflows",
        ),
        Figure(
            "the same: history events in the window", rest.events, goal=0, detail="of all of them"
        ),
        Figure(
            "the same: provider list calls per watch pass",
            full.lists / full.passes if full.passes else float("nan"),
            goal=1,
            detail=f"{full.lists} calls, {full.passes} passes",
        ),
    ]


def _end_figures(story: Story) -> list[Figure]:
    end, size = story.end, story.size
    told = {name: end.activities[name] for name in ("tell_nodepool", "tell_deployment")}
    return [
        Figure("the same, all deleted: until the last life is over", end.seconds, "s"),
        Figure(
            "the same: stuck, or machines left",
            end.stuck + end.machines,
            goal=0,
            detail=f"not over within {PATIENCE:g} s; the cloud's own inventory",
        ),
        Figure(
            "the same: workflow task failures, in all histories",
            end.kinds["WORKFLOW_TASK_FAILED"],
            goal=0,
            detail="; ".join(
                (
                    f"time-outs: {end.kinds['WORKFLOW_TASK_TIMED_OUT']}",
                    *(f"{cause}: {count}" for cause, count in end.failures.items()),
                )
            ),
        ),
        Figure(
            "the same: history events of a deployment and its share of the pools",
            end.kinds.total() / size.deployments,
            detail=", ".join(f"{name}: {count}" for name, count in told.items()),
        ),
    ]
