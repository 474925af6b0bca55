"""What no autoscaler can undercut: the work itself, and knowing the future.

*work* is request-seconds over slots. *opt* serves every request without any waiting: level k runs
while more than k-1 replicas are needed, and is kept over a gap that is shorter than a boot on a
warm node, else stopped and booted again in time. That is the optimum of the ski-rental problem, and
a lower bound for zero waiting, since the boot of a node is not charged. Who lets people wait may
lie below it.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from benchmarks.autoscale.traces import Trace
from benchmarks.autoscale.world import Rules


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both in replica-hours."""

    work_hours: float
    opt_hours: float


def bounds(trace: Trace, rules: Rules) -> Bounds:
    """Return what serving a trace takes at least."""
    slots = trace.spec.concurrency
    work = sum(trace.services) / slots
    return Bounds(work / 3600, sum(_levels(trace, rules)) / 3600)


def _levels(trace: Trace, rules: Rules) -> list[float]:
    """Return the seconds of each level."""
    cost = [0.0] * rules.max_replicas
    began = [math.nan] * rules.max_replicas
    ended = [-math.inf] * rules.max_replicas
    level = 0
    for at, running in _running(trace):
        now = min(rules.max_replicas, math.ceil(running / trace.spec.concurrency))
        for k in range(level, now):
            cost[k] += min(at - ended[k], rules.replica_boot)
            began[k] = at
        for k in range(now, level):
            cost[k] += at - began[k]
            ended[k] = at
        level = now
    return cost


def _running(trace: Trace) -> list[tuple[float, int]]:
    """Return how many requests run after each change, if none ever waits."""
    changes, ends = [], list[float]()
    for arrival, service in zip(trace.arrivals, trace.services, strict=True):
        while ends and ends[0] <= arrival:
            at = heapq.heappop(ends)
            changes.append((at, len(ends)))
        heapq.heappush(ends, arrival + service)
        changes.append((arrival, len(ends)))
    while ends:
        at = heapq.heappop(ends)
        changes.append((at, len(ends)))
    return changes
