"""Figures, their goals and the table that shows them; no clock, no I/O."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

BEGIN = "<!-- figures: begin -->"
END = "<!-- figures: end -->"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Attributes:
        what: What was measured.
        value: The ratio, difference or time that is compared with the goal.
        unit: Of the value and of the goal; `x` is a ratio.
        goal: Its bound, None for a figure that only explains others.
        at_least: The goal is a lower bound.
        detail: Both arms, how many samples, the spread.
    """

    what: str
    value: float
    unit: str = ""
    goal: float | None = None
    at_least: bool = False
    detail: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met, None if there is none."""
        if self.goal is None:
            return None
        if math.isnan(self.value):
            return False
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    @property
    def goal_text(self) -> str:
        """The goal for a reader: `<= 1.3 x`."""
        if self.goal is None:
            return ""
        sign = ">=" if self.at_least else "<="
        return f"{sign} {with_unit(self.goal, self.unit)}"

    @property
    def verdict(self) -> str:
        """One word: `met`, `MISSED`, or nothing."""
        return {True: "met", False: "MISSED", None: ""}[self.met]

    def as_json(self) -> dict[str, Any]:
        """Return the figure for a program."""
        value = None if math.isnan(self.value) else self.value
        return {**asdict(self), "value": value, "met": self.met}


def ratio(ours: Sequence[float], raw: Sequence[float]) -> float:
    """Return the median of one arm over the median of the other.

    Raises:
        ValueError: An arm has no sample, or the raw one is zero.
    """
    below = median(raw)
    if not below:
        raise ValueError("the raw arm took nothing, so there is no ratio to it")
    return median(ours) / below


def median(values: Sequence[float]) -> float:
    """Return the median.

    Raises:
        ValueError: There is no value.
    """
    if not values:
        raise ValueError("there is no sample")
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent of all do not pass (nearest rank).

    Raises:
        ValueError: There is no value, or the share is not within 0 to 100.
    """
    if not values:
        raise ValueError("there is no sample")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is no percentage")
    rank = max(math.ceil(percent / 100 * len(values)), 1)
    return sorted(values)[rank - 1]


def with_unit(value: float, unit: str) -> str:
    """Return a number short enough to read, with its unit."""
    if math.isnan(value):
        text = "none"
    elif value == int(value):
        text = f"{value:.0f}"
    else:
        text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def spread(values: Sequence[float], unit: str) -> str:
    """Return the median and both ends of some samples: `5.1 (4.8-5.5) /s`."""
    low, high = (with_unit(end, "") for end in (min(values), max(values)))
    return f"{with_unit(median(values), '')} ({low}-{high}) {unit}".strip()


def markdown(figures: Iterable[Figure]) -> str:
    """Return the table."""
    rows = [("figure", "measured", "goal", "", "both arms"), ("---",) * 5]
    rows += [
        (one.what, with_unit(one.value, one.unit), one.goal_text, one.verdict, one.detail)
        for one in figures
    ]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in rows) + "\n"


def with_results(readme: str, results: str) -> str:
    """Return a README with the results between its marks replaced.

    Raises:
        ValueError: It does not have both marks, once each and in order.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"the file needs one {BEGIN} and one {END} after it")
    return f"{before}{BEGIN}\n{results}{END}{after}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
