"""The life of one cluster, from the first quote until every machine is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.workflow import ActivityHandle

with workflow.unsafe.imports_passed_through():
    from garrison.domain import lifecycle
    from garrison.domain.clusters import outcome as outcome
    from garrison.domain.clusters import plan as plan
    from garrison.domain.clusters.call import (
        delete_request,
        prepare_request,
        purchase_request,
        restart_requests,
        save_logs_request,
        start_request,
    )
    from garrison.domain.clusters.quote import (
        merge_places,
        providers_to_ask,
        quote_cluster,
        silent_place,
    )
    from garrison.domain.clusters.report import details_markdown, report_cluster, report_quote
    from garrison.domain.requests import recall, remember
    from garrison.errors import ErrorCode, Faulty, GarrisonError, error_of
    from garrison.failures import as_application_error, code_of, message_of, retry_after_of
    from garrison.models.cluster_messages import (
        ActionAck,
        ClusterInput,
        LaunchRequest,
        LookRequest,
        PlaceAnswer,
        PlaceRequest,
        QuoteAck,
        QuoteAnswer,
        QuoteQuery,
        QuoteRequest,
        RecoverRequest,
        RecoverySwitch,
        RestartAnswer,
        TerminateAck,
        TerminateRequest,
    )
    from garrison.models.cluster_state import ClusterState, Failure, Phase, QuoteIntent
    from garrison.models.cluster_status import ClusterStatus
    from garrison.models.group import NodeStatus, RestartResult
    from garrison.models.observation import Observation
    from garrison.models.quote import QuoteRefusal
    from garrison.workflows import cluster_calls as calls
    from garrison.workflows.patience import Patience, never
    from garrison.workflows.visibility import cluster_attributes, cluster_memo, publish_changes

FIRST_QUOTE_WITHIN = timedelta(minutes=1)
RENEW_EVENTS = 2_000
DEADMAN_JITTER = 0.2

PUBLISH_WHAT_CHANGED = "publish-what-changed"
NEWS_BEFORE_OUTCOME = "news-before-outcome"

QUOTE_DESPITE_SILENCE = "quote-despite-silence"

LEAVE_TRACES = "leave-traces"
SINCE = {
    PUBLISH_WHAT_CHANGED: 1,
    NEWS_BEFORE_OUTCOME: 1,
    QUOTE_DESPITE_SILENCE: 2,
    LEAVE_TRACES: 3,  # by the worker, see `garrison.workers.traces`
}
"""The revision from which a run goes the new way of a change without a marker; of an older run it
is asked with one. See `docs/changing-workflows.md`."""

REVISION = max(SINCE.values())
"""What new runs are started with."""


class Request(Protocol):
    """What every update has."""

    @property
    def request_id(self) -> str:
        """Chosen by the client; the same one gets the same answer."""
        ...


def _key(verb: str, request: Request) -> str:
    """Return what an answer is kept under; one id may be used for one update of each kind."""
    return f"{verb}/{request.request_id}"


@workflow.defn(name="Cluster")
class ClusterWorkflow:
    """Own a cluster's machines until the provider itself says that they are gone.

    Workflow ID: `cluster/<name>` in lower case. An entity: handlers record intent, `run` alone
    acts, and what stops it is reported as `blocked` and tried again. It ends `terminated` or
    `expired`; a launch that did not work fails it, with the error code as type, after the
    clean-up is proven.
    """

    @workflow.init
    def __init__(self, life: ClusterInput) -> None:
        self._state = life.state or ClusterState(
            name=life.name, uid=life.uid, owner=life.owner, created_at=workflow.now()
        )
        self._changes = 0
        self._acting = False
        self._observed: Observation | None = None
        self._published: tuple[object, ...] = ()
        self._revision = life.revision
        self._publishes_what_changed = False
        self._patience = Patience(self._cancelled)

    @workflow.run
    async def run(self, life: ClusterInput) -> ClusterStatus:
        """Advance, plan, carry out one step; repeat until the life is over."""
        self._publishes_what_changed = self._goes(PUBLISH_WHAT_CHANGED)
        while True:
            try:
                self._publish()
                plan.advance(self._state, now=workflow.now(), jitter=self._jitter())
                step = plan.plan_next(self._state, now=workflow.now())
                self._publish()
                if isinstance(step, plan.Finish) and self._finish():
                    break
                await self._carry_out(step)
            except asyncio.CancelledError:
                self._cancelled()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._end()

    def _goes(self, change: str) -> bool:
        return self._revision >= SINCE[change] or workflow.patched(change)

    def _finish(self) -> bool:
        """Enter the last phase if the plan ended before it; return whether all is over."""
        if self._state.phase is Phase.TERMINATING:
            outcome.end_life(self._state, now=workflow.now())
            self._publish()
        return True

    def _end(self) -> ClusterStatus:
        if self._state.phase is Phase.FAILED:
            failure = self._state.closing or Failure(code=ErrorCode.INTERNAL, message="failed")
            raise as_application_error(error_of(failure.code, failure.message))
        return self.get()

    # Intent

    @workflow.update
    def quote(self, request: QuoteRequest) -> QuoteAck:
        """Ask for a price; poll `get_quote` for it."""
        if (known := recall(self._state, _key("quote", request), QuoteAck)) is not None:
            return known
        lifecycle.accept_quote(self._state, request)
        self._changes += 1
        ack = QuoteAck(name=self._state.name, uid=self._state.uid, quote_id=request.quote_id)
        return remember(self._state, _key("quote", request), ack)

    @quote.validator
    def _validate_quote(self, request: QuoteRequest) -> None:
        self._unless_known(
            _key("quote", request), lambda: lifecycle.check_quotable(self._state, request)
        )

    @workflow.update
    def launch(self, request: LaunchRequest) -> ActionAck:
        """Accept the quote; the purchase follows."""
        if (known := recall(self._state, _key("launch", request), ActionAck)) is not None:
            return known
        lifecycle.accept_launch(self._state, request, now=workflow.now())
        return self._ack(_key("launch", request), "launch accepted")

    @launch.validator
    def _validate_launch(self, request: LaunchRequest) -> None:
        self._unless_known(
            _key("launch", request),
            lambda: lifecycle.check_launchable(self._state, request, now=workflow.now()),
        )

    @workflow.update
    def terminate(self, request: TerminateRequest) -> TerminateAck:
        """Give every machine back; accepted in every phase, the same answer each time."""
        if (known := recall(self._state, _key("terminate", request), TerminateAck)) is not None:
            return known
        accepted_at = self._terminate(request.by)
        ack = TerminateAck(name=self._state.name, uid=self._state.uid, accepted_at=accepted_at)
        return remember(self._state, _key("terminate", request), ack)

    @terminate.validator
    def _validate_terminate(self, request: TerminateRequest) -> None:
        lifecycle.check_life(self._state, request.uid)

    @workflow.signal(name="terminate")
    def terminate_signal(self, request: TerminateRequest | None = None) -> None:
        """Terminate when the update could not be acknowledged in time.

        Without an argument too, as a person in the Temporal UI sends it; a signal that raised
        would stop the workflow.
        """
        request = request or TerminateRequest(request_id="", by="signal")
        if request.uid is None or request.uid == self._state.uid:
            self._terminate(request.by)

    @workflow.update
    def recover(self, request: RecoverRequest) -> ActionAck:
        """Start one recovery attempt now."""
        if (known := recall(self._state, _key("recover", request), ActionAck)) is not None:
            return known
        lifecycle.accept_recover(self._state, now=workflow.now(), by=request.by)
        return self._ack(_key("recover", request), "recovery attempt requested")

    @recover.validator
    def _validate_recover(self, request: RecoverRequest) -> None:
        def check() -> None:
            lifecycle.check_life(self._state, request.uid)
            lifecycle.check_recover(self._state)

        self._unless_known(_key("recover", request), check)

    @workflow.update
    def recovery(self, request: RecoverySwitch) -> ActionAck:
        """Turn automatic recovery on or off, or change its budget."""
        if (known := recall(self._state, _key("recovery", request), ActionAck)) is not None:
            return known
        lifecycle.accept_recovery_switch(
            self._state,
            automatic=request.automatic,
            max_attempts=request.max_attempts,
            now=workflow.now(),
            by=request.by,
        )
        return self._ack(_key("recovery", request), "recovery changed")

    @recovery.validator
    def _validate_recovery(self, request: RecoverySwitch) -> None:
        def check() -> None:
            lifecycle.check_life(self._state, request.uid)
            lifecycle.check_switchable(self._state)

        self._unless_known(_key("recovery", request), check)

    @workflow.signal
    def observe(self, observation: Observation | None = None) -> None:
        """Take the provider watch's word; what is stale, empty or of another life is dropped."""
        if observation is not None and outcome.observe(
            self._state, observation, now=workflow.now()
        ):
            self._observed = observation if self._acting else None
            self._changes += 1

    @workflow.query
    def get(self) -> ClusterStatus:
        """Return the cluster as of its last change."""
        return report_cluster(self._state, now=workflow.now())

    @workflow.query
    def get_quote(self, query: QuoteQuery) -> QuoteAnswer:
        """Return what became of a quote."""
        state = self._state
        if state.pending_quote is not None and state.pending_quote.quote_id == query.quote_id:
            return QuoteAnswer(pending=True)
        if state.quote is not None and state.quote.quote_id == query.quote_id:
            return QuoteAnswer(quote=report_quote(state, state.quote))
        if state.refusal is not None and state.refused_quote_id == query.quote_id:
            refusal = QuoteRefusal(
                code=state.refusal.code,
                message=state.refusal.message,
                problems=state.refusal.problems,
            )
            return QuoteAnswer(refusal=refusal)
        gone = f"quote {query.quote_id} of {state.name} was replaced, or its life ended"
        return QuoteAnswer(refusal=QuoteRefusal(code=ErrorCode.QUOTE_EXPIRED, message=gone))

    def _unless_known(self, key: str, check: Callable[[], None]) -> None:
        if key not in self._state.answers:
            check()

    def _ack(self, key: str, message: str) -> ActionAck:
        self._changes += 1
        ack = ActionAck(
            name=self._state.name,
            uid=self._state.uid,
            accepted_at=workflow.now(),
            phase=self._state.phase,
            message=message,
        )
        return remember(self._state, key, ack)

    def _terminate(self, by: str, why: str = "") -> datetime:
        self._changes += 1
        return lifecycle.accept_terminate(self._state, now=workflow.now(), by=by, why=why)

    def _cancelled(self) -> None:
        # Cancel, from the Temporal UI say, means terminate.
        self._terminate("", "cancelled in Temporal")

    # Steps

    async def _carry_out(self, step: plan.Step) -> None:
        if isinstance(step, plan.Wait):
            await self._wait(step.until, step.why)
            return
        self._acting = True
        try:
            await self._act(step)
        except ActivityError as error:
            if is_cancelled_exception(error):
                return  # a terminate, or news of the nodes, made the step pointless
            self._block(error)
        else:
            outcome.note_unblocked(self._state)
        finally:
            self._acting, self._observed = False, None

    async def _act(self, step: plan.Step) -> None:
        match step:
            case plan.Price():
                await self._price()
            case plan.Buy():
                await self._buy()
                self._observe_again()
            case plan.Prepare():
                await self._prepare()
            case plan.StartWorkloads():
                await self._start_workloads(step.ranks)
            case plan.Restart():
                await self._restart(step.ranks)
                self._observe_again()
            case plan.SaveLogs():
                await self._save_logs()
            case plan.DeleteAll():
                await self._delete(step.look_at)
                self._observe_again()
            case plan.LookAt():
                await self._look(step)

    def _observe_again(self) -> None:
        seen = self._observed
        if seen is None or not outcome.is_of_after_the_call(self._state, seen):
            return
        if self._goes(NEWS_BEFORE_OUTCOME):
            outcome.observe_again(self._state, seen, now=workflow.now())

    def _block(self, error: ActivityError) -> None:
        failure = Failure(code=code_of(error) or ErrorCode.INTERNAL, message=message_of(error))
        outcome.note_blocked(
            self._state, failure, now=workflow.now(), retry_after=retry_after_of(error)
        )

    async def _wait(self, until: datetime | None, why: str) -> None:
        if self._should_renew():
            await workflow.wait_condition(workflow.all_handlers_finished)
            self._continue_as_new()
        seen = self._changes
        if until is None and self._state.phase is None:
            until = workflow.now() + FIRST_QUOTE_WITHIN
        await self._patience.until(
            lambda: self._changes != seen or self._should_renew(), until, why
        )
        if self._state.phase is None and self._changes == seen:
            self._terminate("", "no quote was asked for")

    def _should_renew(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested() or info.get_current_history_length() > RENEW_EVENTS
        )

    def _continue_as_new(self) -> None:
        workflow.continue_as_new(
            ClusterInput(
                name=self._state.name,
                uid=self._state.uid,
                owner=self._state.owner,
                revision=REVISION,
                state=self._state,
            ),
            memo=workflow.memo(),
            search_attributes=workflow.info().typed_search_attributes,
        )

    def _terminating(self) -> bool:
        return self._state.terminate_accepted_at is not None

    async def _price(self) -> None:
        intent = self._state.pending_quote
        assert intent is not None
        failure: Failure | None = None
        try:
            await self._quote(intent)
        except GarrisonError as error:
            problems = error.problems if isinstance(error, Faulty) else ()
            failure = Failure(code=error.code, message=str(error), problems=problems)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            failure = Failure(code=code_of(error) or ErrorCode.INTERNAL, message=message_of(error))
        if failure is not None and self._state.pending_quote == intent:
            lifecycle.note_refused(self._state, intent.quote_id, failure)

    async def _quote(self, intent: QuoteIntent) -> None:
        terms = await self._patience.outcome(calls.read_terms(), self._terminating)
        self._state.deadman, self._state.heartbeat = terms.deadman, terms.heartbeat
        shape = intent.spec.shape()
        asked = {
            name: calls.find_places(PlaceRequest(shape=shape, provider=name, limits=terms.limits))
            for name in providers_to_ask(intent.spec, terms)
        }
        answers = await self._patience.outcome(
            asyncio.gather(*(self._place(*one) for one in asked.items())), self._terminating
        )
        place = merge_places(answers, intent.spec.nodes)
        if self._state.pending_quote != intent:
            return  # a newer wish came in
        quote = quote_cluster(intent, place, terms, now=workflow.now())
        lifecycle.note_quoted(self._state, quote, intent.spec, now=workflow.now())

    async def _place(self, provider: str, call: ActivityHandle[PlaceAnswer]) -> PlaceAnswer:
        """Return a provider's answer; that it could not be asked is one too."""
        try:
            return await call
        except ActivityError as error:
            if is_cancelled_exception(error) or not self._goes(QUOTE_DESPITE_SILENCE):
                raise
            return silent_place(provider, code_of(error), message_of(error))

    async def _buy(self) -> None:
        outcome.note_purchase_called(self._state)
        call = calls.buy(purchase_request(self._state), self._state.heartbeat)
        try:
            answer = await self._patience.outcome(call, self._terminating)
        except ActivityError as error:
            self._note_purchase_error(error)
            return
        outcome.note_purchased(
            self._state, answer, now=workflow.now(), deadman=self._deadman_pause()
        )

    def _note_purchase_error(self, error: ActivityError) -> None:
        now = workflow.now()
        if is_cancelled_exception(error):
            outcome.note_purchase_cancelled(self._state, now=now)
            return
        failure = Failure(code=code_of(error) or ErrorCode.INTERNAL, message=message_of(error))
        bound = lifecycle.facts_of(self._state).effect_bound
        outcome.note_purchase_failed(self._state, failure, effects_until=now + bound, now=now)

    async def _prepare(self) -> None:
        def pointless() -> bool:
            whole = all(node.status is NodeStatus.RUNNING for node in self._state.nodes)
            return self._terminating() or not whole or self._late()

        answer = await self._patience.outcome_before(
            calls.prepare(prepare_request(self._state), self._state.heartbeat),
            pointless,
            self._state.start_deadline,
            "start timeout",
        )
        if pointless():
            return  # it became so in the very moment in which the last node was reached
        keys = {node.rank: node.ssh for node in answer.nodes}
        self._state.nodes = [
            node.model_copy(update={"ssh": keys.get(node.rank) or node.ssh})
            for node in self._state.nodes
        ]
        lifecycle.note_ready(self._state, now=workflow.now())

    def _late(self) -> bool:
        deadline = self._state.start_deadline
        return deadline is not None and workflow.now() >= deadline

    async def _start_workloads(self, ranks: tuple[int, ...]) -> None:
        boots = {rank: self._state.nodes[rank].incarnation for rank in ranks}

        def pointless() -> bool:
            nodes = self._state.nodes
            same = all(
                nodes[rank].status is NodeStatus.RUNNING and nodes[rank].incarnation == boot
                for rank, boot in boots.items()
            )
            wanted = plan.wants_recovery(self._state, now=workflow.now())
            return self._terminating() or not same or wanted

        answer = await self._patience.outcome_before(
            calls.start_workloads(start_request(self._state, ranks), self._state.heartbeat),
            pointless,
            plan.call_ends_at(self._state, now=workflow.now()),
            "something more urgent is due",
        )
        outcome.note_started(self._state, answer.started, answer.failed, boots, now=workflow.now())

    async def _restart(self, ranks: tuple[int, ...]) -> None:
        if self._state.recovery.attempt is None:
            outcome.begin_attempt(self._state, ranks, now=workflow.now())
            self._count_attempt()
            self._publish()
        restarts = {
            request.rank: calls.restart(request, self._state.heartbeat)
            for request in restart_requests(self._state, ranks)
        }

        def pointless() -> bool:
            return self._terminating() or self._state.recovery.attempt is None

        ends_at = plan.call_ends_at(self._state, now=workflow.now())
        answers: dict[int, RestartAnswer] = {}
        for rank, call in restarts.items():
            try:
                answers[rank] = await self._patience.outcome_before(
                    call, pointless, ends_at, "restart timeout"
                )
            except ActivityError as error:
                if not self._terminating():
                    answers[rank] = self._failed_restart(error)
        if self._state.recovery.attempt is not None or self._goes(NEWS_BEFORE_OUTCOME):
            outcome.note_restarts(self._state, answers, now=workflow.now())

    def _count_attempt(self) -> None:
        counter = workflow.metric_meter().create_counter(
            "garrison_recovery_attempts_total", "Recovery attempts that began."
        )
        counter.add(1, {"provider": lifecycle.facts_of(self._state).name})

    def _failed_restart(self, error: ActivityError) -> RestartAnswer:
        cancelled = is_cancelled_exception(error)
        text = "the provider did not answer in time" if cancelled else message_of(error)
        return RestartAnswer(result=RestartResult.FAILED, message=text, ended_at=workflow.now())

    async def _save_logs(self) -> None:
        self._state.logs_saved = True  # once: never a reason to keep a machine
        request = save_logs_request(self._state)
        if request is not None:
            await self._patience.outcome(calls.save_logs(request, self._state.heartbeat), never)

    async def _delete(self, look_at: datetime) -> None:
        call = calls.delete(delete_request(self._state, look_at), self._state.heartbeat)
        answer = await self._patience.outcome(call, never)
        outcome.note_deleted(
            self._state,
            ended_at=answer.ended_at,
            asked_for=max(answer.ended_at, look_at),
        )

    async def _look(self, step: plan.LookAt) -> None:
        request = LookRequest(
            provider=lifecycle.facts_of(self._state).name,
            owner=workflow.info().workflow_id,
            uid=self._state.uid,
            not_before=step.not_before,
        )
        await self._patience.outcome(calls.ask_watch(request, deadman=step.deadman), never)
        outcome.note_asked(self._state, not_before=step.not_before)
        if step.deadman:
            self._state.deadman_at = workflow.now() + self._deadman_pause()

    # What readers see

    def _publish(self) -> None:
        state = self._state
        details = details_markdown(state)
        if details != workflow.get_current_details():
            workflow.set_current_details(details)
        if state.phase is None:
            return
        attributes = cluster_attributes(state)
        memo = cluster_memo(state)
        if self._publishes_what_changed:
            publish_changes(attributes, memo)
        elif (attributes, memo) != self._published:
            workflow.upsert_search_attributes(attributes)
            workflow.upsert_memo(memo)
            self._published = (attributes, memo)

    def _jitter(self) -> float:
        return workflow.random().uniform(-1, 1)

    def _deadman_pause(self) -> timedelta:
        return self._state.deadman * (1 + DEADMAN_JITTER * self._jitter())
