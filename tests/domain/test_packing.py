"""Which replica goes on which machine, and which machines are bought."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from garrison.domain.packing.packing import (
    AT_MAX,
    NOTHING_TO_BUY,
    Bin,
    Held,
    Item,
    Kind,
    NewMachine,
    Packing,
    Place,
    pack,
)
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


def held(key: str, *devices: int, port: int | None = None, **more: Any) -> Held:
    return Held(item(key, gpus=len(devices), **more), devices, port)


def kind(name: str, price: str = "1", rank: int = 0, **size: int) -> Kind:
    return Kind(name, machine(**size), Decimal(price), rank)


def places(packing: Packing) -> dict[str, str]:
    return {place.key: place.bin for place in packing.places}


def bought(packing: Packing) -> list[str]:
    return [new.kind for new in packing.new]


SMALL = kind("small", "1", gpus=1)
LARGE = kind("large", "5", cpu=32, memory=112, gpus=4)


def test_each_item_goes_on_the_first_machine_with_room() -> None:
    bins = [Bin("a", machine(cpu=2)), Bin("b", machine(cpu=4))]

    packing = pack([item("x", cpu=2), item("y", cpu=2), item("z", cpu=2)], bins, [], room=0)

    assert places(packing) == {"x": "a", "y": "b", "z": "b"}


def test_the_largest_goes_first_so_that_it_finds_room() -> None:
    bins = [Bin("a", machine(gpus=4)), Bin("b", machine(gpus=1))]

    packing = pack([item("one", gpus=1), item("four", gpus=4)], bins, [], room=0)

    assert places(packing) == {"four": "a", "one": "b"}


@pytest.mark.parametrize(
    "larger",
    [
        item("l", cpu=0, gpus=1),
        item("l", cpu=0, memory=3),
        item("l", cpu=2, memory=2),
    ],
    ids=["accelerators first", "then memory", "then cores"],
)
def test_large_is_said_by_accelerators_then_memory_then_cores(larger: Item) -> None:
    packing = pack(
        [item("s", cpu=1, memory=2), larger], [Bin("a", machine(cpu=8, memory=28))], [], room=0
    )

    assert [place.key for place in packing.places] == ["l", "s"]


def test_of_equal_items_the_first_goes_first() -> None:
    waiting = [item(key, gpus=1) for key in ("z", "m", "a")]

    packing = pack(waiting, [Bin("b", machine(gpus=1))], [SMALL], room=1)

    assert places(packing) == {"z": "b"}
    assert packing.new == (NewMachine("small", ("m",)),)
    assert packing.unplaced == {"a": AT_MAX}


@pytest.mark.parametrize(
    "wanted",
    [item("x", cpu=8), item("x", memory=28), item("x", gpus=1)],
    ids=["cores", "memory", "accelerators"],
)
def test_what_is_held_is_not_given_twice(wanted: Item) -> None:
    full = Bin("a", machine(), (Held(item("h", cpu=1, memory=1, gpus=1), (0,), None),))

    packing = pack([wanted], [full], [], room=0)

    assert packing.unplaced == {"x": AT_MAX}


def test_a_machine_is_filled_to_the_last_byte() -> None:
    exact = Bin("a", machine(), (Held(item("h", cpu=1, memory=1), (), None),))

    packing = pack([item("x", cpu=7, memory=27, gpus=1)], [exact], [], room=0)

    assert places(packing) == {"x": "a"}


def test_the_lowest_free_accelerators_are_handed_out() -> None:
    bins = [Bin("a", machine(gpus=5), (held("h", 1, 3),))]

    packing = pack([item("x", gpus=1), item("y", gpus=2)], bins, [], room=0)

    assert packing.places == (Place("y", "a", (0, 2), None), Place("x", "a", (4,), None))


def test_a_port_is_the_wish_if_it_is_free_else_the_lowest_free_one() -> None:
    bins = [Bin("a", machine(), (held("h", port=8000), held("i", port=20_001)))]
    wishes = [item("x", port=8000), item("y", port=9000), item("z", port=9000), item("no")]

    packing = pack(wishes, bins, [], room=0)

    assert {place.key: place.port for place in packing.places} == {
        "x": 20_000,
        "y": 9000,
        "z": 20_002,
        "no": None,
    }


def test_on_a_shared_address_ports_are_the_machines_own() -> None:
    bins = [Bin("a", machine(), (held("h", port=23_000),), first_port=23_000)]

    packing = pack([item("x", port=8000)], bins, [], room=0)

    assert [place.port for place in packing.places] == [23_001]


def test_the_last_port_is_handed_out_too() -> None:
    bins = [Bin("a", machine(), (held("h", port=65_534),), first_port=65_534)]

    packing = pack([item("x", port=8000)], bins, [], room=0)

    assert [place.port for place in packing.places] == [65_535]


def test_a_machine_without_a_free_port_takes_nothing_that_listens() -> None:
    last = Bin("a", machine(), (held("h", port=65_535),), first_port=65_535)

    packing = pack([item("x", port=8000), item("y")], [last], [], room=0)

    assert places(packing) == {"y": "a"}


def test_who_wants_to_be_alone_goes_on_an_empty_machine_only_and_nobody_joins() -> None:
    bins = [Bin("a", machine(), (held("h"),)), Bin("b", machine()), Bin("c", machine())]

    packing = pack([item("alone", cpu=2, exclusive=True), item("x", cpu=1)], bins[1:], [], room=0)
    beside = pack([item("alone", exclusive=True)], bins[:1], [], room=0)

    assert places(packing) == {"alone": "b", "x": "c"}
    assert beside.unplaced == {"alone": AT_MAX}


def test_nobody_joins_one_that_is_alone_already() -> None:
    alone = Bin("a", machine(), (held("h", exclusive=True),))

    packing = pack([item("x"), item("y", exclusive=True)], [alone], [], room=0)

    assert set(packing.unplaced) == {"x", "y"}


def test_a_closed_machine_takes_nothing() -> None:
    packing = pack([item("x")], [Bin("a", machine(), open=False)], [], room=0)

    assert packing.unplaced == {"x": AT_MAX}


def test_accelerators_of_the_wrong_kind_or_size_are_passed_over() -> None:
    wrong = Bin("a", machine(gpus=4))
    bins = [wrong, Bin("b", resources(8, 28, 1, accelerator_types=("H100",)))]
    need = resources(gpus=1, accelerator_types=("H100", "H200"))
    large = resources(gpus=1, accelerator_memory_bytes=23 * GIB)

    packing = pack([Item("x", need), Item("y", large)], bins, [], room=0)

    assert places(packing) == {"x": "b"}
    assert packing.never == ("y",)


def test_fewer_machines_go_before_cheaper_ones() -> None:
    packing = pack([item(key, gpus=1) for key in "abcd"], [], [SMALL, LARGE], room=9)

    assert packing.new == (NewMachine("large", ("a", "b", "c", "d")),)


def test_replicas_of_different_needs_each_get_their_largest_machines() -> None:
    sold = [
        Kind(f"{name} x {size}", machine(gpus=size).replace(accelerator_types=(name,)), usd)
        for name in ("L4", "H100")
        for size, usd in ((1, Decimal(1)), (2, Decimal(9)))
    ]
    needs = {name: resources(gpus=1, accelerator_types=(name,)) for name in ("L4", "H100")}

    packing = pack([Item(f"{n}{i}", needs[n]) for n in needs for i in "ab"], [], sold, room=9)

    assert sorted(bought(packing)) == ["H100 x 2", "L4 x 2"]


def test_placing_more_goes_before_preference_for_several_needs_too() -> None:
    sold = [
        Kind(name, machine(gpus=size).replace(accelerator_types=(name[:2],)), Decimal(1), rank)
        for name, size, rank in (("L4", 1, 0), ("L4 x 2", 2, 1), ("T4", 1, 0), ("T4 x 2", 2, 1))
    ]
    needs = {name: resources(gpus=1, accelerator_types=(name,)) for name in ("L4", "T4")}
    waiting = [Item(f"{n}{i}", needs[n]) for n in needs for i in "ab"]

    assert sorted(bought(pack(waiting, [], sold, room=2))) == ["L4 x 2", "T4 x 2"]
    assert sorted(bought(pack(waiting, [], sold, room=4))) == ["L4", "L4", "T4", "T4"]


def test_a_preferred_kind_goes_before_fewer_machines() -> None:
    second = kind("large", "1", rank=1, cpu=32, memory=112, gpus=4)

    packing = pack([item(key, gpus=1) for key in "abcd"], [], [SMALL, second], room=9)

    assert bought(packing) == ["small"] * 4


def test_a_less_preferred_kind_is_bought_for_what_the_others_cannot_take() -> None:
    second = kind("large", "1", rank=1, cpu=32, memory=112, gpus=4)

    packing = pack([item("l", gpus=3), item("s", gpus=1)], [], [SMALL, second], room=9)

    assert packing.new == (NewMachine("large", ("l", "s")),)


def test_placing_more_goes_before_preference_where_room_is_short() -> None:
    second = kind("large", "9", rank=1, cpu=32, memory=112, gpus=4)

    packing = pack([item(key, gpus=1) for key in "abc"], [], [SMALL, second], room=1)

    assert packing.new == (NewMachine("large", ("a", "b", "c")),)


def test_among_as_many_machines_the_cheapest_are_bought() -> None:
    four, three = kind("four", "10", gpus=4), kind("three", "4", gpus=3)

    packing = pack([item(str(n), gpus=1) for n in range(6)], [], [four, three], room=9)

    assert bought(packing) == ["three", "three"]


def test_the_last_machine_is_as_small_as_will_do() -> None:
    packing = pack([item(str(n), gpus=1) for n in range(5)], [], [LARGE, SMALL], room=9)

    assert bought(packing) == ["large", "small"]


def test_among_equal_kinds_the_first_is_bought() -> None:
    packing = pack([item("x")], [], [kind("first"), kind("second")], room=1)

    assert bought(packing) == ["first"]


def test_who_wants_to_be_alone_gets_a_new_machine_each() -> None:
    alone = [item(key, cpu=1, exclusive=True) for key in "ab"]

    packing = pack([*alone, item("c", cpu=1), item("d", cpu=1)], [], [SMALL], room=9)

    assert [new.keys for new in packing.new] == [("a",), ("b",), ("c", "d")]


def test_room_is_counted_down_within_one_pass() -> None:
    ten = [item(str(n), gpus=1) for n in range(10)]

    packing = pack(ten, [], [SMALL], room=3)

    assert len(packing.new) == 3
    assert list(packing.unplaced.values()) == [AT_MAX] * 7
    assert packing.never == ()


@pytest.mark.parametrize("room", [0, -1])
def test_without_room_nothing_is_bought(room: int) -> None:
    packing = pack([item("x")], [], [SMALL], room=room)

    assert (packing.new, packing.unplaced) == ((), {"x": AT_MAX})


def test_a_need_that_no_machine_meets_is_told_from_one_that_waits() -> None:
    wanted = [item("two", gpus=2), item("one", gpus=1)]

    packing = pack(wanted, [], [SMALL], room=0)

    assert packing.unplaced == {
        "two": "no machine of this pool has 2 accelerators, the most is 1",
        "one": AT_MAX,
    }
    assert packing.never == ("two",)


def test_what_only_machines_could_take_that_are_not_for_sale_now_waits() -> None:
    packing = pack([item("x", gpus=4)], [], [SMALL], room=3, unbuyable=[LARGE.capacity])

    assert packing.unplaced == {"x": NOTHING_TO_BUY}
    assert packing.never == ()


def test_where_nothing_is_known_of_any_machine_nothing_is_ruled_out() -> None:
    packing = pack([item("x", gpus=4)], [], [], room=3)

    assert packing.unplaced == {"x": NOTHING_TO_BUY}
    assert packing.never == ()
