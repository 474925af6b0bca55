"""How many machines of a pool are on demand where spot ones may be missing, and which of them go.

Of `wanted` machines the first `on_demand_base` are on demand and the others spot; for each of those
that is not ready, one on demand stands in. That is the dynamic fallback of SkyServe (Mao et al.,
EuroSys 2025). A stand-in goes only once spot has been ready for a while, and not before it was
there for as long as a machine may be empty, so that spot that comes and goes moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from garrison.models.nodepool import NodepoolSpec

SETTLED = timedelta(minutes=10)
"""How long spot must have been ready before stand-ins are given back for it."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """A machine that is to stay.

    Attributes:
        replicas: That are on it, or for which it is kept.
        ready_since: None while it is not ready.
        empty_since: None while it is used, and before it was up.
    """

    name: str
    spot: bool
    replicas: int = 0
    ready_since: datetime | None = None
    empty_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Mix:
    """What a pool with stand-ins buys and gives back beyond what waits for a machine.

    Attributes:
        wanted_spot: Spot machines that the replicas and the spares need.
        on_demand: Machines on demand that it wants now, the limit aside.
        buy_spot: Spot machines that are missing, were there any to be had.
        buy_on_demand: Machines on demand that are missing.
        release: Spot machines that were empty for long enough.
        retire: Machines on demand that spot has made up for, those with the fewest replicas first.
        next_at: When time alone will change the answer.
    """

    wanted_spot: int
    on_demand: int
    buy_spot: int = 0
    buy_on_demand: int = 0
    release: tuple[str, ...] = ()
    retire: tuple[str, ...] = ()
    next_at: datetime | None = None


def count_on_demand(*, base: int, wanted: int, ready_spot: int) -> int:
    """Return how many machines should be on demand."""
    first = min(base, wanted)
    return first + max(0, wanted - first - ready_spot)


def plan_mix(
    spec: NodepoolSpec, machines: Sequence[Mixed], *, wanted: int, fixed: int = 0, now: datetime
) -> Mix:
    """Return what is missing, and what is not needed any more.

    Args:
        spec: The pool's.
        machines: All that are to stay, oldest first.
        wanted: How many machines the replicas and the spares need.
        fixed: How many of those no spot machine could replace.
        now: The time of the decision.
    """
    spot = [machine for machine in machines if machine.spot]
    others = [machine for machine in machines if not machine.spot]
    base = spec.on_demand_base + fixed
    ready = [one.ready_since for one in spot if one.ready_since is not None]
    settled = sum(at + SETTLED <= now for at in ready)
    target = count_on_demand(base=base, wanted=wanted, ready_spot=len(ready))
    kept = count_on_demand(base=base, wanted=wanted, ready_spot=settled)
    wanted_spot = wanted - min(base, wanted)
    released = _empty(spec, spot, len(spot) - wanted_spot, now)
    retired = _old(spec, others, len(others) - kept, now)
    return Mix(
        wanted_spot=wanted_spot,
        on_demand=target,
        buy_spot=max(0, wanted_spot - len(spot)),
        buy_on_demand=max(0, target - len(others)),
        release=released,
        retire=retired,
        next_at=_next(spec, spot, others, now),
    )


def _empty(
    spec: NodepoolSpec, spot: Sequence[Mixed], surplus: int, now: datetime
) -> tuple[str, ...]:
    """Return the spot machines to give back, the youngest first."""
    due = [
        one.name
        for one in reversed(spot)
        if not one.replicas
        and one.empty_since is not None
        and one.empty_since + spec.release_after <= now
    ]
    return tuple(due[: max(0, surplus)])


def _old(
    spec: NodepoolSpec, others: Sequence[Mixed], surplus: int, now: datetime
) -> tuple[str, ...]:
    """Return the machines on demand to give back."""
    aged = [
        one
        for one in reversed(others)
        if one.ready_since is not None and one.ready_since + spec.release_after <= now
    ]
    emptiest = sorted(aged, key=lambda one: one.replicas)
    return tuple(one.name for one in emptiest[: max(0, surplus)])


def _next(
    spec: NodepoolSpec, spot: Sequence[Mixed], others: Sequence[Mixed], now: datetime
) -> datetime | None:
    times = [one.ready_since + SETTLED for one in spot if one.ready_since is not None]
    times += [one.ready_since + spec.release_after for one in others if one.ready_since is not None]
    times += [one.empty_since + spec.release_after for one in spot if one.empty_since is not None]
    return min((time for time in times if time > now), default=None)
