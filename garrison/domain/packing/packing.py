"""Which replica goes on which machine, and which machines to buy for those that fit on none.

First-fit decreasing: the largest first, each on the first machine that has room. What a replica has
it keeps; nothing is moved to pack it better.

Where not everything finds room, who waited longer goes first, on machines and for purchases alike:
nobody waits while a later one gets a seat that it would have fitted. What is large could then still
wait for ever, as small ones take each gap that opens; so one machine takes nobody more once the
oldest has waited for too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from garrison.domain.packing.buying import Want, Ware, plan_purchase
from garrison.domain.packing.fitting import fits_never, serves, suits
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
        kept: The machine that takes nobody more, for one that waited too long; None if none is.
    """

    places: tuple[Place, ...]
    new: tuple[NewMachine, ...]
    unplaced: dict[str, str]
    never: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    kept: str | None = None


def pack(
    items: Iterable[Item],
    bins: Sequence[Bin],
    kinds: Sequence[Kind],
    *,
    room: int,
    unbuyable: Sequence[Resources] = (),
    overdue: Collection[str] = (),
) -> Packing:
    """Return where items go, and what to buy for the rest: fewest machines, then cheapest.

    The same arguments in the same order give the same answer. More room never leaves more items
    without a place.

    Args:
        items: Who waited longer is first.
        bins: Filled in this order.
        kinds: What can be bought; among equals the first is bought.
        room: How many machines may still be bought.
        unbuyable: What the pool's other machines offer, which cannot be bought now. It decides
            only whether an item waits or can never be placed.
        overdue: Keys of items that have waited too long.
    """
    waiting = list(items)
    known = (*(k.capacity for k in kinds), *(b.capacity for b in bins), *unbuyable)
    found = _spread(sorted(waiting, key=_size), bins)
    new, rest = _bought(found.left, kinds, room)
    if _contested(rest, bins, kinds):
        late = [item for item in waiting if item.key in overdue]
        # A machine is kept only for what no purchase of this pass can help.
        helpless = {item.key for item in late if room <= 0 or not _is_sold(item, kinds)}
        found = _spread(waiting, bins, helpless, kinds)
        new, rest = _bought_in_turn(found.left, kinds, room)
    never = {item.key: words for item in rest if (words := fits_never(item.resources, known))}
    blocked = tuple(item.key for item in rest if _is_sold(item, kinds))
    otherwise = dict.fromkeys(blocked, AT_MAX) | never
    why = AT_MAX if room <= 0 else NOTHING_TO_BUY
    unplaced = {item.key: otherwise.get(item.key, why) for item in rest}
    return Packing(tuple(found.places), new, unplaced, tuple(never), blocked, found.kept)


def _contested(rest: Iterable[Item], bins: Sequence[Bin], kinds: Sequence[Kind]) -> bool:
    """Return whether one that waits could have something that another one gets."""
    there = [*(one.capacity for one in bins), *(one.capacity for one in kinds)]
    needs = {item.resources for item in rest}
    return any(serves(need, capacity) for need in needs for capacity in there)


@dataclass(slots=True)
class _Spread:
    """Items on the machines that there are.

    Attributes:
        left: Those that fit on none, in the order given.
        kept: The machine that takes nobody more.
    """

    places: list[Place] = field(default_factory=list)
    left: list[Item] = field(default_factory=list)
    kept: str | None = None


def _spread(
    ordered: Iterable[Item],
    bins: Sequence[Bin],
    helpless: Collection[str] = (),
    kinds: Sequence[Kind] = (),
) -> _Spread:
    """Put each item on the first machine that has room for it.

    Args:
        ordered: The first one chooses first.
        bins: Filled in this order.
        helpless: Items for the first of which a machine is kept, if it finds no room.
        kinds: What can be bought.
    """
    spaces = [_Space(machine) for machine in bins]
    found = _Spread()
    full: set[int] = set()
    for item, like in _numbered(ordered):
        space = None if like in full else next((s for s in spaces if s.takes(item)), None)
        if space is not None:
            found.places.append(space.put(item))
            continue
        full.add(like)  # room only gets less
        found.left.append(item)
        if found.kept is None and item.key in helpless:
            found.kept = _keep(item, spaces, sold=_is_sold(item, kinds))
    return found


