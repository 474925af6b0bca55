"""A deployment whose replica is on a node that will go."""

from __future__ import annotations

from datetime import timedelta

from garrison.domain.deployments import outcome as outcome
from garrison.domain.deployments.plan import advance
from garrison.domain.deployments.replicas import change
from garrison.domain.deployments.report import reason_in_short, report_deployment, report_endpoints
from garrison.models.deployment import ReplicaState
from garrison.models.deployment_state import DeploymentState
from garrison.models.placement import PlacementState
from garrison.models.replica import AwaitReplicaAnswer
from tests.domain.test_deployment_life import NOW
from tests.domain.test_deployment_outcome import placed, with_replicas

WHY = "spot notice: will be taken at 12:02:00"


def noticed() -> DeploymentState:
    """One replica of one wanted is ready, and its node is under notice."""
    state = with_replicas(1)
    replica = placed(state, "chat-1", ready=True)
    assert replica.placement is not None
    told = {"state": PlacementState.DRAINING, "reason": WHY}
    change(state, "chat-1", placement=replica.placement.model_copy(update=told))
    advance(state, now=NOW)
    return state


def test_a_replica_whose_node_will_go_answers_but_does_not_count_as_ready() -> None:
    state = noticed()

    status, endpoints = report_deployment(state), report_endpoints(state)

    assert (status.desired, status.ready) == (1, 0)
    assert next(one.state for one in endpoints.replicas) is ReplicaState.READY
    assert reason_in_short(state) == f"ready: its node will go: {WHY}"


def test_its_successor_is_made_at_once_and_it_goes_once_that_answers() -> None:
    state = noticed()
    made = [name for name in state.replicas if name != "chat-1"]
    placed(state, made[0])
    advance(state, now=NOW + timedelta(minutes=1))
    before = state.replicas["chat-1"].leaving

    outcome.note_awaited(state, made[0], 1, AwaitReplicaAnswer(ready=True), now=NOW)
    advance(state, now=NOW + timedelta(minutes=1))

    assert (len(made), before) == (1, None)
    assert state.replicas["chat-1"].leaving == "its node will go"
    assert report_deployment(state).ready == 1


def test_it_goes_before_its_node_does_though_nothing_could_replace_it() -> None:
    state = noticed()
    placement = state.replicas["chat-1"].placement
    assert placement is not None
    end = NOW + timedelta(minutes=2)
    told = placement.model_copy(update={"ends_at": end})
    change(state, "chat-1", placement=told)
    advance(state, now=end - timedelta(seconds=31))
    before = state.replicas["chat-1"].leaving

    advance(state, now=end - timedelta(seconds=30))

    assert before is None
    assert state.replicas["chat-1"].leaving == "its node is about to be taken"
