"""Arguments that several commands share, and how their text is read."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from garrison.models.base import NAME_PATTERN
from garrison.models.problems import shown

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd]?)")
LONGEST = timedelta(days=3650)
_NAME = re.compile(NAME_PATTERN.strip("^$"))


def duration(text: str) -> timedelta:
    """Read `90s`, `20m`, `12h`, `2d`, or a number of seconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{shown(text)} is no duration such as 90s, 20m, 12h or 2d")
    seconds = Decimal(match[1]) * _SECONDS[match[2]]
    if seconds > int(LONGEST.total_seconds()):
        raise typer.BadParameter(f"{shown(text)} is longer than {LONGEST.days}d")
    return timedelta(seconds=float(seconds))


def lifetime(text: str) -> timedelta:
    """Read a duration of at least a second."""
    length = duration(text)
    if length < timedelta(seconds=1):
        raise typer.BadParameter(f"{shown(text)} is shorter than 1s")
    return length


def dollars(text: str) -> Decimal:
    """Read an amount of US dollars above zero."""
    amount = _decimal(text)
    if amount is None or amount <= 0:
        raise typer.BadParameter(f"{shown(text)} is no price above 0, such as 94.56")
    return amount


def quantity(text: str) -> Decimal:
    """Read a number that is not negative."""
    value = _decimal(text)
    if value is None or value < 0:
        raise typer.BadParameter(f"{shown(text)} is no number from 0 upwards")
    return value


def _decimal(text: str) -> Decimal | None:
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    return value if value.is_finite() and abs(value.adjusted()) <= 30 else None


def resource_name(text: str) -> str:
    """Read the name of a cluster."""
    if not _NAME.fullmatch(text):
        raise typer.BadParameter(
            f"{shown(text)} is no name: 1 to 63 letters, digits, '-' or '_',"
            " first a letter or digit"
        )
    return text


ClusterName = Annotated[
    str, typer.Argument(metavar="NAME", parser=resource_name, help="The cluster's name.")
]
Uid = Annotated[
    str | None,
    typer.Option("--uid", help="Only this life of the name, so that no successor is hit."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Every offer that was considered, and why not.")
]
MaxPrice = Annotated[
    Decimal | None,
    typer.Option(
        "--max-price", parser=dollars, metavar="USD", help="Refuse a higher rate per hour."
    ),
]
MaxLifetime = Annotated[
    timedelta | None,
    typer.Option(
        "--max-lifetime",
        parser=lifetime,
        metavar="DURATION",
        help="Terminate so long after it was ready: 90s, 20m, 12h, 2d.",
    ),
]
Timeout = Annotated[
    timedelta | None,
    typer.Option(
        "--timeout",
        parser=duration,
        metavar="DURATION",
        help="Stop waiting after so long: 90s, 20m, 12h, 2d. The rest goes on.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Until it is done.")]
Rank = Annotated[int, typer.Option("--rank", min=0, help="Which node.")]
