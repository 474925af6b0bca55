"""One life of a cluster, read from its history: what the raw arm does and with which payloads."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from garrison.activities.installation import InstallationActivities
from garrison.activities.provider import ProviderActivities
from garrison.activities.workload import WorkloadActivities
from garrison.models.base import Message
from garrison.models.cluster_messages import ActionAck, QuoteAck, QuoteAnswer, TerminateAck
from garrison.models.cluster_status import ClusterStatus
from garrison.models.observation import Observation

LOCAL_MARKER = "core_local_activity"
_KNOWN: tuple[Callable[..., Any], ...] = (
    InstallationActivities.quote_terms,
    InstallationActivities.ensure_watch,
    ProviderActivities.place_cluster,
    ProviderActivities.purchase_group,
    ProviderActivities.prepare_nodes,
    ProviderActivities.delete_groups,
    WorkloadActivities.start_workloads,
    WorkloadActivities.save_logs,
)


@dataclass(frozen=True, slots=True)
class Intent:
    """The workflow waits for an update."""

    update: str


@dataclass(frozen=True, slots=True)
class Call:
    """An activity, with payloads of the very classes that Garrison passes.

    Attributes:
        local: It runs inside the workflow task.
        argument: None for an activity without one.
        quick: It runs on the queue of the workflows, not on the provider's.
        signals: What the workflow is told because of it.
    """

    name: str
    local: bool
    argument: Any
    result: Any
    quick: bool
    signals: tuple[Observation, ...] = ()


Step = Intent | Call


@dataclass(frozen=True, slots=True)
class Sample:
    """A life in steps, and what handlers answer.

    Attributes:
        answers: What each update and query of Garrison's returned, by name.
    """

    steps: tuple[Step, ...]
    answers: dict[str, Any] = field(default_factory=dict)

    @property
    def calls(self) -> tuple[Call, ...]:
        """All activities, in order."""
        return tuple(step for step in self.steps if isinstance(step, Call))

    def summary(self) -> str:
        """Return what a life consists of, for the table."""
        local = sum(call.local for call in self.calls)
        updates = sum(isinstance(step, Intent) for step in self.steps)
        signals = sum(len(call.signals) for call in self.calls)
        return (
            f"{len(self.calls) - local} activities, {local} local, {updates} updates, "
            f"{signals} signals"
        )


def types_of(name: str) -> tuple[Any, Any]:
    """Return what an activity takes, None for nothing, and what it returns.

    Raises:
        KeyError: The sample has an activity that this file does not know yet.
    """
    hints = typing.get_type_hints({one.__name__: one for one in _KNOWN}[name])
    result = hints.pop("return")
    return next(iter(hints.values()), None), result


_ANSWERS: dict[str, type[Message]] = {
    "quote": QuoteAck,
    "launch": ActionAck,
    "terminate": TerminateAck,
    "get": ClusterStatus,
    "get_quote": QuoteAnswer,
}


def read_sample(history: WorkflowHistory, queried: dict[str, Any]) -> Sample:
    """Return a completed life as steps.

    Args:
        history: Of one cluster alone on a server, so that nothing in it is due to load.
        queried: The JSON that the queries `get` and `get_quote` answered while it ran.

    Raises:
        ValueError: It is not one whole life, or not that of a cluster alone.
    """
    queue = history.events[0].workflow_execution_started_event_attributes.task_queue.name
    results = dict(_results(history))
    steps: list[Step] = []
    for event in history.events:
        step = _step(event, results, queue)
        if step is not None:
            steps.append(step)
        elif _is(event, "WORKFLOW_EXECUTION_SIGNALED"):
            steps.append(_told(steps.pop(), event))
    _check(steps)
    answers = {**dict(_acknowledged(history)), **queried}
    typed = {name: kind.model_validate(answers[name]) for name, kind in _ANSWERS.items()}
    return Sample(tuple(steps), typed)


def _check(steps: list[Step]) -> None:
    wanted = [step.update for step in steps if isinstance(step, Intent)]
    if wanted != ["quote", "launch", "terminate"]:
        raise ValueError(f"a sample is quoted, launched and terminated once each, not {wanted}")
    names = [step.name for step in steps if isinstance(step, Call)]
    if len(set(names)) < len(names):
        raise ValueError(f"an activity of the sample ran twice: {names}")


def _told(last: Step, signalled: HistoryEvent) -> Step:
    if not isinstance(last, Call):
        raise ValueError("a signal of the sample was caused by no call")
    payloads = signalled.workflow_execution_signaled_event_attributes.input.payloads
    seen = Observation.model_validate(_value(payloads))
    return replace(last, signals=(*last.signals, seen))


def _acknowledged(history: WorkflowHistory) -> Iterator[tuple[str, Any]]:
    names: dict[int, str] = {}
    for event in history.events:
        if _is(event, "WORKFLOW_EXECUTION_UPDATE_ACCEPTED"):
            accepted = event.workflow_execution_update_accepted_event_attributes
            names[event.event_id] = accepted.accepted_request.input.name
        elif _is(event, "WORKFLOW_EXECUTION_UPDATE_COMPLETED"):
            done = event.workflow_execution_update_completed_event_attributes
            yield names[done.accepted_event_id], _value(done.outcome.success.payloads)


def events_until_running(history: WorkflowHistory) -> int:
    """Return how many events a history had when the cluster came to run.

    That is the last change that it published before somebody wanted its end.
    """
    published = 0
    for event in history.events:
        if _is(event, "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES") or _is(
            event, "WORKFLOW_PROPERTIES_MODIFIED"
        ):
            published = event.event_id
        if _is(event, "WORKFLOW_EXECUTION_UPDATE_ACCEPTED"):
            accepted = event.workflow_execution_update_accepted_event_attributes
            if accepted.accepted_request.input.name == "terminate":
                break
    return published


def save(path: Path, history: WorkflowHistory, queried: dict[str, Any]) -> None:
    """Keep a sample for a worker of another process."""
    kept = {"id": history.workflow_id, "history": history.to_json(), "queried": queried}
    path.write_text(json.dumps(kept), encoding="utf-8")


def load(path: Path) -> Sample:
    """Return a sample that `save` kept."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    return read_sample(WorkflowHistory.from_json(kept["id"], kept["history"]), kept["queried"])


