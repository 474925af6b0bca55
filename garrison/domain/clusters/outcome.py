"""What the outcome of a step, or an observation, makes of a cluster's state."""

from __future__ import annotations

from datetime import datetime, timedelta

from garrison.domain import cleanup as proof
from garrison.domain.clusters import recovery as rule
from garrison.domain.health import (
    DOWN,
    accepts_observation,
    all_running,
    down_ranks,
    living_nodes,
    none_running,
    observe_nodes,
)
from garrison.domain.lifecycle import (
    add_event,
    add_purchase,
    begin_giving_back,
    enter_phase,
    facts_of,
    is_up,
    next_place,
)
from garrison.domain.pricing import pause_meter, start_meter
from garrison.errors import ErrorCode
from garrison.models.cluster_messages import PurchaseAnswer, RestartAnswer
from garrison.models.cluster_state import (
    CLOSED_PHASES,
    Blocked,
    ClusterNode,
    ClusterState,
    Failure,
    Phase,
    Purchase,
)
from garrison.models.group import NodeStatus, RestartResult, WorkloadState, WorkloadStatus
from garrison.models.observation import Observation

WORKLOAD = "main"
"""Name of a cluster's workload on each of its nodes."""

ENDED = frozenset({WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.STOPPED})
"""States in which a command no longer runs and is not started again."""

FIRST_RETRY = timedelta(seconds=2)
LONGEST_RETRY = timedelta(minutes=1)


def note_blocked(
    state: ClusterState, failure: Failure, *, now: datetime, retry_after: float | None = None
) -> None:
    """Keep what stops progress; tried again after a doubling pause, or when the provider said."""
    before = state.blocked
    tries = before.tries + 1 if before is not None else 1
    pause = min(FIRST_RETRY * (1 << min(tries - 1, 10)), LONGEST_RETRY)
    if retry_after is not None:
        pause = max(pause, timedelta(seconds=retry_after))
    state.blocked = Blocked(
        code=failure.code,
        message=failure.message,
        since=before.since if before is not None else now,
        tries=tries,
        retry_at=now + pause,
    )
    state.last_error = failure
    if before is None or (before.code, before.message) != (failure.code, failure.message):
        add_event(state, "Blocked", f"{failure.code}: {failure.message}", now=now)


def note_unblocked(state: ClusterState) -> None:
    """A step worked again."""
    state.blocked = None


def _replace_purchase(state: ClusterState, **changes: object) -> Purchase:
    purchase = state.purchases[-1].model_copy(update=changes)
    state.purchases[-1] = purchase
    return purchase


def note_purchase_called(state: ClusterState) -> None:
    """The purchase is about to be made; from now on it may have an effect."""
    _replace_purchase(state, called=True)


def note_purchased(
    state: ClusterState, answer: PurchaseAnswer, *, now: datetime, deadman: timedelta
) -> None:
    """Take the provider's answer: a group, or a refusal.

    Args:
        state: Changed in place.
        answer: Certain; nothing more can come of the call, but for what it says of earlier tries.
        now: Current time.
        deadman: How long to wait for the first sign of life from the watch.
    """
    until = answer.effects_until or answer.ended_at
    _replace_purchase(state, ended=True, effects_until=until)
    state.call_ended_at = answer.ended_at
    if answer.refusal is not None:
        failure = Failure(code=answer.refusal.code, message=answer.refusal.message)
        note_purchase_failed(state, failure, effects_until=until, now=now)
        return
    assert answer.group is not None
    if state.phase is not Phase.LAUNCHING:  # terminated meanwhile
        begin_giving_back(state, now=now)
        return
    enter_phase(state, Phase.PROVISIONING, now=now)
    state.start_deadline = now + facts_of(state).start_timeout
    state.deadman_at = now + deadman
    state.nodes = [
        ClusterNode(
            rank=node.rank,
            status=NodeStatus.STARTING,
            provider_id=node.provider_id,
            private_address=node.private_address,
            first_port=node.first_port,
            ssh=node.ssh,
        )
        for node in sorted(answer.group.nodes, key=lambda node: node.rank)
    ]
    place = state.purchases[-1].offer
    text = f"{len(state.nodes)} x {place.instance_type} bought in {place.region or place.provider}"
    add_event(state, "Purchased", text, now=now, by=place.provider)


