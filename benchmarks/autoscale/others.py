"""Autoscalers that people use, after their published algorithms, each with perfect calibration.

Every one knows how many requests a replica serves at a time and how long they run, and aims at 70 %
of that: Knative's default, and far better than users guess. What is taken from where:

- Knative KPA: knative/serving @98e5ef90, pkg/autoscaler/scaling/autoscaler.go, config-autoscaler.
- KEDA: kedacore/keda @8b4f083c, pkg/scaling/executor/scale_scaledobjects.go; from one replica up it
  is the Kubernetes HPA v2, pkg/controller/podautoscaler, on an external metric.
- SkyServe: skypilot-org/skypilot, sky/serve/autoscalers.py.
- dstack: dstackai/dstack @511c318c, server/services/services/autoscalers.py.
- Ray Serve: ray-project/ray, python/ray/serve/autoscaling_policy.py.
- the literal reading: knobs of the documented example as their sentences say, 300/300/300/1800.
"""

from __future__ import annotations

import math
from collections import deque

from benchmarks.autoscale.world import World

TARGET = 0.7


class Window:
    """Sliding means and counts, fed at every tick."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, float]] = deque([(0.0, 0.0)])

    def rise(self, now: float, total: float) -> float:
        """Return how far a running total rose within the window."""
        seen = self._seen
        seen.append((now, total))
        while len(seen) > 1 and seen[1][0] <= now - self._seconds:
            seen.popleft()
        return total - seen[0][1]

    def mean(self, now: float, integral: float) -> float:
        """Return the mean of a gauge whose time integral is told."""
        rise = self.rise(now, integral)
        length = now - self._seen[0][0]
        return rise / length if length > 0 else 0.0


class Fixed:
    """No autoscaler."""

    wakes = False

    def __init__(self, count: int) -> None:
        self.name = f"fixed-{count}"
        self._count = count

    def tick(self, world: World) -> int:
        """Return always the same."""
        return self._count

    def pause(self, world: World) -> float:
        """Return never, as good as."""
        return 1e9


class Knative:
    """KPA: a minute's mean, and a panic over six seconds of it."""

    name = "knative-kpa"
    wakes = True

    def __init__(self, concurrency: int) -> None:
        self._per_replica = TARGET * concurrency
        self._stable, self._short = Window(60), Window(6)
        self._panic_at: float | None = None
        self._panic_most = 0

    def tick(self, world: World) -> int:
        """Return the stable or, in panic, the highest count of the panic."""
        ready = max(1, world.ready)
        steady = self._wanted(self._stable.mean(world.now, world.presence), ready)
        burst = self._short.mean(world.now, world.presence)
        sudden = self._wanted(burst, ready)
        if math.ceil(burst / self._per_replica) / ready >= 2:
            if self._panic_at is None:
                self._panic_most = 0
            self._panic_at = world.now
        elif self._panic_at is not None and world.now - self._panic_at >= 60:
            self._panic_at = None
        if self._panic_at is not None:
            self._panic_most = max(self._panic_most, steady, sudden)
            steady = self._panic_most
        # The activator tells of the first request before any mean has it.
        present = world.queued + world.running > 0
        return max(steady, 1) if present and (world.target == 0 or steady == 0) else steady

    def _wanted(self, mean: float, ready: int) -> int:
        return min(max(math.ceil(mean / self._per_replica), ready // 2), 1000 * ready)

    def pause(self, world: World) -> float:
        """Return two seconds."""
        return 2.0


class Hpa:
    """The Kubernetes HPA on requests in the system, per replica; never below one."""

    name = "hpa-min1"
    wakes = False

    def __init__(self, concurrency: int) -> None:
        self._per_replica = TARGET * concurrency
        self._advice: deque[tuple[float, int]] = deque()

    def tick(self, world: World) -> int:
        """Return the metric's count, stabilised downwards for five minutes."""
        if world.target == 0:
            return 1
        load = world.queued + world.running
        wanted = math.ceil(load / self._per_replica)
        if abs(1 - load / (self._per_replica * world.target)) <= 0.1:
            wanted = world.target
        wanted = min(max(1, wanted), world.rules.max_replicas)
        self._advice.append((world.now, wanted))
        while self._advice[0][0] < world.now - 300:
            self._advice.popleft()
        if wanted < world.target:
            wanted = min(world.target, max(count for _, count in self._advice))
        return min(wanted, max(world.target + 4, 2 * world.target))

    def pause(self, world: World) -> float:
        """Return 15 seconds."""
        return 15.0


class Keda(Hpa):
    """KEDA between nothing and one, polling each 30 s, the HPA above."""

    name = "keda+hpa"

    def __init__(self, concurrency: int) -> None:
        super().__init__(concurrency)
        self._active_at = -math.inf
        self._poll_at = 0.0

    def tick(self, world: World) -> int:
        """Return zero after five idle minutes, from any count."""
        wanted = super().tick(world) if world.target else 0
        if world.now < self._poll_at:
            return wanted
        self._poll_at = world.now + 30
        if world.queued + world.running:
            self._active_at = world.now
            return max(1, wanted)
        if self._active_at + 300 < world.now:
            self._advice.clear()
            return 0
        return wanted


class SkyServe:
    """Requests of the last minute, and counters of ticks above or below."""

    name = "skyserve"
    wakes = False

    def __init__(self, concurrency: int, service_seconds: float) -> None:
        self._per_replica = TARGET * concurrency / service_seconds
        self._minute = Window(60)
        self._up = self._down = 0

    def tick(self, world: World) -> int:
        """Return a new count after 15 ticks above the old, or 60 below it."""
        rate = self._minute.rise(world.now, world.arrived) / 60
        wanted = min(math.ceil(rate / self._per_replica), world.rules.max_replicas)
        if world.target == 0:
            return wanted
        self._up = self._up + 1 if wanted > world.target else 0
        self._down = self._down + 1 if wanted < world.target else 0
        if self._up >= 15 or self._down >= 60:
            self._up = self._down = 0
            return wanted
        return world.target

    def pause(self, world: World) -> float:
        """Return 20 seconds, or 5 at zero."""
        return 20.0 if world.target else 5.0


class Dstack:
    """Requests of the last minute, and a pause since the last change."""

    name = "dstack"
    wakes = False

    def __init__(self, concurrency: int, service_seconds: float) -> None:
        self._per_replica = TARGET * concurrency / service_seconds
        self._minute = Window(60)
        self._scaled_at = -math.inf

    def tick(self, world: World) -> int:
        """Return what the rate needs, if the last change is long enough ago."""
        rate = self._minute.rise(world.now, world.arrived) / 60
        wanted = min(math.ceil(rate / self._per_replica), world.rules.max_replicas)
        delay = 300 if wanted > world.target else 600
        if wanted == world.target:
            return wanted
        if world.target and world.now - self._scaled_at < delay:
            return world.target
        self._scaled_at = world.now
        return wanted

    def pause(self, world: World) -> float:
        """Return 10 seconds."""
        return 10.0


class RayServe:
    """Half a minute's mean of requests in the system; 30 s up, 10 minutes down."""

    name = "ray-serve"
    wakes = True

    def __init__(self, concurrency: int) -> None:
        self._per_replica = TARGET * concurrency
        self._mean = Window(30)
        self._above: float | None = None
        self._below: float | None = None

    def tick(self, world: World) -> int:
        """Return what was wanted for the whole of the delay."""
        mean = self._mean.mean(world.now, world.presence)
        if world.ready == 0:
            # Nothing runs, so nothing more is asked for until the first one does.
            self._above = self._below = None
            return max(1, world.target) if world.queued + world.running else world.target
        wanted = min(math.ceil(mean / self._per_replica), world.rules.max_replicas)
        if world.target > 1:
            wanted = max(1, wanted)
        self._above = (self._above or world.now) if wanted > world.target else None
        self._below = (self._below or world.now) if wanted < world.target else None
        if self._above is not None and world.now - self._above > 30:
            self._above = None
            return wanted
        if self._below is not None and world.now - self._below > 600:
            self._below = None
            return wanted
        return world.target

    def pause(self, world: World) -> float:
        """Return two seconds; the real loop is faster and averages over the same time."""
        return 2.0


class Literal:
    """The documented knobs as their sentences say: 300/300/300/1800, from zero too."""

    wakes = False

    def __init__(self, concurrency: int, *, wake: bool = False) -> None:
        self.name = "literal+wake" if wake else "literal"
        self.wakes = wake
        self._wake = wake
        self._per_replica = TARGET * concurrency
        self._history = Window(300)
        self._above: float | None = None
        self._below: float | None = None
        self._arrived = 0
        self._idle_since = 0.0

    def tick(self, world: World) -> int:
        """Return what five minutes' mean needs, once that was more, or less, for a delay."""
        mean = self._history.mean(world.now, world.presence)
        wanted = min(math.ceil(mean / self._per_replica), world.rules.max_replicas)
        if world.arrived > self._arrived or world.running or world.queued:
            self._idle_since = world.now
        self._arrived = world.arrived
        if self._wake and world.target == 0 and world.queued:
            return 1
        if world.now - self._idle_since >= 1800:
            return 0
        if world.target:
            wanted = max(1, wanted)
        self._above = (self._above or world.now) if wanted > world.target else None
        self._below = (self._below or world.now) if wanted < world.target else None
        for since in (self._above, self._below):
            if since is not None and world.now - since >= 300:
                self._above = self._below = None
                return wanted
        return world.target

    def pause(self, world: World) -> float:
        """Return 10 seconds."""
        return 10.0
