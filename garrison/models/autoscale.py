"""What autoscaling remembers between two decisions, and the presets of its knobs."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import Field

from garrison.models.base import Message


class AutoscalePreset(StrEnum):
    """A set of knobs: what idle machines may cost, against what people may wait."""

    LEAN = "lean"
    BALANCED = "balanced"
    INTERACTIVE = "interactive"


class AutoscaleState(Message):
    """About 1 kB, whatever the traffic. Times are seconds since the epoch.

    Attributes:
        target: As last decided.
        now: Of the last complete observation, None before the first.
        arrivals: Counters as last seen, None before; `running` the gauge.
        window: Start of each bucket with arrivals in it, and how many.
        first_seen: When the window last went from empty to not.
        busy: Request-seconds of the last ten busy minutes, `done` the completions; both fade.
        need: Replicas needed, as last seen.
        since: Of levels 1, 2, ...: since when it is needed, or since when it is not.
        unready: No replica was ready yet, but some were starting.
        blind: The last observation was of no use.
        knobs: Delays as they were at the last decision, to see that one has changed.
    """

    target: int = Field(default=0, ge=0)
    now: float | None = None
    arrivals: float | None = None
    completions: float | None = None
    running: float = 0
    window: tuple[tuple[float, float], ...] = ()
    first_seen: float = 0
    busy: float = 0
    done: float = 0
    need: int = Field(default=0, ge=0)
    since: tuple[float, ...] = ()
    unready: bool = False
    blind: bool = True
    knobs: tuple[float, ...] = ()


def _knobs(up: int, to_zero: int, hold_boots: float) -> dict[str, Any]:
    return {
        "traffic_history": timedelta(seconds=60),
        "scale_up_delay": timedelta(seconds=up),
        "scale_down_delay": timedelta(seconds=60),
        "scale_to_zero_delay": timedelta(seconds=to_zero),
        "hold_boots": hold_boots,
    }


PRESETS: dict[AutoscalePreset, dict[str, Any]] = {
    AutoscalePreset.LEAN: _knobs(60, 240, 1.25),
    AutoscalePreset.BALANCED: _knobs(0, 300, 1.45),
    AutoscalePreset.INTERACTIVE: _knobs(0, 900, 6),
}
"""What each preset sets in an `AutoscaleConfig`; whatever a person says goes over it."""
