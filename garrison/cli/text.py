"""Values as people read them: safe for a terminal, money, times, durations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from garrison.models.money import show_usd

NONE = "-"


def printable(text: str, *, lines: bool = False) -> str:
    """Return text that a terminal only shows and never obeys.

    Args:
        text: From a person, a provider or a node.
        lines: Keep line breaks; otherwise they become spaces.
    """
    kept = "\n" if lines else ""
    flat = text if lines else _in_one_line(text)
    return "".join(c if c.isprintable() or c in kept else _escaped(c) for c in flat)


def _in_one_line(text: str) -> str:
    # What follows a line break was indented for the eye only.
    first, *rest = text.splitlines() or [""]
    return " ".join([first, *filter(None, (line.strip() for line in rest))])


def shortened(text: str, longest: int) -> str:
    """Return text in one line of at most so many characters; what is left out is marked."""
    flat = printable(text)
    return flat if len(flat) <= longest else f"{flat[: longest - 3].rstrip()}..."


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def usd(amount: Decimal | None, *, unknown: str = "unknown") -> str:
    """Return an exact rate with at least two decimals."""
    if amount is None:
        return unknown
    return show_usd(amount)


def cost(amount: Decimal) -> str:
    """Return a sum in cents, as a bill shows it."""
    return "<0.01" if 0 < amount < Decimal("0.005") else f"{amount:.2f}"


def when(time: datetime | None) -> str:
    """Return a time as RFC 3339 UTC, in whole seconds."""
    if time is None:
        return NONE
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(length: timedelta) -> str:
    """Return a duration in its two largest units: `1h 5m`."""
    seconds = max(int(length.total_seconds()), 0)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def counted(count: int, noun: str) -> str:
    """Return a number of things: `1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def number(value: Decimal | int | None) -> str:
    """Return a plain number without trailing zeros."""
    if value is None:
        return NONE
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    return text.rstrip("0").rstrip(".") if "." in text else text
