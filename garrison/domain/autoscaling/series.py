"""What the numbers of a deployment's replicas say of its load, from one look to the next.

Servers count for themselves, from zero at each start. Summed, their counters fall when a replica
goes, and whoever takes that for a new beginning sees a burst of requests that never came. So each
counter is followed by itself: its rises are added to totals that never fall.

- A counter that vanishes adds nothing, and is remembered for a day: it may come back.
- One that fell belongs to a replica that was started anew: all that it says is new, and so is all
  that the replica's other counters of that kind say.
- One that was never seen adds all it says if it was born since the look before: at a replica that
  was not there then, or beside other counters of one that was. In a first look, and in one that
  comes more than `HOLE_SECONDS` after the one before, nobody knows, and it adds nothing.
- One without a replica's name is a sum already, whose fall says nothing: it adds nothing.

Servers that count only what they completed have had as many arrivals as completions and requests
that are still there, from the moment on that both together are more than before. So a request that
is lost, or given up while it waits, makes no arrival of the next one; and none is counted twice.

Servers that tell no running requests, but how long the completed ones took, had on average as
many as request-seconds passed in a second (Little's law), here in the last minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from garrison.models.load import LoadCounts

HOLE_SECONDS = 60.0
"""Looks further apart than this say nothing about the time between them."""
REMEMBERED_SECONDS = 86_400.0
AVERAGED_SECONDS = 60.0
LEAST_AVERAGED_SECONDS = 30.0
"""Fewer would be one scrape of a Prometheus server, or none."""
MICROSECONDS = 1e6
NOBODY_READY = "no replica is ready"


class Role(StrEnum):
    """What a number says.

    `busy_us` and `waited_us` are counters: of all the time that completed requests took, and of
    the part of it that they waited.
    """

    RUNNING = "running"
    QUEUED = "queued"
    ARRIVALS = "arrivals"
    COMPLETIONS = "completions"
    BUSY_US = "busy_us"
    WAITED_US = "waited_us"


GAUGES = (Role.RUNNING, Role.QUEUED)
COUNTERS = (Role.ARRIVALS, Role.COMPLETIONS, Role.BUSY_US, Role.WAITED_US)


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of one replica.

    Attributes:
        replica: Which; empty for a number over several.
        series: What tells it from the others of its replica.
    """

    replica: str
    series: str
    value: float


Look = Mapping[Role, Sequence[Sample]]
"""All numbers of one deployment at one time; a role that its source does not have is left out."""


@dataclass(frozen=True, slots=True)
class _Last:
    value: float
    seen_at: float


_Key = tuple[Role, str, str]


@dataclass(frozen=True, slots=True)
class LoadSeries:
    """What is remembered between two looks.

    Attributes:
        at: Of the last whole look, None before the first; seconds of any one clock.
        last: Each counter as last seen, by role, replica and series.
        ahead: Requests of each replica that have arrived by our count and are not completed.
        spent: Request-seconds so far at several times, of the last minute.
    """

    at: float | None = None
    last: Mapping[_Key, _Last] = field(default_factory=dict)
    ahead: Mapping[str, _Last] = field(default_factory=dict)
    arrivals: float = 0.0
    completions: float = 0.0
    spent: tuple[tuple[float, float], ...] = ()


def find_missing(look: Look, *, ready: int, up: float | None) -> str | None:
    """Return in words why a look does not tell the whole load, None when it does.

    Args:
        look: What was seen.
        ready: Replicas that should be in it; more may be, such as those that end their work.
        up: How many replicas the numbers are of, None where nothing but the numbers tells.
    """
    if ready < 1:
        return NOBODY_READY
    for role, samples in look.items():
        bad = next((one.value for one in samples if not _is_count(one.value)), None)
        if bad is not None:
            return f"{role} is {bad:g}"
    if up is not None and not up >= ready:
        return f"{up:g} of {ready} ready replicas are read"
    gauges = [role for role in (*GAUGES, Role.BUSY_US) if role in look]
    return next((lack for lack in (_lack(look, role, ready) for role in gauges) if lack), None) or (
        _uncounted(look)
    )


def count_load(series: LoadSeries, look: Look, at: float) -> tuple[LoadCounts | None, LoadSeries]:
    """Return the load, and what to remember.

    Args:
        series: What was remembered after the last whole look.
        look: A whole look, see `find_missing`.
        at: When it was taken.

    Returns:
        None for the load while its running requests cannot be told yet.
    """
    fresh = series.at is None or not 0 <= at - series.at <= HOLE_SECONDS
    steps = {role: _steps(series, role, look[role], fresh) for role in COUNTERS if role in look}
    arrived, ahead = _arrived(series, look, steps, at, fresh=fresh)
    spent = _spent(series, steps, at, fresh=fresh) if Role.BUSY_US in look else ()
    after = LoadSeries(
        at=at,
        last=_remembered(series, look, steps, at),
        ahead=ahead,
        arrivals=series.arrivals + arrived,
        completions=series.completions + _total(steps.get(Role.COMPLETIONS, {})),
        spent=spent,
    )
    running = _mean_running(spent) if Role.BUSY_US in look else _sum(look, Role.RUNNING)
    if running is None:
        return None, after
    counts = LoadCounts(
        running=running,
        queued=_sum(look, Role.QUEUED),
        arrivals=after.arrivals,
        completions=after.completions if Role.COMPLETIONS in look else None,
    )
    return counts, after


