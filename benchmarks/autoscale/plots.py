"""Pictures: replicas against load, and cost against waiting."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.autoscale.results import Result
from benchmarks.autoscale.traces import Trace

SHOWN_SECONDS = 6 * 3600
STEPS = 600
COLOURS = {
    "lean": "#2a9d8f",
    "balanced": "#1d4ed8",
    "interactive": "#7c3aed",
    "knative-kpa": "#e76f51",
    "keda+hpa": "#f4a261",
    "skyserve": "#8d99ae",
}


def draw_replicas(
    path: Path, trace: Trace, targets: Mapping[str, Sequence[tuple[float, int]]]
) -> None:
    """Draw what each policy ran, over what would have run if nobody had waited."""
    begin, end = _busiest(trace)
    times = [begin + (end - begin) * step / STEPS for step in range(STEPS + 1)]
    load = _load(trace, times)
    pyplot = _pyplot()
    figure, panels = pyplot.subplots(
        len(targets), 1, sharex=True, figsize=(9, 1.4 * len(targets)), constrained_layout=True
    )
    hours = [time / 3600 for time in times]
    for panel, (name, steps) in zip(panels, targets.items(), strict=True):
        panel.fill_between(hours, load, step="post", color="#d9d9d9", linewidth=0)
        counts = [_at(steps, time) for time in times]
        panel.step(hours, counts, where="post", color=COLOURS.get(name, "black"), linewidth=1.4)
        panel.set_ylabel(name, fontsize=8)
        panel.set_ylim(0, 6)
        panel.tick_params(labelsize=7)
    panels[-1].set_xlabel("hours", fontsize=8)
    figure.suptitle(f"{trace.spec.name}: replicas (line) and replicas' worth of requests (grey)")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def draw_costs(path: Path, results: Sequence[Result], shown: Sequence[str]) -> None:
    """Draw cost against the share of requests that wait over 10 s, one panel a trace."""
    traces = list(dict.fromkeys(one.trace for one in results))
    pyplot = _pyplot()
    rows = math.ceil(len(traces) / 2)
    figure, panels = pyplot.subplots(
        rows, 2, figsize=(9, 3.2 * rows), constrained_layout=True, squeeze=False
    )
    for panel, trace in zip(panels.flat, traces, strict=False):
        points = [one for one in results if one.trace == trace and one.policy in shown]
        for one in points:
            ours = one.policy in ("lean", "balanced", "interactive")
            colour, marker = COLOURS.get(one.policy, "#555555"), "o" if ours else "x"
            panel.scatter(one.replica_hours, one.over_10, color=colour, marker=marker)
            panel.annotate(
                one.policy,
                (one.replica_hours, one.over_10),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=7,
            )
        panel.set_title(trace, fontsize=9)
        panel.set_xlabel("replica-hours", fontsize=8)
        panel.set_ylabel("requests that wait > 10 s, %", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.set_ylim(bottom=0)
        panel.margins(x=0.15)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _busiest(trace: Trace) -> tuple[float, float]:
    """Return the six hours with the most work, or all of a shorter trace and what follows it."""
    if trace.end <= SHOWN_SECONDS:
        return 0.0, trace.end + 1800
    begins = range(0, int(trace.end - SHOWN_SECONDS), 1800)
    sums = {
        begin: bisect_right(trace.arrivals, begin + SHOWN_SECONDS)
        - bisect_right(trace.arrivals, begin)
        for begin in begins
    }
    begin = float(max(sums, key=lambda one: sums[one]))
    return begin, begin + SHOWN_SECONDS


def _load(trace: Trace, times: Sequence[float]) -> list[float]:
    ends = sorted(a + s for a, s in zip(trace.arrivals, trace.services, strict=True))
    return [
        (bisect_right(trace.arrivals, time) - bisect_right(ends, time)) / trace.spec.concurrency
        for time in times
    ]


def _at(steps: Sequence[tuple[float, int]], time: float) -> int:
    at = bisect_right(steps, (time, 99))
    return steps[at - 1][1] if at else 0
