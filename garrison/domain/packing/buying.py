"""Which machines to buy for replicas that fit on none: few, then cheap.

Finding the fewest is bin packing, which nobody can do fast; several simple ways are tried, and the
best of their answers is taken. On small cases it is at most one machine above the best that there
is, as a test finds by trying everything. Each way buys one machine after the other without
looking at how many are allowed, so that more room never leaves more without a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypeAlias

from garrison.domain.packing.fitting import serves
from garrison.models.resources import Resources

_Amounts: TypeAlias = tuple[int, int, int]
"""Of what replicas share out: cores, memory, accelerators."""


@dataclass(frozen=True, slots=True)
class Want:
    """Replicas that are all alike.

    Attributes:
        exclusive: Each needs a machine of its own.
        count: How many.
    """

    need: Resources
    exclusive: bool
    count: int


@dataclass(frozen=True, slots=True)
class Ware:
    """A machine that is for sale; those of a lower rank are preferred."""

    capacity: Resources
    usd_per_hour: Decimal
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """A machine to buy.

    Attributes:
        ware: Position among the wares.
        counts: How many replicas of each want it is for.
    """

    ware: int
    counts: tuple[int, ...]


_Key: TypeAlias = Callable[[Load], tuple[int | Decimal, ...]]


@dataclass(frozen=True, slots=True)
class _Way:
    """How the next machine is picked: the load with the least key.

    Attributes:
        only: The ware to take wherever it serves.
    """

    key: _Key
    only: int | None = None


def plan_purchase(wants: Sequence[Want], wares: Sequence[Ware], room: int) -> tuple[Load, ...]:
    """Return which machines to buy: for as many replicas as can be, then few, then cheap.

    Where wares differ in rank, few of the least preferred rank come first.

    Args:
        wants: The largest first.
        wares: Among equals the first is bought.
        room: How many machines at most.
    """
    shop = _Shop(wants, wares)
    return min((shop.fill(way, room) for way in shop.ways()), key=shop.cost)


class _Shop:
    """The wants and wares of one purchase."""

    def __init__(self, wants: Sequence[Want], wares: Sequence[Ware]) -> None:
        self._wants = wants
        self._wares = wares
        self._needs = [_amounts(want.need) for want in wants]
        self._offered = [_amounts(ware.capacity) for ware in wares]
        self._served = [[serves(w.need, ware.capacity) for w in wants] for ware in wares]
        self._ranks = sorted({ware.rank for ware in wares}, reverse=True)

    def ways(self) -> Iterator[_Way]:
        """Return the ways to pick a machine for the largest replica that is left."""
        yield _Way(self._preferred)
        yield _Way(self._most)
        for ware in range(len(self._wares)):
            yield _Way(self._preferred, ware)

    def fill(self, way: _Way, room: int) -> tuple[Load, ...]:
        """Return what is bought one way, each machine in the best size for what is on it."""
        left = [want.count for want in self._wants]
        bought: list[Load] = []
        while len(bought) < room and (able := self._able(left, way.only)):
            load = min((self._filled(ware, left) for ware in able), key=way.key)
            left = [count - taken for count, taken in zip(left, load.counts, strict=True)]
            bought.append(self._downsized(load))
        return tuple(bought)

    def cost(self, plan: Sequence[Load]) -> tuple[int, tuple[int, ...], Decimal]:
        """Return what is the least for the best plan."""
        ranks = [self._wares[load.ware].rank for load in plan]
        return (
            -sum(sum(load.counts) for load in plan),
            tuple(ranks.count(rank) for rank in self._ranks),
            sum((self._price(load) for load in plan), Decimal(0)),
        )

    def _able(self, left: Sequence[int], only: int | None) -> Sequence[int]:
        """Return the wares that can take the largest replica that is left and fits any."""
        for want, count in enumerate(left):
            able = [ware for ware, served in enumerate(self._served) if served[want]]
            if count and able:
                return [only] if only in able else able
        return []

    def _filled(self, ware: int, left: Sequence[int]) -> Load:
        """Return one machine with as many of each want as go on it."""
        free = self._offered[ware]
        counts = [0] * len(left)
        for want, count in enumerate(left):
            if not count or not self._served[ware][want]:
                continue
            if self._wants[want].exclusive:
                if any(counts):
                    continue
                counts[want] = 1
                break
            counts[want] = taken = _how_many(self._needs[want], free, count)
            free = _less(free, self._needs[want], taken)
        return Load(ware, tuple(counts))

    def _downsized(self, load: Load) -> Load:
        """Return the best ware that takes the same replicas."""
        wants = [want for want, count in enumerate(load.counts) if count]
        total: _Amounts = (0, 0, 0)
        for want in wants:
            total = _less(total, self._needs[want], -load.counts[want])
        able = [
            ware
            for ware, offered in enumerate(self._offered)
            if all(need <= there for need, there in zip(total, offered, strict=True))
            and all(self._served[ware][want] for want in wants)
        ]
        return replace(load, ware=min(able, key=self._worth))

    def _preferred(self, load: Load) -> tuple[int | Decimal, ...]:
        return (self._wares[load.ware].rank, *self._most(load))

    def _most(self, load: Load) -> tuple[int, Decimal]:
        return -sum(load.counts), self._price(load)

    def _worth(self, ware: int) -> tuple[int, Decimal]:
        return self._wares[ware].rank, self._wares[ware].usd_per_hour

    def _price(self, load: Load) -> Decimal:
        return self._wares[load.ware].usd_per_hour


def _amounts(resources: Resources) -> _Amounts:
    return resources.cpu_milli, resources.memory_bytes, resources.accelerators


def _how_many(need: _Amounts, free: _Amounts, count: int) -> int:
    shares = (there // each for each, there in zip(need, free, strict=True) if each)
    return min((count, *shares))


def _less(free: _Amounts, need: _Amounts, count: int) -> _Amounts:
    return free[0] - count * need[0], free[1] - count * need[1], free[2] - count * need[2]
