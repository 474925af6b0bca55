"""How many machines a nodepool wants, and which of those it has it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from garrison.models.nodepool import NodepoolSpec


@dataclass(frozen=True, slots=True)
class Counted:
    """A machine that counts against the limit.

    Attributes:
        replicas: That are on it, or for which it is kept.
        usable: It takes replicas, now or once it is up; False while it drains or goes.
        empty_since: None while it holds replicas, and before it was up.
    """

    name: str
    replicas: int = 0
    usable: bool = True
    empty_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Spared:
    """A machine that the pool gives up, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class PoolCount:
    """What a pool wants beyond what packing buys.

    Attributes:
        desired: Machines that it wants in all.
        spares: Machines to buy that nobody waits for.
        release: Empty machines to give back now.
        drain: Machines with replicas that must go, as the limit was lowered.
        next_at: When the next one can be given back if nothing else happens.
    """

    desired: int
    spares: int = 0
    release: tuple[Spared, ...] = ()
    drain: tuple[Spared, ...] = ()
    next_at: datetime | None = None


def plan_count(
    spec: NodepoolSpec,
    machines: Sequence[Counted],
    *,
    wanted: int,
    blocked: int = 0,
    now: datetime,
) -> PoolCount:
    """Return how many machines a pool wants, and which it gives back.

    It wants those that replicas are on or wait for and `warm_instances` more, at least
    `min_instances` and at most `max_instances`. What is left over goes once it was empty for
    `release_after`. It goes at once where the limit was lowered, or where it keeps a replica
    waiting that fits on a machine of another kind only.

    Args:
        spec: The pool's.
        machines: All that count against the limit; of equal ones the first is given back.
        wanted: New machines that packing buys in this pass.
        blocked: New machines that packing would buy as well, were there room.
        now: The time of the decision.
    """
    usable = [machine for machine in machines if machine.usable]
    empty = [machine for machine in usable if not machine.replicas]
    needed = len(usable) - len(empty) + wanted
    spare = max(spec.warm_instances, spec.min_instances - needed)
    room = max(0, spec.max_instances - len(machines) - wanted)
    at_once = _at_once(spec, machines, blocked)
    rest = [machine for machine in empty if machine.name not in {s.name for s in at_once}]
    aged, next_at = _aged(spec, rest, len(rest) - spare, now)
    return PoolCount(
        desired=min(spec.max_instances, needed + spare),
        spares=0 if at_once else min(room, max(0, spare - len(empty))),
        release=(*at_once, *aged),
        drain=_drained(spec, usable, len(empty)),
        next_at=next_at,
    )


def _at_once(spec: NodepoolSpec, machines: Sequence[Counted], blocked: int) -> tuple[Spared, ...]:
    """Return the empty machines that go without waiting."""
    usable = [machine for machine in machines if machine.usable]
    empty = [machine for machine in usable if not machine.replicas]
    over = max(0, len(usable) - spec.max_instances)
    # Those that are going already make room too.
    swapped = max(0, blocked - (len(machines) - len(usable)) - over)
    above = [Spared(m.name, _lowered(spec)) for m in empty[:over]]
    swaps = [
        Spared(m.name, "makes room for replicas that do not fit on it")
        for m in empty[over : over + swapped]
    ]
    return (*above, *swaps)


def _aged(
    spec: NodepoolSpec, empty: Sequence[Counted], surplus: int, now: datetime
) -> tuple[tuple[Spared, ...], datetime | None]:
    """Return the machines that were empty for long enough, and when the next one will be."""
    due = {m.name: m.empty_since + spec.release_after for m in empty if m.empty_since is not None}
    gone = [name for name, at in due.items() if at <= now][: max(0, surplus)]
    later = [at for at in due.values() if at > now] if surplus > len(gone) else []
    minutes = Decimal(spec.release_after.total_seconds()) / 60
    reason = f"empty for {round(minutes, 1).normalize():f} min"
    return tuple(Spared(name, reason) for name in gone), min(later, default=None)


def _drained(spec: NodepoolSpec, usable: Sequence[Counted], empty: int) -> tuple[Spared, ...]:
    """Return the machines above the limit that empty ones do not make up for."""
    over = max(0, len(usable) - spec.max_instances - empty)
    emptiest = sorted((m for m in usable if m.replicas), key=lambda machine: machine.replicas)
    return tuple(Spared(machine.name, _lowered(spec)) for machine in emptiest[:over])


def _lowered(spec: NodepoolSpec) -> str:
    return f"max_instances is {spec.max_instances}"
