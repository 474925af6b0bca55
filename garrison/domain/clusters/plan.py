"""What a cluster's workflow does next.

`advance` applies what time alone decides (expiry, timeouts, the end of an attempt); `plan_next`
then names one step. The workflow carries it out and comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from garrison.domain import cleanup as proof
from garrison.domain.clusters import recovery as rule
from garrison.domain.clusters.outcome import ENDED, fail_start, is_exhausted, note_exhausted
from garrison.domain.health import all_running, doubt_resolved_at, down_ranks, starting_until
from garrison.domain.lifecycle import (
    accept_terminate,
    add_event,
    enter_phase,
    facts_of,
    is_up,
)
from garrison.errors import ErrorCode
from garrison.models.cluster import WhenDone
from garrison.models.cluster_state import (
    CLOSED_PHASES,
    Attempt,
    Blocked,
    Cleanup,
    ClusterNode,
    ClusterState,
    Failure,
    Phase,
)
from garrison.models.group import NodeStatus, WorkloadState


@dataclass(frozen=True, slots=True)
class Price:
    """Make the quote that was asked for."""


@dataclass(frozen=True, slots=True)
class Buy:
    """Make the current purchase."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Reach all nodes; then the cluster is ready."""


@dataclass(frozen=True, slots=True)
class StartWorkloads:
    """Start the command on these ranks."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """Bring these ranks back, as the attempt that is under way."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SaveLogs:
    """Fetch the logs before the machines are deleted."""


@dataclass(frozen=True, slots=True)
class DeleteAll:
    """Delete by the current purchase's token, then be told of a pass from `look_at` on."""

    look_at: datetime


