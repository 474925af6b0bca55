"""What a nodepool does with a machine that its provider will take."""

from __future__ import annotations

from datetime import timedelta

import pytest

from garrison.errors import ErrorCode
from garrison.models.group import NodeStatus
from garrison.models.nodepool_state import MachineState
from garrison.models.placement import PlacementState
from garrison.models.resources import Resources
from tests.domain.pool_world import ON_DEMAND, SPOT, PoolWorld, offer, refuse

HOUR = timedelta(hours=1)
ON_SPOT = (offer(SPOT, usd="0.40"),)
BOTH = (*ON_SPOT, offer(ON_DEMAND))
HALF = Resources(cpu_milli=4000, memory_bytes=2**30)


def spot_pool(*replicas: str, **spec: object) -> PoolWorld:
    """A pool on spot for which an hour has passed with these replicas."""
    given = {"offers": ON_SPOT, "capacity_types": (SPOT,), "max_instances": 3, **spec}
    world = PoolWorld(**given)  # type: ignore[arg-type]
    world.run()
    if replicas:
        world.want("d", *replicas)
    world.run(HOUR)
    return world


def names(world: PoolWorld) -> list[str]:
    return sorted(group.token for group in world.living())


def test_a_node_under_notice_is_replaced_in_the_pass_that_hears_of_it() -> None:
    world = spot_pool("r1")

    world.notice("u-0", seconds=120)
    world.run()

    told = world.place("d", "r1")
    assert names(world) == ["u-0", "u-1"]
    assert (told.state, told.machine) == (PlacementState.DRAINING, "u-0")
    assert told.reason == "spot notice: will be taken at 01:02:00"
    assert told.ends_at == world.now.replace(microsecond=0) + timedelta(seconds=120)
    assert not told.must_go


def test_a_successor_takes_what_was_bought_for_it_and_the_old_node_is_given_back() -> None:
    world = spot_pool("r1")
    world.notice("u-0")
    world.run()

    world.want("d", "r1", "r2")
    world.run()
    placed = world.place("d", "r2")
    world.want("d", "r2")
    world.run(HOUR)

    assert (placed.state, placed.machine) == (PlacementState.PLACED, "u-1")
    assert (names(world), world.bought) == (["u-1"], 2)


def test_nothing_new_is_placed_on_a_node_under_notice() -> None:
    world = spot_pool()
    world.want("d", "r1", resources=HALF)
    world.run()
    world.notice("u-0")

    world.want("e", "other", resources=HALF)
    world.run()

    assert world.place("e", "other").machine == "u-1"


def test_room_elsewhere_is_as_good_as_another_machine() -> None:
    world = spot_pool(warm_instances=1)
    world.want("d", "r1")
    world.run()
    bought = world.bought

    world.notice(str(world.place("d", "r1").machine))
    world.run()

    assert world.bought == bought


def test_at_the_maximum_it_is_drained_without_waiting_for_another_machine() -> None:
    world = spot_pool("r1", max_instances=1)

    world.notice("u-0")
    world.run()
    told = world.place("d", "r1").state
    world.want("d", "r2")
    world.run(timedelta(minutes=1))

    assert told is PlacementState.DRAINING
    assert world.place("d", "r2").machine == "u-1"
    assert (names(world), world.peak) == (["u-1"], 1)


def test_a_replica_that_nobody_replaced_in_time_goes_on_where_room_was_bought() -> None:
    world = spot_pool("r1")
    world.notice("u-0")
    world.run(timedelta(minutes=1))

    world.break_node("u-0", NodeStatus.TERMINATED)
    world.run()

    again = world.place("d", "r1")
    assert (again.state, again.machine) == (PlacementState.PLACED, "u-1")
    assert (names(world), world.bought) == (["u-1"], 2)


def test_on_demand_replaces_a_spot_node_at_once_where_spot_is_refused() -> None:
    world = spot_pool("r1", offers=BOTH, capacity_types=(SPOT, ON_DEMAND))
    world.stock = refuse(ErrorCode.INSUFFICIENT_CAPACITY, "none", SPOT)

    world.notice("u-0")
    world.run()

    kinds = {node.name: node.capacity_type for node in world.status().nodes}
    assert kinds == {"u-0": SPOT, "u-2": ON_DEMAND}


def test_what_was_bought_is_kept_for_as_long_as_a_replica_may_need_it_and_no_longer() -> None:
    world = spot_pool("r1", release_after=60)

    world.notice("u-0", seconds=24 * 3600)
    world.run(HOUR)
    waiting = names(world)
    world.want("d")
    world.run(timedelta(minutes=2))

    assert waiting == ["u-0", "u-1"]
    assert (names(world), world.bought) == ([], 2)


