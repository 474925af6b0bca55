"""A worker that remembers nothing replays the whole history at each task, and does the same."""

from __future__ import annotations

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import WorkflowHistory

from garrison.models.cluster_state import Phase
from garrison.providers.simulated.faults import Call, Fault
from garrison.workers.main import build_worker
from tests.workflows.conftest import SOON, Story, phases

UNHANDLED = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
"""News came in the moment in which a run ended; it is told of it and ends again."""


def _failures(history: WorkflowHistory) -> set[int]:
    """Why tasks of the workflow failed; a replay that differs is one of the causes."""
    return {
        event.workflow_task_failed_event_attributes.cause
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    }


async def test_a_life_is_the_same_when_no_workflow_is_kept_in_memory(story: Story) -> None:
    story.fault(Call.LAUNCH, Fault.REFUSAL, region="sim-a")

    # Not the quote: a local activity that runs while nothing is cached starts anew with each query.
    async with story.worker():
        quote = await story.quote(failover=True, command=["train"], recovery={"automatic": True})
    async with build_worker(story.client, story.parts, cached_workflows=0):
        await story.clusters.launch(quote.name)
        running = await story.clusters.wait(quote.name, phases={Phase.RUNNING}, timeout=SOON)
        story.console.kill(story.node_id(1))
        await story.until(running.name, lambda status: status.recovery.attempts == 1)
        whole = await story.clusters.wait(running.name, phases={Phase.RUNNING}, timeout=SOON)
        peak = story.console.peak(uid=running.uid)
        await story.clusters.terminate(running.name)
        ended = await story.clusters.wait(running.name, phases={Phase.TERMINATED}, timeout=SOON)
        history = await story.handle(running.name).fetch_history()

    assert [node.restarts for node in whole.nodes] == [0, 1]
    assert phases(ended)[-5:] == ["running", "degraded", "running", "terminating", "terminated"]
    assert [tried.region for tried in ended.purchases] == ["sim-a", "sim-b"]
    assert peak == 2
    assert story.machines() == []
    assert _failures(history) <= {UNHANDLED}
