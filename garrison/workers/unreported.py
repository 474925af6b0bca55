"""Workflows that are forgotten once a query may have moved them on.

A fault of the SDK's core (seen in temporalio 1.35; sdk-core issues 943 and 1146 are of its kind):
a query can reach a new worker with events that no workflow task has brought yet, because a killed
worker had that task. To answer, the core lets the workflow handle those events for real, at the
time of the task before, and keeps in memory what came of it. The next task is then reported
together with that, as no replay will ever handle it: the workflow can never be replayed again.

What gives it away is the clock: a workflow task has a time of its own, later than that of the task
before, and what the core handles ahead of a task bears the old one. Only where the killed worker
had begun the task do the events bear its time; then they are the first new ones after a replay,
with the query right behind them. A workflow that handled anything new at an old time, or that was
just replayed and has handled one thing since, is forgotten with the first query that comes by
itself, and its next task or query replays it from the history alone. All others are kept, asked or
not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from garrison.workers.traces import LEAVING_TRACES, TaskTraces

BY_ITSELF = "legacy_query"
"""The core's id of a query that comes without a workflow task."""

PASSIVE = frozenset({"query_workflow", "remove_from_cache"})

Forget = Callable[[str], None]


@dataclass(frozen=True)
class ForgetfulRunner(SandboxedWorkflowRunner):
    """The sandbox, which has workflows forgotten after queries, and tasks leave traces.

    Attributes:
        forget: Has the worker forget a run, by its id, once the activation under way is over.
        leaving_traces: See `garrison.workers.traces`.
        spared: Workflow types that are kept, as what they command depends on no order of events.
    """

    forget: Forget = lambda run_id: None
    spared: frozenset[str] = frozenset()
    leaving_traces: Mapping[str, int] = field(default_factory=lambda: LEAVING_TRACES)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create an instance that is watched."""
        instance = super().create_instance(det)
        if det.defn.name in self.spared:
            return instance
        watch = QueryWatch(self.forget)
        traces = TaskTraces(self.leaving_traces.get(det.defn.name or ""))
        whole = instance.activate

        def activate(act: WorkflowActivation) -> WorkflowActivationCompletion:
            watch.note(act)
            done = whole(act)
            traces.leave(act, done)
            return done

        instance.activate = activate  # type: ignore[method-assign]
        return instance


class QueryWatch:
    """Knows whether one workflow in memory has handled anything ahead of its task."""

    def __init__(self, forget: Forget) -> None:
        self._forget = forget
        self._time = (0, 0)
        self._ahead = False
        self._replayed = False
        self._first_since = False

    def note(self, act: WorkflowActivation) -> None:
        """Take note of an activation that is about to be carried out."""
        if any(job.query_workflow.query_id == BY_ITSELF for job in act.jobs):
            if self._ahead or self._first_since:
                self._forget(act.run_id)
            self._replayed = False
        elif any(job.WhichOneof("variant") not in PASSIVE for job in act.jobs):
            time = _order(act.timestamp)
            self._ahead |= not act.is_replaying and time <= self._time
            self._first_since = self._replayed and not act.is_replaying
            self._replayed = act.is_replaying
            self._time = time


def _order(time: Timestamp) -> tuple[int, int]:
    return time.seconds, time.nanos
