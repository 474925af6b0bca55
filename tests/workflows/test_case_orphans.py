"""Machines that nobody answers for: shown with age and cost, deleted when a person says so."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from garrison.activities.watches import watch_id
from garrison.catalog.loader import load_offers
from garrison.client.orphans import Orphans
from garrison.client.providers import Providers
from garrison.models.group import Group, GroupRequest
from garrison.models.orphan import SweepResult
from garrison.providers.simulated.faults import Call
from garrison.providers.simulated.provider import SimulatedProvider
from garrison.settings import ProviderSettings, ProviderType, load_settings
from garrison.workers.assemble import build_parts
from garrison.workers.main import build_worker
from garrison.workflows.watch_report import read_report
from tests.workflows.conftest import SOON, Story

OLD = timedelta(hours=3)


def _orphans(client: Client) -> Orphans:
    return Orphans(client, Providers(client))


def _age(cloud: Path, by: timedelta, *, uid: str = "%") -> None:
    """Let machines have been bought longer ago."""
    with contextlib.closing(sqlite3.connect(cloud)) as file, file:
        file.execute(
            "UPDATE purchases SET created_at = created_at - ? WHERE uid LIKE ?",
            (by // timedelta(microseconds=1), uid),
        )


def _outlives(cloud: Path, to: Path) -> None:
    """Put a cloud into another data directory: a real one would not be lost with the first."""
    to.parent.mkdir(mode=0o700)
    with (
        contextlib.closing(sqlite3.connect(cloud)) as source,
        contextlib.closing(sqlite3.connect(to)) as copy,
    ):
        source.backup(copy)


async def _buys(cloud: Path, installation: str, owner: str) -> None:
    """Let an installation buy a machine, without any workflow."""
    provider = SimulatedProvider(cloud, installation=installation, offers=load_offers())
    bought = await provider.launch_group(
        GroupRequest(
            token=f"token-{owner}",
            owner=owner,
            uid=f"uid-{owner}",
            name="x",
            region="sim-a",
            instance_type="p5.48xlarge",
            count=1,
            max_usd_per_node_hour=Decimal(1000),
        )
    )
    assert isinstance(bought, Group)


async def _forgotten(story: Story, name: str) -> None:
    """Delete a cluster's workflow in Temporal, behind Garrison's back."""
    asked = DeleteWorkflowExecutionRequest(
        namespace=story.client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=story.handle(name).id),
    )
    await story.client.workflow_service.delete_workflow_execution(asked)
    async with asyncio.timeout(SOON.total_seconds()):
        while True:
            try:
                await story.handle(name).describe()
            except RPCError:
                return
            await asyncio.sleep(0.05)


async def test_a2c_a_sweep_deletes_orphans_alone_and_leaves_living_young_and_foreign_ones(
    story: Story,
) -> None:
    await _buys(story.path, "somebody-else", "cluster/foreign")

    async with story.worker():
        lost, living, young = await asyncio.gather(
            *(story.running(nodes=nodes, command="work") for nodes in (2, 1, 1))
        )
        for one in (lost, living):
            await story.until(one.name, lambda now: all(node.workload for node in now.nodes))
        story.console.append_log(lost.nodes[0].provider_id or "", "main", b"step 7\n")
        for one in (lost, young):
            await _forgotten(story, one.name)
        for one in (lost, living):
            _age(story.path, OLD, uid=one.uid)
        orphans = _orphans(story.client)
        report = await orphans.list(provider=story.name)
        swept = await orphans.sweep(report.orphans)
        again = await orphans.sweep(report.orphans)
        after = await orphans.list(provider=story.name)
        still = await story.status(living.name)

    found = {orphan.uid: orphan for orphan in report.orphans}
    rate = lost.hourly_usd
    assert rate is not None
    assert set(found) == {lost.uid, young.uid}
    assert found[lost.uid].owner == f"cluster/{lost.name}"
    assert found[lost.uid].sweepable
    assert found[lost.uid].age_seconds >= OLD.total_seconds()
    assert 3 * rate <= (found[lost.uid].cost_usd or 0) < Decimal("3.1") * rate
    assert not found[young.uid].sweepable
    assert "too young" in found[young.uid].reason
    assert report.claimed_machines == 1
    assert report.others == {"somebody-else": 1}
    assert {one.uid: one.result for one in swept} == {
        lost.uid: SweepResult.DELETED,
        young.uid: SweepResult.LEFT,
    }
    assert {one.uid: one.result for one in again} == {
        lost.uid: SweepResult.GONE,
        young.uid: SweepResult.LEFT,
    }
    assert [orphan.uid for orphan in after.orphans] == [young.uid]
    assert story.machines(lost.uid) == []
    assert len(story.machines(living.uid)) == 1
    assert len(story.machines("uid-cluster/foreign")) == 1
    assert [str(node.status) for node in still.nodes] == ["running"]
    assert [node.workload.state for node in still.nodes if node.workload] == ["running"]
    logs = [path for path in (story.folder / "logs").rglob("*") if path.is_file()]
    assert [path for path in logs if b"step 7\n" in path.read_bytes()]


async def test_a_machine_with_a_damaged_tag_is_an_orphan_and_keeps_nobody_from_being_watched(
    story: Story,
) -> None:
    other = await story.client.start_workflow("Nothing", id="o'brien", task_queue="nobody")
    for owner in ("", "o'brien"):
        await _buys(story.path, "test", owner)
    _age(story.path, OLD)

    async with story.worker():
        async with asyncio.timeout(SOON.total_seconds()):
            while (report := await read_report(story.client, story.name)) is None or (
                report.passed_at is None and report.error is None
            ):
                await asyncio.sleep(0.1)
        orphans = _orphans(story.client)
        swept = await orphans.sweep((await orphans.list(provider=story.name)).orphans)
    await other.terminate()

    assert report.error is None
    assert report.orphan_machines == 2
    assert [one.result for one in swept] == [SweepResult.DELETED] * 2
    assert story.machines() == []


async def test_a_provider_that_does_not_answer_is_named_and_the_others_are_told(
    story: Story, tmp_path: Path
) -> None:
    other = Story(story.client, tmp_path / "other")
    parts = replace(story.parts, providers={**story.parts.providers, **other.parts.providers})
    await _buys(other.path, "test", "cluster/lost")
    story.fault(Call.LIST, code="AuthFailure", times=None)

    async with build_worker(story.client, parts):
        report = await _orphans(story.client).list()
    await other.end()

    assert [orphan.owner for orphan in report.orphans] == ["cluster/lost"]
    assert [(one.provider, str(one.code)) for one in report.problems] == [
        (story.name, "provider_auth")
    ]


class Home:
    """A data directory with a worker that is assembled from it as `garrison worker` does."""

    def __init__(self, client: Client, folder: Path, provider: str) -> None:
        self.client = client
        self.provider = provider
        found = load_settings({"GARRISON_DATA_DIR": str(folder)})
        kind = ProviderSettings(type=ProviderType.SIMULATED, boot_seconds=0.1)
        self.settings = found.model_copy(update={"providers": {provider: kind}})
        self.cloud = self.settings.simulated_cloud(provider)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[str]:
        """Yield the installation's id while a worker runs."""
        parts = build_parts(self.settings)
        try:
            async with build_worker(self.client, parts):
                yield parts.installation
        finally:
            with contextlib.suppress(RPCError):
                await self.client.get_workflow_handle(watch_id(self.provider)).terminate()


