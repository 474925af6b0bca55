"""On-demand machines that stand in for spot ones: how many, since when, and for how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.domain.pools import machines as machines
from garrison.domain.pools import plan as plan
from garrison.domain.pools.fallback import SETTLED, Mixed, count_on_demand, plan_mix
from garrison.domain.pools.life import check_spec
from garrison.errors import ErrorCode, InvalidSpec
from garrison.models.cluster_state import Failure
from garrison.models.group import NodeStatus
from garrison.models.nodepool import NodepoolSpec
from garrison.models.nodepool_state import NodepoolState
from garrison.models.placement import PlacementState
from garrison.models.resources import Resources
from tests.domain.pool_world import ON_DEMAND, SPOT, PoolWorld, offer, refuse

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
BOTH = (offer(SPOT, usd="0.40"), offer(ON_DEMAND))
HALF = Resources(cpu_milli=4000, memory_bytes=2**30)


def spec(**fields: Any) -> NodepoolSpec:
    given_fields = {
        "id": "p",
        "compute_cluster": "cc",
        "instance_types": ("m.large",),
        "capacity_types": (SPOT, ON_DEMAND),
        "max_instances": 9,
        "on_demand_fallback": True,
        **fields,
    }
    return NodepoolSpec.model_validate(given_fields)


@pytest.mark.parametrize(
    ("base", "wanted", "ready_spot", "on_demand"),
    [
        pytest.param(0, 0, 0, 0, id="nothing is wanted"),
        pytest.param(0, 3, 0, 3, id="all stand in while no spot is ready"),
        pytest.param(0, 3, 2, 1, id="one stands in for the one that is not ready"),
        pytest.param(0, 3, 3, 0, id="none while all spot is ready"),
        pytest.param(0, 1, 3, 0, id="more spot than is wanted saves nothing"),
        pytest.param(2, 3, 0, 3, id="the base, and one that stands in"),
        pytest.param(2, 3, 1, 2, id="the base is no stand-in"),
        pytest.param(2, 1, 0, 1, id="no more of the base than is wanted"),
    ],
)
def test_the_count_on_demand(base: int, wanted: int, ready_spot: int, on_demand: int) -> None:
    assert count_on_demand(base=base, wanted=wanted, ready_spot=ready_spot) == on_demand


ages = st.none() | st.integers(0, 30).map(lambda minutes: NOW - minutes * MINUTE)
mixed = st.builds(
    Mixed,
    name=st.uuids().map(str),
    spot=st.booleans(),
    replicas=st.integers(0, 2),
    ready_since=ages,
    empty_since=ages,
)


@given(
    given_machines=st.lists(mixed, max_size=8),
    base=st.integers(0, 3),
    wanted=st.integers(0, 6),
    fixed=st.integers(0, 2),
    release_after=st.sampled_from([0, 300, 1200]),
)
def test_what_is_bought_and_what_goes_is_exactly_the_difference_to_the_count(
    given_machines: list[Mixed], base: int, wanted: int, fixed: int, release_after: int
) -> None:
    pool = spec(on_demand_base=base, release_after=release_after)

    mix = plan_mix(pool, given_machines, wanted=wanted, fixed=fixed, now=NOW)
    base += fixed

    others = {one.name: one for one in given_machines if not one.spot}
    spot = {one.name: one for one in given_machines if one.spot}
    ready = sum(one.ready_since is not None for one in spot.values())
    settled = sum(
        bool(one.ready_since and one.ready_since + SETTLED <= NOW) for one in spot.values()
    )
    formula = min(base, wanted) + max(0, wanted - min(base, wanted) - ready)
    stays = min(base, wanted) + max(0, wanted - min(base, wanted) - settled)
    assert mix.on_demand == formula
    assert mix.buy_on_demand == max(0, formula - len(others))
    assert mix.buy_spot == max(0, wanted - min(base, wanted) - len(spot))
    assert set(mix.retire) <= set(others)
    assert len(others) - len(mix.retire) >= min(stays, len(others))
    assert not (mix.retire and mix.buy_on_demand)
    for name in mix.retire:
        since = others[name].ready_since
        assert since is not None
        assert since + pool.release_after <= NOW
    for name in mix.release:
        assert spot[name].replicas == 0
    assert len(spot) - len(mix.release) >= min(len(spot), wanted - min(base, wanted))
    assert mix.next_at is None or mix.next_at > NOW


def test_a_rule_that_waits_for_time_says_until_when() -> None:
    pair = [
        Mixed("s", spot=True, ready_since=NOW - 4 * MINUTE),
        Mixed("o", spot=False, replicas=1, ready_since=NOW - HOUR),
    ]

    early = plan_mix(spec(), pair, wanted=1, now=NOW)
    at = early.next_at
    assert at is not None
    late = plan_mix(spec(), pair, wanted=1, now=at)

    assert (early.retire, at, late.retire) == ((), NOW + 6 * MINUTE, ("o",))


# A pool


def mixed_pool(**fields: Any) -> PoolWorld:
    given_fields = {
        "offers": BOTH,
        "capacity_types": (SPOT, ON_DEMAND),
        "max_instances": 4,
        "on_demand_fallback": True,
        **fields,
    }
    world = PoolWorld(**given_fields)
    world.run()
    return world


def kinds(world: PoolWorld) -> list[str]:
    return sorted(str(node.capacity_type) for node in world.status().nodes)


def boot(world: PoolWorld, *names: str) -> None:
    for name in names:
        world.break_node(name, NodeStatus.RUNNING)
    world.run()


def test_a_stand_in_is_bought_with_the_spot_machine_and_the_replica_starts_where_it_can_first() -> (
    None
):
    world = mixed_pool()
    world.boots = False
    world.want("d", "r1")
    world.run()
    bought = {node.name: node.capacity_type for node in world.status().nodes}

    boot(world, "u-1")

    assert bought == {"u-0": SPOT, "u-1": ON_DEMAND}
    assert world.status().desired == 2
    assert (world.place("d", "r1").state, world.place("d", "r1").machine) == (
        PlacementState.PLACED,
        "u-1",
    )


class Unreachable(PoolWorld):
    """A provider of whose spot machines none can be reached."""

    def _carry_out(self, step: plan.Step) -> None:
        if isinstance(step, plan.PrepareMachine):
            machine = self.state.machines[step.key]
            if machine.offer.offer.capacity_type is SPOT:
                failure = Failure(code=ErrorCode.PROVIDER_UNREACHABLE, message="no route")
                machines.note_trouble(self.state, step.key, failure, now=self.now, retry_after=3600)
                return
        super()._carry_out(step)


def test_a_spot_machine_that_runs_is_waited_for_a_moment_and_no_longer() -> None:
    world = Unreachable(
        offers=BOTH, capacity_types=(SPOT, ON_DEMAND), max_instances=4, on_demand_fallback=True
    )
    world.run()
    world.want("d", "r1")

    world.run(timedelta(seconds=29))
    early = world.place("d", "r1")
    world.run(timedelta(seconds=2))

    assert (early.state, early.coming) == (PlacementState.PENDING, True)
    assert world.place("d", "r1").machine == "u-1"


def test_a_stand_in_goes_once_spot_was_ready_for_ten_minutes_and_its_replica_moves_there() -> None:
    world = mixed_pool()
    world.boots = False
    world.want("d", "r1")
    world.run()
    boot(world, "u-1")
    world.run(HOUR / 4)
    boot(world, "u-0")

    world.run(timedelta(minutes=9, seconds=59))
    early = world.place("d", "r1").state
    world.run(timedelta(seconds=2))
    late = world.place("d", "r1")
    world.want("d", "r1", "r2")
    world.run(HOUR)
    moved = world.place("d", "r2")
    world.want("d", "r2")
    world.run(HOUR)

    assert (early, late.state) == (PlacementState.PLACED, PlacementState.DRAINING)
    assert "spot machines have been ready" in late.reason
    assert not late.must_go
    assert (moved.state, moved.machine) == (PlacementState.PLACED, "u-0")
    assert (kinds(world), world.bought, world.status().desired) == (["spot"], 2, 1)


def test_a_stand_in_that_was_not_needed_is_kept_for_a_while_and_then_given_back() -> None:
    world = mixed_pool(release_after=900)
    world.want("d", "r1")
    world.run()
    first = world.place("d", "r1").machine

    world.run(timedelta(minutes=14))
    kept = kinds(world)
    world.run(timedelta(minutes=2))

    assert (first, kept, kinds(world)) == ("u-0", ["on_demand", "spot"], ["spot"])


def test_at_the_maximum_there_is_no_stand_in() -> None:
    world = mixed_pool(max_instances=2)
    world.boots = False
    world.want("d", "r1", "r2")

    world.run(MINUTE)

    assert (kinds(world), world.peak) == (["spot", "spot"], 2)


def test_while_spot_is_refused_one_on_demand_machine_is_enough() -> None:
    world = mixed_pool()
    world.stock = refuse(ErrorCode.INSUFFICIENT_CAPACITY, "none", SPOT)
    world.want("d", "r1")

    world.run(3 * HOUR)

    assert (kinds(world), world.bought) == (["on_demand"], 1)


def test_when_spot_is_sold_again_the_stand_in_is_replaced() -> None:
    world = mixed_pool()
    world.stock = refuse(ErrorCode.INSUFFICIENT_CAPACITY, "none", SPOT)
    world.want("d", "r1")
    world.run(MINUTE)

    world.stock = lambda _: None
    world.run(timedelta(minutes=30))
    both = kinds(world)
    world.run(timedelta(minutes=10))
    draining = world.place("d", "r1").state
    world.want("d", "r2")
    world.run(HOUR)

    assert (both, draining) == (["on_demand", "spot"], PlacementState.DRAINING)
    assert (kinds(world), world.bought) == (["spot"], 2)


def test_spot_that_comes_and_goes_moves_no_replica_and_buys_one_stand_in() -> None:
    world = mixed_pool()
    world.boots = False
    world.want("d", "r1")
    world.run()
    boot(world, "u-1")
    placed = world.place("d", "r1").machine
    end = world.now + 6 * HOUR
    while world.now < end:
        spot = [n.name for n in world.status().nodes if n.capacity_type is SPOT]
        boot(world, *[name for name in spot if name in world.groups])
        world.run(timedelta(minutes=8))
        for name in spot:
            if name in world.groups:
                world.break_node(name)
        world.run(timedelta(minutes=6))

    on_demand = {m.name for m in world.state.machines.values() if m.offer == BOTH[1]}
    assert (placed, on_demand) == ("u-1", {"u-1"})
    assert world.place("d", "r1").machine == "u-1"
    assert world.peak <= 4


def test_a_spot_machine_that_dies_has_a_stand_in_at_once() -> None:
    world = mixed_pool()
    world.want("d", "r1")
    world.run(HOUR)
    before = kinds(world)

    world.boots = False
    world.break_node("u-0")
    world.run(timedelta(seconds=1))

    assert before == ["spot"]
    assert kinds(world) == ["on_demand", "spot"]


def test_a_spot_machine_under_notice_has_a_stand_in_and_a_successor_in_the_same_pass() -> None:
    world = mixed_pool()
    world.want("d", "r1")
    world.run(HOUR)

    world.boots = False
    world.notice("u-0")
    world.run()

    assert kinds(world) == ["on_demand", "spot", "spot"]


def test_a_held_minimum_is_on_spot_in_the_end_and_stays_as_it_is() -> None:
    world = mixed_pool(min_instances=2)
    world.run(HOUR)
    bought = world.bought

    world.run(24 * HOUR)

    assert (kinds(world), world.status().desired) == (["spot", "spot"], 2)
    assert world.bought == bought == 4


@pytest.mark.parametrize("fallback", [True, False])
def test_the_base_is_on_demand_and_the_rest_spot(fallback: bool) -> None:
    world = mixed_pool(on_demand_base=1, on_demand_fallback=fallback)
    world.want("d", "r1", "r2", "r3")

    world.run(2 * HOUR)

    assert kinds(world) == ["on_demand", "spot", "spot"]
    assert {world.place("d", name).state for name in ("r1", "r2", "r3")} == {PlacementState.PLACED}


def test_a_base_of_spares_is_on_demand_too() -> None:
    world = mixed_pool(on_demand_base=1, on_demand_fallback=False, min_instances=2)

    world.run(HOUR)

    assert kinds(world) == ["on_demand", "spot"]


def test_replicas_of_two_stand_ins_that_fit_on_one_spot_machine_want_only_that_one() -> None:
    world = mixed_pool(max_instances=6)
    world.stock = refuse(ErrorCode.INSUFFICIENT_CAPACITY, "none", SPOT)
    world.want("d", "r1", "r2", "r3", "r4", resources=HALF)
    world.run(MINUTE)
    on = {name: world.place("d", name).machine for name in ("r1", "r2", "r3", "r4")}
    left = {machine: name for name, machine in on.items()}.values()
    world.want("d", *left, resources=HALF)
    world.run(MINUTE)

    world.stock = lambda _: None
    world.run(HOUR)

    states = [world.place("d", name).state for name in left]
    assert len(left) == 2
    assert kinds(world).count("spot") == 1
    assert sorted(states) == [PlacementState.DRAINING, PlacementState.PLACED]


def test_what_only_a_machine_on_demand_can_hold_stays_there_and_no_spot_is_bought_for_it() -> None:
    small = offer(SPOT, usd="0.40", instance_type="m.small").model_copy(update={"capacity": HALF})
    world = mixed_pool(offers=(small, BOTH[1]), instance_types=("m.small", "m.large"))
    world.want("d", "r1")

    world.run(6 * HOUR)

    assert (kinds(world), world.bought) == (["on_demand"], 1)
    assert world.place("d", "r1").state is PlacementState.PLACED
    assert world.status().desired == 1


def test_spot_that_has_booted_again_has_to_be_ready_for_ten_minutes_anew() -> None:
    world = mixed_pool(release_after=0)
    world.want("d", "r1")
    world.run(HOUR)

    world.break_node("u-0", NodeStatus.STARTING)
    world.run()
    boot(world, "u-0")
    world.run(timedelta(minutes=9))
    early = kinds(world)
    world.run(timedelta(minutes=2))

    assert (early, kinds(world)) == (["on_demand", "spot"], ["spot"])


def test_room_that_is_kept_for_one_stand_in_is_not_counted_for_another() -> None:
    world = mixed_pool(release_after=1800)
    world.boots = False
    world.want("d", "r1")
    world.run()
    boot(world, "u-1")
    world.run(timedelta(minutes=15))
    world.want("d", "r1", "r2")
    world.run()
    on_demand = [n.name for n in world.status().nodes if n.capacity_type is ON_DEMAND]
    boot(world, *on_demand)
    world.run(timedelta(minutes=10))
    boot(world, *[n.name for n in world.status().nodes if n.capacity_type is SPOT])

    world.run(timedelta(minutes=10))

    states = [world.place("d", name).state for name in ("r1", "r2")]
    assert states == [PlacementState.DRAINING, PlacementState.PLACED]
    assert world.status().desired == 2


def test_a_lowered_limit_takes_stand_ins_with_it_and_deleting_takes_all() -> None:
    world = mixed_pool()
    world.boots = False
    world.want("d", "r1")
    world.run()
    boot(world, "u-0", "u-1")

    world.create(
        capacity_types=(SPOT, ON_DEMAND), max_instances=1, on_demand_fallback=True, release_after=0
    )
    world.run(HOUR)
    lowered = len(world.living())
    world.delete()
    world.want("d")
    world.run(HOUR)

    assert lowered == 1
    assert (world.living(), world.state.machines) == ([], {})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"capacity_types": (SPOT,)}, "on_demand_fallback: needs both on_demand and spot"),
        (
            {"capacity_types": (ON_DEMAND,), "on_demand_base": 1, "on_demand_fallback": False},
            "on_demand_base: needs both on_demand and spot",
        ),
        ({"on_demand_base": 10}, "on_demand_base: 10 is more than max_instances, which is 9"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], problem: str) -> None:
    state = NodepoolState(id="p", compute_cluster="cc", uid="u", created_at=NOW)

    with pytest.raises(InvalidSpec) as refused:
        check_spec(state, spec(**fields))

    (found,) = refused.value.problems
    assert f"{found.field}: {found.message}".startswith(problem)
