"""The worker of the raw arm: the options of Garrison's own, activities that only answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from benchmarks import sample as samples
from benchmarks.raw_cloud import RawCloud
from benchmarks.raw_workflow import RawWorkflow, call_queue
from benchmarks.sample import Call, Sample, types_of
from garrison.service import connect_service
from garrison.settings import Settings
from garrison.workers.main import (
    CACHED_WORKFLOWS,
    GRACE,
    STICKY_TIMEOUT,
    WORKFLOW_TASKS,
    workflow_runner,
)
from garrison.workers.stopping import StopRequest

INTERRUPTED = 130
BUYS = "raw-buys"
Activity = Callable[..., Any]


async def run_raw_worker(
    settings: Settings, path: Path, *, queue: str, ready: Callable[[], None]
) -> None:
    """Serve until asked to stop.

    Args:
        settings: Where the service is.
        queue: Of the arm; the one of `BUYS` makes its calls to a simulated cloud of its own.
        path: Of the sample.
        ready: Called once it polls.
    """
    sample = samples.load(path)
    samples.use(sample)
    stop = StopRequest(on_insist=lambda: os._exit(INTERRUPTED))
    with stop.listening():
        client = await connect_service(settings)
        async with AsyncExitStack() as stack:
            cloud = RawCloud(settings.data_dir / "raw-cloud.db") if queue == BUYS else None
            for worker in _workers(client, queue, _Answers(client, sample, cloud)):
                await stack.enter_async_context(worker)
            ready()
            await stop.wait()


def _workers(client: Client, queue: str, answers: _Answers) -> list[Worker]:
    return [
        Worker(
            client,
            task_queue=queue,
            workflows=[RawWorkflow],
            activities=answers.activities(quick=True),
            workflow_runner=_runner(),
            max_cached_workflows=CACHED_WORKFLOWS,
            max_concurrent_workflow_tasks=WORKFLOW_TASKS,
            max_concurrent_activities=100,
            sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
            graceful_shutdown_timeout=GRACE,
        ),
        Worker(
            client,
            task_queue=call_queue(queue),
            activities=answers.activities(quick=False),
            max_concurrent_activities=100,
            graceful_shutdown_timeout=GRACE,
        ),
    ]


def _runner() -> SandboxedWorkflowRunner:
    # Garrison's own modules are passed through, the workflow's among them; so are these.
    runner = workflow_runner()
    passed = runner.restrictions.with_passthrough_modules("benchmarks")
    return replace(runner, restrictions=passed)


class _Answers:
    """Activities that return what Garrison's returned in the sample."""

    def __init__(self, client: Client, sample: Sample, cloud: RawCloud | None) -> None:
        self._client = client
        self._cloud = cloud
        self._calls = {call.name: call for call in sample.calls}

    def activities(self, *, quick: bool) -> list[Activity]:
        """Return the activities of one queue."""
        return [self._activity(call) for call in self._calls.values() if call.quick is quick]

    def _activity(self, call: Call) -> Activity:
        takes, returns = types_of(call.name)

        async def answer_nothing() -> Any:
            return await self._answer(call, None)

        async def answer(request: Any) -> Any:
            return await self._answer(call, request)

        made: Activity = answer_nothing if takes is None else answer
        made.__annotations__ = {"return": returns} | ({"request": takes} if takes else {})
        return activity.defn(name=call.name)(made)

    async def _answer(self, call: Call, request: Any) -> Any:
        # As the watch does in Garrison's arm: the workflow hears what became of a call.
        workflow_id = activity.info().workflow_id
        assert workflow_id is not None
        if self._cloud is not None:
            await self._cloud.call(call.name, workflow_id, request)
        for seen in call.signals:
            await self._client.get_workflow_handle(workflow_id).signal("observe", seen)
        return call.result