async def test_a_lost_data_directory_is_recovered_from_under_a_new_id(
    story: Story, tmp_path: Path
) -> None:
    first = Home(story.client, tmp_path / "first", story.name)
    async with first.working() as lost_id:
        await _buys(first.cloud, lost_id, "cluster/old")
        await _buys(first.cloud, lost_id, "cluster/new")
    _age(first.cloud, OLD, uid="uid-cluster/old")
    second = Home(story.client, tmp_path / "second", story.name)
    _outlives(first.cloud, second.cloud)

    async with second.working() as own_id:
        orphans = _orphans(story.client)
        own = await orphans.list(provider=story.name)
        lost = await orphans.list(provider=story.name, installation=lost_id)
        swept = await orphans.sweep(lost.orphans)
        _age(second.cloud, OLD)
        rest = await orphans.list(provider=story.name, installation=lost_id)
        await orphans.sweep(rest.orphans)
        after = await orphans.list(provider=story.name)

    assert own_id != lost_id
    assert own.orphans == ()
    assert own.others == {lost_id: 2}
    assert not lost.own
    assert [(one.owner, one.sweepable) for one in lost.orphans] == [
        ("cluster/new", False),
        ("cluster/old", True),
    ]
    assert sorted(str(one.result) for one in swept) == ["deleted", "left"]
    assert [one.owner for one in rest.orphans] == ["cluster/new"]
    assert after.others == {}
