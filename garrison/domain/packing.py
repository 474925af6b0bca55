"""Which replica goes on which machine, and which machines to buy for those that fit on none.

First-fit decreasing: the largest first, each on the first machine that has room. What a replica has
it keeps; nothing is moved to pack it better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from garrison.domain.buying import Want, Ware, plan_purchase
from garrison.domain.fitting import fits_never, serves, suits
from garrison.models.resources import Resources

FIRST_PORT = 20_000
LAST_PORT = 65_535

AT_MAX = "pool at max"
NOTHING_TO_BUY = "no machine that is large enough can be bought now"


@dataclass(frozen=True, slots=True)
class Item:
    """A replica that wants a place.

    Attributes:
        exclusive: It shares its machine with none.
        port: Where it would like to listen, None where it does not listen.
    """

    key: str
    resources: Resources
    exclusive: bool = False
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A replica that has a place already."""

    item: Item
    devices: tuple[int, ...]
    port: int | None


@dataclass(frozen=True, slots=True)
class Bin:
    """A machine, running or on its way.

    Attributes:
        open: It may take more.
        first_port: First of its own ports where machines share an address; a wish is not met there.
    """

    name: str
    capacity: Resources
    held: tuple[Held, ...] = ()
    open: bool = True
    first_port: int | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A machine that could be bought.

    Attributes:
        rank: Kinds of a lower one are bought before others, however many that takes.
    """

    name: str
    capacity: Resources
    usd_per_hour: Decimal
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item goes: on which machine, with which accelerators and port of it."""

    key: str
    bin: str
    devices: tuple[int, ...]
    port: int | None


@dataclass(frozen=True, slots=True)
class NewMachine:
    """A machine to buy, and the items that it is for.

    Those items, packed on one empty machine of that kind, all find a place.
    """

    kind: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """What becomes of each item: it is in exactly one of the first three.

    Attributes:
        unplaced: Items that wait, each with the reason in words.
        never: Those of `unplaced` that no machine could ever take.
        blocked: Those of `unplaced` for which a machine would be bought, were there room.
    """

    places: tuple[Place, ...]
    new: tuple[NewMachine, ...]
    unplaced: dict[str, str]
    never: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()


def pack(
    items: Iterable[Item],
    bins: Sequence[Bin],
    kinds: Sequence[Kind],
    *,
    room: int,
    unbuyable: Sequence[Resources] = (),
) -> Packing:
    """Return where items go, and what to buy for the rest: fewest machines, then cheapest.

    The same arguments in the same order give the same answer. More room never leaves more items
    without a place.

    Args:
        items: Of equal ones the first goes first.
        bins: Filled in this order.
        kinds: What can be bought; among equals the first is bought.
        room: How many machines may still be bought.
        unbuyable: What the pool's other machines offer, which cannot be bought now. It decides
            only whether an item waits or can never be placed.
    """
    spaces = [_Space(machine) for machine in bins]
    ordered = sorted(items, key=_size)
    places: list[Place] = []
    left: list[Item] = []
    for item in ordered:
        space = next((space for space in spaces if space.takes(item)), None)
        if space is None:
            left.append(item)
        else:
            places.append(space.put(item))
    new, waiting = _bought(left, kinds, room)
    known = (*(k.capacity for k in kinds), *(b.capacity for b in bins), *unbuyable)
    never = {item.key: words for item in waiting if (words := fits_never(item.resources, known))}
    blocked = tuple(item.key for item in waiting if _is_sold(item, kinds))
    otherwise = dict.fromkeys(blocked, AT_MAX) | never
    why = AT_MAX if room <= 0 else NOTHING_TO_BUY
    unplaced = {item.key: otherwise.get(item.key, why) for item in waiting}
    return Packing(tuple(places), new, unplaced, tuple(never), blocked)


def _size(item: Item) -> tuple[int, int, int, int]:
    need = item.resources
    return (
        -need.accelerators,
        -need.accelerator_memory_bytes if need.accelerators else 0,
        -need.memory_bytes,
        -need.cpu_milli,
    )


def _is_sold(item: Item, kinds: Sequence[Kind]) -> bool:
    return any(serves(item.resources, kind.capacity) for kind in kinds)


def _bought(
    left: Sequence[Item], kinds: Sequence[Kind], room: int
) -> tuple[tuple[NewMachine, ...], tuple[Item, ...]]:
    """Return what is bought for items that fit nowhere, and those for which nothing is."""
    queues: dict[tuple[Resources, bool], deque[Item]] = {}
    for item in left:
        queues.setdefault((item.resources, item.exclusive), deque()).append(item)
    wants = [Want(need, exclusive, len(alike)) for (need, exclusive), alike in queues.items()]
    wares = [Ware(kind.capacity, kind.usd_per_hour, kind.rank) for kind in kinds]
    bought = [
        NewMachine(kinds[load.ware].name, _take(list(queues.values()), load.counts))
        for load in plan_purchase(wants, wares, room)
    ]
    waiting = {item.key for alike in queues.values() for item in alike}
    return tuple(bought), tuple(item for item in left if item.key in waiting)


def _take(queues: Sequence[deque[Item]], counts: Sequence[int]) -> tuple[str, ...]:
    pairs = zip(queues, counts, strict=True)
    return tuple(alike.popleft().key for alike, count in pairs for _ in range(count))


class _Space:
    """What is free on a machine; less with each item that is put there."""

    def __init__(self, machine: Bin) -> None:
        self._machine = machine
        capacity = machine.capacity
        held = [held.item for held in machine.held]
        taken = {device for held in machine.held for device in held.devices}
        self._cpu_milli = capacity.cpu_milli - sum(i.resources.cpu_milli for i in held)
        self._memory_bytes = capacity.memory_bytes - sum(i.resources.memory_bytes for i in held)
        self._devices = [d for d in range(capacity.accelerators) if d not in taken]
        self._ports = {held.port for held in machine.held if held.port is not None}
        self._used = bool(held)
        self._closed = not machine.open or any(item.exclusive for item in held)

    def takes(self, item: Item) -> bool:
        """Return whether there is room for an item."""
        need = item.resources
        return (
            not self._closed
            and not (item.exclusive and self._used)
            and need.cpu_milli <= self._cpu_milli
            and need.memory_bytes <= self._memory_bytes
            and need.accelerators <= len(self._devices)
            and suits(need, self._machine.capacity)
            and (item.port is None or self._port(item.port) is not None)
        )

    def put(self, item: Item) -> Place:
        """Take an item for which there is room."""
        need = item.resources
        devices = tuple(self._devices[: need.accelerators])
        port = None if item.port is None else self._port(item.port)
        self._cpu_milli -= need.cpu_milli
        self._memory_bytes -= need.memory_bytes
        del self._devices[: need.accelerators]
        if port is not None:
            self._ports.add(port)
        self._used = True
        self._closed = item.exclusive
        return Place(item.key, self._machine.name, devices, port)

    def _port(self, wish: int) -> int | None:
        """Return the port that is wished for if it is free, else the lowest free one."""
        first = self._machine.first_port
        if first is None and wish not in self._ports:
            return wish
        ports = range(FIRST_PORT if first is None else first, LAST_PORT + 1)
        return next((port for port in ports if port not in self._ports), None)
