"""Replicas that fail: how often, how soon and until when they are started again."""

from __future__ import annotations

from datetime import timedelta

from garrison.domain.deployments import life as life
from garrison.domain.deployments import outcome as outcome
from garrison.domain.deployments.plan import advance
from garrison.domain.deployments.replicas import change, note_stopped
from garrison.domain.deployments.report import report_deployment
from garrison.errors import ErrorCode
from garrison.models.cluster_state import Failure
from garrison.models.deployment import (
    DeploymentRequest,
    DeploymentSpec,
    EnableRequest,
    ReplicaState,
    ReplicaTemplate,
)
from garrison.models.deployment_state import DeploymentState, Replica, Run, RunState
from garrison.models.group import Node, NodeStatus
from garrison.models.placement import Placement, PlacementState
from garrison.models.replica import AwaitReplicaAnswer
from tests.domain.test_deployment_life import NOW, created, spec

CRASHED = AwaitReplicaAnswer(ready=False, reason="its process has failed with exit code 1")
READY = AwaitReplicaAnswer(ready=True)


def placed(state: DeploymentState, name: str, *, revision: int = 1, ready: bool = False) -> Replica:
    node = Node(rank=0, provider_id=f"m-{name}", status=NodeStatus.RUNNING)
    replica = Replica(
        id=name,
        revision=revision,
        created_at=NOW,
        pool="nodepool/cc/a",
        placed=True,
        placement=Placement(
            replica=name, state=PlacementState.PLACED, machine=f"m-{name}", node=node
        ),
        run=Run(
            provider="sim",
            machine=f"m-{name}",
            incarnation=1,
            generation=1,
            state=RunState.READY if ready else RunState.STARTING,
            started_at=NOW,
        ),
        starts=1,
    )
    state.replicas[name] = replica
    return replica


def with_replicas(count: int) -> DeploymentState:
    state = created()
    state.fixed = count
    advance(state, now=NOW)
    state.replicas.clear()
    return state


def run_of(state: DeploymentState, name: str) -> Run:
    run = state.replicas[name].run
    assert run is not None
    return run


def test_pauses_between_restarts_grow_and_end() -> None:
    state = with_replicas(1)
    placed(state, "chat-1")
    now, pauses = NOW, []

    while not run_of(state, "chat-1").given_up:
        generation = run_of(state, "chat-1").generation
        outcome.note_awaited(state, "chat-1", generation, CRASHED, now=now)
        retry_at = run_of(state, "chat-1").retry_at
        if retry_at is not None:
            pauses.append((retry_at - now).total_seconds())
            now = retry_at
            advance(state, now=now)
            outcome.note_started(state, "chat-1", run_of(state, "chat-1").generation, None, now=now)

    assert pauses == [10, 20, 40, 80, 160]
    assert state.replicas["chat-1"].restarts == 5
    assert "restarted 5 times within an hour" in run_of(state, "chat-1").reason


def test_the_budget_is_that_of_the_last_hour() -> None:
    state = with_replicas(1)
    placed(state, "chat-1")
    long_ago = tuple(NOW - timedelta(minutes=60 + number) for number in range(5))
    change(state, "chat-1", restarted_at=long_ago)

    outcome.note_awaited(state, "chat-1", 1, CRASHED, now=NOW)

    assert run_of(state, "chat-1").retry_at == NOW + timedelta(seconds=10)


def test_a_persons_word_starts_what_was_given_up() -> None:
    state = with_replicas(1)
    placed(state, "chat-1")
    spent = tuple(NOW - timedelta(minutes=number) for number in range(5))
    change(state, "chat-1", restarted_at=spent)
    outcome.note_awaited(state, "chat-1", 1, CRASHED, now=NOW)
    advance(state, now=NOW + timedelta(days=1))
    still = run_of(state, "chat-1").state

    life.accept_enabled(state, EnableRequest(request_id="1"), enabled=True, now=NOW)
    advance(state, now=NOW)

    assert still is RunState.FAILED
    assert run_of(state, "chat-1").state is RunState.CALLED


def test_news_of_an_earlier_start_says_nothing_about_the_present_one() -> None:
    state = with_replicas(1)
    placed(state, "chat-1")

    outcome.note_awaited(state, "chat-1", 7, CRASHED, now=NOW)
    outcome.note_started(state, "gone", 1, None, now=NOW)

    assert run_of(state, "chat-1").state is RunState.STARTING


def rolling() -> DeploymentState:
    state = with_replicas(1)
    placed(state, "chat-1", ready=True)
    better: DeploymentSpec = spec(template=ReplicaTemplate(command=("serve", "2")))
    request = DeploymentRequest(request_id="2", spec=better)
    life.accept_update(state, request, now=NOW)
    placed(state, "chat-2", revision=2)
    state.next_replica = 3
    advance(state, now=NOW)
    return state


def test_a_new_replica_that_fails_stops_the_rollout_and_the_old_one_stays() -> None:
    state = rolling()

    outcome.note_awaited(state, "chat-2", 1, CRASHED, now=NOW)
    advance(state, now=NOW)
    advance(state, now=NOW + timedelta(hours=2))

    rollout = report_deployment(state).rollout
    assert (rollout.state, rollout.reason) == ("stopped", f"chat-2: {CRASHED.reason}")
    assert sorted(state.replicas) == ["chat-1", "chat-2"]
    assert state.replicas["chat-1"].leaving is None
    assert run_of(state, "chat-2").state is RunState.FAILED


def test_an_update_takes_a_stopped_rollout_up_again() -> None:
    state = rolling()
    outcome.note_awaited(state, "chat-2", 1, CRASHED, now=NOW)
    advance(state, now=NOW)

    third = spec(template=ReplicaTemplate(command=("serve", "3")))
    life.accept_update(state, DeploymentRequest(request_id="3", spec=third), now=NOW)
    advance(state, now=NOW)
    note_stopped(state, "chat-2", run_of(state, "chat-2").generation)
    advance(state, now=NOW)

    left = {name: one for name, one in state.replicas.items() if one.leaving is None}
    assert report_deployment(state).rollout.state == "rolling"
    assert {one.revision for one in left.values()} == {1, 3}


def test_a_rollout_is_done_once_the_new_ones_answer() -> None:
    state = rolling()

    outcome.note_awaited(state, "chat-2", 1, READY, now=NOW)
    advance(state, now=NOW)
    leaving = state.replicas["chat-1"].leaving
    del state.replicas["chat-1"]
    advance(state, now=NOW)

    assert leaving == "revision 1 is replaced"
    assert report_deployment(state).rollout.state == "done"
    assert list(state.templates) == [2]


def test_a_call_that_fails_is_shown_and_made_again_with_growing_pauses() -> None:
    state = with_replicas(1)
    placed(state, "chat-1")
    failure = Failure(code=ErrorCode.PROVIDER_UNREACHABLE, message="no answer")

    outcome.note_replica_trouble(state, "chat-1", failure, now=NOW)
    outcome.note_replica_trouble(state, "chat-1", failure, now=NOW + timedelta(seconds=2))

    status = report_deployment(state)
    assert status.blocked is not None
    assert (status.blocked.tries, status.blocked.since) == (2, NOW)
    assert status.replicas[0].state is ReplicaState.STARTING
    assert status.replicas[0].reason == "provider_unreachable: no answer"
    assert [event.reason for event in status.events].count("Blocked") == 1
