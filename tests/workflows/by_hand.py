"""One workflow run without a server: its tasks, timers and activities are moved by hand.

The SDK's own workflow instance is given the activations that a worker would give it, so what runs
is the shipped code, a thousand tasks a second. Time is a field, an activity stays open until
somebody resolves it, and a cancel meets it wherever it is: what the time-skipping server cannot
play. A quiet workflow continues as new whenever that is suggested to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import ActivityFailureInfo, CanceledFailureInfo, Failure
from temporalio.bridge.proto.activity_result import ActivityResolution, Cancellation, Success
from temporalio.bridge.proto.activity_result import Failure as Failed
from temporalio.bridge.proto.workflow_activation import (
    CancelWorkflow,
    DoUpdate,
    FireTimer,
    InitializeWorkflow,
    QueryWorkflow,
    ResolveActivity,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.common import MetricMeter, Priority, TypedSearchAttributes
from temporalio.exceptions import ApplicationError
from temporalio.worker._workflow_instance import (
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
)
from temporalio.workflow import Info, _Definition

from garrison.failures import DATA_CONVERTER
from garrison.models.cluster_messages import (
    DeleteRequest,
    LookRequest,
    PlaceRequest,
    PrepareRequest,
    PurchaseRequest,
    RestartRequest,
    SaveLogsRequest,
    StartWorkloadsRequest,
)

WAITS_FOR_ITS_END = 1
"""Of cancellation types, the one in which a cancelled activity still says how it ended."""

READING = {"place_cluster"}
"""Activities that change nothing, so that one which nobody waits for any more may be left."""

SHOWN = {
    "upsert_workflow_search_attributes",
    "modify_workflow_properties",
    "set_patch_marker",
}
"""Commands that move nothing."""

REQUESTS: dict[str, type | None] = {
    "place_cluster": PlaceRequest,
    "purchase_group": PurchaseRequest,
    "prepare_nodes": PrepareRequest,
    "start_workloads": StartWorkloadsRequest,
    "restart_node": RestartRequest,
    "save_logs": SaveLogsRequest,
    "delete_groups": DeleteRequest,
    "ensure_watch": LookRequest,
    "quote_terms": None,
}
"""What each activity is asked with."""


@dataclass(slots=True)
class Asked:
    """An activity that was started and has not ended.

    Attributes:
        tries: How many of its tries have failed.
        once: It is not tried again.
        cancelling: A cancel was asked for, and it is waited for what comes of that.
    """

    seq: int
    name: str
    request: Any
    once: bool
    waits: bool
    local: bool
    tries: int = 0
    cancelling: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """An update that was not taken."""

    code: str
    message: str


class ByHand:
    """A workflow whose server is the caller."""

    def __init__(self, workflow: type, workflow_id: str, life: Any, now: datetime) -> None:
        definition = _Definition.must_from_class(workflow)
        self._definition = definition
        self._id = workflow_id
        self._converter = DATA_CONVERTER.payload_converter
        self._failures = DATA_CONVERTER.failure_converter
        self.now = now
        self.runs = 0
        self.tasks = 0
        self.suggested = False
        self._answers: dict[str, Any] = {}
        self._begin(life)

    def _begin(self, life: Any) -> None:
        self.runs += 1
        self.activities: dict[int, Asked] = {}
        self._cancelled: list[Asked] = []
        self.timers: dict[int, datetime] = {}
        self.events = 0
        self.closed = False
        self.failure: ApplicationError | None = None
        self._instance = _instance(self._definition, self._info())
        (payload,) = self._converter.to_payloads([life])
        start = InitializeWorkflow(
            workflow_type=self._definition.name or "",
            workflow_id=self._id,
            arguments=[payload],
            randomness_seed=self.runs,
        )
        self._activate(WorkflowActivationJob(initialize_workflow=start))

    def _info(self) -> Info:
        return Info(
            attempt=1,
            continued_run_id=None,
            cron_schedule=None,
            execution_timeout=None,
            first_execution_run_id="run-1",
            headers={},
            namespace="default",
            original_execution_run_id=f"run-{self.runs}",
            parent=None,
            priority=Priority(),
            raw_memo={},
            retry_policy=None,
            root=None,
            run_id=f"run-{self.runs}",
            run_timeout=None,
            search_attributes={},
            start_time=self.now,
            task_queue="garrison",
            task_timeout=timedelta(seconds=10),
            typed_search_attributes=TypedSearchAttributes([]),
            workflow_id=self._id,
            workflow_start_time=self.now,
            workflow_type=self._definition.name or "",
        )

    # What a client does

    def update(self, name: str, request: Any) -> Any:
        """Send an update; returns its answer, or how it was refused."""
        number = f"update-{self.tasks}"
        job = DoUpdate(
            id=number,
            protocol_instance_id=number,
            name=name,
            input=self._converter.to_payloads([request]),
            run_validator=True,
        )
        self._activate(WorkflowActivationJob(do_update=job))
        answer = self._answers.pop(number)
        if isinstance(answer, Refused):
            return answer
        return self._typed(answer, self._definition.updates[name].ret_type)

    def signal(self, name: str, *arguments: Any) -> None:
        job = SignalWorkflow(
            signal_name=name,
            input=self._converter.to_payloads(list(arguments)) or [],
            originating_event_id=self.tasks,
        )
        self._activate(WorkflowActivationJob(signal_workflow=job))

    def cancel(self) -> None:
        self._activate(WorkflowActivationJob(cancel_workflow=CancelWorkflow(reason="by hand")))

    def query(self, name: str, *arguments: Any) -> Any:
        """Ask; works on a closed workflow too, as on a server."""
        job = QueryWorkflow(
            query_id="query",
            query_type=name,
            arguments=self._converter.to_payloads(list(arguments)) or [],
        )
        self._activate(WorkflowActivationJob(query_workflow=job))
        answer = self._answers.pop("query")
        return self._typed(answer, self._definition.queries[name].ret_type)

    # What time and workers do

    @property
    def next_timer(self) -> datetime | None:
        return min(self.timers.values(), default=None)

    def pass_time(self, until: datetime) -> None:
        """Let time pass to the next timer at most; the workflow is woken by it."""
        due = self.next_timer
        if due is None or due > until:
            self.now = until
            return
        self.now = max(self.now, due)
        for seq in [seq for seq, at in self.timers.items() if at <= self.now]:
            if seq in self.timers:  # not cancelled by what an earlier one of them woke
                del self.timers[seq]
                self._activate(WorkflowActivationJob(fire_timer=FireTimer(seq=seq)))

    def succeed(self, asked: Asked, answer: Any) -> None:
        """Resolve an activity with its answer."""
        payloads = [] if answer is None else self._converter.to_payloads([answer])
        done = Success(result=payloads[0]) if payloads else Success()
        self._resolve(asked, ActivityResolution(completed=done))

    def fail(self, asked: Asked, error: BaseException) -> None:
        """Resolve an activity with a failure that is not tried again."""
        cause = Failure()
        self._failures.to_failure(error, self._converter, cause)
        failure = _activity_failure(asked, cause)
        self._resolve(asked, ActivityResolution(failed=Failed(failure=failure)))

    def end_cancelled(self, asked: Asked) -> None:
        """Resolve an activity whose cancel was waited for."""
        cause = Failure(message="cancelled", canceled_failure_info=CanceledFailureInfo())
        failure = _activity_failure(asked, cause)
        self._resolve(asked, ActivityResolution(cancelled=Cancellation(failure=failure)))

    def _resolve(self, asked: Asked, result: ActivityResolution) -> None:
        del self.activities[asked.seq]
        job = ResolveActivity(seq=asked.seq, result=result, is_local=asked.local)
        self._activate(WorkflowActivationJob(resolve_activity=job))

    # A task

    def _activate(self, job: WorkflowActivationJob) -> None:
        self.tasks += 1
        at = Timestamp()
        at.FromDatetime(self.now)
        task = WorkflowActivation(
            run_id=f"run-{self.runs}",
            timestamp=at,
            jobs=[job],
            history_length=1,
            continue_as_new_suggested=self.suggested,
            available_internal_flags=[],
        )
        completion = self._instance.activate(task)
        assert not completion.HasField("failed"), completion.failed.failure
        for command in completion.successful.commands:
            self._obey(command)
        while self._cancelled:
            asked = self._cancelled.pop(0)
            if asked.seq in self.activities and not asked.waits:
                self.end_cancelled(asked)

    def _obey(self, command: WorkflowCommand) -> None:
        kind = command.WhichOneof("variant") or ""
        body = getattr(command, kind)
        self.events += kind != "respond_to_query"
        if kind not in SHOWN:
            obey = getattr(self, f"_{kind}", None)
            assert obey is not None, f"the workflow does what nobody plays here: {kind}"
            obey(body)

    def _schedule_activity(self, body: Any) -> None:
        self._schedule(body, local=False)

    def _schedule_local_activity(self, body: Any) -> None:
        self._schedule(body, local=True)

    def _request_cancel_activity(self, body: Any) -> None:
        asked = self.activities[body.seq]
        asked.cancelling = True
        self._cancelled.append(asked)

    _request_cancel_local_activity = _request_cancel_activity

    def _start_timer(self, body: Any) -> None:
        self.timers[body.seq] = self.now + body.start_to_fire_timeout.ToTimedelta()

    def _cancel_timer(self, body: Any) -> None:
        self.timers.pop(body.seq, None)

    def _respond_to_query(self, body: Any) -> None:
        assert body.HasField("succeeded"), body.failed
        self._answers[body.query_id] = body.succeeded.response

    def _complete_workflow_execution(self, body: Any) -> None:
        self.closed = True

    def _fail_workflow_execution(self, body: Any) -> None:
        error = self._failures.from_failure(body.failure, self._converter)
        assert isinstance(error, ApplicationError), error
        self.closed, self.failure = True, error

    def _continue_as_new_workflow_execution(self, body: Any) -> None:
        left = {asked.name for asked in self.activities.values()}
        assert left <= READING, f"continued as new with {left} in flight"
        self.suggested = False
        assert self._definition.arg_types is not None
        self._begin(self._typed(body.arguments[0], self._definition.arg_types[0]))

    def _schedule(self, body: Any, *, local: bool) -> None:
        kind = REQUESTS[body.activity_type]
        request = None if kind is None else self._typed(body.arguments[0], kind)
        self.activities[body.seq] = Asked(
            seq=body.seq,
            name=body.activity_type,
            request=request,
            once=body.retry_policy.maximum_attempts == 1,
            waits=not local and body.cancellation_type == WAITS_FOR_ITS_END,
            local=local,
        )

    def _update_response(self, body: Any) -> None:
        if body.HasField("rejected"):
            error = self._failures.from_failure(body.rejected, self._converter)
            assert isinstance(error, ApplicationError), error
            self._answers[body.protocol_instance_id] = Refused(error.type or "", str(error))
        elif body.HasField("completed"):
            self._answers[body.protocol_instance_id] = body.completed

    def _typed(self, payload: Any, kind: Any) -> Any:
        (value,) = self._converter.from_payloads([payload], [kind])
        return value


def _instance(definition: _Definition, info: Info) -> WorkflowInstance:
    details = WorkflowInstanceDetails(
        payload_converter_factory=lambda: DATA_CONVERTER.payload_converter,
        failure_converter_class=DATA_CONVERTER.failure_converter_class,
        interceptor_classes=[],
        defn=definition,
        info=info,
        randomness_seed=1,
        extern_functions={
            "__temporal_assert_local_activity_valid": lambda _: None,
            "__temporal_get_metric_meter": lambda: MetricMeter.noop,
        },
        disable_eager_activity_execution=False,
        worker_level_failure_exception_types=[],
        patch_activation_callback=None,
        last_completion_result=Payloads(),
        last_failure=None,
    )
    with _some_loop():
        return UnsandboxedWorkflowRunner().create_instance(details)


@contextmanager
def _some_loop() -> Iterator[None]:
    """A workflow instance reads the running loop when it is made, and never again."""
    before = asyncio._get_running_loop()
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)
        loop.close()


def _activity_failure(asked: Asked, cause: Failure) -> Failure:
    info = ActivityFailureInfo(activity_id=str(asked.seq))
    info.activity_type.name = asked.name
    return Failure(message="activity", cause=cause, activity_failure_info=info)