def note_purchase_failed(
    state: ClusterState, failure: Failure, *, effects_until: datetime, now: datetime
) -> None:
    """The purchase did not work out; what it may have left is cleaned up first.

    Args:
        state: Changed in place.
        failure: Why, in the provider's words.
        effects_until: When the call can no longer have an effect.
        now: Current time.
    """
    purchase = _replace_purchase(
        state, ended=True, effects_until=effects_until, code=failure.code, answer=failure.message
    )
    state.call_ended_at = now if state.call_ended_at is None else max(now, state.call_ended_at)
    place = purchase.offer
    where = place.region or place.provider
    add_event(state, "PurchaseFailed", f"{where}: {failure.message}", now=now, by=place.provider)
    _give_up_place(state, failure, now=now)


def note_purchase_cancelled(state: ClusterState, *, now: datetime) -> None:
    """The purchase was cancelled by a terminate; it may still take effect for a while."""
    bound = facts_of(state).effect_bound
    _replace_purchase(state, ended=True, effects_until=now + bound)
    state.call_ended_at = now
    begin_giving_back(state, now=now)


def fail_start(state: ClusterState, failure: Failure, *, now: datetime) -> None:
    """The machines were bought but did not all start: all or nothing, so give them back."""
    _replace_purchase(state, code=failure.code, answer=failure.message)
    add_event(state, "StartFailed", failure.message, now=now)
    _give_up_place(state, failure, now=now)


def _give_up_place(state: ClusterState, failure: Failure, *, now: datetime) -> None:
    state.last_error = failure
    begin_giving_back(state, now=now)
    state.start_deadline = None
    if state.phase is Phase.TERMINATING:
        return
    if next_place(state) is not None:
        if state.phase is not Phase.LAUNCHING:
            enter_phase(state, Phase.LAUNCHING, now=now)
        return
    state.closing = failure
    enter_phase(state, Phase.TERMINATING, now=now)


def note_deleted(state: ClusterState, *, ended_at: datetime, asked_for: datetime) -> None:
    """A delete by token succeeded and a look was asked for."""
    assert state.cleanup is not None
    state.call_ended_at = ended_at
    state.cleanup = proof.note_deleted(state.cleanup, ended_at=ended_at, asked_for=asked_for)


def note_asked(state: ClusterState, *, not_before: datetime) -> None:
    """A look was asked for."""
    state.ask_due = not_before
    if state.cleanup is not None:
        state.cleanup = proof.note_asked(state.cleanup, not_before=not_before)


def observe(state: ClusterState, observation: Observation, *, now: datetime) -> bool:
    """Apply an observation; return False if it may not be believed, or changes nothing more."""
    if state.phase in CLOSED_PHASES:
        return False  # told after the proof was complete, before the workflow could close
    if not accepts_observation(
        observation,
        uid=state.uid,
        observed_at=state.observed_at,
        call_ended_at=state.call_ended_at,
    ):
        return False
    purchase = state.purchase
    if purchase is None or observation.provider != purchase.offer.provider:
        return False
    state.observed_at = observation.begun_at
    if state.cleanup is not None:
        _observe_cleanup(state, observation, now)
    elif state.phase is Phase.PROVISIONING or is_up(state):
        _observe_nodes(state, observation, purchase, now)
    return True


def is_of_after_the_call(state: ClusterState, observation: Observation) -> bool:
    """Return whether the last observation tells of the time after our last call."""
    ended_at = state.call_ended_at
    if state.observed_at != observation.begun_at:
        return False
    return ended_at is None or observation.begun_at >= ended_at


def observe_again(state: ClusterState, observation: Observation, *, now: datetime) -> None:
    """Apply the last observation once more, now that the outcome of a call is known.

    A workflow is told of both in any order, so what was seen after the call can come before its
    outcome; the watch does not tell it again unless something changes.
    """
    if state.observed_at == observation.begun_at:
        state.observed_at = None
        observe(state, observation, now=now)
        state.observed_at = observation.begun_at


def _observe_cleanup(state: ClusterState, observation: Observation, now: datetime) -> None:
    assert state.cleanup is not None
    facts = facts_of(state)
    _show_last_nodes(state, observation, now)
    state.cleanup = proof.note_observed(
        state.cleanup,
        begun_at=observation.begun_at,
        machines=len(living_nodes(observation.groups)),
        facts=facts,
    )
    if not state.cleanup.proven:
        return
    purchase = _replace_purchase(state, emptied_at=now)
    state.nodes = list(map(_ended_node, state.nodes))
    place = purchase.offer
    text = f"{place.region or place.provider} is proven empty"
    add_event(state, "Emptied", text, now=now, by=place.provider)
    _go_on_or_end(state, now)


