"""What a nodepool does, told over hours that pass at once; cases A12, A15 and A16."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from garrison.domain.pools import machines as machines
from garrison.domain.pools import plan as plan
from garrison.errors import ErrorCode
from garrison.models.group import NodeStatus, WorkloadState, WorkloadStatus
from garrison.models.placement import PlacementState
from garrison.models.resources import Resources
from tests.domain.pool_world import ON_DEMAND, SPOT, PoolWorld, offer, refuse

HOUR = timedelta(hours=1)
BOTH = (offer(SPOT, usd="0.40"), offer(ON_DEMAND, usd="1.00"))


def test_a_pool_at_zero_buys_nothing() -> None:
    world = PoolWorld(max_instances=3)

    world.run(24 * HOUR)

    assert (world.bought, world.status().desired) == (0, 0)
    assert world.status().hourly_usd == 0


def test_a_replica_gets_a_machine_and_gives_it_back_when_it_is_withdrawn() -> None:
    world = PoolWorld(max_instances=3)
    world.run()

    world.want("d", "r1")
    world.run()
    placed = world.place("d", "r1")
    world.want("d")
    world.run(HOUR)

    assert placed.state is PlacementState.PLACED
    assert placed.machine == "u-0"
    assert (world.bought, len(world.living()), world.status().nodes) == (1, 0, ())


def test_a_machine_is_released_only_after_it_was_empty_for_long_enough() -> None:
    world = PoolWorld(max_instances=3, release_after=300)
    world.run()
    world.want("d", "r1")
    world.run()
    world.want("d")

    world.run(timedelta(seconds=299))
    before = len(world.living())
    world.run(timedelta(seconds=2))

    assert (before, len(world.living())) == (1, 0)


def test_a_replica_is_told_that_a_machine_is_on_its_way_as_long_as_it_has_none() -> None:
    world = PoolWorld(max_instances=1)
    world.boots = False
    world.run()
    world.want("d", "r1", "r2")

    world.run()
    starting = [world.place("d", name).coming for name in ("r1", "r2")]
    world.break_node("u-0", NodeStatus.RUNNING)
    world.run()

    assert starting == [True, False]
    assert world.place("d", "r1").state is PlacementState.PLACED
    assert not world.place("d", "r1").coming


def test_who_left_as_there_was_no_room_is_told_once_there_is() -> None:
    world = PoolWorld(max_instances=1, release_after=1)
    world.run()
    world.want("a", "r1")
    world.run()
    world.want("b", "r2")
    world.run()
    waiting = world.placed["b"]

    world.want("b")
    world.run()
    left = world.placed["b"]
    world.want("a")
    world.run(HOUR)
    room = world.placed["b"]

    assert [one.pool.full for one in (waiting, left, room) if one.pool] == [True, True, False]
    assert room.demand_generation == left.demand_generation


def test_that_a_process_runs_is_no_news_to_who_started_it_but_its_end_is() -> None:
    world = PoolWorld(max_instances=1)
    world.run()
    world.want("d", "r1")
    world.run()
    placed = world.placed["d"]

    world.work("u-0", WorkloadStatus(name="r1", state=WorkloadState.RUNNING))
    world.run()
    running = world.placed["d"]
    told = []
    for state, restarts in (("failed", 0), ("running", 0), ("running", 1)):
        work = WorkloadStatus(name="r1", state=WorkloadState(state), restarts=restarts)
        world.work("u-0", work)
        world.run()
        told.append(world.place("d", "r1").workload == work)

    assert running == placed
    assert told == [True, True, True]


class Overtaken(PoolWorld):
    """A pool that is told of the look after each delete before it knows that the delete ended."""

    def _carry_out(self, step: plan.Step) -> None:
        if not isinstance(step, plan.DeleteMachine):
            super()._carry_out(step)
            return
        ended_at = self.now
        self.groups.pop(step.key, None)
        self.observe()
        machines.note_deleted(self.state, step.key, ended_at=ended_at, asked_for=step.look_at)


def test_a_look_that_overtakes_the_news_of_a_delete_is_not_waited_for_again() -> None:
    world = Overtaken(max_instances=1, release_after=1)
    world.run()
    world.want("d", "r1")
    world.run()
    world.want("d")

    world.run(timedelta(seconds=5))

    assert (world.living(), world.status().nodes) == ([], ())


def test_a_machine_stays_until_who_had_a_replica_on_it_knows_that_it_has_none() -> None:
    world = PoolWorld(max_instances=3, acknowledge=False)
    world.run()
    world.want("d", "r1")
    world.run(timedelta(seconds=1))
    world.want("d")

    world.run(HOUR)
    before = len(world.living())
    world.acknowledge("d")
    world.run(HOUR)

    assert (before, len(world.living())) == (1, 0)


def test_a_statement_is_said_again_until_it_is_acknowledged() -> None:
    world = PoolWorld(max_instances=1, acknowledge=False)
    world.run()
    world.want("d", "r1")
    world.run(timedelta(minutes=5))
    repeats = world.state.customers["d"].tells

    world.acknowledge("d")
    world.run(HOUR)

    assert repeats == 10  # at once, after 5, 10, 20 and then every 40 seconds
    assert world.state.customers["d"].tells == repeats


# Case A12


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.QUOTA_EXCEEDED, "MaxSpotInstanceCountExceeded: the account's limit"),
        (ErrorCode.INSUFFICIENT_CAPACITY, "InsufficientInstanceCapacity: none left"),
        (ErrorCode.INSUFFICIENT_CAPACITY, "SpotMaxPriceTooLow: below the spot price"),
    ],
)
def test_a12_on_demand_is_bought_in_the_same_pass_when_spot_is_refused(
    code: ErrorCode, words: str
) -> None:
    world = PoolWorld(offers=BOTH, capacity_types=(SPOT, ON_DEMAND), max_instances=1)
    world.stock = refuse(code, words, SPOT)
    world.run()

    world.want("d", "r1")
    world.run()

    (node,) = world.status().nodes
    assert (node.capacity_type, node.fallback) == (ON_DEMAND, code)
    assert node.usd_per_hour == 1
    assert world.place("d", "r1").state is PlacementState.PLACED


def test_a12_a_configuration_error_does_not_fall_back_and_is_shown() -> None:
    world = PoolWorld(offers=BOTH, capacity_types=(SPOT, ON_DEMAND), max_instances=4)
    world.stock = refuse(ErrorCode.PROVIDER_AUTH, "UnauthorizedOperation: not allowed", SPOT)
    world.run()

    world.want("d", "r1")
    world.run(HOUR)

    status = world.status()
    assert status.blocked is not None
    assert status.blocked.code is ErrorCode.PROVIDER_AUTH
    assert world.bought == 0
    assert 10 < status.blocked.tries < 30
    assert "UnauthorizedOperation" in world.place("d", "r1").reason


def test_a_pool_goes_on_once_a_configuration_error_is_put_right() -> None:
    world = PoolWorld(max_instances=4)
    world.stock = refuse(ErrorCode.PROVIDER_AUTH, "no", ON_DEMAND)
    world.run()
    world.want("d", "r1", "r2")
    world.run(timedelta(minutes=1))

    world.stock = lambda _: None
    world.run(HOUR)

    assert (world.bought, world.status().blocked) == (2, None)
    assert world.place("d", "r2").state is PlacementState.PLACED


# Case A15


def test_a15_ten_deployments_at_once_never_pass_the_maximum() -> None:
    world = PoolWorld(max_instances=3)
    world.run()
    for number in range(10):
        world.want(f"d{number}", "r")

    world.run(HOUR)

    states = [world.place(f"d{number}", "r") for number in range(10)]
    waiting = [one for one in states if one.state is PlacementState.PENDING]
    assert world.peak == 3
    assert len(waiting) == 7
    assert {one.reason for one in waiting} == {"pool at max (3)"}


def test_a15_machines_that_never_get_ready_count_against_the_limit() -> None:
    world = PoolWorld(max_instances=3)
    world.boots = False
    world.run()
    for number in range(10):
        world.want(f"d{number}", "r")

    world.run(3 * HOUR)

    assert world.peak == 3
    assert world.bought > 3  # each was given up after its start timeout


def test_a_purchase_of_unknown_outcome_counts_until_it_is_proven_empty() -> None:
    world = PoolWorld(max_instances=1)
    world.run()
    world.want("d", "r")
    world.answers = False

    world.run(timedelta(seconds=30))
    world.answers = True
    early = [node.name for node in world.status().nodes]
    world.run(timedelta(minutes=10))

    assert early == ["u-0"]
    assert [node.name for node in world.status().nodes] == ["u-1"]
    assert world.peak == 1


# Case A16


def test_a16_a_fixed_pool_is_made_once_and_never_remade() -> None:
    world = PoolWorld(min_instances=2, max_instances=2, release_after=300)

    world.run(3 * HOUR)

    assert (world.bought, world.deleted) == (2, 0)


def test_a16_idle_machines_go_down_to_the_minimum_and_no_further() -> None:
    world = PoolWorld(min_instances=1, max_instances=3, release_after=300)
    world.run()
    world.want("d", "r1", "r2", "r3")
    world.run()
    world.want("d")

    world.run(3 * HOUR)

    assert (world.bought, len(world.living())) == (3, 1)


# Losses


def test_a_lost_machine_voids_its_placements_and_is_replaced() -> None:
    world = PoolWorld(max_instances=2)
    world.run()
    world.want("d", "r1")
    world.run(HOUR)

    world.break_node("u-0")
    world.run(HOUR)

    again = world.place("d", "r1")
    assert (again.state, again.machine) == (PlacementState.PLACED, "u-1")
    assert [node.name for node in world.status().nodes] == ["u-1"]


def test_a_lost_replica_is_said_to_be_lost_while_there_is_no_other_machine() -> None:
    world = PoolWorld(max_instances=1)
    world.run()
    world.want("d", "r1")
    world.run(HOUR)
    world.stock = refuse(ErrorCode.INSUFFICIENT_CAPACITY, "none", ON_DEMAND)

    world.break_node("u-0")
    world.run(timedelta(minutes=5))

    lost = world.place("d", "r1")
    assert (lost.state, lost.machine, lost.node) == (PlacementState.LOST, None, None)


def test_machines_that_die_young_are_replaced_with_growing_pauses() -> None:
    world = PoolWorld(min_instances=1, max_instances=5)
    bought_at = []
    for _ in range(4):
        while not world.living():
            world.run(timedelta(seconds=1))
        bought_at.append(world.now)
        world.break_node(world.living()[0].token)

    pauses = [(b - a).seconds for a, b in pairwise(bought_at)]
    assert pauses == sorted(pauses)
    assert pauses[0] >= 10
    assert pauses[-1] >= 40


def test_warm_machines_are_kept_ready_beside_those_in_use() -> None:
    world = PoolWorld(max_instances=3, warm_instances=1)
    world.run()

    world.want("d", "r1")
    world.run(HOUR)

    assert (len(world.living()), world.status().desired) == (2, 2)


# The end


def test_a_deleted_pool_waits_for_its_replicas_and_then_gives_everything_back() -> None:
    world = PoolWorld(max_instances=2)
    world.run()
    world.want("d", "r1")
    world.run()

    world.delete()
    world.run(HOUR)
    draining = world.place("d", "r1").state
    before = len(world.living())
    world.want("d")
    world.run(HOUR)

    assert (draining, before) == (PlacementState.DRAINING, 1)
    assert world.placed["d"].closing
    assert (world.living(), world.state.machines, world.state.left) == ([], {}, True)


def test_a_pool_whose_limit_becomes_zero_gives_empty_machines_back() -> None:
    world = PoolWorld(min_instances=2, max_instances=2)
    world.run(HOUR)

    world.create(min_instances=0, max_instances=0)
    world.run(HOUR)

    assert (world.living(), str(world.status().phase)) == ([], "disabled")


def test_what_a_dead_deployment_had_is_freed_and_its_node_not_used_again() -> None:
    world = PoolWorld(max_instances=2)
    world.run()
    world.want("d", "r1", resources={"cpu_milli": 1000})
    world.run()
    world.gone.add("d")

    world.want("e", "r2", resources={"cpu_milli": 1000})
    world.run()
    world.break_node("u-0", NodeStatus.STARTING)
    world.break_node("u-0", NodeStatus.RUNNING)
    world.run(24 * HOUR)

    assert "d" not in world.state.customers
    assert world.place("e", "r2").state is PlacementState.DRAINING


def test_idle_machines_are_pointed_out_after_a_day() -> None:
    world = PoolWorld(min_instances=1, max_instances=1)
    world.run(23 * HOUR)
    early = world.status().warning

    world.run(2 * HOUR)

    assert early is None
    assert "no replica has used it for" in (world.status().warning or "")


def test_an_empty_machine_makes_room_for_two_replicas_that_only_another_kind_can_hold() -> None:
    big = Resources(cpu_milli=64_000, memory_bytes=512 * 2**30)
    large = offer(usd="4.00", instance_type="m.huge")
    world = PoolWorld(
        offers=(offer(), large.model_copy(update={"capacity": big})),
        instance_types=("m.large", "m.huge"),
        max_instances=3,
        release_after=3600,
    )
    world.run()
    world.want("d", "r1", "r2", "r3")
    world.run()
    world.want("d", "r1")
    world.run()

    half = Resources(cpu_milli=30_000, memory_bytes=2**30)
    world.want("e", "big1", "big2", resources=half)
    world.run(timedelta(minutes=10))

    kinds = sorted(machine.instance_type for machine in world.status().nodes)
    assert kinds == ["m.huge", "m.large", "m.large"]
    assert world.place("e", "big1").machine == world.place("e", "big2").machine
    assert world.peak == 3


def test_replicas_above_a_lowered_limit_are_told_that_their_node_must_go() -> None:
    world = PoolWorld(max_instances=2)
    world.run()
    world.want("d", "r1", "r2")
    world.run()

    world.create(max_instances=1)
    world.run(timedelta(minutes=1))

    told = {world.place("d", name).state: world.place("d", name) for name in ("r1", "r2")}
    assert told[PlacementState.DRAINING].must_go
    assert not told[PlacementState.PLACED].must_go
    assert told[PlacementState.DRAINING].reason == "max_instances is 1"
