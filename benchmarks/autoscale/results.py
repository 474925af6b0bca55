"""What came out of a run, and who is better in all that counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.autoscale.bounds import Bounds
from benchmarks.autoscale.world import World

Cell = str | float


@dataclass(frozen=True, slots=True)
class Result:
    """One policy on one trace. Waits are in seconds, `over_10` and `over_300` in percent."""

    trace: str
    policy: str
    replica_hours: float
    node_hours: float
    idle_percent: float
    p50: float
    p95: float
    p99: float
    mean_wait: float
    over_10: float
    over_300: float
    events: int
    starts: int

    @property
    def judged(self) -> tuple[float, float, float]:
        """Return what is compared: cost, requests over 10 s, mean wait."""
        return (self.replica_hours, self.over_10, self.mean_wait)

    def dominates(self, other: Result) -> bool:
        """Return whether it is no worse in all and better in one."""
        pairs = list(zip(self.judged, other.judged, strict=True))
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    def as_json(self) -> dict[str, Any]:
        """Return the figures for programs."""
        return asdict(self)


def result_of(policy: str, world: World) -> Result:
    """Return the figures of a world that is over."""
    waits = sorted(world.waits)
    count = len(waits)
    hours = world.replica_seconds / 3600
    used = world.served / world.trace.spec.concurrency / 3600
    return Result(
        trace=world.trace.spec.name,
        policy=policy,
        replica_hours=hours,
        node_hours=world.node_seconds / 3600,
        idle_percent=100 * (1 - used / hours) if hours else 0.0,
        p50=waits[count // 2],
        p95=waits[int(count * 0.95)],
        p99=waits[int(count * 0.99)],
        mean_wait=sum(waits) / count,
        over_10=100 * sum(wait > 10 for wait in waits) / count,
        over_300=100 * sum(wait > 300 for wait in waits) / count,
        events=len(world.targets),
        starts=world.starts,
    )


def trace_table(results: Sequence[Result], bound: Bounds) -> str:
    """Return the figures of one trace, one policy a row."""
    head = (
        *("policy", "replica-h", "x opt", "node-h", "idle", "p50", "p95", "p99"),
        *("mean wait", ">10 s %", ">300 s %", "events", "starts"),
    )
    return table(head, [_row(one, bound) for one in results])


def _row(one: Result, bound: Bounds) -> tuple[Cell, ...]:
    return (
        *(one.policy, f"{one.replica_hours:.1f}", f"{one.replica_hours / bound.opt_hours:.2f}"),
        *(f"{one.node_hours:.1f}", f"{one.idle_percent:.0f}%"),
        *(f"{one.p50:.1f}", f"{one.p95:.0f}", f"{one.p99:.0f}", f"{one.mean_wait:.1f}"),
        *(f"{one.over_10:.1f}", f"{one.over_300:.2f}", one.events, one.starts),
    )


def dominance_table(
    results: Iterable[Result], presets: Sequence[str], others: Sequence[str]
) -> tuple[str, Mapping[str, int]]:
    """Return for each trace and autoscaler which preset dominates it, and the counts.

    The counts are `pairs`, `dominated` pairs, and `losses`: an autoscaler dominates a preset.
    """
    found: dict[str, dict[str, Result]] = {}
    for one in results:
        found.setdefault(one.trace, {})[one.policy] = one
    counts = {"pairs": 0, "dominated": 0, "losses": 0}
    rows: list[tuple[Cell, ...]] = []
    for trace, by_policy in found.items():
        cells: list[str] = []
        for other in others:
            theirs = by_policy[other]
            winners = [name for name in presets if by_policy[name].dominates(theirs)]
            losers = [name for name in presets if theirs.dominates(by_policy[name])]
            counts["pairs"] += 1
            counts["dominated"] += bool(winners)
            counts["losses"] += len(losers)
            lost = f"; LOSES: {', '.join(losers)}" if losers else ""
            cells.append((", ".join(winners) or "-") + lost)
        rows.append((trace, *cells))
    return table(("trace", *others), rows), counts


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