def _ended_node(node: ClusterNode) -> ClusterNode:
    work = node.workload
    if work is not None and work.state not in ENDED:
        work = work.model_copy(update={"state": WorkloadState.STOPPED, "message": None})
    return node.model_copy(
        update={
            "status": NodeStatus.TERMINATED,
            "doubt": None,
            "message": node.message if node.status is NodeStatus.FAILED else None,
            "workload": work,
        }
    )


def _show_last_nodes(state: ClusterState, observation: Observation, now: datetime) -> None:
    shown = {node.rank for group in observation.groups for node in group.nodes}
    look = observe_nodes(
        [node for node in state.nodes if node.rank in shown],
        observation,
        token=state.purchases[-1].token,
        settled=False,
        now=now,
    )
    seen = {node.rank: node for node in look.nodes}
    state.nodes = [seen.get(node.rank, node) for node in state.nodes]


def _go_on_or_end(state: ClusterState, now: datetime) -> None:
    if state.phase is Phase.LAUNCHING:
        place = next_place(state)
        if place is not None:
            add_purchase(state, place)
            return
        state.closing = _why_bought_nothing(state)
        enter_phase(state, Phase.TERMINATING, now=now)
    end_life(state, now=now)


def _why_bought_nothing(state: ClusterState) -> Failure:
    # Not `last_error`, which by now may tell of a delete that did not work at once.
    purchase = state.purchases[-1]
    code = purchase.code or ErrorCode.INTERNAL
    return Failure(code=code, message=purchase.answer or "the launch did not work")


def end_life(state: ClusterState, *, now: datetime) -> None:
    """Enter the last phase: nothing is owned any more."""
    failed = state.terminate_accepted_at is None and state.closing is not None
    enter_phase(state, Phase.FAILED if failed else Phase.TERMINATED, now=now)
    state.blocked = None
    state.last_error = state.closing


def _observe_nodes(
    state: ClusterState, observation: Observation, purchase: Purchase, now: datetime
) -> None:
    facts = facts_of(state)
    called = state.call_ended_at
    settled = called is None or observation.begun_at >= called + facts.settle
    look = observe_nodes(
        state.nodes,
        observation,
        token=purchase.token,
        settled=settled,
        settle=facts.settle,
        now=now,
    )
    state.nodes = look.nodes
    state.events.extend(look.events)
    del state.events[:-100]
    if state.phase is Phase.PROVISIONING:
        _judge_start(state, now)
    else:
        _judge_health(state, now=now, confirmed=observation.confirmed)


def _judge_start(state: ClusterState, now: datetime) -> None:
    dead = [node for node in state.nodes if node.status in DOWN]
    if not dead:
        return
    words = "; ".join(f"node {n.rank}: {n.message or n.status}" for n in dead)
    code = next((n.failure for n in dead if n.failure is not None), ErrorCode.PROVIDER_ERROR)
    fail_start(state, Failure(code=code, message=f"did not start: {words}"), now=now)


def _judge_health(state: ClusterState, *, now: datetime, confirmed: bool) -> None:
    state.recovery = state.recovery.model_copy(update={"held": not confirmed})
    whole = all_running(state.nodes)
    if whole and state.phase is Phase.DEGRADED:
        _become_whole(state, now)
    elif not whole and state.phase is Phase.RUNNING:
        _become_degraded(state, now)
    _judge_charge(state, now)


def _become_whole(state: ClusterState, now: datetime) -> None:
    attempt = state.recovery.attempt
    how = f"by attempt {attempt.number}" if attempt is not None else "by themselves"
    enter_phase(state, Phase.RUNNING, now=now)
    state.recovery = rule.note_healthy(state.recovery, now=now)
    state.last_error = None
    add_event(state, "Recovered", f"all nodes run again, {how}", now=now)


def _become_degraded(state: ClusterState, now: datetime) -> None:
    ranks = [node for node in state.nodes if node.status is not NodeStatus.RUNNING]
    reason = ", ".join(f"node {node.rank} is {node.status}" for node in ranks)
    enter_phase(state, Phase.DEGRADED, now=now)
    state.recovery = rule.open_episode(state.recovery, reason=reason, now=now)
    add_event(state, "Degraded", reason, now=now)


