"""How many replicas the load needs: arrivals times service time, and the queue to work off.

The rate of arrivals is taken over a sliding window, the service time is request-seconds over
completions, both learned from gauges and counters alone. By Little's law their product is how many
requests run at a time in the long run, whether or not there are replicas for them now; what runs at
this moment says only how many there are. On top comes headroom of a part of a standard deviation,
since arrivals come in clumps, or the queue, if that asks for more. Until ten completions have been
seen the service time is not known, and what is there counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from garrison.models.autoscale import AutoscaleState
from garrison.models.deployment import AutoscaleConfig

BUCKETS = 30
LEAST_WINDOW = 60.0
"""A rate is divided by at least this: the first requests say little about the next ones."""
PRIOR_SECONDS, PRIOR_COUNT = 10.0, 5.0
KNOWN_AT = 10.0
FORGET_AFTER = 600.0
DRAIN_SECONDS = 300.0
"""A queue that boots will leave behind is to be worked off in this time."""
HEADROOM, SLOW_HEADROOM = 0.5, 2.0
SLOW_AFTER = 120.0
"""With knobs that cannot react faster, reserves must be there before they are needed."""


@dataclass(frozen=True, slots=True)
class Load:
    """One complete observation, in numbers.

    Attributes:
        elapsed: Seconds since the last one.
        new: Arrivals since then, `completed` the completions; None where they are not told.
        fresh: There is no evidence about the time before: a first look, or after a hole.
    """

    now: float
    elapsed: float
    new: float
    completed: float | None
    queued: float
    running: float
    capacity: float
    boot: float
    fresh: bool

    @property
    def active(self) -> bool:
        """Somebody is served or waits to be."""
        return self.new > 0 or self.queued > 0 or self.running > 0


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known about traffic after an observation; the fields of `AutoscaleState`."""

    window: tuple[tuple[float, float], ...]
    first_seen: float
    busy: float
    done: float

    @property
    def service_seconds(self) -> float:
        """Return how long a request runs."""
        return (self.busy + PRIOR_COUNT * PRIOR_SECONDS) / (self.done + PRIOR_COUNT)


@dataclass(frozen=True, slots=True)
class Need:
    """How many replicas are needed, and from what that follows.

    Attributes:
        replicas: Not bounded yet.
        demand: The same before it is rounded.
        rate: Arrivals a second.
        service_seconds: How long a request runs; a guess until `known`.
    """

    replicas: int
    demand: float
    rate: float
    service_seconds: float
    known: bool


def learn(config: AutoscaleConfig, state: AutoscaleState, load: Load) -> Learned:
    """Return what is known after one more observation."""
    window, first_seen = _count(config, state, load)
    busy, done = state.busy, state.done
    served = load.running > 0 or state.running > 0
    if served and not load.fresh and load.completed is not None:
        faded = math.exp(-load.elapsed / FORGET_AFTER)
        busy = busy * faded + (load.running + state.running) / 2 * load.elapsed
        done = done * faded + load.completed
    return Learned(window, first_seen, busy, done)


def assess_need(config: AutoscaleConfig, learned: Learned, load: Load) -> Need:
    """Return how many replicas the load needs now."""
    count = sum(arrived for _, arrived in learned.window)
    rate = count / _window_seconds(config, learned, load.now)
    seconds = learned.service_seconds
    known = learned.done >= KNOWN_AT
    if known:
        demand = _known_demand(config, load, rate, seconds) / config.concurrency
    else:
        demand = _first_demand(load, count) / config.concurrency
    replicas = math.ceil(demand)
    if load.active:
        replicas = max(1, replicas)
    elif replicas < 2:
        # The last replica's time runs from the last request, not from the end of the window.
        replicas = 0
    return Need(replicas, demand, rate, seconds, known)


def _count(
    config: AutoscaleConfig, state: AutoscaleState, load: Load
) -> tuple[tuple[tuple[float, float], ...], float]:
    length = _history(config)
    width = length / BUCKETS
    window = tuple(bucket for bucket in state.window if bucket[0] > load.now - length)
    if load.new <= 0:
        return window, state.first_seen
    first_seen = state.first_seen if window else load.now
    start = math.floor(load.now / width) * width
    # After a hole only the window's share of what arrived in it is recent.
    recent = load.new * min(1.0, length / max(load.elapsed, width))
    if window and window[-1][0] == start:
        return (*window[:-1], (start, window[-1][1] + recent)), first_seen
    return (*window, (start, recent)), first_seen


def _window_seconds(config: AutoscaleConfig, learned: Learned, now: float) -> float:
    length = _history(config)
    return min(length, max(now - learned.first_seen, min(length, LEAST_WINDOW)))


def _history(config: AutoscaleConfig) -> float:
    return max(config.traffic_history.total_seconds(), 1.0)


def _first_demand(load: Load, count: float) -> float:
    joining = 0.0
    if load.queued > 0:
        # Those who will have joined the queue half-way through the boot.
        joining = max(0.0, count - 1) / LEAST_WINDOW * load.boot / 2
    return load.running + load.queued + joining


def _known_demand(config: AutoscaleConfig, load: Load, rate: float, seconds: float) -> float:
    steady = rate * seconds
    left = 0.0
    if load.queued > 0:
        served = load.capacity * config.concurrency / seconds
        left = max(0.0, load.queued + (rate - served) * load.boot)
    reserve = max(_headroom(config) * math.sqrt(steady), left * seconds / DRAIN_SECONDS)
    return steady + reserve


def _headroom(config: AutoscaleConfig) -> float:
    reaction = (config.scale_up_delay + config.traffic_history).total_seconds()
    return SLOW_HEADROOM if reaction > SLOW_AFTER else HEADROOM
