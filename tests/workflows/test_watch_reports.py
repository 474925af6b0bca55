"""What clients see of the watches, without a single event in a history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowHandle

from garrison.catalog.loader import load_offers
from garrison.client.health import check_service
from garrison.client.providers import Providers
from garrison.models.group import GroupRequest
from garrison.models.observation import WatchAsk, WatchReport
from garrison.models.queues import TASK_QUEUE, WATCH_QUEUE, provider_queue
from garrison.models.service import Check
from garrison.providers.simulated.faults import Call
from garrison.providers.simulated.provider import SimulatedProvider
from garrison.settings import ProviderSettings, ProviderType
from garrison.workers.main import build_worker, now_utc
from garrison.workers.running_costs import running_costs
from garrison.workflows.provider_watch import ProviderWatchWorkflow
from garrison.workflows.watch_report import read_report
from tests.workflows.conftest import SOON, Story


@pytest.fixture(autouse=True)
def _address(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", story.client.service_client.config.target_host)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(story.folder / "none.toml"))


async def _report(story: Story, claim: Callable[[WatchReport], bool]) -> WatchReport:
    async with asyncio.timeout(SOON.total_seconds()):
        while True:
            report = await read_report(story.client, story.name)
            if report is not None and claim(report):
                return report
            await asyncio.sleep(0.1)


async def _doctor(story: Story) -> dict[str, Check]:
    configured = {story.name: ProviderSettings(type=ProviderType.SIMULATED)}
    settings = story.settings.model_copy(update={"providers": configured})
    return {check.name: check for check in await check_service(settings)}


async def _another_buys_beside(story: Story) -> None:
    other = SimulatedProvider(story.path, installation="theirs", offers=load_offers())
    await other.launch_group(
        GroupRequest(
            token="theirs",
            owner="cluster/theirs",
            uid="theirs",
            name="theirs",
            region="sim-a",
            instance_type="p5.48xlarge",
            count=1,
            max_usd_per_node_hour=Decimal(1000),
        )
    )


async def test_machines_of_a_deleted_workflow_are_shown_and_not_touched(story: Story) -> None:
    await _another_buys_beside(story)
    async with story.worker():
        running = await story.running()
        asked = DeleteWorkflowExecutionRequest(
            namespace=story.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=story.handle(running.name).id),
        )
        await story.client.workflow_service.delete_workflow_execution(asked)
        report = await _report(story, lambda one: one.orphan_machines > 0)
        checks = await _doctor(story)
        listed = await Providers(story.client).list()
    costs = await running_costs(story.client, [story.name])

    found = checks[f"orphans {story.name}"]
    assert found.status == "fail"
    assert f"2 machines of lives nobody knows: cluster/{running.name}" in found.detail
    assert "`garrison orphan sweep` deletes them" in (found.remedy or "")
    assert report.orphans[0].uid == running.uid
    others = checks[f"others {story.name}"]
    assert (others.status, others.detail) == ("note", "1 machine of the installation theirs")
    assert listed[0].watch is not None
    assert listed[0].watch.orphan_machines == 2
    assert costs.orphans == 2
    assert len(story.machines(running.uid)) == 2


async def test_a_healthy_watch_is_ok_after_a_clean_restart(story: Story) -> None:
    async with story.worker():
        before = await _report(story, lambda one: one.passed_at is not None)
    stopped = now_utc()
    async with story.worker():
        starting = (await _doctor(story))[f"watch {story.name}"]
        await _report(story, lambda one: one.passed_at is not None and one.passed_at > stopped)
        after = (await _doctor(story))[f"watch {story.name}"]
        history = [event async for event in _watch(story).fetch_history_events()]

    assert before.error is None
    assert (starting.status, after.status) == ("ok", "ok")
    assert len(history) < 10


async def test_a_provider_that_cannot_be_listed_is_named_with_its_words(story: Story) -> None:
    story.fault(Call.LIST, code="AuthFailure", message="the key was revoked", times=None)

    async with story.worker():
        report = await _report(story, lambda one: one.error is not None)
        found = (await _doctor(story))[f"watch {story.name}"]

    assert report.passed_at is None
    assert found.status == "fail"
    assert "provider_auth" in found.detail
    assert "the key was revoked" in found.detail


async def test_the_logs_of_a_life_that_temporal_terminated_outlive_its_machines(
    story: Story,
) -> None:
    async with story.worker():
        running = await story.running(name=f"Log-{story.name}", command="work")
        async with asyncio.timeout(SOON.total_seconds()):
            while not all(n.workload for n in (await story.status(running.name)).nodes):
                await asyncio.sleep(0.1)
        for node in running.nodes:
            story.console.append_log(node.provider_id or "", "main", b"step %d\n" % node.rank)
        await story.handle(running.name).terminate("in the UI")
        async with asyncio.timeout(SOON.total_seconds()):
            while story.machines(running.uid):
                await asyncio.sleep(0.1)
        log = b"".join([part async for part in story.clusters.logs(running.name, rank=1)])

    assert b"step 1\n" in log


async def test_a_watch_forgets_old_asks_and_never_a_future_one(story: Story) -> None:
    now = now_utc()
    times = {
        "old": now - timedelta(minutes=31),
        "recent": now - timedelta(minutes=20),
        "soon": now + timedelta(minutes=10),
        "late": now + timedelta(days=2),
        "now": now,
    }
    async with build_worker(
        story.client, replace(story.parts, queues=frozenset({TASK_QUEUE}))
    ) as w:
        for owner, time in times.items():
            await w.watches.ask(story.name, WatchAsk(owner=owner, uid="u", not_before=time))
        status = await _watch(story).query(ProviderWatchWorkflow.get)

    assert {ask.owner for ask in status.asks} == {"recent", "soon", "late", "now"}


def _watch(story: Story) -> WorkflowHandle[Any, Any]:
    return story.client.get_workflow_handle(f"watch/{story.name}")


async def test_a_provider_is_watched_on_while_no_worker_runs_workflows(story: Story) -> None:
    queues = frozenset({provider_queue(story.name), WATCH_QUEUE})

    async with story.worker():
        running = await story.running()
    await story.handle(running.name).terminate("behind its back")
    async with build_worker(story.client, replace(story.parts, queues=queues)):
        report = await _report(story, lambda one: one.reaped > 0)

    assert report.error is None
    assert story.machines(running.uid) == []
