"""The raw arm: what one would write by hand for the same activities, and nothing more.

Updates and queries of the same names and classes, the same activities in the same order, and the
signals that they cause. No state, no phases, no search attributes, no memo, no timers, no retries
of its own, no summaries.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchmarks.sample import Call, Intent, Sample, current, types_of
    from garrison.models.cluster_messages import (
        ActionAck,
        ClusterInput,
        LaunchRequest,
        QuoteAck,
        QuoteAnswer,
        QuoteQuery,
        QuoteRequest,
        RecoverySwitch,
        TerminateAck,
        TerminateRequest,
    )
    from garrison.models.cluster_state import Phase
    from garrison.models.cluster_status import ClusterStatus
    from garrison.models.observation import Observation

TIMEOUT = timedelta(minutes=5)
Answer = TypeVar("Answer")
_PHASES = {"quote": None, "launch": Phase.QUOTED, "terminate": Phase.RUNNING}


def call_queue(queue: str) -> str:
    """Return where an arm's calls run, as Garrison's run on the provider's queue."""
    return f"{queue}-calls"


@workflow.defn(name="Raw")
class RawWorkflow:
    """One life, straight through."""

    @workflow.init
    def __init__(self, life: ClusterInput) -> None:
        self._sample: Sample = current()
        self._wanted: set[str] = set()
        self._signals = 0
        self._phase: Phase | None = None

    @workflow.run
    async def run(self, life: ClusterInput) -> ClusterStatus:
        """Carry out the sample."""
        due = 0
        for step in self._sample.steps:
            if isinstance(step, Intent):
                await self._until_wanted(step.update)
            else:
                due += len(step.signals)
                await self._call(step)
                await self._until_told(due)
        self._phase = Phase.TERMINATED
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.get()

    async def _until_wanted(self, update: str) -> None:
        self._phase = _PHASES[update]
        await workflow.wait_condition(lambda: update in self._wanted)
        self._phase = Phase.TERMINATING if update == "terminate" else self._phase

    async def _until_told(self, due: int) -> None:
        await workflow.wait_condition(lambda: self._signals >= due)

    async def _call(self, call: Call) -> Any:
        arguments = [] if call.argument is None else [call.argument]
        returns = types_of(call.name)[1]
        if call.local:
            return await workflow.execute_local_activity(
                call.name, args=arguments, result_type=returns, start_to_close_timeout=TIMEOUT
            )
        return await workflow.execute_activity(
            call.name,
            args=arguments,
            result_type=returns,
            task_queue=None if call.quick else call_queue(workflow.info().task_queue),
            start_to_close_timeout=TIMEOUT,
        )

    @workflow.update
    def quote(self, request: QuoteRequest) -> QuoteAck:
        """Begin."""
        self._wanted.add("quote")
        return self._answer("quote", QuoteAck)

    @workflow.update
    def launch(self, request: LaunchRequest) -> ActionAck:
        """Go on to the purchase."""
        self._wanted.add("launch")
        return self._answer("launch", ActionAck)

    @workflow.update
    def terminate(self, request: TerminateRequest) -> TerminateAck:
        """Go on to the end."""
        self._wanted.add("terminate")
        return self._answer("terminate", TerminateAck)

    @workflow.update
    def recovery(self, request: RecoverySwitch) -> ActionAck:
        """Answer, and do nothing."""
        return self._answer("launch", ActionAck)

    @quote.validator
    def _validate_quote(self, request: QuoteRequest) -> None:
        self._check(request.request_id)

    @launch.validator
    def _validate_launch(self, request: LaunchRequest) -> None:
        self._check(request.request_id)

    @terminate.validator
    def _validate_terminate(self, request: TerminateRequest) -> None:
        self._check(request.request_id)

    @recovery.validator
    def _validate_recovery(self, request: RecoverySwitch) -> None:
        self._check(request.request_id)

    @workflow.signal
    def observe(self, observation: Observation) -> None:
        """Count a signal."""
        self._signals += 1

    @workflow.query
    def get(self) -> ClusterStatus:
        """Return a status of the usual size."""
        return self._answer("get", ClusterStatus).model_copy(update={"phase": self._phase})

    @workflow.query
    def get_quote(self, query: QuoteQuery) -> QuoteAnswer:
        """Return a quote of the usual size once there is one."""
        if self._phase is None:
            return QuoteAnswer(pending=True)
        return self._answer("get_quote", QuoteAnswer)

    def _answer(self, name: str, kind: type[Answer]) -> Answer:
        answer: Answer = self._sample.answers[name]
        return answer

    def _check(self, request_id: str) -> None:
        if not request_id:
            raise ValueError("a request needs an id")
