"""The life of one nodepool, from create until every machine is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from garrison.domain.pools import life as life
    from garrison.domain.pools import machines as machines
    from garrison.domain.pools import plan as plan
    from garrison.domain.pools import seats as seats
    from garrison.domain.pools.call import (
        delete_request,
        look_request,
        membership_request,
        offers_request,
        prepare_request,
        purchase_request,
        tell_request,
    )
    from garrison.domain.pools.report import details_markdown, report_pool
    from garrison.domain.requests import recall, remember
    from garrison.errors import ErrorCode, error_of
    from garrison.failures import as_application_error, code_of, message_of, retry_after_of
    from garrison.models.cluster_state import Failure
    from garrison.models.compute_cluster import DeleteAccepted, DeleteRequested
    from garrison.models.group import NodeStatus
    from garrison.models.nodepool import NodepoolAck, NodepoolRequest, NodepoolStatus
    from garrison.models.nodepool_state import MachineState, NodepoolInput, NodepoolState
    from garrison.models.observation import Observation
    from garrison.models.placement import Demand
    from garrison.workflows import cluster_calls, nodepool_calls
    from garrison.workflows.crew import Crew, Work
    from garrison.workflows.elastic_visibility import nodepool_attributes, nodepool_memo
    from garrison.workflows.patience import Patience, never
    from garrison.workflows.visibility import publish_changes

FIRST_SPEC_WITHIN = timedelta(minutes=1)
RENEW_EVENTS = 2_000
DEADMAN_JITTER = 0.2
NO_PLACE = frozenset({ErrorCode.NOT_FOUND, ErrorCode.CONFLICT_PHASE})
"""Why a compute cluster takes no nodepool, and will not later."""

REVISION = 0


class Request(Protocol):
    """What every update has."""

    @property
    def request_id(self) -> str:
        """Chosen by the client; the same one gets the same answer."""
        ...


def _key(verb: str, request: Request) -> str:
    return f"{verb}/{request.request_id}"


@workflow.defn(name="Nodepool")
class NodepoolWorkflow:
    """Hold as many machines as replicas want, within limits, until the pool is deleted.

    Workflow ID: `nodepool/<compute cluster>/<id>` in lower case. An entity: handlers record
    intent; `run` settles what follows from it and begins all steps that are due, at most one for
    each machine or deployment. It ends once the provider's lists have proven it empty.
    """

    @workflow.init
    def __init__(self, life_input: NodepoolInput) -> None:
        self._state = life_input.state or NodepoolState(
            id=life_input.id,
            compute_cluster=life_input.compute_cluster,
            uid=life_input.uid,
            owner=life_input.owner,
            created_at=workflow.now(),
        )
        self._changes = 0
        self._patience = Patience(self._cancelled)
        self._crew = Crew()

    @workflow.run
    async def run(self, life_input: NodepoolInput) -> NodepoolStatus | None:
        """Settle, begin what is due, wait for a change; repeat until the life is over."""
        while not await self._turn():
            pass
        await workflow.wait_condition(workflow.all_handlers_finished)
        failure = self._state.closing
        if failure is not None:
            raise as_application_error(error_of(failure.code, failure.message))
        return self.get() if self._state.spec is not None else None

    async def _turn(self) -> bool:
        """Do one round; return whether the life is over."""
        try:
            self._crew.collect()
            seen = self._changes
            plan.settle(self._state, now=workflow.now())
            self._publish()
            if plan.is_finished(self._state, self._crew.busy):
                return True
            if not self._should_renew():
                self._begin_steps()
            await self._wait(seen)
        except asyncio.CancelledError:
            self._cancelled()
        return False

    # Intent

    @workflow.update
    def create(self, request: NodepoolRequest) -> NodepoolAck:
        """Take the first settings; the same ones again are the same pool."""
        return self._take_spec("create", request)

    @create.validator
    def _validate_create(self, request: NodepoolRequest) -> None:
        self._unless_known(_key("create", request), lambda: life.check_create(self._state, request))

    @workflow.update
    def update(self, request: NodepoolRequest) -> NodepoolAck:
        """Take other settings; also the same ones have what was refused tried again at once."""
        return self._take_spec("update", request)

    @update.validator
    def _validate_update(self, request: NodepoolRequest) -> None:
        self._unless_known(_key("update", request), lambda: life.check_update(self._state, request))

    def _take_spec(self, verb: str, request: NodepoolRequest) -> NodepoolAck:
        key = _key(verb, request)
        if (known := recall(self._state, key, NodepoolAck)) is not None:
            return known
        self._changes += 1
        accept = life.accept_update if verb == "update" else life.accept_spec
        ack = accept(self._state, request, now=workflow.now())
        return remember(self._state, key, ack)

    @workflow.update
    def delete(self, request: DeleteRequested) -> DeleteAccepted:
        """Drain and give every machine back; accepted always, the same answer each time."""
        key = _key("delete", request)
        if (known := recall(self._state, key, DeleteAccepted)) is not None:
            return known
        accepted_at = self._delete(request.by)
        ack = DeleteAccepted(id=self._state.id, uid=self._state.uid, accepted_at=accepted_at)
        return remember(self._state, key, ack)

    @delete.validator
    def _validate_delete(self, request: DeleteRequested) -> None:
        life.check_life(self._state, request.uid)

    @workflow.signal
    def demand(self, demand: Demand | None = None) -> None:
        """Take what a deployment wants; what is empty or older than known is dropped."""
        if demand is not None and seats.take_demand(self._state, demand, now=workflow.now()):
            self._changes += 1

    @workflow.signal
    def observe(self, observation: Observation | None = None) -> None:
        """Take the provider watch's word; what is stale, empty or of another life is dropped."""
        if observation is not None and machines.observe(
            self._state, observation, now=workflow.now()
        ):
            seats.doubt_customers(self._state, observation.gone, now=workflow.now())
            self._changes += 1

    @workflow.query
    def get(self) -> NodepoolStatus:
        """Return the nodepool as of its last change."""
        return report_pool(self._state, now=workflow.now())

    def _unless_known(self, key: str, check: Callable[[], None]) -> None:
        if key not in self._state.answers:
            check()

    def _delete(self, by: str, why: str = "") -> datetime:
        self._changes += 1
        if self._state.spec is None:
            self._state.left = True  # it never entered a compute cluster
        return life.accept_delete(self._state, now=workflow.now(), by=by, why=why)

    def _cancelled(self) -> None:
        # Cancel, from the Temporal UI say, means delete.
        self._delete("", "cancelled in Temporal")

    def _closing(self) -> bool:
        return life.is_closing(self._state)

    # Waiting

    async def _wait(self, seen: int) -> None:
        if self._should_renew() and not self._crew.busy:
            await workflow.wait_condition(workflow.all_handlers_finished)
            self._continue_as_new()
        until, why = plan.next_time(self._state, now=workflow.now())
        nothing = self._state.spec is None
        if nothing:
            until, why = workflow.now() + FIRST_SPEC_WITHIN, "wait for the settings"
        await self._patience.until(lambda: self._has_news(seen), until, why)
        if nothing and self._changes == seen:
            self._delete("", "no settings were given")

    def _has_news(self, seen: int) -> bool:
        quiet = not self._crew.busy and self._should_renew()
        return self._changes != seen or self._crew.has_news or quiet

    def _should_renew(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested() or info.get_current_history_length() > RENEW_EVENTS
        )

    def _continue_as_new(self) -> None:
        state = self._state
        workflow.continue_as_new(
            NodepoolInput(
                compute_cluster=state.compute_cluster,
                id=state.id,
                uid=state.uid,
                owner=state.owner,
                revision=REVISION,
                state=state,
            ),
            memo=workflow.memo(),
            search_attributes=workflow.info().typed_search_attributes,
        )

    # Steps

    def _begin_steps(self) -> None:
        for step in plan.plan_steps(self._state, self._crew.busy, now=workflow.now()):
            self._crew.begin(step.key, self._guarded(self._work(step)))

    def _work(self, step: plan.Step) -> Work:
        match step:
            case plan.Join():
                return self._join()
            case plan.AskOffers():
                return self._ask_offers()
            case plan.BuyMachine():
                machines.note_called(self._state, step.key)
                return self._buy(step.key)
            case plan.PrepareMachine():
                return self._prepare(step.key)
            case plan.DeleteMachine():
                return self._delete_machine(step)
            case plan.LookAt():
                return self._look(step)
            case plan.Tell():
                return self._tell(step.uid)
            case plan.Leave():
                return self._leave()

    async def _guarded(self, work: Work) -> None:
        """Keep a failure that nothing else expects from ending an entity that owns machines."""
        try:
            await work
        except ActivityError as error:
            now = workflow.now()
            life.note_blocked(
                self._state, _failure(error), now=now, retry_after=retry_after_of(error)
            )

    async def _join(self) -> None:
        try:
            answer = await self._patience.outcome(
                nodepool_calls.join(membership_request(self._state, "join")), never
            )
            terms = await self._patience.outcome(cluster_calls.read_terms_as_task(), never)
        except ActivityError as error:
            failure = _failure(error)
            now = workflow.now()
            if failure.code in NO_PLACE:
                life.note_not_joined(self._state, failure, now=now)
            else:
                life.note_blocked(self._state, failure, now=now, retry_after=retry_after_of(error))
            return
        life.note_joined(self._state, answer, terms, now=workflow.now())
        self._state.deadman_at = workflow.now() + self._deadman_pause()

    async def _ask_offers(self) -> None:
        state = self._state
        request = offers_request(state)
        try:
            answer = await self._patience.outcome(
                nodepool_calls.find_offers(request), self._closing
            )
        except ActivityError as error:
            if not is_cancelled_exception(error):
                life.note_no_offers(
                    state, _failure(error), now=workflow.now(), retry_after=retry_after_of(error)
                )
            return
        if request == offers_request(state):  # else the settings changed meanwhile
            life.note_offers(state, answer, now=workflow.now())

    async def _buy(self, name: str) -> None:
        state = self._state
        call = nodepool_calls.buy(purchase_request(state, name), state.heartbeat)
        try:
            answer = await self._patience.outcome(call, self._closing)
        except ActivityError as error:
            failure = None if is_cancelled_exception(error) else _failure(error)
            machines.note_not_bought(state, name, failure, now=workflow.now())
            return
        machines.note_bought(state, name, answer, now=workflow.now())

    async def _prepare(self, name: str) -> None:
        boot = self._state.machines[name].node.incarnation

        def pointless() -> bool:
            machine = self._state.machines.get(name)
            return (
                machine is None
                or machine.state is MachineState.TERMINATING
                or machine.node.status is not NodeStatus.RUNNING
                or machine.node.incarnation != boot
            )

        call = cluster_calls.prepare(prepare_request(self._state, name), self._state.heartbeat)
        try:
            answer = await self._patience.outcome(call, pointless)
        except ActivityError as error:
            if not is_cancelled_exception(error):
                self._note_trouble(name, error)
            return
        if not pointless():
            (node,) = answer.nodes
            machines.note_prepared(self._state, name, node, now=workflow.now())

    async def _delete_machine(self, step: plan.DeleteMachine) -> None:
        request = delete_request(self._state, step.key, step.look_at)
        try:
            answer = await self._patience.outcome(
                nodepool_calls.delete(request, self._state.heartbeat), never
            )
        except ActivityError as error:
            self._note_trouble(step.key, error)
            return
        machines.note_deleted(
            self._state, step.key, ended_at=answer.ended_at, asked_for=step.look_at
        )

    def _note_trouble(self, name: str, error: ActivityError) -> None:
        machines.note_trouble(
            self._state,
            name,
            _failure(error),
            now=workflow.now(),
            retry_after=retry_after_of(error),
        )

    async def _look(self, step: plan.LookAt) -> None:
        state = self._state
        if step.deadman:
            state.deadman_at = workflow.now() + self._deadman_pause()
            seats.tell_all_again(state, now=workflow.now())
        request = look_request(state, step.not_before)
        state.asked = step.not_before
        await self._patience.outcome(cluster_calls.ask_watch(request, deadman=step.deadman), never)

    async def _tell(self, uid: str) -> None:
        told = tell_request(self._state, uid)
        found = True  # also where the call failed for good: then it is told again after a pause
        try:
            answer = await self._patience.outcome(nodepool_calls.tell_deployment(told), never)
            found = answer.found
        finally:
            generation = told.placements.generation
            seats.note_told(self._state, uid, generation, found=found, now=workflow.now())

    async def _leave(self) -> None:
        await self._patience.outcome(
            nodepool_calls.leave(membership_request(self._state, "leave")), never
        )
        self._state.left = True

    # What readers see

    def _publish(self) -> None:
        state = self._state
        details = details_markdown(state)
        if details != workflow.get_current_details():
            workflow.set_current_details(details)
        if state.spec is not None:
            publish_changes(nodepool_attributes(state), nodepool_memo(state, now=workflow.now()))

    def _deadman_pause(self) -> timedelta:
        return self._state.deadman * (1 + DEADMAN_JITTER * workflow.random().uniform(-1, 1))


def _failure(error: ActivityError) -> Failure:
    return Failure(code=code_of(error) or ErrorCode.INTERNAL, message=message_of(error))