def test_several_nodes_under_notice_at_once_are_each_replaced_once() -> None:
    world = spot_pool("r1", "r2", max_instances=8)

    world.notice("u-0")
    world.run()
    world.notice("u-1")
    world.run(timedelta(minutes=1))

    assert names(world) == ["u-0", "u-1", "u-2", "u-3"]
    assert world.status().desired == 2


def test_what_is_left_on_two_nodes_under_notice_shares_one_new_machine() -> None:
    world = spot_pool(max_instances=8)
    world.want("d", "r1", "r2", "r3", "r4", resources=HALF)
    world.run()
    on = {name: world.place("d", name).machine for name in ("r1", "r2", "r3", "r4")}
    left = {machine: name for name, machine in on.items()}.values()
    world.want("d", *left, resources=HALF)
    world.run()

    for group in world.living():
        world.notice(group.token)
    world.run()

    assert len(left) == 2
    assert names(world) == ["u-0", "u-1", "u-2"]


def test_a_node_under_notice_that_is_not_up_yet_goes_and_its_replica_gets_another() -> None:
    world = spot_pool()
    world.boots = False
    world.want("d", "r1")
    world.run()

    world.boots = True
    world.notice("u-0")
    world.run()

    assert names(world) == ["u-1"]
    assert world.place("d", "r1").machine == "u-1"


def test_an_empty_node_under_notice_is_given_back_and_the_minimum_refilled() -> None:
    world = spot_pool(min_instances=1)

    world.notice("u-0")
    world.run()

    assert names(world) == ["u-1"]


def test_a_notice_without_an_end_drains_too() -> None:
    world = spot_pool("r1")
    group = world.groups["u-0"]
    node = group.nodes[0].model_copy(update={"notice_at": world.now})
    world.groups["u-0"] = group.model_copy(update={"nodes": (node,)})

    world.observe()
    world.run()

    assert world.place("d", "r1").reason == "spot notice: will be taken"


def test_a_notice_that_lists_no_longer_show_still_drains() -> None:
    world = spot_pool("r1")
    world.notice("u-0")
    world.run()

    node = world.groups["u-0"].nodes[0].model_copy(update={"notice_at": None})
    world.groups["u-0"] = world.groups["u-0"].model_copy(update={"nodes": (node,)})
    world.observe()
    world.run(HOUR)

    assert world.place("d", "r1").state is PlacementState.DRAINING


def test_replicas_on_demand_are_not_moved_when_spot_comes_back() -> None:
    world = spot_pool("r1", offers=BOTH, capacity_types=(SPOT, ON_DEMAND))
    world.stock = refuse(ErrorCode.INSUFFICIENT_CAPACITY, "none", SPOT)
    world.notice("u-0")
    world.run()
    world.want("d", "r2")
    world.run()

    world.stock = lambda _: None
    world.run(24 * HOUR)

    told = world.place("d", "r2")
    assert (told.state, told.machine) == (PlacementState.PLACED, "u-2")
    assert names(world) == ["u-2"]


def test_spot_nodes_that_are_taken_back_again_and_again_are_bought_with_growing_pauses() -> None:
    world = spot_pool(min_instances=1)
    seen: list[str] = []
    end = world.now + HOUR
    while world.now < end:
        for group in world.living():
            if group.token not in seen:
                seen.append(group.token)
                world.notice(group.token)
        world.run(timedelta(seconds=5))

    # One every five minutes in the end, and with each the one that replaces it.
    assert 10 < len(seen) < 35


def test_replacements_never_pass_the_maximum() -> None:
    world = spot_pool("r1", "r2", max_instances=3)

    world.notice("u-0")
    world.notice("u-1")
    world.run(timedelta(minutes=1))

    assert names(world) == ["u-0", "u-1", "u-2"]
    assert world.peak == 3


@pytest.mark.parametrize("where", ["on demand", "on spot"])
def test_the_words_say_whether_it_is_spot(where: str) -> None:
    offers, kinds = ((ON_SPOT, (SPOT,)), (BOTH, (ON_DEMAND,)))[where == "on demand"]
    world = spot_pool("r1", offers=offers, capacity_types=kinds)

    world.notice("u-0")
    world.run()

    (reason,) = {m.why for m in world.state.machines.values() if m.state is MachineState.DRAINING}
    assert reason.startswith({"on demand": "notice: ", "on spot": "spot notice: "}[where])
