"""When a workflow is forgotten, so that it goes on from its history alone."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from garrison.workers.unreported import BY_ITSELF, ForgetfulRunner, QueryWatch
from tests.workflows.conftest import SOON

ENOUGH = 10
"""So many queries wait that one of them reaches the worker before the workflow task does."""


def _act(time: int, *jobs: str, replaying: bool = False) -> WorkflowActivation:
    act = WorkflowActivation(run_id="run", is_replaying=replaying)
    act.timestamp.seconds = time
    for job in jobs:
        getattr(act.jobs.add(), job).SetInParent()
    return act


def _query(time: int, query_id: str = BY_ITSELF) -> WorkflowActivation:
    act = _act(time, "query_workflow", replaying=True)
    act.jobs[0].query_workflow.query_id = query_id
    return act


def _forgotten(*acts: WorkflowActivation) -> list[str]:
    forgotten: list[str] = []
    watch = QueryWatch(forgotten.append)
    for act in acts:
        watch.note(act)
    return forgotten


@pytest.mark.parametrize("job", ["resolve_activity", "fire_timer", "signal_workflow", "do_update"])
@pytest.mark.parametrize("replaying", [True, False], ids=["replayed", "kept"])
def test_a_workflow_that_a_query_moved_on_is_forgotten(job: str, *, replaying: bool) -> None:
    first = _act(1, "initialize_workflow", replaying=replaying)

    assert _forgotten(first, _act(1, job), _query(1)) == ["run"]
    assert _forgotten(first, _act(1, job), _act(2, job), _query(2)) == ["run"]


def test_a_workflow_is_forgotten_that_was_moved_on_by_a_task_which_a_killed_worker_had_begun() -> (
    None
):
    replay = [_act(1, "initialize_workflow", replaying=True), _act(2, "fire_timer", replaying=True)]

    assert _forgotten(*replay, _act(3, "signal_workflow"), _query(3)) == ["run"]


@pytest.mark.parametrize(
    "acts",
    [
        [_act(1, "initialize_workflow"), _act(2, "resolve_activity"), _query(2)],
        [
            _act(1, "initialize_workflow", replaying=True),
            _act(1, "do_update", replaying=True),
            _query(1),
        ],
        [_act(1, "initialize_workflow"), _act(1, "resolve_activity"), _query(1, "1")],
        [_act(1, "initialize_workflow"), _act(1, "resolve_activity"), _act(2, "signal_workflow")],
        [_act(1, "initialize_workflow"), _query(1), _query(1)],
        [_act(0, "remove_from_cache"), _query(1)],
        [
            _act(1, "initialize_workflow", replaying=True),
            _act(2, "fire_timer"),
            _act(3, "signal_workflow"),
            _query(3),
        ],
        [
            _act(1, "initialize_workflow", replaying=True),
            _query(1),
            _act(2, "fire_timer"),
            _query(2),
        ],
    ],
    ids=[
        "a task that was reported",
        "only a replay",
        "a query that a task brought",
        "no query",
        "only queries",
        "an eviction",
        "tasks after a replay",
        "a task after a query after a replay",
    ],
)
def test_a_workflow_is_kept_that_no_query_can_have_moved(acts: list[WorkflowActivation]) -> None:
    assert _forgotten(*acts) == []


@activity.defn(name="asked")
async def asked() -> None:
    """Does nothing; local."""


@activity.defn(name="done")
async def done() -> None:
    """Does nothing, on a queue of its own."""


@workflow.defn(name="Asked")
class Asked:
    """Does one thing, then waits to be told to go."""

    def __init__(self) -> None:
        self._done = self._going = False

    @workflow.run
    async def run(self, elsewhere: str) -> None:
        second = timedelta(seconds=30)
        await workflow.execute_local_activity(asked, start_to_close_timeout=second)
        await workflow.execute_activity(done, task_queue=elsewhere, start_to_close_timeout=second)
        self._done = True
        await workflow.wait_condition(lambda: self._going)

    @workflow.signal
    def go(self) -> None:
        self._going = True

    @workflow.query
    def is_done(self) -> bool:
        return self._done


async def test_the_core_moves_a_workflow_on_for_a_query_which_is_then_forgotten(
    client: Client,
) -> None:
    queue = f"asked-{uuid.uuid4().hex}"
    forgotten: list[str] = []

    def worker() -> Worker:
        return Worker(
            client,
            task_queue=queue,
            workflows=[Asked],
            activities=[asked],
            workflow_runner=ForgetfulRunner(
                forget=forgotten.append,
                restrictions=SandboxRestrictions.default.with_passthrough_all_modules(),
            ),
            sticky_queue_schedule_to_start_timeout=timedelta(milliseconds=100),
        )

    handle = await client.start_workflow(Asked.run, f"{queue}-done", id=queue, task_queue=queue)
    async with worker():
        await _until(handle, pending=False)
        kept_while_asked = await handle.query(Asked.is_done), [*forgotten]
    late = [asyncio.create_task(handle.query(Asked.is_done)) for _ in range(ENOUGH)]
    await _until(handle, pending=False)
    async with Worker(client, task_queue=f"{queue}-done", activities=[done]):
        await _until(handle, pending=True)
    async with worker():
        answers = await asyncio.gather(*late)
        await handle.signal(Asked.go)
        await handle.result()

    assert kept_while_asked == (False, [])
    assert all(answers)
    assert forgotten
    assert set(forgotten) == {handle.first_execution_run_id}


async def _until(handle: WorkflowHandle[Asked, None], *, pending: bool) -> None:
    """Wait until a workflow task is pending, or the workflow waits for its activity."""
    async with asyncio.timeout(SOON.total_seconds()):
        while True:
            found = (await handle.describe()).raw_description
            task = found.HasField("pending_workflow_task")
            if task if pending else not task and found.pending_activities:
                return
            await asyncio.sleep(0.02)
