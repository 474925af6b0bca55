"""How many replicas a deployment should run, and why.

Replica k is started once the recent traffic (plus the queue that a boot will not have cleared) has
needed k of them for `scale_up_delay`; once it is no longer needed it is kept for `hold_boots` boot
times, and never less than the documented delay. The first request wakes from zero at once. What is
missing or stale holds: an unanswered question is not an answer.

Each level k has a clock of its own, `since[k]`, which starts anew when the need crosses it. A step
up takes the highest level whose clock has run long enough: the clocks are younger the higher the
level, so this is the sliding minimum of the need. `hold_boots` is rent against waiting: at h one
accepts up to h boots of idle rent in a pause to spare one boot of waiting, and 1 is the break-even
of the ski-rental rule, at most twice the cost of knowing the future.

Left out, since they brought nothing on real traces: learned gaps, burst sizes, time of day.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from garrison.domain.autoscaling.need import Load, Need, assess_need, learn
from garrison.models.autoscale import AutoscaleState
from garrison.models.deployment import AutoscaleConfig

HOLE_SECONDS = 60.0
"""Observations further apart than this say nothing about the time between them."""
FIRST_BOOT = timedelta(seconds=240)
"""What a boot is taken for before one was seen: a node's and a replica's."""
BOOT_MEMORY = 0.7


@dataclass(frozen=True, slots=True)
class Observation:
    """What is seen of a deployment at one time.

    Absent (None), not a number or negative is missing, which holds the target. Whoever builds it
    leaves out what is stale.

    Attributes:
        ready: Replicas that answer; `starting` those that will.
        queued: Requests that wait for a replica, `running` those at one.
        arrivals: Requests so far, `completions` those that ended; both may begin anew.
        boot: From the wish for a replica until it is ready, as it lately was.
        soft_taken: Of the soft minimum, replicas taken by deployments of higher priority.
    """

    now: datetime
    ready: int
    starting: int
    queued: float | None
    running: float | None
    arrivals: float | None
    completions: float | None
    boot: timedelta = FIRST_BOOT
    soft_taken: int = 0

    @property
    def complete(self) -> bool:
        """Nothing is missing that a decision cannot do without."""
        return all(_usable(one) is not None for one in (self.queued, self.running, self.arrivals))


@dataclass(frozen=True, slots=True)
class Decision:
    """A target with its reason in words.

    Attributes:
        need: What the load needs and how that was found, None where nobody knows.
    """

    target: int
    reason: str
    need: Need | None = None


@dataclass(frozen=True, slots=True)
class _Levels:
    """The levels as they stand now, and for how long."""

    config: AutoscaleConfig
    least: int
    need: int
    now: float
    since: tuple[float, ...]
    boot: timedelta

    def age(self, level: int) -> float:
        return self.now - self.since[level - 1]


def decide(
    config: AutoscaleConfig, state: AutoscaleState, seen: Observation
) -> tuple[Decision, AutoscaleState]:
    """Return how many replicas there should be from now on, and what to remember.

    To be called every 10 s, every 2 s while requests wait, and at once when one meets no replica.
    """
    now = seen.now.timestamp()
    state = _apply_knobs(config, state, now)
    counters = {"now": now, "arrivals": seen.arrivals, "completions": _usable(seen.completions)}
    if not seen.complete:
        return _hold(config, state, seen, "metrics missing")
    if state.now is not None and now < state.now:
        return _hold(config, state.replace(**counters, window=()), seen, "clock went back")
    load = _load(state, seen, now)
    learned = learn(config, state, load)
    need = assess_need(config, learned, load)
    level = min(config.max_replicas, need.replicas)
    since = _since(state, seen, load, level)
    levels = _Levels(config, floor_of(config, seen.soft_taken), level, now, since, seen.boot)
    target, reason = _move(levels, state.target, active=load.active)
    changes = {
        **counters,
        "target": target,
        "running": load.running,
        "window": learned.window,
        "first_seen": learned.first_seen,
        "busy": learned.busy,
        "done": learned.done,
        "need": level,
        "since": since,
        "unready": _is_unready(seen),
        "blind": False,
    }
    return Decision(target, reason, need), state.replace(**changes)


def blend_boot(known: timedelta | None, measured: timedelta) -> timedelta:
    """Return how long a boot takes after one more was measured."""
    if known is None:
        return measured
    return known * BOOT_MEMORY + measured * (1 - BOOT_MEMORY)


def floor_of(config: AutoscaleConfig, soft_taken: int = 0) -> int:
    """Return the fewest replicas there may be."""
    soft = max(0, config.soft_min_replicas - soft_taken)
    return min(config.min_replicas + soft, config.max_replicas)


def hold_seconds(config: AutoscaleConfig, level: int, boot: timedelta) -> float:
    """Return how long a replica is kept that is no longer needed."""
    kept = max(config.scale_down_delay.total_seconds(), config.hold_boots * boot.total_seconds())
    return kept if level >= 2 else max(kept, config.scale_to_zero_delay.total_seconds())


def _usable(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _hold(
    config: AutoscaleConfig, state: AutoscaleState, seen: Observation, why: str
) -> tuple[Decision, AutoscaleState]:
    target = _clip(config, floor_of(config, seen.soft_taken), state.target)
    return Decision(target, f"hold: {why}"), state.replace(target=target, blind=True)


def _clip(config: AutoscaleConfig, least: int, target: int) -> int:
    return min(max(target, least), config.max_replicas)


def _apply_knobs(config: AutoscaleConfig, state: AutoscaleState, now: float) -> AutoscaleState:
    """Return the state with as many levels as there may be, and the clocks of changed delays anew.

    The clock of a needed level is that of `scale_up_delay`. Of the others the first level's is that
    of `scale_to_zero_delay`, the rest's that of `scale_down_delay`; both hold by `hold_boots`.
    """
    knobs = (
        config.scale_up_delay.total_seconds(),
        config.scale_down_delay.total_seconds(),
        config.scale_to_zero_delay.total_seconds(),
        config.hold_boots,
    )
    most = config.max_replicas
    if knobs == state.knobs and most == len(state.since):
        return state
    need = min(state.need, most)
    since = (*state.since[:most], *[now] * (most - len(state.since)))
    if state.knobs:
        up, down, to_zero, hold = (a != b for a, b in zip(knobs, state.knobs, strict=True))
        anew = [
            up if level <= need else hold or (to_zero if level == 1 else down)
            for level in range(1, most + 1)
        ]
        since = tuple(now if is_new else one for one, is_new in zip(since, anew, strict=True))
    changed: AutoscaleState = state.replace(since=since, need=need, knobs=knobs)
    return changed


def _load(state: AutoscaleState, seen: Observation, now: float) -> Load:
    elapsed = 0.0 if state.now is None else now - state.now
    return Load(
        now=now,
        elapsed=elapsed,
        new=_rise(state.arrivals, seen.arrivals) or 0.0,
        completed=_rise(state.completions, _usable(seen.completions)),
        queued=seen.queued or 0.0,
        running=seen.running or 0.0,
        capacity=seen.ready + seen.starting / 2,
        boot=seen.boot.total_seconds(),
        fresh=state.now is None or state.blind or elapsed > HOLE_SECONDS,
    )


def _rise(last: float | None, value: float | None) -> float | None:
    """Return how far a counter rose, None where that is unknown; one that fell has begun anew."""
    if last is None or value is None:
        return None
    return value - last if value >= last else value


def _since(state: AutoscaleState, seen: Observation, load: Load, need: int) -> tuple[float, ...]:
    if load.fresh:
        return (load.now,) * len(state.since)
    low, high = sorted((state.need, need))
    since = state.since
    if low < high:
        since = (*since[:low], *[load.now] * (high - low), *since[high:])
    if need == 0 and since and (state.unready or _is_unready(seen)):
        # Nobody could have used it yet: its idleness begins when it is seen to be ready.
        since = (load.now, *since[1:])
    return since


def _is_unready(seen: Observation) -> bool:
    return not seen.ready and seen.starting > 0


def _move(levels: _Levels, last: int, *, active: bool) -> tuple[int, str]:
    most = levels.config.max_replicas
    if most == 0:
        return 0, "off: max_replicas is 0"
    if last == 0 and active:
        return max(1, levels.least), "wake: a request is waiting and nothing runs"
    target = _clip(levels.config, levels.least, last)
    moved, why = _rise_from(levels, target) if levels.need > target else _sink_from(levels, target)
    if moved == target != last:
        return target, f"bounds: {levels.least} to {most} replicas"
    return moved, why


def _rise_from(levels: _Levels, target: int) -> tuple[int, str]:
    delay = levels.config.scale_up_delay.total_seconds()
    for level in range(levels.need, target, -1):
        if levels.age(level) >= delay:
            return level, f"up: {level} needed for {levels.age(level):.0f} s"
    lasted = levels.age(target + 1)
    return target, f"hold: {target + 1} needed for {lasted:.0f} of {delay:.0f} s"


def _sink_from(levels: _Levels, target: int) -> tuple[int, str]:
    why = "steady"
    for level in range(target, max(levels.least, levels.need), -1):
        idle, hold = levels.age(level), hold_seconds(levels.config, level, levels.boot)
        if idle < hold:
            wait = f"hold: replica {level} unneeded for {idle:.0f} of {hold:.0f} s"
            return level, wait if level == target else why
        why = f"down: replica {level} unneeded for {idle:.0f} s"
    return max(min(target, levels.need), levels.least), why
