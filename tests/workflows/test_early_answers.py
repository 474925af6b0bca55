"""An answer to a query can be ahead of the history; so only a workflow at rest is asked."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from garrison.client.reading import is_at_rest
from tests.workflows.conftest import SOON

TIMEOUT = timedelta(seconds=10)


@activity.defn(name="work")
async def work() -> None:
    """Does it."""


@workflow.defn(name="Restless")
class Restless:
    """Works once, then waits to be told to go."""

    def __init__(self) -> None:
        self._going = False

    @workflow.run
    async def run(self, workers: str) -> None:
        await workflow.execute_activity(
            work, task_queue=workers, start_to_close_timeout=timedelta(seconds=10)
        )
        await workflow.wait_condition(lambda: self._going)

    @workflow.signal
    def go(self) -> None:
        self._going = True


async def test_a_workflow_is_at_rest_once_it_has_answered_for_all_it_was_told(
    client: Client,
) -> None:
    queue = f"restless-{uuid.uuid4().hex}"
    handle = await client.start_workflow(Restless.run, f"{queue}-work", id=queue, task_queue=queue)

    unanswered = await is_at_rest(handle, TIMEOUT)
    async with Worker(
        client,
        task_queue=queue,
        workflows=[Restless],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=0,
    ):
        async with asyncio.timeout(SOON.total_seconds()):
            while (await handle.describe()).raw_description.HasField("pending_workflow_task"):
                await asyncio.sleep(0.05)
            working = await is_at_rest(handle, TIMEOUT)
            async with Worker(client, task_queue=f"{queue}-work", activities=[work]):
                while not await is_at_rest(handle, TIMEOUT):
                    await asyncio.sleep(0.05)
    await handle.signal(Restless.go)
    told_something_new = await is_at_rest(handle, TIMEOUT)
    await handle.terminate("the test is over")

    assert not unanswered
    assert not working
    assert not told_something_new