def _is_count(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _lack(look: Look, role: Role, ready: int) -> str | None:
    replicas = {one.replica for one in look[role]}
    if not replicas:
        return f"{role} is told by no replica"
    if "" not in replicas and len(replicas) < ready:
        return f"{role} is told by {len(replicas)} of {ready} ready replicas"
    return None


def _uncounted(look: Look) -> str | None:
    """Return why counters cannot be believed: a server counts at the latest with its first work.

    Many make a counter when it first rises; but one whose name is another in this version never
    comes, and would read as no traffic.
    """
    role = Role.ARRIVALS if Role.ARRIVALS in look else Role.COMPLETIONS
    if look.get(role) or not _sum(look, Role.RUNNING) + _sum(look, Role.QUEUED):
        return None
    return f"{role} are counted by no replica, and there are requests"


def _sum(look: Look, role: Role) -> float:
    return math.fsum(one.value for one in look.get(role, ()))


@dataclass(frozen=True, slots=True)
class _Step:
    """How far a replica's counters of one role rose."""

    by: float = 0.0
    restarted: bool = False


def _total(steps: Mapping[str, _Step]) -> float:
    return math.fsum(step.by for step in steps.values())


def _steps(
    series: LoadSeries, role: Role, samples: Sequence[Sample], fresh: bool
) -> dict[str, _Step]:
    by_replica: dict[str, list[Sample]] = {}
    for one in samples:
        by_replica.setdefault(one.replica, []).append(one)
    return {
        replica: _step(series, role, replica, ones, fresh) for replica, ones in by_replica.items()
    }


def _step(
    series: LoadSeries, role: Role, replica: str, samples: Sequence[Sample], fresh: bool
) -> _Step:
    known = [series.last.get((role, replica, one.series)) for one in samples]
    pairs = list(zip(samples, known, strict=True))
    restarted = any(last is not None and one.value < last.value for one, last in pairs)
    if fresh:
        return _Step(0.0, restarted)
    if not replica:
        rises = (one.value - last.value for one, last in pairs if last is not None)
        return _Step(math.fsum(max(0.0, rise) for rise in rises))
    before = {} if restarted else {one.series: last.value for one, last in pairs if last}
    return _Step(math.fsum(one.value - before.get(one.series, 0.0) for one in samples), restarted)


def _remembered(
    series: LoadSeries, look: Look, steps: Mapping[Role, Mapping[str, _Step]], at: float
) -> dict[_Key, _Last]:
    begun_anew = {
        (role, replica)
        for role, ones in steps.items()
        for replica, step in ones.items()
        if step.restarted
    }
    kept = {
        key: last
        for key, last in series.last.items()
        if key[:2] not in begun_anew and abs(at - last.seen_at) <= REMEMBERED_SECONDS
    }
    seen = {
        (role, one.replica, one.series): _Last(one.value, at)
        for role in COUNTERS
        for one in look.get(role, ())
    }
    return {**kept, **seen}


def _arrived(
    series: LoadSeries,
    look: Look,
    steps: Mapping[Role, Mapping[str, _Step]],
    at: float,
    *,
    fresh: bool,
) -> tuple[float, Mapping[str, _Last]]:
    """Return how many requests arrived, and which of them are not completed."""
    if Role.ARRIVALS in steps:
        return _total(steps[Role.ARRIVALS]), {}
    there = [one for role in GAUGES for one in look.get(role, ())]
    completed = steps.get(Role.COMPLETIONS, {})
    if any(not one.replica for one in there) or "" in completed:
        # Sums cannot be set against single replicas.
        there = [replace(one, replica="") for one in there]
        completed = {"": _Step(_total(completed))}
    waiting: dict[str, float] = {}
    for one in there:
        waiting[one.replica] = waiting.get(one.replica, 0.0) + one.value
    arrived, ahead = 0.0, {}
    for replica in waiting.keys() | completed.keys():
        step, now = completed.get(replica, _Step()), waiting.get(replica, 0.0)
        last = series.ahead.get(replica)
        before = 0.0 if last is None or step.restarted else last.value
        left = now if fresh else max(before - step.by, now)
        arrived += 0.0 if fresh else left - (before - step.by)
        ahead[replica] = _Last(left, at)
    return arrived, {**_recent(series.ahead, at), **ahead}


def _recent(ahead: Mapping[str, _Last], at: float) -> dict[str, _Last]:
    return {
        replica: last
        for replica, last in ahead.items()
        if abs(at - last.seen_at) <= REMEMBERED_SECONDS
    }


def _spent(
    series: LoadSeries, steps: Mapping[Role, Mapping[str, _Step]], at: float, *, fresh: bool
) -> tuple[tuple[float, float], ...]:
    if fresh or not series.spent:
        return ((at, 0.0),)
    busy, waited = (_total(steps.get(role, {})) for role in (Role.BUSY_US, Role.WAITED_US))
    total = series.spent[-1][1] + max(0.0, busy - waited) / MICROSECONDS
    points = (*series.spent, (at, total))
    # The newest point that is older than the span stays, as its beginning.
    old = sum(at - when >= AVERAGED_SECONDS for when, _ in points)
    return points[max(0, old - 1) :]


def _mean_running(spent: Sequence[tuple[float, float]]) -> float | None:
    (begin, before), (end, total) = spent[0], spent[-1]
    return (total - before) / (end - begin) if end - begin >= LEAST_AVERAGED_SECONDS else None
