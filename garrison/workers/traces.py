"""Workflow tasks that leave a trace in the history, so that every replay divides it as they did.

A fault of the SDK's core (sdk-core issue 1146, seen in temporalio 1.35): when a history is read
anew, a task that handled events and commanded nothing is taken for one with the next task, if
nothing but an update came in between, and only as long as that update is not in the history yet.
The worker that carries out the update then handles it before those events, since updates go before
results of activities; every later replay handles the events first, as the first worker did. What
the order decides differs, and the workflow can never be replayed again. It takes an update as the
first thing after a worker was killed or had forgotten the workflow, and two such tasks before it.

So no task of an entity commands nothing: one that handled anything takes out of the memo a field
that is not there, which is one event and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

LEAVING_TRACES: Mapping[str, int] = {
    "Cluster": 3,
    "ComputeCluster": 0,
    "Deployment": 0,
    "Nodepool": 0,
}
"""From which revision of its input a run of a type leaves traces; older ones have none."""

UNHEARD = frozenset({"query_workflow", "remove_from_cache"})
"""What is no part of a task that the history keeps."""

ABSENT = "-"
"""A field that no memo has."""


class TaskTraces:
    """Has the tasks of one run leave traces, if they are to; the first one says which run it is."""

    def __init__(self, since: int | None) -> None:
        """Begin with a run.

        Args:
            since: The revision from which runs of its type leave traces, None for never.
        """
        self._since = since
        self._leaves = False

    def leave(self, act: WorkflowActivation, done: WorkflowActivationCompletion) -> None:
        """Add a command to a task that handled something and has none."""
        if self._since is None:
            return
        for job in act.jobs:
            if job.HasField("initialize_workflow"):
                self._leaves = _revision(job.initialize_workflow.arguments) >= self._since
        if self._leaves and _is_empty(act, done):
            done.successful.commands.append(_trace())


def _is_empty(act: WorkflowActivation, done: WorkflowActivationCompletion) -> bool:
    """Return whether a task is part of the history and leaves nothing there.

    One with nothing but refused updates is no part of it, and stays none.
    """
    heard = {job.WhichOneof("variant") for job in act.jobs} - UNHEARD
    if not heard or not done.HasField("successful") or any(map(_is_kept, done.successful.commands)):
        return False
    return heard != {"do_update"}


def _is_kept(command: WorkflowCommand) -> bool:
    """Return whether a command becomes an event; answers to queries and refusals do not."""
    if command.HasField("update_response"):
        return not command.update_response.HasField("rejected")
    return not command.HasField("respond_to_query")


def _trace() -> WorkflowCommand:
    command = WorkflowCommand()
    nothing = Payload(metadata={"encoding": b"binary/null"})
    command.modify_workflow_properties.upserted_memo.fields[ABSENT].CopyFrom(nothing)
    return command


def _revision(arguments: Sequence[Payload]) -> int:
    """Return the revision that a run's input names, 0 where it names none."""
    try:
        said = json.loads(arguments[0].data) if arguments else {}
    except ValueError:
        return 0
    return int(said.get("revision", 0)) if isinstance(said, dict) else 0
