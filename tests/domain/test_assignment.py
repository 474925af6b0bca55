"""Which pool a replica belongs to, and when it moves."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from garrison.domain.deployments import assignment
from garrison.domain.deployments import life as life
from garrison.domain.deployments.plan import advance
from garrison.domain.deployments.replicas import demand_to, note_told, take
from garrison.domain.deployments.report import report_deployment
from garrison.domain.resource_ids import nodepool_workflow_id
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentRequest,
    SchedulingChoice,
)
from garrison.models.deployment_state import DeploymentState
from garrison.models.group import Node, NodeStatus
from garrison.models.placement import Placement, Placements, PlacementState, PoolSummary
from tests.domain.test_deployment_life import NOW, created, spec

A, B = nodepool_workflow_id("cc", "a"), nodepool_workflow_id("cc", "b")
POOLS = tuple(DeploymentPool(compute_cluster="cc", nodepool=name) for name in ("a", "b"))
ONE = AutoscaleConfig(min_replicas=1, max_replicas=2)


def wanting(**fields: Any) -> DeploymentState:
    state = created(**{"nodepools": POOLS, "autoscale": ONE, **fields})
    advance(state, now=NOW)
    return state


def answer(
    state: DeploymentState,
    pool: str,
    *,
    full: bool = False,
    on: str | None = None,
    coming: bool = False,
    life: str = "life",
    now: datetime = NOW,
) -> None:
    """Let a pool hear the newest demand, and answer it; `on` is a machine for all of it."""
    demand = demand_to(state, pool)
    note_told(state, demand, pool, found=True, now=now)
    node = Node(rank=0, provider_id=on, status=NodeStatus.RUNNING) if on else None
    placements = tuple(
        Placement(
            replica=one.replica,
            state=PlacementState.PLACED if on else PlacementState.PENDING,
            machine=on,
            node=node,
            reason="" if on else "pool at max (1)",
            coming=coming,
        )
        for one in demand.replicas
    )
    said = Placements(
        nodepool=pool,
        uid=f"{pool}-{life}",
        deployment_uid=state.uid,
        generation=state.pools[pool].seen + 1,
        demand_generation=demand.generation,
        placements=placements,
        pool=PoolSummary(provider="sim", full=full),
    )
    assert take(state, said, now=now)
    advance(state, now=now)


def whereabouts(state: DeploymentState) -> list[str | None]:
    return [replica.pool for replica in state.replicas.values()]


def test_with_several_pools_the_choice_waits_for_what_each_is_like() -> None:
    state = wanting()
    told = {pool: talk.tell_due for pool, talk in state.pools.items()}

    answer(state, A)
    first = whereabouts(state)
    answer(state, B)

    assert told == {A: NOW, B: NOW}
    assert (first, whereabouts(state)) == ([None], [A])


def test_a_pool_that_stays_silent_is_not_waited_for_beyond_a_few_seconds() -> None:
    state = wanting()

    answer(state, B)
    advance(state, now=NOW + assignment.FIRST_WORD)

    assert whereabouts(state) == [A]


def test_one_pool_is_not_waited_for() -> None:
    assert whereabouts(wanting(nodepools=POOLS[:1])) == [A]


def test_a_replica_that_waits_in_a_full_pool_moves_once_it_was_let_go() -> None:
    state = wanting()
    answer(state, A)
    answer(state, B)

    answer(state, A, full=True)
    asked_back = (demand_to(state, A).replicas, demand_to(state, B).replicas)
    answer(state, A)

    assert asked_back == ((), ())
    assert whereabouts(state) == [B]
    assert demand_to(state, A).replicas == ()


def test_a_replica_stays_while_a_machine_is_on_its_way_for_it_in_a_full_pool() -> None:
    state = wanting()
    answer(state, A)
    answer(state, B)

    answer(state, A, full=True, coming=True)

    assert whereabouts(state) == [A]
    assert len(demand_to(state, A).replicas) == 1
    assert [one.waiting_since for one in state.replicas.values()] == [None]


def test_a_replica_does_not_move_before_its_pool_has_answered_a_demand_without_it() -> None:
    state = wanting()
    answer(state, A)
    answer(state, B)
    with_it = demand_to(state, A)
    answer(state, A, full=True)

    late = Placements(
        nodepool=A,
        uid=f"{A}-life",
        deployment_uid=state.uid,
        generation=state.pools[A].seen + 1,
        demand_generation=with_it.generation,
        pool=PoolSummary(provider="sim", full=True),
    )
    take(state, late, now=NOW)
    advance(state, now=NOW)

    assert whereabouts(state) == [A]
    assert demand_to(state, B).replicas == ()


def test_a_replica_that_was_placed_in_a_pool_that_is_gone_has_a_successor() -> None:
    state = wanting()
    answer(state, A)
    answer(state, B)
    answer(state, A, on="m1")
    (before,) = state.replicas

    note_told(state, demand_to(state, A), A, found=False, now=NOW)
    advance(state, now=NOW)

    (after,) = state.replicas
    assert after != before
    assert whereabouts(state) == [B]


def test_a_replica_that_lost_its_node_in_a_full_pool_has_a_successor_elsewhere() -> None:
    state = wanting()
    answer(state, A)
    answer(state, B)
    answer(state, A, on="m1")
    (before,) = state.replicas

    answer(state, A, full=True)
    answer(state, A, full=True)

    (after,) = state.replicas
    assert after != before
    assert whereabouts(state) == [B]


def test_a_replica_that_waits_goes_back_to_a_pool_that_has_room_again_but_not_at_once() -> None:
    state = wanting()
    answer(state, A)
    answer(state, B)
    answer(state, A, full=True)
    answer(state, A, full=True)
    answer(state, B, full=True)

    answer(state, A)
    stays = whereabouts(state)
    again = assignment.back_at(state, now=NOW)
    assert again is not None
    advance(state, now=again)
    answer(state, B, full=True, now=again)

    assert (stays, again) == ([B], NOW + assignment.BACK_AFTER)
    assert whereabouts(state) == [A]


def test_a_replica_does_not_go_back_to_a_pool_that_is_still_full() -> None:
    state = wanting()
    answer(state, A)
    answer(state, B)
    answer(state, A, full=True)
    answer(state, A, full=True)
    answer(state, B, full=True)

    advance(state, now=NOW + 2 * assignment.BACK_AFTER)

    assert whereabouts(state) == [B]
    assert len(demand_to(state, B).replicas) == 1


def test_a_replica_that_two_pools_send_to_and_fro_moves_ever_less_often() -> None:
    state = wanting()
    answer(state, A)
    answer(state, B)
    now, here, there, pauses = NOW, A, B, []

    for _ in range(8):
        answer(state, here, full=True, now=now)
        back = assignment.back_at(state, now=now)
        if back is not None:
            pauses.append((back - now).total_seconds())
            now = back
            advance(state, now=now)
        answer(state, here, now=now)
        here, there = there, here

    assert pauses == [30, 60, 120, 240, 480, 600, 600]


def test_where_the_first_pool_is_full_fail_waits_there_and_says_so() -> None:
    state = wanting(scheduling_choice=SchedulingChoice.FAIL)
    answer(state, A, full=True)
    answer(state, B)

    answer(state, A, full=True)

    (replica,) = report_deployment(state).replicas
    assert whereabouts(state) == [A]
    assert replica.reason == "pool at max (1); FAIL takes no other nodepool"


def test_a_replica_that_was_placed_never_moves() -> None:
    state = wanting()
    answer(state, A)
    answer(state, B)
    answer(state, A, on="m1")

    answer(state, A, full=True, on="m1")

    assert whereabouts(state) == [A]


def test_a_pool_that_is_not_there_is_said_to_be_missing_and_another_is_used() -> None:
    state = wanting()
    note_told(state, demand_to(state, A), A, found=False, now=NOW)
    advance(state, now=NOW)
    answer(state, B)

    assert whereabouts(state) == [B]


def test_without_any_pool_replicas_wait_and_the_pools_are_asked_again() -> None:
    state = wanting(nodepools=POOLS[:1])
    waits = []
    now = NOW
    for _ in range(7):
        note_told(state, demand_to(state, A), A, found=False, now=now)
        advance(state, now=now)
        due = state.pools[A].tell_due
        assert due is not None
        waits.append((due - now).total_seconds())
        now = due

    (replica,) = report_deployment(state).replicas
    assert replica.reason == "nodepool_not_found: there is no nodepool cc/a"
    assert waits == [5, 10, 20, 40, 60, 60, 60]


def test_a_deployment_at_zero_does_not_ask_for_a_missing_pool_again() -> None:
    state = created(nodepools=POOLS[:1])
    advance(state, now=NOW)

    note_told(state, demand_to(state, A), A, found=False, now=NOW)
    advance(state, now=NOW)

    assert state.pools[A].tell_due is None


def test_replicas_in_a_pool_that_an_update_takes_away_are_replaced_elsewhere_first() -> None:
    state = wanting(nodepools=POOLS[:1])
    answer(state, A, on="m1")
    for name in state.replicas:
        run = {"state": "ready", "provider": "sim", "machine": "m1", "incarnation": 1}
        state.replicas[name] = state.replicas[name].model_validate(
            {
                **state.replicas[name].model_dump(),
                "run": {**run, "generation": 1, "started_at": NOW},
            }
        )

    request = DeploymentRequest(request_id="2", spec=spec(nodepools=POOLS[1:], autoscale=ONE))
    life.accept_update(state, request, now=NOW)
    advance(state, now=NOW)
    answer(state, B)

    assert whereabouts(state) == [A, B]
    assert [one.leaving for one in state.replicas.values()] == [None, None]
