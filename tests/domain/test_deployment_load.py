"""What a deployment takes of what its load asks for, and what it tells others of itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from garrison.domain.deployments import life as life
from garrison.domain.deployments.load import learn_boot, take_target, take_wake
from garrison.domain.deployments.plan import advance, plan_steps
from garrison.domain.deployments.view import note_view, view
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentRequest,
    DeploymentSpec,
    EnableRequest,
    LoadConfig,
    LoadKind,
    ReplicaTemplate,
    ScaleRequest,
)
from garrison.models.deployment_state import DeploymentState
from garrison.models.load import TargetChanged, WakeRequest

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SERVING = ReplicaTemplate(command=("serve",), port=8000)


def spec(**fields: Any) -> DeploymentSpec:
    pools = (DeploymentPool(compute_cluster="cc", nodepool="a"),)
    return DeploymentSpec(**{"id": "Chat", "template": SERVING, "nodepools": pools, **fields})


def created(**fields: Any) -> DeploymentState:
    state = DeploymentState(id="Chat", uid="u1", created_at=NOW)
    life.accept_create(state, DeploymentRequest(request_id="1", spec=spec(**fields)), now=NOW)
    advance(state, now=NOW)
    return state


def wants(state: DeploymentState, target: int, **fields: Any) -> bool:
    given = {"uid": state.uid, "generation": state.wish, "reason": "up: needed", **fields}
    taken = take_target(state, TargetChanged(target=target, **given))
    advance(state, now=NOW)
    return taken


def wake(state: DeploymentState, **fields: Any) -> bool:
    taken = take_wake(state, WakeRequest(asked_at=NOW, **fields))
    advance(state, now=NOW)
    return taken


def test_the_load_sets_the_count_and_the_event_says_why() -> None:
    state = created()

    wants(state, 3, reason="up: 3 needed for 60 s; demand 2.6", demand=2.6)

    assert state.desired == 3
    assert state.events[-4].message == "0 -> 3 replicas: up: 3 needed for 60 s; demand 2.6"
    assert state.demand == 2.6


def test_a_waiting_request_wakes_a_deployment_once() -> None:
    state = created()

    first, again = wake(state), wake(state)

    assert (first, again) == (True, False)
    assert state.desired == 1
    assert "wake: a request is waiting" in state.reason


def test_what_was_decided_before_a_wake_does_not_put_it_to_sleep_again() -> None:
    state = created()
    wants(state, 2)
    before = state.wish
    wants(state, 0)
    wake(state)

    late = wants(state, 0, generation=before)

    assert not late
    assert state.desired == 1


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"uid": "another life"}, id="another life"),
        pytest.param({"generation": 99}, id="another word"),
    ],
)
def test_a_target_for_somebody_else_is_dropped(fields: dict[str, Any]) -> None:
    state = created()

    taken = wants(state, 4, **fields)

    assert not taken
    assert state.desired == 0


def test_a_held_count_is_not_moved_by_the_load_and_is_where_it_goes_on_from() -> None:
    state = created()
    life.accept_scale(state, ScaleRequest(request_id="2", replicas=3), now=NOW)
    advance(state, now=NOW)
    moved = wants(state, 1) or wake(state)
    life.accept_scale(state, ScaleRequest(request_id="3", replicas=None), now=NOW)
    advance(state, now=NOW)

    assert not moved
    assert (state.desired, state.fixed) == (3, None)
    assert wants(state, 1)
    assert state.desired == 1


def test_a_disabled_or_impossible_deployment_is_not_woken() -> None:
    disabled, off = created(), created(autoscale=AutoscaleConfig(max_replicas=0))
    life.accept_enabled(disabled, EnableRequest(request_id="2"), enabled=False, now=NOW)

    assert not wake(disabled)
    assert not wake(off)
    assert not wake(created(), uid="another life")
    assert not view(disabled).endpoints.wakeable
    assert not view(off).endpoints.wakeable
    assert view(created()).endpoints.wakeable


def test_what_a_deployment_says_of_itself_is_numbered_when_it_changes_only() -> None:
    state = created()
    first = state.version
    advance(state, now=NOW + timedelta(hours=1))
    same = state.version
    wants(state, 2)

    assert (first, same, state.version) == (1, 1, 2)
    assert "publish" in [step.key for step in plan_steps(state, now=NOW, busy=frozenset()).begin]
    said = view(state)
    assert (said.desired, said.ready, said.starting) == (2, 0, 2)
    assert said.id == "chat"
    assert said.endpoints.version == 2


def test_one_whose_requests_nobody_can_count_says_nothing() -> None:
    state = created(template=ReplicaTemplate(command=("work",)))

    assert state.version == 0
    assert all(step.key != "publish" for step in plan_steps(state, now=NOW, busy=frozenset()).begin)


def test_a_deployment_that_goes_says_so_before_it_ends() -> None:
    state = created()
    state.published = state.version
    life.accept_delete(state, now=NOW, by="ada")
    advance(state, now=NOW)

    due = plan_steps(state, now=NOW, busy=frozenset())

    assert not due.finished
    assert view(state).closed
    state.published, state.deadman = state.version, timedelta(hours=6)
    state.pools.clear()
    assert plan_steps(state, now=NOW, busy=frozenset()).finished


def test_a_source_that_no_longer_counts_is_told_so() -> None:
    state = created()
    scraped = AutoscaleConfig(load=LoadConfig(source=LoadKind.SCRAPE))
    request = DeploymentRequest(request_id="2", spec=spec(autoscale=scraped))
    life.accept_update(state, request, now=NOW)
    note_view(state)

    assert view(state).former_sources == (LoadKind.ROUTER,)


def test_boots_are_learned_and_a_long_wait_for_a_place_is_none() -> None:
    state = created()

    learn_boot(state, NOW - timedelta(seconds=100), now=NOW)
    first = state.boot
    learn_boot(state, NOW - timedelta(days=2), now=NOW)

    assert first == timedelta(seconds=100)
    assert state.boot == timedelta(seconds=0.7 * 100 + 0.3 * 1800)