def _judge_charge(state: ClusterState, now: datetime) -> None:
    if state.meter is None:
        return
    off = none_running(state.nodes)
    if off and state.meter.running_since is not None:
        state.meter = pause_meter(state.meter, now)
        add_event(state, "ChargePaused", "no node runs, so nothing is charged", now=now)
    elif not off and state.meter.running_since is None:
        state.meter = start_meter(state.meter, now)
        add_event(state, "ChargeResumed", "a node runs again", now=now)


def begin_attempt(state: ClusterState, ranks: tuple[int, ...], *, now: datetime) -> None:
    """Count an attempt before its first call."""
    state.recovery = rule.begin_attempt(
        state.recovery, ranks=ranks, now=now, timeout=facts_of(state).start_timeout
    )
    attempt = state.recovery.attempt
    assert attempt is not None
    names = ", ".join(map(str, ranks))
    text = f"attempt {attempt.number} of {state.recovery.max_attempts}: restart node {names}"
    add_event(state, "RecoveryAttempt", text, now=now)


def restart_token(state: ClusterState, rank: int) -> str:
    """Return the token of a rank's restart in the attempt under way, at most 64 characters."""
    episode = state.recovery.episode
    attempt = state.recovery.attempt
    assert episode is not None
    assert attempt is not None
    return f"{state.uid}-r{rank}-e{episode.id}-a{attempt.number}"


def note_restarts(state: ClusterState, answers: dict[int, RestartAnswer], *, now: datetime) -> None:
    """Take the answers of an attempt's restarts; the boot itself is seen in observations.

    Without an attempt any more, all nodes were seen running before the answers came; then only
    those count that did restart a node.
    """
    attempt = state.recovery.attempt
    if attempt is None:
        done = RestartResult.RESTARTED
        answers = {rank: answer for rank, answer in answers.items() if answer.result is done}
    else:
        results = {rank: answer.result for rank, answer in answers.items()}
        called = attempt.model_copy(update={"results": results, "called": True})
        state.recovery = state.recovery.model_copy(update={"attempt": called})
    ended = [answer.ended_at for answer in answers.values()]
    if attempt is not None or ended:
        state.call_ended_at = max([*ended, state.call_ended_at or now])
    for rank, answer in sorted(answers.items()):
        _note_restart(state, rank, answer, now, seen=attempt is None)


def _note_restart(
    state: ClusterState, rank: int, answer: RestartAnswer, now: datetime, *, seen: bool
) -> None:
    said = f": {answer.message}" if answer.message else ""
    add_event(state, "NodeRestart", f"restart: {answer.result}{said}", now=now, node=rank)
    if answer.result not in {RestartResult.RESTARTED, RestartResult.ALREADY_RUNNING}:
        return
    node = state.nodes[rank]
    changes: dict[str, object] = {
        "restarts": node.restarts + (answer.result is RestartResult.RESTARTED)
    }
    if not seen:
        changes |= {"status": NodeStatus.STARTING, "doubt": None}
    state.nodes[rank] = node.model_copy(update=changes)


def note_exhausted(state: ClusterState, *, now: datetime) -> None:
    """Say once that the budget of this episode is spent."""
    episode = state.recovery.episode
    assert episode is not None
    text = f"{episode.attempts} of {state.recovery.max_attempts} attempts are spent"
    if episode.last_error:
        text += f"; the last one: {episode.last_error}"
    failure = Failure(code=ErrorCode.RECOVERY_EXHAUSTED, message=text)
    if state.last_error == failure:
        return
    state.last_error = failure
    state.recovery = state.recovery.model_copy(update={"requested": False})
    add_event(state, "RecoveryExhausted", text, now=now)


def note_started(
    state: ClusterState,
    started: tuple[int, ...],
    failed: dict[int, str],
    boots: dict[int, int],
    *,
    now: datetime,
) -> None:
    """The command was started on some ranks, and cannot be on others, in the boots they were in."""
    for rank in (*started, *failed):
        node = state.nodes[rank]
        mark = (boots[rank], state.generation)
        state.nodes[rank] = node.model_copy(update={"started": mark})
    for rank, text in sorted(failed.items()):
        work = WorkloadStatus(name=WORKLOAD, state=WorkloadState.FAILED, message=text)
        state.nodes[rank] = state.nodes[rank].model_copy(update={"workload": work})
        add_event(state, "WorkloadNotStarted", text, now=now, node=rank)


def is_exhausted(state: ClusterState, *, now: datetime) -> bool:
    """Return whether recovery has given up on what is down now."""
    step = rule.decide_recovery(state.recovery, down=down_ranks(state.nodes), now=now)
    return isinstance(step, rule.Exhausted)
