"""Who gets a seat where not everything finds one: who waited longer, and the large one too."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.domain.packing.packing import AT_MAX, Bin, Held, Item, Kind, NewMachine, Packing, pack
from garrison.domain.pools.places import PATIENCE
from garrison.models.placement import PlacementState, ReplicaDemand
from garrison.models.resources import Resources
from tests.domain.pool_world import NODE, PoolWorld, offer
from tests.domain.test_packing_properties import worlds

MINUTE = timedelta(minutes=1)
QUARTER = NODE.replace(cpu_milli=2000, memory_bytes=2**30)


def cores(count: int) -> Resources:
    return Resources(cpu_milli=count * 1000)


def item(key: str, count: int, *, exclusive: bool = False) -> Item:
    return Item(key, cores(count), exclusive)


def machine(name: str, count: int, *held: Item) -> Bin:
    return Bin(name, cores(count), tuple(Held(one, (), None) for one in held))


def kind(name: str, count: int, usd: str = "1", rank: int = 0) -> Kind:
    return Kind(name, cores(count), Decimal(usd), rank)


def placed(packing: Packing) -> dict[str, str]:
    return {place.key: place.bin for place in packing.places}


def test_who_waited_longer_gets_the_seat_that_a_larger_one_would_have_taken() -> None:
    packing = pack([item("old", 2), item("new", 4)], [machine("m", 4)], [], room=0)

    assert placed(packing) == {"old": "m"}
    assert packing.unplaced == {"new": AT_MAX}


def test_where_everything_fits_the_largest_goes_first_all_the_same() -> None:
    bins = [machine("large", 4), machine("small", 2)]

    packing = pack([item("old", 2), item("new", 4)], bins, [], room=0)

    assert placed(packing) == {"new": "large", "old": "small"}


def test_a_machine_that_can_be_bought_counts_as_room_for_all() -> None:
    waiting = [item("old", 2), item("new", 4)]

    packing = pack(waiting, [machine("m", 4)], [kind("small", 2)], room=1)

    assert placed(packing) == {"new": "m"}
    assert packing.new == (NewMachine("small", ("old",)),)


def test_the_last_machine_that_may_be_bought_is_for_who_waited_longest() -> None:
    kinds = [kind("small", 2), kind("large", 8, "9")]
    waiting = [item("old", 2, exclusive=True), item("big", 8), item("new", 1)]

    packing = pack(waiting, [], kinds, room=1)

    assert packing.new == (NewMachine("small", ("old",)),)
    assert list(packing.unplaced) == ["big", "new"]


def test_a_machine_for_the_first_takes_others_in_their_turn() -> None:
    waiting = [item("a", 2), item("b", 7), item("c", 3), item("d", 3), item("e", 1)]

    packing = pack(waiting, [], [kind("k", 8)], room=1)

    assert packing.new == (NewMachine("k", ("a", "c", "d")),)


def test_what_cannot_be_bought_now_does_not_hold_up_the_others() -> None:
    waiting = [item("large", 8), item("a", 2), item("b", 2), item("c", 2)]

    packing = pack(waiting, [], [kind("small", 2)], room=2, unbuyable=[cores(8)])

    assert [new.keys for new in packing.new] == [("a",), ("b",)]
    assert list(packing.unplaced) == ["large", "c"]


def beside(bin: Bin, packing: Packing, items: Sequence[Item]) -> Bin:
    """A machine with those of some items on it that were placed there."""
    places = {place.key: place for place in packing.places if place.bin == bin.name}
    added = tuple(
        Held(one, places[one.key].devices, places[one.key].port)
        for one in items
        if one.key in places
    )
    return Bin(bin.name, bin.capacity, (*bin.held, *added), bin.open, bin.first_port)


@given(worlds(), st.integers(0, 4), st.integers(0, 12))
def test_nobody_waits_while_a_later_one_gets_a_seat_that_it_would_have_fitted(
    world: tuple[list[Item], list[Bin], list[Kind]], room: int, late: int
) -> None:
    items, bins, kinds = world
    overdue = [one.key for one in items[:late]]

    packing = pack(items, bins, kinds, room=room, overdue=overdue)

    sold = {one.name: one.capacity for one in kinds}
    for number, waits in enumerate(items):
        if waits.key not in packing.unplaced:
            continue
        earlier, keys = items[:number], {one.key for one in items[:number]}
        there = [beside(one, packing, earlier) for one in bins if one.name != packing.kept]
        assert not pack([waits], there, [], room=0).places
        for new in packing.new:
            first = [one for one in earlier if one.key in new.keys]
            on_it = Bin("new", sold[new.kind], tuple(Held(one, (), None) for one in first))
            later = set(new.keys) - keys
            need = Item(waits.key, waits.resources.replace(accelerators=0), waits.exclusive)
            if later and waits.resources.accelerators == 0:
                assert not pack([need], [on_it], [], room=0).places
            # Nor is the right to buy one more taken by those that came later alone.
            assert first or not pack([waits], [], kinds, room=1).new


@given(worlds(), st.integers(0, 12))
def test_a_machine_is_kept_only_for_one_that_waited_too_long_and_takes_no_later_one(
    world: tuple[list[Item], list[Bin], list[Kind]], late: int
) -> None:
    items, bins, kinds = world
    overdue = [one.key for one in items[:late]]

    packing = pack(items, bins, kinds, room=0, overdue=overdue)

    on_it = [place.key for place in packing.places if place.bin == packing.kept]
    waits = [key for key in overdue if key in packing.unplaced]
    assert packing.kept is None or waits
    assert packing.kept is None or set(on_it) <= set(overdue)
    assert pack(items, bins, kinds, room=0).kept is None


def test_the_machine_that_is_kept_is_the_one_that_will_be_empty_first() -> None:
    bins = [
        machine("full", 8, *(item(f"f{n}", 2) for n in range(4))),
        machine("m", 8, item("x", 4)),
    ]

    packing = pack([item("large", 8), item("small", 2)], bins, [], room=0, overdue=["large"])

    assert packing.kept == "m"
    assert set(packing.unplaced) == {"large", "small"}


def test_for_what_only_another_kind_can_take_a_machine_is_kept_too_so_that_it_can_go() -> None:
    bins = [machine("m", 4, item("x", 1))]
    waiting = [item("large", 8), item("small", 2)]

    at_the_limit = pack(waiting, bins, [kind("k", 8)], room=0, overdue=["large"])
    more = [*waiting, item("another", 4)]
    with_room = pack(more, bins, [kind("k", 8)], room=1, overdue=["large"])

    assert (at_the_limit.kept, with_room.kept) == ("m", None)
    assert with_room.new == (NewMachine("k", ("large",)),)
    assert placed(with_room) == {"small": "m"}


# In a pool, over time


def test_a_seat_that_becomes_free_goes_to_who_waited_longest_however_large_others_are() -> None:
    world = PoolWorld(max_instances=1)
    world.run()
    world.want("a", "r1", resources=QUARTER.replace(cpu_milli=8000))
    world.run(MINUTE)
    world.want("small", "r2", resources=QUARTER)
    world.run(MINUTE)
    world.want("large", "r3", resources=QUARTER.replace(cpu_milli=8000))
    world.run(MINUTE)

    world.want("a")
    world.run(timedelta(seconds=1))

    assert world.place("small", "r2").state is PlacementState.PLACED
    assert world.place("large", "r3").state is PlacementState.PENDING


def test_who_lost_its_machine_waits_from_then_on_and_who_never_had_one_from_the_start() -> None:
    world = PoolWorld(max_instances=1)
    world.run()
    world.want("old", "r1")
    world.run(MINUTE)
    world.want("waits", "r2")
    world.run(MINUTE)

    world.break_node("u-0")
    world.run(10 * MINUTE)

    assert world.place("waits", "r2").state is PlacementState.PLACED
    assert world.place("old", "r1").state is PlacementState.LOST


def test_a_machine_that_never_came_up_does_not_send_its_replica_to_the_end_of_the_line() -> None:
    world = PoolWorld(max_instances=1)
    world.boots = False
    world.run()
    world.want("first", "r1")
    world.run(MINUTE)
    world.want("second", "r2")
    world.run(10 * MINUTE)

    world.boots = True
    world.run(30 * MINUTE)

    assert world.place("first", "r1").state is PlacementState.PLACED
    assert world.place("second", "r2").state is PlacementState.PENDING


class Churn:
    """A pool of one machine on which small replicas come and go, one each minute."""

    def __init__(self, **fields: object) -> None:
        self.world = PoolWorld(**{"max_instances": 1, **fields})  # type: ignore[arg-type]
        self.world.run()
        self.small = [f"s{number}" for number in range(8)]
        self.pass_a_minute()

    def pass_a_minute(self) -> None:
        """The oldest small one leaves; another had come before that."""
        self.small = [*self.small[1:], f"s{int(self.small[-1][1:]) + 1}"]
        self.world.want("small", *self.small, resources=QUARTER)
        self.world.run(MINUTE)

    def minutes_until_placed(self, deployment: str, replica: str, most: int) -> int:
        for minute in range(most):
            if self.world.place(deployment, replica).state is PlacementState.PLACED:
                return minute
            self.pass_a_minute()
        return most


def test_small_replicas_that_come_and_go_do_not_starve_a_large_one() -> None:
    churn = Churn()
    churn.world.want("large", "r1", resources=NODE)
    churn.world.run()

    waited = churn.minutes_until_placed("large", "r1", 60)

    # Four are on the machine when it is kept, and one leaves each minute.
    assert PATIENCE <= waited * MINUTE <= PATIENCE + 15 * MINUTE


def test_what_only_another_kind_can_hold_is_not_starved_in_a_full_pool_either() -> None:
    big = Resources(cpu_milli=64_000, memory_bytes=512 * 2**30)
    huge = offer(usd="4.00", instance_type="m.huge").model_copy(update={"capacity": big})
    churn = Churn(offers=(offer(), huge), instance_types=("m.large", "m.huge"), release_after=3600)
    churn.world.want("large", "r1", resources=big)
    churn.world.run()

    waited = churn.minutes_until_placed("large", "r1", 60)

    assert PATIENCE <= waited * MINUTE <= PATIENCE + 15 * MINUTE
    assert churn.world.peak == 1


def test_a_pool_that_keeps_a_machine_for_one_says_to_others_that_it_is_full() -> None:
    world = PoolWorld(max_instances=1)
    world.run()
    world.want("a", "r1", resources=QUARTER)
    world.run()
    world.want("large", "r2", resources=NODE)
    world.run(MINUTE)
    before = world.placed["a"].pool

    world.run(PATIENCE)
    world.observe()
    world.run()
    after = world.placed["a"].pool

    assert before is not None
    assert after is not None
    assert (before.full, after.full) == (False, True)


def test_a_seat_for_the_larger_is_left_free_where_the_older_can_have_a_machine_of_its_own() -> None:
    small = offer(usd="0.20", instance_type="m.small").model_copy(update={"capacity": cores(2)})
    world = PoolWorld(
        offers=(offer(), small), instance_types=("m.small", "m.large"), max_instances=2
    )
    world.run()
    want_sizes(world, "a", {"first": 8000})
    world.run()
    world.want("a")
    world.run()

    want_sizes(world, "b", {"old": 2000, "new": 8000})
    world.run()

    kinds = {node.name: node.instance_type for node in world.status().nodes}
    assert kinds == {"u-0": "m.large", "u-1": "m.small"}
    assert world.place("b", "new").machine == "u-0"


def want_sizes(world: PoolWorld, name: str, sizes: dict[str, int]) -> None:
    """A deployment wants replicas of these many thousandths of a core."""
    world.want(name)
    replicas = tuple(
        ReplicaDemand(replica=key, resources=Resources(cpu_milli=size))
        for key, size in sizes.items()
    )
    demand = world.demands[name]
    world.send(demand.replace(generation=demand.generation + 1, replicas=replicas))


SIZES = st.sampled_from([1000, 2000, 4000, 8000])
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), SIZES)), max_size=25)


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_nobody_waits_while_a_later_one_that_needs_as_much_is_placed(
    steps: list[tuple[str, int | None]],
) -> None:
    world = PoolWorld(max_instances=2)
    world.run()
    wanted: dict[str, dict[str, int]] = {name: {} for name in "abc"}
    order: list[str] = []
    seated: set[str] = set()

    for number, (name, size) in enumerate(steps):
        if size is None:
            wanted[name] = dict(list(wanted[name].items())[1:])
        else:
            wanted[name][f"{name}{number}"] = size
            order.append(f"{name}{number}")
        want_sizes(world, name, wanted[name])
        world.run(timedelta(seconds=30))

        sizes = {key: size for sizes in wanted.values() for key, size in sizes.items()}
        seats = [seat for c in world.state.customers.values() for seat in c.seats.values()]
        now = {seat.demand.replica for seat in seats if seat.machine is not None}
        waiting = [seat.demand.replica for seat in seats if seat.machine is None]
        for new in now - seated:
            passed = [one for one in waiting if order.index(one) < order.index(new)]
            assert not [one for one in passed if sizes[one] <= sizes[new]]
        seated = now