def _keep(item: Item, spaces: Sequence[_Space], *, sold: bool) -> str | None:
    """Let one machine take nobody more: the one with the fewest replicas, as it is empty first.

    One that could take the item, else any in whose place another can be bought. Which one it is may
    change as replicas go; how many there are on it only gets less.
    """
    able = [one for one in spaces if one.open and serves(item.resources, one.capacity)]
    if not able and sold:
        able = [one for one in spaces if one.open]
    best = min(able, key=lambda one: one.count, default=None)
    if best is None:
        return None
    best.close()
    return best.name


def _numbered(items: Iterable[Item]) -> list[tuple[Item, int]]:
    """Return each item with a number, the same one for those that fit in the same places."""
    numbers: dict[tuple[Resources, bool, int | None], int] = {}
    return [
        (item, numbers.setdefault((item.resources, item.exclusive, item.port), len(numbers)))
        for item in items
    ]


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


def _bought_in_turn(
    left: Sequence[Item], kinds: Sequence[Kind], room: int
) -> tuple[tuple[NewMachine, ...], tuple[Item, ...]]:
    """Return what is bought where room is short: each machine for the first that it can serve.

    One machine after the other without looking at how many are allowed, so that more room never
    leaves more without a place.
    """
    bought: list[NewMachine] = []
    rest = _numbered(item for item in left if _is_sold(item, kinds))
    while rest and len(bought) < room:
        need = rest[0][0].resources
        able = [kind for kind in kinds if serves(need, kind.capacity)]
        loads = [NewMachine(kind.name, _filled(kind, rest)) for kind in able]
        best, _ = min(zip(loads, able, strict=True), key=lambda pair: _worth(*pair))
        bought.append(best)
        on_it = set(best.keys)
        rest = [pair for pair in rest if pair[0].key not in on_it]
    gone = {key for load in bought for key in load.keys}
    return tuple(bought), tuple(item for item in left if item.key not in gone)


def _worth(load: NewMachine, kind: Kind) -> tuple[int, int, Decimal]:
    return -len(load.keys), kind.rank, kind.usd_per_hour


def _filled(kind: Kind, rest: Sequence[tuple[Item, int]]) -> tuple[str, ...]:
    """Return what goes on an empty machine, each in its turn."""
    space = _Space(Bin(kind.name, kind.capacity))
    keys: list[str] = []
    likes, full = {like for _, like in rest}, set[int]()
    for item, like in rest:
        if like in full:
            continue
        if space.takes(item):
            keys.append(space.put(item).key)
            continue
        full.add(like)
        if full == likes:
            break
    return tuple(keys)


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
        self._count = len(held)
        self._closed = not machine.open or any(item.exclusive for item in held)

    @property
    def name(self) -> str:
        """Of the machine."""
        return self._machine.name

    @property
    def capacity(self) -> Resources:
        """What the machine offers when it is empty."""
        return self._machine.capacity

    @property
    def open(self) -> bool:
        """Whether the machine itself may take more."""
        return self._machine.open

    @property
    def count(self) -> int:
        """How many replicas are on it."""
        return self._count

    def close(self) -> None:
        """Take nobody more."""
        self._closed = True

    def takes(self, item: Item) -> bool:
        """Return whether there is room for an item."""
        need = item.resources
        return (
            not self._closed
            and not (item.exclusive and self._count)
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
        self._count += 1
        self._closed = item.exclusive
        return Place(item.key, self._machine.name, devices, port)

    def _port(self, wish: int) -> int | None:
        """Return the port that is wished for if it is free, else the lowest free one."""
        first = self._machine.first_port
        if first is None and wish not in self._ports:
            return wish
        ports = range(FIRST_PORT if first is None else first, LAST_PORT + 1)
        return next((port for port in ports if port not in self._ports), None)
