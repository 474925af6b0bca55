"""The shipped decision, as its callers use it: every 10 s, every 2 s while requests wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.autoscale.world import World
from garrison.domain.autoscaling.decision import FIRST_BOOT, Observation, blend_boot, decide
from garrison.models.autoscale import PRESETS, AutoscalePreset, AutoscaleState
from garrison.models.deployment import AutoscaleConfig

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
PAUSE, QUEUEING_PAUSE = 10.0, 2.0


class Shipped:
    """`garrison.domain.autoscaling.decision` with a configuration."""

    wakes = True

    def __init__(self, name: str, config: AutoscaleConfig) -> None:
        self.name = name
        self._config = config
        self._state = AutoscaleState()
        self._boot: timedelta | None = None
        self._boots = 0

    def tick(self, world: World) -> int:
        """Return what the decision says to what is there now."""
        for seconds in world.boots[self._boots :]:
            self._boot = blend_boot(self._boot, timedelta(seconds=seconds))
        self._boots = len(world.boots)
        seen = Observation(
            now=EPOCH + timedelta(seconds=world.now),
            ready=world.ready,
            starting=world.starting,
            queued=world.queued,
            running=world.running,
            arrivals=world.arrived,
            completions=world.completed,
            boot=self._boot or FIRST_BOOT,
        )
        decision, self._state = decide(self._config, self._state, seen)
        return decision.target

    def pause(self, world: World) -> float:
        """Return when it looks again."""
        return QUEUEING_PAUSE if world.queued else PAUSE


def preset(which: AutoscalePreset, concurrency: int, **overrides: Any) -> Shipped:
    """Return the shipped decision with a preset's knobs."""
    knobs = {**PRESETS[which], "concurrency": concurrency, **overrides}
    return Shipped(which, AutoscaleConfig(**knobs))


def documented(concurrency: int) -> Shipped:
    """Return it with the knobs of the documented example, 300/300/300/1800."""
    return Shipped("garrison 300/300/300/1800", AutoscaleConfig(concurrency=concurrency))
