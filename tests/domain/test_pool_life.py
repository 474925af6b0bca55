"""What a nodepool takes from people and from deployments, and what it refuses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from garrison.domain.pools import life as life
from garrison.domain.pools import seats as seats
from garrison.domain.pools.plan import next_time
from garrison.errors import ConflictPhase, ErrorCode, InvalidSpec, NameInUse, NotFound
from garrison.models.compute_cluster import JoinAnswer
from garrison.models.group import Node, NodeStatus
from garrison.models.nodepool import NodepoolRequest, NodepoolSpec
from garrison.models.nodepool_state import NodepoolState
from garrison.models.placement import Demand, PlacementState, ReplicaDemand
from garrison.models.resources import Resources
from tests.domain.pool_world import START, TERMS, PoolWorld

HOUR = timedelta(hours=1)
SMALL = Resources(cpu_milli=1000)


def request(uid: str | None = None, **fields: Any) -> NodepoolRequest:
    given = {"id": "p", "compute_cluster": "cc", "instance_types": ("m.large",), **fields}
    spec = NodepoolSpec.model_validate(given)
    return NodepoolRequest(request_id="r", spec=spec, uid=uid)


def fresh() -> NodepoolState:
    return NodepoolState(id="p", compute_cluster="cc", uid="u", created_at=START)


def created(**fields: Any) -> NodepoolState:
    state = fresh()
    life.accept_spec(state, request(**fields), now=START)
    return state


def test_all_mistakes_of_a_spec_are_told_at_once() -> None:
    wrong = request(
        id="q",
        instance_types=("m.large", ""),
        capacity_types=("reserved",),
        min_instances=3,
        warm_instances=2,
        max_instances=1,
        max_usd_per_hour="0",
        release_after=-1,
    )

    with pytest.raises(InvalidSpec) as refused:
        life.check_create(fresh(), wrong)

    assert [problem.field for problem in refused.value.problems] == [
        "id",
        "instance_types",
        "capacity_types",
        "min_instances",
        "warm_instances",
        "max_usd_per_hour",
        "release_after",
    ]


def test_a_disabled_pool_may_keep_its_minimum_written() -> None:
    life.check_create(fresh(), request(min_instances=2, max_instances=0))


def test_the_same_create_again_is_the_same_pool_and_another_is_not() -> None:
    state = created(max_instances=2)
    first = life.accept_spec(state, request(max_instances=2), now=START)

    life.check_create(state, request(max_instances=2))
    again = life.accept_spec(state, request(max_instances=2), now=START + HOUR)
    with pytest.raises(NameInUse, match="nodepool update cc p"):
        life.check_create(state, request(max_instances=3))

    assert (again, again.generation) == (first, 1)


def test_a_pool_that_is_being_deleted_takes_no_settings() -> None:
    state = created()
    life.accept_delete(state, now=START, by="ada")

    with pytest.raises(NameInUse, match="being deleted"):
        life.check_create(state, request())
    with pytest.raises(ConflictPhase, match="being deleted"):
        life.check_update(state, request())


def test_an_update_of_another_life_is_refused() -> None:
    with pytest.raises(NotFound, match="uid v is gone"):
        life.check_update(created(), request(uid="v"))


def test_a_provider_that_no_worker_has_is_named() -> None:
    state = created()
    place = JoinAnswer(uid="c", provider="aws", region="us-east-1")

    life.note_joined(state, place, TERMS, now=START)

    assert state.blocked is not None
    assert state.blocked.code is ErrorCode.INVALID_SPEC
    assert "add it under providers:" in state.blocked.message


# Demands


def demand(generation: int, *replicas: str, uid: str = "d", **fields: Any) -> Demand:
    wanted = tuple(ReplicaDemand(replica=name, resources=SMALL) for name in replicas)
    given = {"deployment": "deployment/d", "uid": uid, "generation": generation}
    return Demand.model_validate({**given, "replicas": wanted, **fields})


def test_a_demand_that_is_older_than_what_is_known_is_dropped() -> None:
    world = PoolWorld(max_instances=1)
    world.run()
    world.send(demand(2, "r2"))
    world.run()

    taken = seats.take_demand(world.state, demand(1, "r1"), now=world.now)
    world.run()

    assert not taken
    assert list(world.state.customers["d"].seats) == ["r2"]


def test_statements_rise_over_all_lives_of_a_deployment() -> None:
    """One that the pool forgot may come back, and drops what is not above what it has seen."""
    world = PoolWorld(max_instances=1)
    world.run()
    world.send(demand(1, "r1"))
    world.run()
    before = world.placed["d"].generation
    world.send(demand(2, closing=True))
    world.run()
    forgotten = "d" not in world.state.customers

    world.send(demand(2, closing=True))
    world.run()

    assert forgotten
    assert world.placed["d"].generation > before + 1


def test_the_replicas_of_a_life_that_has_ended_are_freed_when_the_next_one_asks() -> None:
    world = PoolWorld(max_instances=2)
    world.run()
    world.send(demand(1, "r1", uid="old"))
    world.run()
    world.gone.add("old")

    world.send(demand(1, "r2", uid="new"))
    world.run(timedelta(minutes=1))

    assert list(world.state.customers) == ["new"]
    assert world.place("new", "r2").machine == "u-1"  # what runs on the other nobody knows
    assert [node.name for node in world.status().nodes] == ["u-1"]


def test_a_node_that_boots_again_keeps_its_replicas_under_a_new_boot() -> None:
    world = PoolWorld(max_instances=1)
    world.run()
    world.want("d", "r1")
    world.run(HOUR)
    group = world.groups["u-0"]

    world.groups["u-0"] = group.model_copy(
        update={"nodes": (group.nodes[0].model_copy(update={"incarnation": 2}),)}
    )
    world.observe()
    world.run()

    placed = world.place("d", "r1")
    assert placed.state is PlacementState.PLACED
    assert placed.node is not None
    assert placed.node.incarnation == 2


def test_a_node_that_cannot_be_reached_takes_nothing_new_and_drains_after_ten_minutes() -> None:
    world = PoolWorld(max_instances=2)
    world.run()
    world.want("d", "r1", resources=SMALL)
    world.run()
    group = world.groups["u-0"]
    unknown = group.nodes[0].model_copy(update={"status": NodeStatus.UNKNOWN})
    world.groups["u-0"] = group.model_copy(update={"nodes": (unknown,)})
    world.observe()
    world.run(timedelta(minutes=3))
    world.observe()

    world.want("e", "r2", resources=SMALL)
    world.run(timedelta(minutes=5))
    early = world.place("d", "r1").state
    world.run(timedelta(minutes=6))

    assert world.place("e", "r2").machine == "u-1"
    assert (early, world.place("d", "r1").state) == (PlacementState.PLACED, PlacementState.DRAINING)


def test_ports_are_a_nodes_own_where_nodes_share_an_address() -> None:
    world = PoolWorld(max_instances=1)
    world.boots = False
    world.run()
    world.want("d", "r1", "r2", resources=SMALL, port=8000)
    world.run()
    group = world.groups["u-0"]
    node = Node(rank=0, provider_id="i-0", status=NodeStatus.RUNNING, first_port=41_000)

    world.groups["u-0"] = group.model_copy(update={"nodes": (node,)})
    world.observe()
    world.run()

    assert [world.place("d", name).port for name in ("r1", "r2")] == [41_000, 41_001]


def test_a_pool_at_rest_waits_for_the_deadman_probe_alone() -> None:
    world = PoolWorld(max_instances=1)
    world.run()
    world.want("d", "r1")
    world.run(timedelta(minutes=10))

    time, why = next_time(world.state, now=world.now)

    assert why == "deadman probe"
    assert time == world.state.deadman_at