@dataclass(frozen=True, slots=True)
class LookAt:
    """Ask the watch for a pass from `not_before` on."""

    not_before: datetime
    deadman: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before this time, unless something changes.

    Attributes:
        why: What the time is, for a reader of the timer: `quote expires`.
    """

    until: datetime | None
    why: str = "look again"


@dataclass(frozen=True, slots=True)
class Finish:
    """The life is over."""


Step = (
    Price | Buy | Prepare | StartWorkloads | Restart | SaveLogs | DeleteAll | LookAt | Wait | Finish
)

LOOK_AGAIN = timedelta(minutes=5)
"""After so long without an answer the watch is asked again: somebody may have ended it."""


def advance(state: ClusterState, *, now: datetime, jitter: float) -> None:
    """Apply what the passing of time decides.

    Args:
        state: Changed in place.
        now: Current time.
        jitter: Uniform in [-1, 1], for pauses.
    """
    if state.phase is Phase.QUOTED and state.pending_quote is None:
        _expire(state, now)
    elif state.phase is Phase.PROVISIONING:
        if state.start_deadline is not None and now >= state.start_deadline:
            _time_out_start(state, now)
    elif is_up(state):
        _end_lifetime(state, now)
        _end_attempt(state, now, jitter)
        _end_endless_boots(state, now)
        state.recovery = rule.close_episode(state.recovery, now=now)
        if is_exhausted(state, now=now):
            note_exhausted(state, now=now)


def _end_endless_boots(state: ClusterState, now: datetime) -> None:
    """A node that boots, as nobody ordered, and never runs is as bad as one that is stopped."""
    if state.recovery.attempt is not None:
        return  # which has a deadline of its own
    limit = facts_of(state).start_timeout
    for node in state.nodes:
        end = starting_until(node, limit)
        if end is not None and now >= end:
            text = f"booted, but was not ready within {limit}"
            failed = {"status": NodeStatus.FAILED, "message": text, "since": now}
            state.nodes[node.rank] = node.model_copy(update=failed)
            add_event(state, "NodeFailed", f"node {node.rank} {text}", now=now, node=node.rank)


def _expire(state: ClusterState, now: datetime) -> None:
    if state.quote is not None and now >= state.quote.expires_at:
        enter_phase(state, Phase.EXPIRED, now=now)


def _time_out_start(state: ClusterState, now: datetime) -> None:
    late = ", ".join(str(n.rank) for n in state.nodes if n.status is not NodeStatus.RUNNING)
    what = f"nodes {late} were" if late else "the nodes could not be reached and were"
    timeout = facts_of(state).start_timeout
    failure = Failure(
        code=ErrorCode.PROVIDER_ERROR,
        message=f"{what} not ready {timeout} after the purchase (start timeout)",
    )
    fail_start(state, failure, now=now)


def _end_lifetime(state: ClusterState, now: datetime) -> None:
    limit = lifetime_ends_at(state)
    if limit is not None and now >= limit:
        accept_terminate(state, now=now, by="garrison", why="max_lifetime has passed")
        return
    if state.spec is None or state.spec.when_done is not WhenDone.TERMINATE:
        return
    if state.spec.command and all(
        node.workload is not None and node.workload.state in ENDED for node in state.nodes
    ):
        accept_terminate(state, now=now, by="garrison", why="the workload is done (when_done)")


def lifetime_ends_at(state: ClusterState) -> datetime | None:
    """Return when `max_lifetime` ends the cluster, None when it does not."""
    if state.ready_at is None or state.terms is None or state.terms.max_lifetime is None:
        return None
    return state.ready_at + state.terms.max_lifetime


def _end_attempt(state: ClusterState, now: datetime, jitter: float) -> None:
    attempt = state.recovery.attempt
    if attempt is None:
        return
    down = down_ranks(state.nodes)
    running = frozenset(n.rank for n in state.nodes if n.status is NodeStatus.RUNNING)
    if not rule.attempt_over(attempt, down=down, running=running, now=now):
        return
    if all_running(state.nodes):
        return
    _give_up_late(state, attempt)
    left = [n for n in state.nodes if n.status is not NodeStatus.RUNNING]
    error = "; ".join(_why_down(node, attempt.results.get(node.rank)) for node in left)
    state.recovery = rule.end_attempt(state.recovery, error=error, now=now, jitter=jitter)
    text = f"attempt {attempt.number} of {state.recovery.max_attempts} left: {error}"
    add_event(state, "RecoveryAttemptFailed", text, now=now)


def _give_up_late(state: ClusterState, attempt: Attempt) -> None:
    # A node that is `starting` for ever would be waited for without end.
    state.nodes = [
        node.model_copy(update={"status": NodeStatus.FAILED, "message": "restarted, but not ready"})
        if node.status is NodeStatus.STARTING and node.rank in attempt.results
        else node
        for node in state.nodes
    ]


def _why_down(node: ClusterNode, result: object) -> str:
    answer = f" (restart: {result})" if result is not None else ""
    said = f": {node.message}" if node.message else ""
    return f"node {node.rank} is {node.status}{answer}{said}"


def plan_next(state: ClusterState, *, now: datetime) -> Step:
    """Return the next step of a life that `advance` has brought up to date."""
    if state.phase in CLOSED_PHASES:
        return Finish()
    if state.pending_quote is not None and state.terminate_accepted_at is None:
        return Price()
    if state.phase is None:
        return Finish() if _no_life(state) else Wait(None)
    if state.blocked is not None and now < state.blocked.retry_at:
        return _wait_blocked(state, state.blocked)
    return _PLANS[state.phase](state, now)


def _wait_blocked(state: ClusterState, blocked: Blocked) -> Step:
    """A provider that asks for patience puts off its calls, and not the ends that time sets."""
    times = {
        f"try again after {blocked.code}": blocked.retry_at,
        "start timeout": state.start_deadline if state.phase is Phase.PROVISIONING else None,
        "max_lifetime": lifetime_ends_at(state) if is_up(state) else None,
    }
    return _wait_for_first(times)


def _no_life(state: ClusterState) -> bool:
    return state.refusal is not None or state.terminate_accepted_at is not None


def _plan_quoted(state: ClusterState, now: datetime) -> Step:
    return Wait(state.quote.expires_at if state.quote else None, "quote expires")


def _plan_launching(state: ClusterState, now: datetime) -> Step:
    purchase = state.purchase
    if purchase is not None and not purchase.ended:
        return Buy()
    return _plan_cleanup(state, now)


def _plan_provisioning(state: ClusterState, now: datetime) -> Step:
    if all_running(state.nodes) and not state.prepared:
        return Prepare()
    return _look_or_wait(state, now, {"start timeout": state.start_deadline})


def _plan_up(state: ClusterState, now: datetime) -> Step:
    attempt = state.recovery.attempt
    if attempt is not None and not attempt.called:
        return Restart(attempt.ranks)
    step = rule.decide_recovery(state.recovery, down=down_ranks(state.nodes), now=now)
    if isinstance(step, rule.Start):
        return Restart(step.ranks)
    if ranks := ranks_to_start(state):
        return StartWorkloads(ranks)
    if state.deadman_at is not None and now >= state.deadman_at:
        return LookAt(now, deadman=True)
    times = {
        "next recovery attempt": step.time if isinstance(step, rule.WaitUntil) else None,
        "restart timeout": attempt.deadline if attempt is not None else None,
        "max_lifetime": lifetime_ends_at(state),
        "recovery episode closes": rule.closes_at(state.recovery),
        "deadman probe": state.deadman_at,
        "boot timeout": _boots_end_at(state),
    }
    return _look_or_wait(state, now, times)


def wants_recovery(state: ClusterState, *, now: datetime) -> bool:
    """Return whether a recovery attempt is to start now."""
    step = rule.decide_recovery(state.recovery, down=down_ranks(state.nodes), now=now)
    return isinstance(step, rule.Start)


def call_ends_at(state: ClusterState, *, now: datetime) -> datetime | None:
    """Return when a call to running nodes must make way for something more urgent, or None."""
    attempt = state.recovery.attempt
    step = rule.decide_recovery(state.recovery, down=down_ranks(state.nodes), now=now)
    times = [
        step.time if isinstance(step, rule.WaitUntil) else None,
        attempt.deadline if attempt is not None else None,
        lifetime_ends_at(state),
    ]
    return min((time for time in times if time is not None), default=None)


def ranks_to_start(state: ClusterState) -> tuple[int, ...]:
    """Return the running nodes on which the command was not started since their last boot.

    A rank whose command has succeeded is not run again after a boot.
    """
    if state.spec is None or not state.spec.command:
        return ()
    return tuple(node.rank for node in state.nodes if _needs_start(node, state.generation))


def _needs_start(node: ClusterNode, generation: int) -> bool:
    if node.status is not NodeStatus.RUNNING:
        return False
    if node.started == (node.incarnation, generation):
        return False
    done = node.workload is not None and node.workload.state is WorkloadState.SUCCEEDED
    return not (done and node.started is not None and node.started[1] == generation)


def _plan_terminating(state: ClusterState, now: datetime) -> Step:
    purchase = state.purchase
    if purchase is None or not purchase.called or purchase.emptied_at is not None:
        return Finish()
    if state.prepared and not state.logs_saved:
        return SaveLogs()
    return _plan_cleanup(state, now)


def _plan_cleanup(state: ClusterState, now: datetime) -> Step:
    assert state.cleanup is not None
    step = proof.plan_cleanup(state.cleanup, now=now, facts=facts_of(state))
    if isinstance(step, proof.Delete):
        return DeleteAll(step.look_at)
    if isinstance(step, proof.Look):
        return LookAt(step.not_before)
    if isinstance(step, proof.Await):
        return _await_look(state.cleanup, step, now)
    return Finish()


def _await_look(cleanup: Cleanup, step: proof.Await, now: datetime) -> Step:
    if cleanup.asked_for is None:
        return Wait(step.until, "delete again")
    overdue = cleanup.asked_for + LOOK_AGAIN
    if now >= overdue:
        return LookAt(now)
    if step.until is None or overdue < step.until:
        return Wait(overdue, "ask the watch again")
    return Wait(step.until, "delete again")


def _boots_end_at(state: ClusterState) -> datetime | None:
    if state.recovery.attempt is not None:
        return None
    limit = facts_of(state).start_timeout
    ends = [starting_until(node, limit) for node in state.nodes]
    return min((end for end in ends if end is not None), default=None)


def _look_or_wait(state: ClusterState, now: datetime, times: dict[str, datetime | None]) -> Step:
    doubt = doubt_resolved_at(state.nodes)
    if doubt is not None and (state.ask_due is None or state.ask_due < doubt):
        return LookAt(doubt)
    if doubt is not None and state.ask_due is not None:
        if now >= state.ask_due + LOOK_AGAIN:
            return LookAt(now)
        times = {**times, "ask the watch again": state.ask_due + LOOK_AGAIN}
    return _wait_for_first(times)


def _wait_for_first(times: dict[str, datetime | None]) -> Step:
    known = {why: time for why, time in times.items() if time is not None}
    if not known:
        return Wait(None)
    why = min(known, key=lambda name: known[name])
    return Wait(known[why], why)


_PLANS = {
    Phase.QUOTED: _plan_quoted,
    Phase.LAUNCHING: _plan_launching,
    Phase.PROVISIONING: _plan_provisioning,
    Phase.RUNNING: _plan_up,
    Phase.DEGRADED: _plan_up,
    Phase.TERMINATING: _plan_terminating,
}
