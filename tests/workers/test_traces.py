"""Why no task of an entity commands nothing, and that none does."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Replayer, Worker
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from garrison.workers.traces import TaskTraces
from garrison.workers.unreported import ForgetfulRunner
from tests.workflows.conftest import SOON

PARTS = 3
SECOND = timedelta(seconds=30)


@activity.defn(name="part")
async def part() -> None:
    """Does nothing."""


@activity.defn(name="early")
async def early() -> None:
    """Follows an update that came before all parts were there."""


@activity.defn(name="late")
async def late() -> None:
    """Follows an update that came after them."""


@workflow.defn(name="Ordered")
class Ordered:
    """Does parts one by one on a queue each, and upon an update what fits their number."""

    def __init__(self) -> None:
        self._parts = 0
        self._asked = self._going = False

    @workflow.run
    async def run(self, queue: str) -> None:
        parts = [asyncio.create_task(self._part(f"{queue}-{n}")) for n in range(PARTS)]
        await workflow.wait_condition(lambda: self._asked)
        follows = late if self._parts == PARTS else early
        await workflow.execute_activity(follows, start_to_close_timeout=SECOND)
        await asyncio.gather(*parts)
        await workflow.wait_condition(lambda: self._going)

    async def _part(self, queue: str) -> None:
        await workflow.execute_activity(part, task_queue=queue, start_to_close_timeout=SECOND)
        self._parts += 1

    @workflow.update
    def ask(self) -> None:
        self._asked = True

    @workflow.update
    def go(self) -> None:
        self._going = True


def _runner(leaving: Mapping[str, int]) -> ForgetfulRunner:
    return ForgetfulRunner(
        leaving_traces=leaving,
        restrictions=SandboxRestrictions.default.with_passthrough_all_modules(),
    )


async def _led(client: Client, runner: ForgetfulRunner) -> WorkflowHandle[Ordered, None]:
    """Lead a life at workers that forget it after each task; return it when it was asked."""
    queue = f"ordered-{uuid.uuid4().hex}"
    handle = await client.start_workflow(Ordered.run, queue, id=queue, task_queue=queue)
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[Ordered],
        activities=[early, late],
        workflow_runner=runner,
        max_cached_workflows=0,
    )
    async with worker:
        for number in range(PARTS):
            async with Worker(client, task_queue=f"{queue}-{number}", activities=[part]):
                await _until_at_rest(handle, done=number + 1)
        await handle.execute_update(Ordered.ask)
    return handle


async def _until_at_rest(handle: WorkflowHandle[Ordered, None], *, done: int) -> None:
    """Wait until so many activities have ended, and the workflow has handled that."""
    async with asyncio.timeout(SOON.total_seconds()):
        while True:
            found = (await handle.describe()).raw_description
            ended = [
                event
                async for event in handle.fetch_history_events()
                if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
            ]
            if len(ended) == done and not found.HasField("pending_workflow_task"):
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("leaving", "replays"),
    [
        pytest.param({"Ordered": 0}, True, id="with traces"),
        pytest.param({}, False, id="without: the fault of the core is still there"),
    ],
)
async def test_an_update_after_tasks_that_handled_something_can_be_replayed(
    client: Client, leaving: Mapping[str, int], *, replays: bool
) -> None:
    runner = _runner(leaving)
    handle = await _led(client, runner)
    history = await handle.fetch_history()
    await handle.terminate()

    replayer = Replayer(
        workflows=[Ordered], workflow_runner=runner, data_converter=client.data_converter
    )
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)

    assert (result.replay_failure is None) is replays
    assert replays or "Nondeterminism" in str(result.replay_failure)


def _left(
    *jobs: str, since: int | None = 0, rejected: bool = False, begun: bytes = b"{}"
) -> list[str]:
    """Return what a task commands that handled jobs and commands nothing by itself."""
    traces = TaskTraces(since)
    begin = WorkflowActivation()
    begin.jobs.add().initialize_workflow.arguments.add().data = begun
    traces.leave(begin, WorkflowActivationCompletion())
    act, done = WorkflowActivation(), WorkflowActivationCompletion()
    for job in jobs:
        getattr(act.jobs.add(), job).SetInParent()
    done.successful.SetInParent()
    if rejected:
        done.successful.commands.add().update_response.rejected.SetInParent()
    traces.leave(act, done)
    return [str(command.WhichOneof("variant")) for command in done.successful.commands]


@pytest.mark.parametrize("job", ["resolve_activity", "signal_workflow", "fire_timer"])
def test_a_task_that_handled_something_leaves_a_trace(job: str) -> None:
    assert _left(job) == ["modify_workflow_properties"]
    assert _left(job, "do_update", rejected=True)[1:] == ["modify_workflow_properties"]


def test_what_is_no_part_of_the_history_stays_none() -> None:
    assert _left("query_workflow") == []
    assert _left("remove_from_cache") == []
    assert _left("do_update", rejected=True) == ["update_response"]


def test_only_runs_that_began_so_leave_traces() -> None:
    assert _left("fire_timer", since=None) == []
    assert _left("fire_timer", since=3, begun=b'{"revision": 2}') == []
    assert _left("fire_timer", since=3, begun=b"not json") == []
    assert _left("fire_timer", since=3, begun=b'{"revision": 3}') == ["modify_workflow_properties"]
