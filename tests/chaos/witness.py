"""What the service itself says at the end: every life, and whether its history is sound."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowHistory,
)
from temporalio.worker import Replayer

from garrison.failures import DATA_CONVERTER
from garrison.models.cluster_status import ClusterStatus
from garrison.workers.main import WORKFLOWS, workflow_runner
from garrison.workflows.cluster import ClusterWorkflow
from tests.chaos.driver import Driver
from tests.chaos.facts import Facts, Life
from tests.chaos.truth import Truth

WITHIN = timedelta(seconds=10)
RACES = {
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_UPDATE,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE,
}
"""Failures that the service orders itself: something came in while the workflow was closing."""

UNSOUND = {
    WorkflowExecutionStatus.TERMINATED,
    WorkflowExecutionStatus.CANCELED,
    WorkflowExecutionStatus.TIMED_OUT,
}
"""Ends that no cluster comes to by itself."""


async def gather_facts(client: Client, truth: Truth, drivers: Sequence[Driver]) -> Facts:
    """Return what is known now, histories left out.

    Raises:
        RPCError, WorkflowQueryFailedError: The service or its workers do not answer.
    """
    plans = {driver.plan.name: driver for driver in drivers}
    lives: dict[str, Life] = {}
    async for execution in client.list_workflows("WorkflowType = 'Cluster'"):
        if execution.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
            continue
        status = await _status(client, execution)
        driver = plans[status.name]
        lives[status.uid] = Life(
            plan=driver.plan,
            status=status,
            closed=execution.status is not WorkflowExecutionStatus.RUNNING,
            acks=tuple(ack for ack in driver.acks if ack.uid == status.uid),
            faults=(f"ended as {execution.status}",) if execution.status in UNSOUND else (),
        )
    machines, purchases = truth.books()
    complaints = tuple(text for driver in drivers for text in driver.asker.complaints)
    return Facts(datetime.now(UTC), lives, machines, purchases, complaints)


async def _status(client: Client, execution: WorkflowExecution) -> ClusterStatus:
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    status: ClusterStatus = await handle.query(ClusterWorkflow.get, rpc_timeout=WITHIN)
    return status


async def unsound_histories(client: Client, folder: Path, *, replays: bool) -> list[str]:
    """Return what no history should have: failed workflow tasks, and what does not replay.

    Args:
        client: Of the service.
        folder: Where the histories are left.
        replays: Whether they are to be replayed.
    """
    histories = [history async for history in _histories(client)]
    for number, history in enumerate(histories):
        name = f"history-{number}-{history.workflow_id.replace('/', '-')}.json"
        (folder / name).write_text(history.to_json())
    found = [text for history in histories for text in _failed_tasks(history)]
    return found + (await _not_replaying(histories) if replays else [])


async def _not_replaying(histories: Sequence[WorkflowHistory]) -> list[str]:
    found = []
    replayer = Replayer(
        workflows=WORKFLOWS,
        workflow_runner=workflow_runner(),
        data_converter=DATA_CONVERTER,
    )
    for history in histories:
        replayed = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        if replayed.replay_failure is not None:
            found.append(f"{history.workflow_id} does not replay: {replayed.replay_failure}")
    return found


async def _histories(client: Client) -> AsyncIterator[WorkflowHistory]:
    async for execution in client.list_workflows(""):
        handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
        yield await handle.fetch_history()


def _failed_tasks(history: WorkflowHistory) -> Iterable[str]:
    for event in history.events:
        if event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            continue
        failed = event.workflow_task_failed_event_attributes
        if failed.cause not in RACES:
            cause = WorkflowTaskFailedCause.Name(failed.cause)
            yield f"{history.workflow_id}: {cause}: {failed.failure.message}"
