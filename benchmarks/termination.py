"""Many clusters are terminated at once: how long until all are proven gone."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType

from benchmarks.arms import GarrisonArm, all_at_once, patiently
from benchmarks.figures import Figure, percentile, spread
from benchmarks.installation import Installation, installed

AT_ONCE = 24
STUCK_AFTER = 300.0
LINEAR = 1.25
"""A cluster may take so much more of the time when there are more of them."""

LIVING = "GarrisonKind = 'cluster' AND ExecutionStatus = 'Running'"


@dataclass(frozen=True, slots=True)
class End:
    """The end of a fleet.

    Attributes:
        seconds: From the first terminate until the last life was over.
        acks: Seconds until each terminate was acknowledged.
        stuck: Lives that were not over in time.
        machines: What the cloud still has.
        tasks: Workflow tasks that failed or timed out, by kind, in all histories.
        list_seconds: Of a list of them all.
    """

    seconds: float
    acks: list[float]
    stuck: int
    machines: int
    tasks: Counter[str]
    list_seconds: float


async def measure(*, fleets: Sequence[int], say: Callable[[str], None]) -> list[Figure]:
    """Return the figures of fleets that end, each alone in an installation.

    Args:
        fleets: Their sizes, ascending.
        say: Prints progress.
    """
    ends = {}
    for clusters in fleets:
        async with installed() as installation:
            ends[clusters] = await _end(installation, clusters)
        end = ends[clusters]
        say(f"{clusters} clusters terminated in {end.seconds:.1f} s; {dict(end.tasks)}")
    return _figures(ends)


async def _end(installation: Installation, clusters: int) -> End:
    await installation.worker()
    arm = GarrisonArm(installation.client, installation.settings, nodes=2)
    names = [f"t{i}" for i in range(clusters)]
    await all_at_once(arm.begin, names, at_once=AT_ONCE)
    began = time.monotonic()
    acks = await asyncio.gather(*(_terminate(arm, name) for name in names))
    stuck = await _until_over(installation)
    seconds = time.monotonic() - began
    machines = len(installation.console.inventory())
    asked = time.monotonic()
    rows = await arm.clusters.list(include_ended=True)
    listed = time.monotonic() - asked
    if len(rows) != clusters:
        raise RuntimeError(f"{len(rows)} of {clusters} ended clusters are listed")
    return End(seconds, list(acks), stuck, machines, await _bad_tasks(arm, names), listed)


async def _terminate(arm: GarrisonArm, name: str) -> float:
    began = time.monotonic()
    request_id = uuid.uuid4().hex
    await patiently(lambda: arm.clusters.terminate(name, request_id=request_id))
    return time.monotonic() - began


async def _until_over(installation: Installation) -> int:
    """Return how many lives are not over after all, once they are or time is up."""
    end = time.monotonic() + STUCK_AFTER
    while True:
        living = (await installation.client.count_workflows(LIVING)).count
        if not living or time.monotonic() > end:
            return living
        await asyncio.sleep(0.25)


async def _bad_tasks(arm: GarrisonArm, names: list[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for name in names:
        async for event in arm.handle(name).fetch_history_events():
            kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
            if kind in ("WORKFLOW_TASK_FAILED", "WORKFLOW_TASK_TIMED_OUT"):
                found[kind] += 1
    return found


def _figures(ends: dict[int, End]) -> list[Figure]:
    few, many = min(ends), max(ends)
    each = {clusters: end.seconds / clusters for clusters, end in ends.items()}
    times = ", ".join(f"{n}: {end.seconds:.1f} s" for n, end in ends.items())
    last = ends[many]
    return [
        Figure(
            f"{many} clusters terminated at once: time of each, against {few} at once",
            each[many] / each[few],
            "x",
            goal=LINEAR,
            detail=times,
        ),
        Figure(
            "the same: stuck, or machines left",
            sum(end.stuck + end.machines for end in ends.values()),
            goal=0,
            detail=f"not over within {STUCK_AFTER:g} s; the cloud's own inventory",
        ),
        Figure(
            "the same: workflow task failures",
            sum(end.tasks["WORKFLOW_TASK_FAILED"] for end in ends.values()),
            goal=0,
            detail=f"time-outs: {sum(e.tasks['WORKFLOW_TASK_TIMED_OUT'] for e in ends.values())}",
        ),
        Figure(
            "the same: terminate acknowledged",
            percentile(last.acks, 95),
            "s",
            detail=f"p95 of {spread(last.acks, 's')}",
        ),
        Figure(f"list of {many} ended clusters", last.list_seconds, "s", goal=1),
    ]
