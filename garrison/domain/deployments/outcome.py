"""What the outcome of a step makes of a deployment's state."""

from __future__ import annotations

from datetime import datetime, timedelta

from garrison.domain.deployments.life import add_event
from garrison.domain.deployments.load import learn_boot
from garrison.domain.deployments.replicas import change, current_run, is_ready
from garrison.domain.pools.life import next_trouble
from garrison.models.cluster_state import Failure
from garrison.models.deployment_state import DeploymentState, Run, RunState
from garrison.models.replica import AwaitReplicaAnswer

FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=5)
RESTARTS_PER_HOUR = 5
BUDGET_WINDOW = timedelta(hours=1)


def note_started(
    state: DeploymentState, replica_id: str, generation: int, failed: str | None, *, now: datetime
) -> None:
    """A replica's process was started, or cannot be on its node."""
    run = current_run(state, replica_id, generation)
    if run is None or run.state is not RunState.CALLED:
        return
    if failed is not None:
        _note_failed(state, replica_id, run, f"cannot be started: {failed}", now)
        return
    started = run.model_copy(update={"state": RunState.STARTING})
    change(state, replica_id, run=started, trouble=None)


def note_awaited(
    state: DeploymentState,
    replica_id: str,
    generation: int,
    answer: AwaitReplicaAnswer,
    *,
    now: datetime,
) -> None:
    """A replica is ready, or it is not and why."""
    run = current_run(state, replica_id, generation)
    if run is None or run.state not in {RunState.STARTING, RunState.READY}:
        return
    if not answer.ready:
        _note_failed(state, replica_id, run, answer.reason, now)
        return
    ready_at = run.ready_at or now
    ready = {"state": RunState.READY, "ready_at": ready_at, "doubted": False, "reason": ""}
    change(state, replica_id, run=run.model_copy(update=ready), trouble=None)
    if run.state is RunState.STARTING:
        if run.generation == 1:
            learn_boot(state, state.replicas[replica_id].created_at, now=now)
        add_event(state, "ReplicaReady", "is ready", now=now, about=replica_id)


def _note_failed(
    state: DeploymentState, replica_id: str, run: Run, reason: str, now: datetime
) -> None:
    replica = state.replicas[replica_id]
    recent = tuple(time for time in replica.restarted_at if time > now - BUDGET_WINDOW)
    spent = len(recent) >= RESTARTS_PER_HOUR
    retry_at = None if spent else now + min(FIRST_PAUSE * (1 << len(recent)), LONGEST_PAUSE)
    if spent:
        reason += f"; it was restarted {len(recent)} times within an hour, which is enough"
    failed = {
        "state": RunState.FAILED,
        "doubted": False,
        "reason": reason,
        "retry_at": retry_at,
        "given_up": spent,
    }
    change(
        state,
        replica_id,
        run=run.model_copy(update=failed),
        restarted_at=recent,
        trouble=None,
    )
    add_event(state, "ReplicaFailed", reason, now=now, about=replica_id)


def restart(state: DeploymentState, replica_id: str, *, now: datetime) -> None:
    """Have a failed replica's process started once more, in the same place."""
    replica = state.replicas[replica_id]
    assert replica.run is not None
    change(
        state,
        replica_id,
        run=replica.run.model_copy(
            update={
                "state": RunState.CALLED,
                "generation": replica.starts + 1,
                "started_at": now,
                "ready_at": None,
                "retry_at": None,
            }
        ),
        starts=replica.starts + 1,
        restarts=replica.restarts + 1,
        restarted_at=(*replica.restarted_at, now),
    )
    text = f"is started again, after: {replica.run.reason}"
    add_event(state, "ReplicaRestarted", text, now=now, about=replica_id)


def note_replica_trouble(
    state: DeploymentState,
    replica_id: str,
    failure: Failure,
    *,
    now: datetime,
    retry_after: float | None = None,
) -> None:
    """A call about a replica failed; it is made again after a pause."""
    replica = state.replicas.get(replica_id)
    if replica is None:
        return
    before = replica.trouble
    trouble = next_trouble(before, failure, now=now, retry_after=retry_after)
    change(state, replica_id, trouble=trouble)
    state.last_error = failure
    if before is None or (before.code, before.message) != (failure.code, failure.message):
        text = f"{failure.code}: {failure.message}"
        add_event(state, "Blocked", text, now=now, about=replica_id)


def note_pool_trouble(
    state: DeploymentState, pool: str, failure: Failure, *, now: datetime
) -> None:
    """A pool could not be told; it is told again after a pause."""
    talk = state.pools[pool]
    trouble = next_trouble(talk.trouble, failure, now=now)
    changes = {"trouble": trouble, "tell_due": trouble.retry_at}
    state.pools[pool] = talk.model_copy(update=changes)
    state.last_error = failure


def note_trouble(state: DeploymentState, failure: Failure, *, now: datetime) -> None:
    """Something that concerns the whole could not be done; it is tried again after a pause."""
    state.trouble = next_trouble(state.trouble, failure, now=now)
    state.last_error = failure


def judge_rollout(state: DeploymentState, *, now: datetime) -> None:
    """End a rollout that has replaced everything, or stop one whose new replicas fail."""
    rollout = state.rollout
    wanted = [replica for replica in state.replicas.values() if replica.leaving is None]
    newer = [replica for replica in wanted if replica.revision == state.revision]
    older = [replica for replica in wanted if replica.revision != state.revision]
    if rollout.rolling and not older and sum(map(is_ready, newer)) >= state.desired:
        state.rollout = rollout.model_copy(update={"rolling": False, "stopped": None})
        return
    if not any(map(is_ready, older)):
        return  # nothing that works would be kept by stopping
    for replica in newer:
        if replica.run is not None and replica.run.state is RunState.FAILED:
            _stop_rollout(state, replica.id, replica.run, now)


def _stop_rollout(state: DeploymentState, replica_id: str, run: Run, now: datetime) -> None:
    if run.retry_at is not None and run.retry_at <= now and state.rollout.stopped is None:
        return  # a person asked to try it again
    if not run.given_up:
        kept = run.model_copy(update={"retry_at": None, "given_up": True})
        change(state, replica_id, run=kept)
    if state.rollout.stopped is None:
        reason = f"{replica_id}: {run.reason}"
        state.rollout = state.rollout.model_copy(update={"stopped": reason, "rolling": True})
        add_event(state, "RolloutStopped", reason, now=now, about=replica_id)
