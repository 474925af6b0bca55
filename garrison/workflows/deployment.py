"""The life of one deployment: replicas of a workload, kept at the wanted count on its pools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Protocol

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from garrison.domain.deployments import life as life_rules
    from garrison.domain.deployments import outcome as outcome
    from garrison.domain.deployments import plan as plan
    from garrison.domain.deployments import replicas as protocol
    from garrison.domain.deployments.load import take_target, take_wake
    from garrison.domain.deployments.replica_call import await_request, start_request, stop_request
    from garrison.domain.deployments.report import (
        details_markdown,
        report_deployment,
        report_endpoints,
    )
    from garrison.domain.deployments.view import drain_request, view
    from garrison.domain.requests import recall, remember
    from garrison.errors import ErrorCode
    from garrison.failures import code_of, message_of, retry_after_of
    from garrison.models.cluster_state import Failure
    from garrison.models.compute_cluster import DeleteAccepted, DeleteRequested
    from garrison.models.deployment import (
        DeploymentAck,
        DeploymentRequest,
        DeploymentStatus,
        EnableRequest,
        ScaleRequest,
    )
    from garrison.models.deployment_state import (
        DeploymentEndpoints,
        DeploymentInput,
        DeploymentState,
        Replica,
    )
    from garrison.models.load import DrainRequest, Followed, TargetChanged, WakeRequest
    from garrison.models.placement import Demand, DemandTold, Placements
    from garrison.models.replica import (
        AwaitReplicaRequest,
        StartReplicaRequest,
        StopReplicaRequest,
    )
    from garrison.workflows import deployment_calls as calls
    from garrison.workflows.cluster_calls import read_terms_as_task
    from garrison.workflows.crew import Crew, Work
    from garrison.workflows.deployment_visibility import deployment_attributes, deployment_memo
    from garrison.workflows.patience import Patience
    from garrison.workflows.visibility import publish_changes

FIRST_SPEC_WITHIN = timedelta(minutes=1)
RENEW_EVENTS = 2_000
DEADMAN_JITTER = 0.2


class Request(Protocol):
    """What every update has."""

    @property
    def request_id(self) -> str:
        """Chosen by the client; the same one gets the same answer."""
        ...


@workflow.defn(name="Deployment")
class DeploymentWorkflow:
    """Keep a deployment's replicas at the wanted count until it is deleted.

    Workflow ID: `deployment/<id>` in lower case. An entity: handlers record intent, `run` and the
    steps that it begins act, and what stops a step is shown and tried again. It ends when it was
    deleted, every replica has stopped and every pool has let go of it.
    """

    @workflow.init
    def __init__(self, life: DeploymentInput) -> None:
        self._state = life.state or DeploymentState(
            id=life.id, uid=life.uid, owner=life.owner, created_at=workflow.now()
        )
        self._changes = 0
        self._crew = Crew()
        self._broken_off: set[str] = set()
        self._patience = Patience(self._cancelled)

    @workflow.run
    async def run(self, life: DeploymentInput) -> DeploymentStatus | None:
        """Advance, begin all that is due, wait; repeat until the life is over."""
        while True:
            try:
                self._crew.collect()
                self._broken_off &= self._crew.busy
                seen = self._changes
                plan.advance(self._state, now=workflow.now())
                self._set_deadman()
                due = plan.plan_steps(self._state, now=workflow.now(), busy=self._crew.busy)
                self._publish()
                if due.finished:
                    break
                await self._carry_on(due, seen)
            except asyncio.CancelledError:
                self._cancelled()
        self._state.ended_at = workflow.now()
        self._publish()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return None if self._state.spec is None else self.get()

    # Intent

    @workflow.update
    def create(self, request: DeploymentRequest) -> DeploymentAck:
        """Make the deployment; its replicas follow."""
        return self._answer(
            "create",
            request,
            lambda now: life_rules.accept_create(self._state, request, now=now),
        )

    @create.validator
    def _validate_create(self, request: DeploymentRequest) -> None:
        self._check("create", request, lambda: life_rules.check_create(self._state, request))

    @workflow.update
    def update(self, request: DeploymentRequest) -> DeploymentAck:
        """Change what the deployment should be; another template is rolled out."""
        return self._answer(
            "update",
            request,
            lambda now: life_rules.accept_update(self._state, request, now=now),
        )

    @update.validator
    def _validate_update(self, request: DeploymentRequest) -> None:
        self._check("update", request, lambda: life_rules.check_update(self._state, request))

    @workflow.update
    def scale(self, request: ScaleRequest) -> DeploymentAck:
        """Hold a count of replicas, or give it back to autoscaling."""
        return self._answer(
            "scale", request, lambda now: life_rules.accept_scale(self._state, request, now=now)
        )

    @scale.validator
    def _validate_scale(self, request: ScaleRequest) -> None:
        self._check_changeable("scale", request, request.uid)

    @workflow.update
    def enable(self, request: EnableRequest) -> DeploymentAck:
        """Have replicas again, and try again what has failed."""
        return self._answer(
            "enable",
            request,
            lambda now: life_rules.accept_enabled(self._state, request, enabled=True, now=now),
        )

    @enable.validator
    def _validate_enable(self, request: EnableRequest) -> None:
        self._check_changeable("enable", request, request.uid)

    @workflow.update
    def disable(self, request: EnableRequest) -> DeploymentAck:
        """Stop all replicas and keep the settings."""
        return self._answer(
            "disable",
            request,
            lambda now: life_rules.accept_enabled(self._state, request, enabled=False, now=now),
        )

    @disable.validator
    def _validate_disable(self, request: EnableRequest) -> None:
        self._check_changeable("disable", request, request.uid)

    @workflow.update
    def delete(self, request: DeleteRequested) -> DeleteAccepted:
        """Stop all replicas and end; accepted at any time, the same answer each time."""
        key = f"delete/{request.request_id}"
        if (known := recall(self._state, key, DeleteAccepted)) is not None:
            return known
        accepted_at = self._delete(request.by)
        answer = DeleteAccepted(id=self._state.id, uid=self._state.uid, accepted_at=accepted_at)
        return remember(self._state, key, answer)

    @delete.validator
    def _validate_delete(self, request: DeleteRequested) -> None:
        life_rules.check_life(self._state, request.uid)

    @workflow.signal
    def placements(self, said: Placements | None = None) -> None:
        """Take a pool's word; what is old, empty or of another life is dropped."""
        if said is not None and protocol.take(self._state, said, now=workflow.now()):
            self._changes += 1

    @workflow.signal
    def autoscale(self, said: TargetChanged | None = None) -> None:
        """Take what the load asks for; what is older than a person's or a router's word is not."""
        if said is not None and take_target(self._state, said):
            self._changes += 1

    @workflow.signal
    def wake(self, said: WakeRequest | None = None) -> None:
        """Have a replica at once: a router holds a request, and nothing is there to answer it."""
        if said is not None and take_wake(self._state, said):
            self._changes += 1

    @workflow.signal
    def introduce(self) -> None:
        """Tell everybody once more: somebody does not know this deployment, or is gone."""
        self._state.published = 0
        protocol.say_again(self._state, now=workflow.now())
        self._changes += 1

    @workflow.query
    def get(self) -> DeploymentStatus:
        """Return the deployment as of its last change."""
        return report_deployment(self._state)

    @workflow.query
    def endpoints(self) -> DeploymentEndpoints:
        """Return where replicas answer."""
        return report_endpoints(self._state)

    def _answer(
        self, verb: str, request: Request, accept: Callable[[datetime], DeploymentAck]
    ) -> DeploymentAck:
        key = f"{verb}/{request.request_id}"
        if (known := recall(self._state, key, DeploymentAck)) is not None:
            return known
        self._changes += 1
        return remember(self._state, key, accept(workflow.now()))

    def _check(self, verb: str, request: Request, check: Callable[[], None]) -> None:
        if f"{verb}/{request.request_id}" not in self._state.answers:
            check()

    def _check_changeable(self, verb: str, request: Request, uid: str | None) -> None:
        self._check(verb, request, lambda: life_rules.check_changeable(self._state, uid))

    def _delete(self, by: str, why: str = "") -> datetime:
        self._changes += 1
        return life_rules.accept_delete(self._state, now=workflow.now(), by=by, why=why)

    def _cancelled(self) -> None:
        # Cancel, from the Temporal UI say, means delete.
        self._delete("", "cancelled in Temporal")

    # Waiting

    async def _carry_on(self, due: plan.Plan, seen: int) -> None:
        """Begin what is due, and wait for news."""
        self._break_off(due.pointless)
        if self._should_renew():
            await self._renew(seen)
            return
        for step in due.begin:
            self._crew.begin(step.key, self._work(step))
        until = due.until
        if self._state.spec is None:
            until = self._state.created_at + FIRST_SPEC_WITHIN
        await self._patience.until(
            lambda: self._has_news(seen) or self._should_renew(), until, due.why
        )
        if self._state.spec is None and self._changes == seen:
            self._delete("", "it was never created")

    async def _renew(self, seen: int) -> None:
        """End a long history: nothing more is begun, and waits, which can begin anew, end."""
        self._break_off(key for key in self._crew.busy if key.startswith("await/"))
        if self._crew.busy:
            await self._patience.until(lambda: self._has_news(seen), None, "")
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        state = self._state
        workflow.continue_as_new(
            DeploymentInput(id=state.id, uid=state.uid, owner=state.owner, state=state),
            memo=workflow.memo(),
            search_attributes=workflow.info().typed_search_attributes,
        )

    def _has_news(self, seen: int) -> bool:
        return self._changes != seen or self._crew.has_news

    def _break_off(self, keys: Iterable[str]) -> None:
        for key in sorted(set(keys) - self._broken_off):
            self._broken_off.add(key)
            self._crew.cancel(key)

    def _should_renew(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested() or info.get_current_history_length() > RENEW_EVENTS
        )

    # Steps

    def _work(self, step: plan.Step) -> Work:
        """Return the work of a step; what it is about to do is noted before anything can change."""
        now = workflow.now()
        match step:
            case plan.ReadTerms():
                return self._read_terms()
            case plan.Tell():
                return self._tell(step.pool, protocol.demand_to(self._state, step.pool))
            case plan.Start():
                protocol.begin_start(self._state, step.replica, now=now)
                return self._start(step, start_request(self._state, self._replica(step)))
            case plan.Await():
                request = await_request(self._state, self._replica(step), now=now)
                return self._await(step, request)
            case plan.Stop():
                drain = drain_request(self._state, self._replica(step))
                return self._stop(step, drain, stop_request(self._replica(step)))
            case plan.Publish():
                return self._publish_load(view(self._state))

    def _replica(self, step: plan.Start | plan.Await | plan.Stop) -> Replica:
        return self._state.replicas[step.replica]

    async def _read_terms(self) -> None:
        try:
            terms = await read_terms_as_task()
        except ActivityError as error:
            outcome.note_trouble(self._state, self._failure(error), now=workflow.now())
            return
        self._state.trouble = None
        self._state.deadman = terms.deadman
        self._state.heartbeat = terms.heartbeat

    async def _tell(self, pool: str, demand: Demand) -> None:
        try:
            answer = await calls.tell_nodepool(DemandTold(nodepool=pool, demand=demand))
        except ActivityError as error:
            failure = self._failure(error)
            outcome.note_pool_trouble(self._state, pool, failure, now=workflow.now())
            return
        protocol.note_told(self._state, demand, pool, found=answer.found, now=workflow.now())

    async def _start(self, step: plan.Start, request: StartReplicaRequest) -> None:
        try:
            answer = await calls.start_replica(request, self._state.heartbeat)
        except ActivityError as error:
            self._block(step, error)
            return
        outcome.note_started(
            self._state, step.replica, step.generation, answer.failed, now=workflow.now()
        )

    async def _await(self, step: plan.Await, request: AwaitReplicaRequest) -> None:
        try:
            answer = await calls.await_replica(request, self._state.heartbeat)
        except ActivityError as error:
            self._block(step, error)
            return
        outcome.note_awaited(self._state, step.replica, step.generation, answer, now=workflow.now())

    async def _publish_load(self, said: Followed) -> None:
        try:
            await calls.publish_load(said)
        except ActivityError as error:
            outcome.note_trouble(self._state, self._failure(error), now=workflow.now())
            return
        self._state.trouble = None
        self._state.published = max(self._state.published, said.version)

    async def _stop(
        self, step: plan.Stop, drain: DrainRequest | None, request: StopReplicaRequest
    ) -> None:
        try:
            if drain is not None:
                await calls.drain_replica(drain, self._state.heartbeat)
            await calls.stop_replica(request, self._state.heartbeat)
        except ActivityError as error:
            self._block(step, error)
            return
        protocol.note_stopped(self._state, step.replica, step.generation)

    def _block(self, step: plan.Start | plan.Await | plan.Stop, error: ActivityError) -> None:
        if is_cancelled_exception(error):
            return  # the step had become pointless
        outcome.note_replica_trouble(
            self._state,
            step.replica,
            self._failure(error),
            now=workflow.now(),
            retry_after=retry_after_of(error),
        )

    def _failure(self, error: ActivityError) -> Failure:
        return Failure(code=code_of(error) or ErrorCode.INTERNAL, message=message_of(error))

    # What readers see

    def _publish(self) -> None:
        if self._state.spec is None:
            return
        details = details_markdown(self._state)
        if details != workflow.get_current_details():
            workflow.set_current_details(details)
        publish_changes(deployment_attributes(self._state), deployment_memo(self._state))

    def _set_deadman(self) -> None:
        state = self._state
        if state.deadman is not None and state.deadman_at is None:
            jitter = 1 + DEADMAN_JITTER * workflow.random().uniform(-1, 1)
            state.deadman_at = workflow.now() + state.deadman * jitter
