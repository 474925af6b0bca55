"""A deployment under load, on paper: what tests of autoscaling tell it, and what it decides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from garrison.domain.autoscaling.decision import Decision, Observation, decide
from garrison.models.autoscale import AutoscaleState
from garrison.models.deployment import AutoscaleConfig

START = datetime(2026, 1, 1, tzinfo=UTC)


def config(**knobs: Any) -> AutoscaleConfig:
    """Return knobs whose delays are given in seconds; by default quick ones."""
    delays = {"traffic_history": 60, "scale_up_delay": 0, "scale_down_delay": 60}
    seconds = {**delays, "scale_to_zero_delay": 240, **knobs}
    timed = {
        name: timedelta(seconds=value) if name in {*delays, "scale_to_zero_delay"} else value
        for name, value in seconds.items()
    }
    return AutoscaleConfig(**{"concurrency": 4, "hold_boots": 0, **timed})


class Deployment:
    """A deployment that does what it is told, and traffic that is given."""

    def __init__(self, knobs: AutoscaleConfig, target: int = 0) -> None:
        self.knobs = knobs
        self.state = AutoscaleState(target=target)
        self.seconds = 0.0
        self.arrivals = self.completions = 0.0
        self.decisions: list[Decision] = []

    @property
    def target(self) -> int:
        return self.state.target

    def look(self, **seen: Any) -> Decision:
        """Decide now; what is not given is as if all replicas were ready and idle."""
        told = {
            "ready": self.target,
            "starting": 0,
            "queued": 0,
            "running": 0,
            "arrivals": self.arrivals,
            "completions": self.completions,
            "boot": timedelta(seconds=60),
            **seen,
        }
        now = START + timedelta(seconds=self.seconds)
        decision, self.state = decide(self.knobs, self.state, Observation(now=now, **told))
        self.decisions.append(decision)
        return decision

    def load(self, count: float, *, seconds: float, service: float = 10, **seen: Any) -> Decision:
        """Let requests run, each for a while, that many at a time; decide every ten seconds."""
        for _ in range(round(seconds / 10)):
            self.seconds += 10
            self.arrivals += count / service * 10
            self.completions += count / service * 10
            decision = self.look(**{"running": count, **seen})
        return decision

    def idle(self, *, seconds: float, **seen: Any) -> Decision:
        """Let nothing happen; decide every ten seconds."""
        return self.load(0, seconds=seconds, **seen)

    def seconds_until(self, target: int) -> int:
        """Return when it first wanted so few, a decision every ten seconds."""
        found = [at for at, one in enumerate(self.decisions, 1) if one.target <= target]
        return 10 * found[0]

    def targets(self) -> list[int]:
        """Return the targets one after another, without repetitions."""
        found = [one.target for one in self.decisions]
        return [one for at, one in enumerate(found) if at == 0 or one != found[at - 1]]


def warm(running: float, knobs: AutoscaleConfig) -> Deployment:
    """Return a deployment that has served this load for twenty minutes."""
    deployment = Deployment(knobs)
    deployment.look()
    deployment.load(running, seconds=1200)
    deployment.decisions.clear()
    return deployment