_current: Sample | None = None


def use(sample: Sample) -> None:
    """Set what the raw workflows of this process do."""
    global _current
    _current = sample


def current() -> Sample:
    """Return what the raw workflows of this process do.

    Raises:
        RuntimeError: Nobody said.
    """
    if _current is None:
        raise RuntimeError("no sample is in use")
    return _current


def _results(history: WorkflowHistory) -> Iterator[tuple[int, Any]]:
    for event in history.events:
        if _is(event, "ACTIVITY_TASK_COMPLETED"):
            done = event.activity_task_completed_event_attributes
            yield done.scheduled_event_id, _value(done.result.payloads)


def _step(event: HistoryEvent, results: dict[int, Any], queue: str) -> Step | None:
    if _is(event, "WORKFLOW_EXECUTION_UPDATE_ACCEPTED"):
        accepted = event.workflow_execution_update_accepted_event_attributes
        return Intent(accepted.accepted_request.input.name)
    if _is(event, "ACTIVITY_TASK_SCHEDULED"):
        asked = event.activity_task_scheduled_event_attributes
        return _call(
            asked.activity_type.name,
            _value(asked.input.payloads),
            results[event.event_id],
            quick=asked.task_queue.name == queue,
        )
    if _is(event, "MARKER_RECORDED"):
        marker = event.marker_recorded_event_attributes
        if marker.marker_name == LOCAL_MARKER:
            name = _value(marker.details["data"].payloads)["activity_type"]
            return _call(name, None, _value(marker.details["result"].payloads), local=True)
    return None


def _call(
    name: str, argument: Any, result: Any, *, local: bool = False, quick: bool = True
) -> Call:
    takes, returns = types_of(name)
    return Call(
        name=name,
        local=local,
        argument=None if takes is None else TypeAdapter(takes).validate_python(argument),
        result=TypeAdapter(returns).validate_python(result),
        quick=quick,
    )


def _is(event: HistoryEvent, name: str) -> bool:
    return bool(event.event_type == EventType.Value(f"EVENT_TYPE_{name}"))


def _value(payloads: Any) -> Any:
    data = payloads[0].data if payloads else b""
    return json.loads(data) if data else None
