"""Deployments as Temporal knows them, on a real server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from garrison.errors import ServiceUnreachable
from garrison.models.deployment_state import DeploymentEndpoints
from garrison.models.load import WakeRequest
from garrison.router.directory import TemporalDirectory
from tests.router.stage import endpoints, until_true


@workflow.defn(name="Deployment")
class Stand:
    """Has a deployment's query and signal."""

    def __init__(self) -> None:
        self._woken: WakeRequest | None = None
        self._ended = False

    @workflow.run
    async def run(self, name: str) -> None:
        self._name = name
        await workflow.wait_condition(lambda: self._ended)

    @workflow.query
    def endpoints(self) -> DeploymentEndpoints:
        return endpoints(id=self._name, desired=0 if self._woken is None else 1)

    @workflow.signal
    def wake(self, said: WakeRequest) -> None:
        self._woken = said

    @workflow.signal
    def end(self) -> None:
        self._ended = True


@pytest.fixture
async def deployment(client: Client) -> AsyncIterator[WorkflowHandle[Stand, None]]:
    """A deployment of a name with capitals, and its worker."""
    name = f"Llm-{uuid.uuid4().hex[:8]}"
    async with Worker(
        client,
        task_queue=name,
        workflows=[Stand],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=0,
    ):
        yield await client.start_workflow(
            Stand.run, name, id=f"deployment/{name.lower()}", task_queue=name
        )


async def test_a_deployment_is_read_woken_listed_and_gone_once_it_has_ended(
    client: Client, deployment: WorkflowHandle[Stand, None]
) -> None:
    directory = TemporalDirectory(client)
    name = deployment.id.removeprefix("deployment/")
    found = await directory.endpoints(name)
    assert found is not None
    assert (found.id.lower(), found.desired) == (name, 0)

    await directory.wake(found.id, found.uid)
    woken = await directory.endpoints(name)
    assert woken is not None
    assert woken.desired == 1

    async def is_listed() -> bool:
        return name in await directory.running()

    await until_true(is_listed)
    await deployment.signal("end")
    await deployment.result()
    assert await directory.endpoints(name) is None


async def test_a_deployment_that_never_was_is_none(client: Client) -> None:
    assert await TemporalDirectory(client).endpoints("nobody") is None


async def test_a_deployment_whose_worker_is_away_is_not_taken_for_gone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garrison.router.directory.CALL_TIMEOUT", timedelta(seconds=0.3))
    name = f"away-{uuid.uuid4().hex[:8]}"
    started = await client.start_workflow(Stand.run, name, id=f"deployment/{name}", task_queue=name)

    with pytest.raises(ServiceUnreachable):
        await TemporalDirectory(client).endpoints(name)

    await started.terminate()
