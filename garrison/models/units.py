"""Quantities as people write them, to exact integers and back: `28Gi`, `500m`.

The units are those of Kubernetes. Whole numbers only are calculated with, so that `28Gi` is
30,064,771,072 bytes; a part of a byte counts as one. What Kubernetes takes and people get wrong is
refused: exponents, `m` for memory, and sizes so small that a unit was forgotten.
"""

from __future__ import annotations

import re

from garrison.models.problems import shown

MAX_QUANTITY = 2**53
"""Beyond it JSON readers round."""

_CORES = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,9}))?(m?)")
_BYTES = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,9}))?([KMGTP]i|[kMGTP]|)B?")
_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
_LEAST = 2**20


def read_cores(text: str) -> int:
    """Return the thousandths of a core in `8`, `0.5` or `500m`.

    Raises:
        ValueError: It is no such number, too large, or finer than a thousandth.
    """
    match = _CORES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be a number of cores such as 8, 0.5 or 500m, not {shown(text)}")
    value, parts = _fraction(match, 1 if match[3] else 1000)
    if value % parts:
        raise ValueError(f"{shown(text)} is finer than a thousandth of a core")
    return _bounded(value // parts, text)


def read_bytes(text: str) -> int:
    """Return the bytes in `28Gi`, `22.49Gi`, `40G` or `1.5Ti`.

    Raises:
        ValueError: It is no such size, too large, or so small that a unit is missing.
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be a size such as 28Gi, 512Mi or 40G, not {shown(text)}")
    value, parts = _fraction(match, _UNITS[match[3]])
    size = -(-value // parts)
    if 0 < size < _LEAST:
        raise ValueError(f"{shown(text)} is less than 1Mi; give a unit, such as 28Gi")
    return _bounded(size, text)


def show_cores(milli: int) -> str:
    """Return thousandths of a core as people write cores: `7.5`."""
    return _plain(milli, 1000, 3)


def show_bytes(size: int) -> str:
    """Return a size to two places: `22.49Gi`, `512Mi`."""
    name = "Gi" if size >= 2**30 or size == 0 else "Mi"
    return f"{_plain(size, _UNITS[name], 2)}{name}"


def _fraction(match: re.Match[str], unit: int) -> tuple[int, int]:
    """Return a number times a unit as numerator and denominator."""
    decimals = match[2] or ""
    return int(match[1] + decimals) * unit, 10 ** len(decimals)


def _bounded(value: int, text: str) -> int:
    if value > MAX_QUANTITY:
        raise ValueError(f"{shown(text)} is too large")
    return value


def _plain(value: int, unit: int, places: int) -> str:
    scale = 10**places
    whole, rest = divmod((2 * value * scale + unit) // (2 * unit), scale)
    decimals = f"{rest:0{places}}".rstrip("0")
    return f"{whole}.{decimals}" if decimals else str(whole)
