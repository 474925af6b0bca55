"""Whether a machine could take a replica at all, and in words why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from garrison.domain.accelerators import names_kind
from garrison.models.resources import Resources
from garrison.models.units import show_bytes, show_cores

_Check = Callable[[Resources, Resources], bool]
_Words = Callable[[Resources, Sequence[Resources], str], str]


def serves(need: Resources, capacity: Resources) -> bool:
    """Return whether a machine could take a replica if it were empty."""
    return all(check(need, capacity) for check, _ in _CHECKS)


def suits(need: Resources, capacity: Resources) -> bool:
    """Return whether a machine's accelerators are of a kind that will do, however many are free."""
    return _is_kind(need, capacity) and _is_large(need, capacity)


def fits_never(need: Resources, capacities: Sequence[Resources]) -> str | None:
    """Return in words why no machine could ever take a replica, None if one could.

    Args:
        need: Of the replica.
        capacities: Of every machine that there can be, also of those that cannot be bought now;
            where nothing is known of any, nothing is ruled out.
    """
    left = tuple(capacities)
    for check, words in _CHECKS if left else ():
        fitting = tuple(capacity for capacity in left if check(need, capacity))
        if not fitting:
            among = "" if len(left) == len(capacities) else " of those that fit otherwise"
            return words(need, left, among)
        left = fitting
    return None


def _is_kind(need: Resources, capacity: Resources) -> bool:
    if not need.accelerators or not need.accelerator_types:
        return True
    size = Decimal(capacity.accelerator_memory_bytes) / 2**30 or None
    return any(
        _names(wish, kind, size)
        for wish in need.accelerator_types
        for kind in capacity.accelerator_types
    )


@lru_cache(maxsize=1024)
def _names(wish: str, kind: str, memory_gib: Decimal | None) -> bool:
    # Few names are compared over and over, in every pass of every pool.
    return names_kind(wish, kind, memory_gib)


def _has_enough(need: Resources, capacity: Resources) -> bool:
    return need.accelerators <= capacity.accelerators


def _is_large(need: Resources, capacity: Resources) -> bool:
    return not need.accelerators or (
        need.accelerator_memory_bytes <= capacity.accelerator_memory_bytes
    )


def _has_memory(need: Resources, capacity: Resources) -> bool:
    return need.memory_bytes <= capacity.memory_bytes


def _has_cores(need: Resources, capacity: Resources) -> bool:
    return need.cpu_milli <= capacity.cpu_milli


def _no_kind(need: Resources, _left: Sequence[Resources], _among: str) -> str:
    return f"no machine of this pool has {' or '.join(need.accelerator_types)}"


def _too_few(need: Resources, left: Sequence[Resources], among: str) -> str:
    most = max(capacity.accelerators for capacity in left)
    if not most:
        return "no machine of this pool has accelerators"
    return (
        f"no machine of this pool has {need.accelerators} accelerators, the most{among} is {most}"
    )


def _too_small(need: Resources, left: Sequence[Resources], among: str) -> str:
    most = max(capacity.accelerator_memory_bytes for capacity in left)
    wanted, largest = _sizes(need.accelerator_memory_bytes, most)
    return f"needs {wanted} of accelerator memory, the largest{among} has {largest}"


def _too_little_memory(need: Resources, left: Sequence[Resources], among: str) -> str:
    most = max(capacity.memory_bytes for capacity in left)
    wanted, largest = _sizes(need.memory_bytes, most)
    return f"needs {wanted} of memory, the largest{among} has {largest}"


def _too_slow(need: Resources, left: Sequence[Resources], among: str) -> str:
    most = show_cores(max(capacity.cpu_milli for capacity in left))
    return f"needs {show_cores(need.cpu_milli)} cores, the largest{among} has {most}"


def _sizes(need: int, most: int) -> tuple[str, str]:
    wanted, largest = show_bytes(need), show_bytes(most)
    # What differs by less than the places shown must not read as enough.
    return (wanted, largest) if wanted != largest else (f"{need} bytes", f"{most} bytes")


_CHECKS: tuple[tuple[_Check, _Words], ...] = (
    (_is_kind, _no_kind),
    (_has_enough, _too_few),
    (_is_large, _too_small),
    (_has_memory, _too_little_memory),
    (_has_cores, _too_slow),
)


def dominant_share(need: Resources, capacity: Resources) -> Fraction:
    """Return the largest part that a need takes of anything that a machine offers, 0 to 1.

    The measure of Dominant Resource Fairness (Ghodsi et al., NSDI 2011).
    """
    parts = (
        (need.cpu_milli, capacity.cpu_milli),
        (need.memory_bytes, capacity.memory_bytes),
        (need.accelerators, capacity.accelerators),
    )
    return max((Fraction(want, of) for want, of in parts if of), default=Fraction(0))
