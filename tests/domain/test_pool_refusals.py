"""What a nodepool does about refusals: what else there is, when it tries again, at whose word."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from garrison.domain.pools import life as life
from garrison.domain.pools import plan as plan
from garrison.errors import ErrorCode
from garrison.models.group import Node, NodeStatus, Refusal
from garrison.models.nodepool import NodepoolRequest, PoolOffer
from garrison.models.offer import CapacityType
from garrison.models.placement import PlacementState
from garrison.models.resources import Resources
from tests.domain.pool_world import NODE, ON_DEMAND, SPOT, START, Answer, PoolWorld, offer, refuse

MINUTE = timedelta(minutes=1)
NO_CAPACITY = ErrorCode.INSUFFICIENT_CAPACITY
BOTH = (offer(SPOT, usd="0.40"), offer(ON_DEMAND, usd="1.00"))


class Shop(PoolWorld):
    """A provider that is out of some kinds of capacity, and writes down what is asked of it."""

    def __init__(self, *out: CapacityType, **fields: Any) -> None:
        super().__init__(**{"offers": BOTH, "capacity_types": (SPOT, ON_DEMAND), **fields})
        self.asked: list[tuple[CapacityType, float]] = []
        self.out = out
        self.stock = self._sell
        self.run()

    def _sell(self, wanted: PoolOffer) -> Answer:
        passed = (self.now - START).total_seconds() / 60
        self.asked.append((wanted.offer.capacity_type, round(passed)))
        return refuse(NO_CAPACITY, "InsufficientInstanceCapacity: none", *self.out)(wanted)

    def minutes(self, kind: CapacityType) -> list[float]:
        """When a kind was asked for."""
        return [minute for one, minute in self.asked if one is kind]


def update(world: PoolWorld) -> None:
    """A person updates a pool, with the settings that it has."""
    assert world.state.spec is not None
    request = NodepoolRequest(request_id="again", spec=world.state.spec, by="ada")
    life.check_update(world.state, request)
    life.accept_update(world.state, request, now=world.now)


def test_where_nothing_can_be_bought_on_demand_is_tried_again_after_growing_pauses() -> None:
    world = Shop(SPOT, ON_DEMAND)

    world.want("d", "r1")
    world.run(95 * MINUTE)

    assert world.minutes(ON_DEMAND) == [0, 1, 3, 7, 15, 31, 61, 91]
    assert world.minutes(SPOT) == [0, 30, 60, 90]


def test_a_pool_that_wants_only_spot_tries_it_again_after_growing_pauses() -> None:
    world = Shop(SPOT, capacity_types=(SPOT,))

    world.want("d", "r1")
    world.run(65 * MINUTE)

    assert world.minutes(SPOT) == [0, 1, 3, 7, 15, 31, 61]
    reason = world.place("d", "r1").reason
    assert reason == "no spot capacity (InsufficientInstanceCapacity), again at 01:31 UTC"


def test_spot_is_left_alone_for_half_an_hour_while_on_demand_will_do() -> None:
    world = Shop(SPOT, max_instances=4)

    world.want("d", "r1")
    world.run(10 * MINUTE)
    world.want("d", "r1", "r2")
    world.run(25 * MINUTE)
    world.want("d", "r1", "r2", "r3")
    world.run()

    assert world.minutes(SPOT) == [0, 35]
    assert world.minutes(ON_DEMAND) == [0, 10, 35]


def test_a_pool_that_lacks_nothing_is_not_woken_soon_by_what_was_refused() -> None:
    types = ("m.large", "m.other")
    world = Shop(
        offers=[offer(instance_type=name) for name in types],
        instance_types=types,
        capacity_types=(ON_DEMAND,),
    )
    none = Refusal(code=NO_CAPACITY, message="none")
    world.stock = lambda wanted: none if wanted.offer.instance_type == "m.large" else None
    world.want("d", "r1")
    world.run(timedelta(seconds=1))

    time, why = plan.next_time(world.state, now=world.now)

    assert world.place("d", "r1").state is PlacementState.PLACED
    assert (time, why) == (START + 30 * MINUTE, "try a refused offer again")


def test_pauses_begin_anew_after_a_machine_was_sold() -> None:
    world = Shop(ON_DEMAND, capacity_types=(ON_DEMAND,), max_instances=2)
    world.want("d", "r1")
    world.run(5 * MINUTE)
    world.out = ()
    world.run(3 * MINUTE)

    world.out = (ON_DEMAND,)
    world.want("d", "r1", "r2")
    world.run(2 * MINUTE)

    assert world.minutes(ON_DEMAND) == [0, 1, 3, 7, 8, 9]


def test_while_one_machine_is_being_tried_for_all_no_other_is_ordered() -> None:
    world = Shop(ON_DEMAND, capacity_types=(ON_DEMAND,), max_instances=4)
    world.want("d", "r1", "r2", "r3")
    world.run(timedelta(seconds=59))
    world.now += timedelta(seconds=1)

    for _ in range(3):
        plan.settle(world.state, now=world.now)

    assert [machine.state for machine in world.state.machines.values()] == ["requested"]


def test_one_machine_tries_for_all_and_when_it_is_sold_the_others_follow_at_once() -> None:
    world = Shop(ON_DEMAND, capacity_types=(ON_DEMAND,), max_instances=4)
    world.want("d", "r1", "r2", "r3", "r4")
    world.run(2 * MINUTE)
    early = world.minutes(ON_DEMAND)

    world.out = ()
    world.run(MINUTE)

    assert early == [0, 0, 0, 0, 1]
    assert world.minutes(ON_DEMAND)[5:] == [3, 3, 3, 3]
    assert {world.place("d", f"r{n}").state for n in range(1, 5)} == {PlacementState.PLACED}


def test_what_no_other_offer_can_take_is_tried_again_soon_and_says_when() -> None:
    big = Resources(cpu_milli=64_000, memory_bytes=512 * 2**30)
    huge = offer(usd="4.00", instance_type="m.huge").model_copy(update={"capacity": big})
    world = Shop(
        offers=(offer(), huge),
        instance_types=("m.large", "m.huge"),
        capacity_types=(ON_DEMAND,),
        max_instances=3,
    )
    sell = world.stock
    world.stock = lambda wanted: (
        refuse(NO_CAPACITY, "Sold out: sorry", ON_DEMAND)(wanted)
        if wanted.offer.instance_type == "m.huge" and not sell(wanted)
        else None
    )

    world.want("d", "big", resources=big)
    world.run(10 * MINUTE)
    told = world.place("d", "big").reason
    world.want("e", "small", resources=NODE)
    world.run()

    assert world.minutes(ON_DEMAND) == [0, 1, 3, 7]
    assert told == (
        "no machine that is large enough can be bought now: "
        "no on-demand capacity (Sold out), again at 00:15 UTC"
    )
    assert world.place("e", "small").state is PlacementState.PLACED


def test_min_instances_that_cannot_be_bought_are_tried_again_soon() -> None:
    world = Shop(ON_DEMAND, capacity_types=(ON_DEMAND,), min_instances=2, max_instances=2)
    world.run(2 * MINUTE)

    world.out = ()
    world.run(2 * MINUTE)

    assert world.minutes(ON_DEMAND) == [0, 0, 1, 3, 3]
    assert world.bought == 2


def test_an_update_has_what_was_refused_tried_again_at_once_and_pauses_begin_anew() -> None:
    world = Shop(SPOT, ON_DEMAND)
    world.want("d", "r1")
    world.run(20 * MINUTE)

    update(world)
    world.run(2 * MINUTE)

    assert world.minutes(ON_DEMAND) == [0, 1, 3, 7, 15, 20, 21]
    assert world.minutes(SPOT) == [0, 20]
    assert [one.by for one in world.status().events if one.reason == "TriedAgain"] == ["ada"]


def test_an_update_has_a_configuration_error_tried_again_at_once() -> None:
    world = PoolWorld(max_instances=4)
    world.stock = refuse(ErrorCode.PROVIDER_AUTH, "no", ON_DEMAND)
    world.run()
    world.want("d", "r1")
    world.run(20 * MINUTE)
    blocked = world.status().blocked

    world.stock = lambda _: None
    update(world)
    world.run()

    assert blocked is not None
    assert blocked.retry_at > world.now
    assert world.place("d", "r1").state is PlacementState.PLACED


@pytest.mark.parametrize("helped", [False, True], ids=["alone", "by an update"])
def test_a_spot_machine_that_could_not_boot_holds_a_spot_pool_up_for_a_minute_at_most(
    *, helped: bool
) -> None:
    world = Shop(capacity_types=(SPOT,))
    world.boots = False
    world.want("d", "r1")
    world.run()
    group = world.groups["u-0"]
    failed = Node(rank=0, provider_id="i-0", status=NodeStatus.FAILED, failure=NO_CAPACITY)
    world.groups["u-0"] = group.model_copy(update={"nodes": (failed,)})
    world.boots = True
    world.observe()
    world.run(timedelta(seconds=1))

    if helped:
        update(world)
    world.run(timedelta(seconds=1) if helped else MINUTE)

    assert world.place("d", "r1").state is PlacementState.PLACED


def test_an_update_that_has_nothing_to_try_again_says_nothing() -> None:
    world = Shop(max_instances=4)
    before = world.status()

    update(world)

    assert world.status().events == before.events
    assert world.status().generation == before.generation
