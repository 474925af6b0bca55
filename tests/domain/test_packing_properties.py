"""What holds for any replicas, machines and kinds, and how near to the best a purchase is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from garrison.domain.packing.packing import Bin, Held, Item, Kind, Packing, pack
from garrison.models.resources import Resources

GIB = 2**30


def resources(cpu: int = 0, memory: int = 0, gpus: int = 0, **more: Any) -> Resources:
    return Resources(cpu_milli=cpu * 1000, memory_bytes=memory * GIB, accelerators=gpus, **more)


def machine(cpu: int = 8, memory: int = 28, gpus: int = 1, size: int = 22) -> Resources:
    return resources(
        cpu,
        memory,
        gpus,
        accelerator_memory_bytes=size * GIB,
        accelerator_types=("NVIDIA-A10G",) if gpus else (),
    )


def item(key: str, cpu: int = 0, memory: int = 0, gpus: int = 0, **more: Any) -> Item:
    return Item(key, resources(cpu, memory, gpus), **more)


def bought(packing: Packing) -> list[str]:
    return [new.kind for new in packing.new]


SIZES = st.integers(0, 4)
TYPES = st.sampled_from([(), ("NVIDIA-*",), ("h100",), ("A10", "L4")])
NEEDS = st.builds(
    resources,
    SIZES,
    SIZES,
    st.integers(0, 3),
    accelerator_memory_bytes=st.sampled_from([0, 20 * GIB, 30 * GIB]),
    accelerator_types=TYPES,
)
OFFERED = st.builds(
    resources,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 4),
    accelerator_memory_bytes=st.sampled_from([22 * GIB, 80 * GIB]),
    accelerator_types=st.sampled_from([("NVIDIA-A10G",), ("H100",)]),
)
PORTS = st.sampled_from([None, None, 8000, 20_000, 20_001])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Item], list[Bin], list[Kind]]:
    """Items that want places, and machines that other items were packed on before."""
    keys = [f"r{n}" for n in range(draw(st.integers(0, 12)))]
    everything = [
        Item(key, draw(NEEDS), exclusive=draw(st.integers(0, 5)) == 0, port=draw(PORTS))
        for key in keys
    ]
    before = draw(st.integers(0, len(everything)))
    empty = [Bin(f"b{n}", draw(OFFERED)) for n in range(draw(st.integers(0, 3)))]
    first = pack(everything[:before], empty, [], room=0)
    bins = [
        Bin(
            machine.name,
            machine.capacity,
            tuple(
                Held(next(i for i in everything if i.key == p.key), p.devices, p.port)
                for p in first.places
                if p.bin == machine.name
            ),
            open=draw(st.booleans()),
        )
        for machine in empty
    ]
    kinds = [
        Kind(f"k{n}", draw(OFFERED), Decimal(draw(st.integers(1, 9))), draw(st.integers(0, 1)))
        for n in range(draw(st.integers(0, 3)))
    ]
    return everything[before:], bins, kinds


def assert_sound(capacity: Resources, on_it: Sequence[Held]) -> None:
    """Nothing is over-committed or given twice, and who is alone is alone."""
    needs = [held.item.resources for held in on_it]
    devices = [device for held in on_it for device in held.devices]
    ports = [held.port for held in on_it if held.port is not None]
    assert sum(need.cpu_milli for need in needs) <= capacity.cpu_milli
    assert sum(need.memory_bytes for need in needs) <= capacity.memory_bytes
    assert len(devices) == len(set(devices)) == sum(need.accelerators for need in needs)
    assert set(devices) <= set(range(capacity.accelerators))
    assert len(ports) == len(set(ports))
    assert len(on_it) == 1 or not any(held.item.exclusive for held in on_it)
    for need in needs:
        if need.accelerators:
            assert need.accelerator_memory_bytes <= capacity.accelerator_memory_bytes
            assert suits_by_table(need.accelerator_types, capacity.accelerator_types)


def suits_by_table(wishes: Sequence[str], kinds: Sequence[str]) -> bool:
    meant = {"NVIDIA-*": {"NVIDIA-A10G", "H100"}, "h100": {"H100"}, "A10": {"NVIDIA-A10G"}}
    return not wishes or any(kind in meant.get(wish, ()) for wish in wishes for kind in kinds)


@given(worlds(), st.integers(0, 4))
def test_nothing_is_over_committed_and_nothing_that_is_held_moves(
    world: tuple[list[Item], list[Bin], list[Kind]], room: int
) -> None:
    items, bins, kinds = world
    by_key = {item.key: item for item in items}

    packing = pack(items, bins, kinds, room=room)

    for there in bins:
        added = [
            Held(by_key[place.key], place.devices, place.port)
            for place in packing.places
            if place.bin == there.name
        ]
        assert there.open or not added
        # What is held is all there still: what is added goes round it.
        assert_sound(there.capacity, [*there.held, *added])
        for held in added:
            assert (held.port is None) == (held.item.port is None)


@given(worlds(), st.integers(0, 4))
def test_every_item_is_placed_or_bought_for_or_waits_exactly_once(
    world: tuple[list[Item], list[Bin], list[Kind]], room: int
) -> None:
    items, bins, kinds = world

    packing = pack(items, bins, kinds, room=room)

    told = Counter(place.key for place in packing.places)
    told.update(key for new in packing.new for key in new.keys)
    told.update(list(packing.unplaced))
    assert told == Counter(item.key for item in items)
    assert len(packing.new) <= room
    assert all(new.keys for new in packing.new)
    assert set(packing.never) <= set(packing.unplaced)
    assert all(packing.unplaced.values())


@given(worlds(), st.integers(1, 4))
def test_what_a_machine_is_bought_for_fits_on_it(
    world: tuple[list[Item], list[Bin], list[Kind]], room: int
) -> None:
    items, bins, kinds = world
    capacities = {kind.name: kind.capacity for kind in kinds}

    for new in pack(items, bins, kinds, room=room).new:
        its = [item for item in items if item.key in new.keys]
        alone = pack(its, [Bin("new", capacities[new.kind])], [], room=0)

        assert {place.key for place in alone.places} == set(new.keys)


@given(worlds())
def test_more_room_never_leaves_more_without_a_place(
    world: tuple[list[Item], list[Bin], list[Kind]],
) -> None:
    items, bins, kinds = world

    waiting = [len(pack(items, bins, kinds, room=room).unplaced) for room in range(6)]

    assert all(fewer <= more for more, fewer in pairwise(waiting))


@given(worlds())
def test_with_room_enough_only_what_fits_never_waits(
    world: tuple[list[Item], list[Bin], list[Kind]],
) -> None:
    items, _, kinds = world
    assume(kinds)

    packing = pack(items, [], kinds, room=len(items))

    assert list(packing.unplaced) == list(packing.never)


def partitions(count: int) -> Iterator[list[list[int]]]:
    """Return every way to put `count` items in heaps."""
    if count == 0:
        yield []
        return
    for heaps in partitions(count - 1):
        for position in range(len(heaps)):
            yield [[*heap, count - 1] if at == position else heap for at, heap in enumerate(heaps)]
        yield [*heaps, [count - 1]]


def heap_price(heap: Sequence[Item], kinds: Sequence[Kind]) -> Decimal | None:
    """Return the least price of one machine for a heap, None if there is none."""
    prices = [
        kind.usd_per_hour
        for kind in kinds
        if len(pack(heap, [Bin("b", kind.capacity)], [], room=0).places) == len(heap)
    ]
    return min(prices, default=None)


def best(items: Sequence[Item], kinds: Sequence[Kind]) -> tuple[int, Decimal]:
    """Return the fewest machines for all items and their least price, by trying everything."""
    found: list[tuple[int, Decimal]] = []
    for heaps in partitions(len(items)):
        prices = [heap_price([items[n] for n in heap], kinds) for heap in heaps]
        known = [price for price in prices if price is not None]
        if len(known) == len(heaps):
            found.append((len(heaps), sum(known, Decimal(0))))
    return min(found)


SMALL_NEEDS = st.builds(item, st.just(""), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2))
KINDS = st.lists(
    st.builds(
        lambda cpu, memory, gpus, usd: (machine(cpu, memory, gpus), Decimal(usd)),
        st.integers(4, 9),
        st.integers(4, 9),
        st.integers(2, 4),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=3,
)


@given(st.lists(SMALL_NEEDS, min_size=1, max_size=5), KINDS)
def test_at_most_one_machine_more_than_the_fewest_is_bought(
    needs: list[Item], sold: list[tuple[Resources, Decimal]]
) -> None:
    items = [Item(f"r{n}", need.resources) for n, need in enumerate(needs)]
    kinds = [Kind(f"k{n}", capacity, usd) for n, (capacity, usd) in enumerate(sold)]

    packing = pack(items, [], kinds, room=len(items))

    fewest, least = best(items, kinds)
    prices = {kind.name: kind.usd_per_hour for kind in kinds}
    total = sum((prices[name] for name in bought(packing)), Decimal(0))
    assert fewest <= len(packing.new) <= fewest + 1
    # The best pair is a lower bound: with as few machines, nothing is cheaper.
    assert len(packing.new) > fewest or total >= least


@given(SMALL_NEEDS, st.integers(1, 5), KINDS)
def test_for_replicas_that_are_alike_the_fewest_machines_are_bought(
    need: Item, count: int, sold: list[tuple[Resources, Decimal]]
) -> None:
    items = [Item(f"r{n}", need.resources) for n in range(count)]
    kinds = [Kind(f"k{n}", capacity, usd) for n, (capacity, usd) in enumerate(sold)]

    packing = pack(items, [], kinds, room=count)

    fewest, least = best(items, kinds)
    prices = {kind.name: kind.usd_per_hour for kind in kinds}
    assert len(packing.new) == fewest
    assert sum(prices[name] for name in bought(packing)) == least
