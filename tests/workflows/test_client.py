"""What the SDK reads besides a cluster's life."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from garrison.client.clusters import Clusters
from garrison.client.offers import Offers
from garrison.client.providers import Providers
from garrison.client.waiting import wait_for
from garrison.errors import ErrorCode, InvalidSpec, NotFound, ServiceUnreachable, Unsupported
from garrison.models.cluster_state import Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.models.group import NodeStatus, WorkloadState
from garrison.models.offer import OfferQuery
from garrison.providers.simulated.faults import Call
from garrison.workers.running_costs import check_providers
from tests.workflows.conftest import Story

SOON = timedelta(seconds=20)


async def test_offers_come_in_pages_and_all_of_them(story: Story) -> None:
    offers = Offers(story.client, Providers(story.client))
    direct = await story.provider.list_offers(OfferQuery())

    async with story.worker():
        found = await offers.list(OfferQuery(provider=story.name), sort="price", descending=True)

        with pytest.raises(InvalidSpec, match="is not configured"):
            await offers.list(OfferQuery(provider="nowhere"))

    assert len(found) == len(direct) > 300
    prices = [offer.usd_per_hour for offer in found]
    assert prices == sorted(prices, key=lambda p: p or Decimal(0), reverse=True)


async def test_lists_show_the_living_and_on_wish_the_ended(story: Story) -> None:
    spec = story.spec(name="Listed-1")
    async with story.worker():
        quote = await story.clusters.quote(spec)
        living = await story.clusters.list(provider=story.name)
        await story.clusters.terminate("Listed-1")
        await story.clusters.wait("Listed-1", phases={Phase.TERMINATED}, timeout=SOON)
        after = await story.clusters.list(provider=story.name)
        ended = await story.clusters.list(provider=story.name, include_ended=True)

    assert [(row.name, row.uid, row.phase, row.shape) for row in living] == [
        ("Listed-1", quote.uid, Phase.QUOTED, "2 x 8 H100")
    ]
    assert living[0].hourly_usd == quote.hourly_usd
    assert after == []
    assert [(row.name, row.phase, row.cost_usd) for row in ended] == [
        ("Listed-1", Phase.TERMINATED, Decimal(0))
    ]


async def test_names_are_unique_ignoring_case_and_shown_as_written(story: Story) -> None:
    async with story.worker():
        await story.clusters.quote(story.spec(name="Case-X"))
        status = await story.clusters.get("case-x")
        await story.clusters.terminate("CASE-x")

    assert status.name == "Case-X"


@pytest.mark.parametrize("name", ["", "../etc", "a b", "ünï", "a" * 64, "x\n", "-x"])
async def test_a_name_that_can_be_none_is_refused_before_anything_is_asked(
    story: Story, name: str
) -> None:
    with pytest.raises(InvalidSpec, match="is no cluster name"):
        await story.clusters.get(name)


async def test_what_never_was_is_not_found(story: Story) -> None:
    async with story.worker():
        for call in (story.clusters.get, story.clusters.terminate, story.clusters.recover):
            with pytest.raises(NotFound, match="never-was"):
                await call("never-was")


async def test_filters_of_lists_cannot_be_broken_out_of(story: Story) -> None:
    hostile = "x' OR GarrisonKind = 'cluster"

    assert await story.clusters.list(owner=hostile) == []
    assert await story.clusters.list(provider="\\' OR '1'='1") == []
    with pytest.raises(InvalidSpec, match="is no phase"):
        await story.clusters.list(phase=hostile)


async def test_nobody_can_log_in_to_machines_on_paper(story: Story) -> None:
    spec = story.spec(nodes=1)
    assert spec.name is not None
    async with story.worker():
        await story.clusters.quote(spec)
        await story.clusters.launch(spec.name)
        await story.clusters.wait(spec.name, phases={Phase.RUNNING}, timeout=SOON)
        connections = await story.clusters.connections(spec.name)
        with pytest.raises(Unsupported, match="on paper"):
            await story.clusters.ssh(spec.name)
        await story.clusters.terminate(spec.name)
        await story.clusters.wait(spec.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert [connection.command for connection in connections] == [None]


async def test_a_provider_with_machines_cannot_be_removed_from_the_settings(story: Story) -> None:
    async def complaint(configured: list[str]) -> str:
        try:
            await check_providers(story.client, configured)
        except InvalidSpec as error:
            return str(error)
        return ""

    spec = story.spec(name="Keeps-1")
    async with story.worker():
        await story.clusters.quote(spec)
        quoted = await complaint([])
        await story.clusters.launch("Keeps-1")
        await story.clusters.wait("Keeps-1", phases={Phase.RUNNING}, timeout=SOON)
        kept, removed = await complaint([story.name]), await complaint(["other"])
        await story.clusters.terminate("Keeps-1")
        await story.clusters.wait("Keeps-1", phases={Phase.TERMINATED}, timeout=SOON)

    assert story.name not in quoted  # which holds no machine
    assert story.name not in kept
    assert f"providers.{story.name}: is missing, and has Keeps-1" in removed


async def test_a_call_that_fails_and_is_tried_again_is_shown(story: Story) -> None:
    spec = story.spec(name="Blocked-1")
    story.fault(Call.LAUNCH, code="ConnectionReset", times=None)
    async with story.worker():
        await story.clusters.quote(spec)
        await story.clusters.launch("Blocked-1")
        status = await wait_for(
            lambda: story.clusters.get("Blocked-1"),
            lambda one: one.blocked is not None,
            timeout=SOON,
            on_change=None,
        )
        await story.clusters.terminate("Blocked-1")
        await story.clusters.wait("Blocked-1", phases={Phase.TERMINATED}, timeout=SOON)

    assert status.phase is Phase.LAUNCHING
    assert status.blocked is not None
    assert status.blocked.code is ErrorCode.PROVIDER_UNREACHABLE
    assert "ConnectionReset" in status.blocked.message
    assert story.machines(status.uid) == []


async def test_a_life_that_was_ended_in_temporal_says_so_and_costs_no_more(story: Story) -> None:
    spec = story.spec(name="Killed-1")
    async with story.worker():
        await story.clusters.quote(spec)
        await story.clusters.launch("Killed-1")
        await story.clusters.wait("Killed-1", phases={Phase.RUNNING}, timeout=SOON)
        await story.handle("Killed-1").terminate("by hand")
        ended = await story.clusters.wait("Killed-1", phases={Phase.TERMINATED}, timeout=SOON)
        later = await story.clusters.get("Killed-1")
        with pytest.raises(NotFound, match="terminated in Temporal"):
            await story.clusters.launch("Killed-1")

    assert ended.ended_at is not None
    assert ended.billed_until == ended.ended_at
    assert ended.cost_usd == later.cost_usd > 0
    assert [node.status for node in ended.nodes] == [NodeStatus.TERMINATED] * 2


async def test_a_missing_secret_is_shown_and_the_command_starts_once_it_is_there(
    story: Story,
) -> None:
    spec = story.spec(name="Secret-1", nodes=1, command=["train"], env={"T": {"secret": "late"}})
    async with story.worker():
        await story.clusters.quote(spec)
        await story.clusters.launch("Secret-1")
        missing = await wait_for(
            lambda: story.clusters.get("Secret-1"),
            lambda one: one.blocked is not None,
            timeout=SOON,
            on_change=None,
        )
        (story.folder / "secrets").mkdir()
        (story.folder / "secrets" / "late").write_text("now it is here")
        started = await story.until("Secret-1", working)
        await story.clusters.terminate("Secret-1")
        await story.clusters.wait("Secret-1", phases={Phase.TERMINATED}, timeout=SOON)

    assert missing.blocked is not None
    assert missing.blocked.code is ErrorCode.INVALID_SPEC
    assert "env.T" in missing.blocked.message
    assert started.blocked is None


async def test_without_a_worker_the_answer_says_so(story: Story) -> None:
    async with story.worker():
        spec = story.spec()
        await story.clusters.quote(spec)
    assert spec.name is not None

    clusters = Clusters(story.client, story.settings, call_timeout=timedelta(seconds=1))
    providers = Providers(story.client, call_timeout=timedelta(seconds=1))
    for call in (clusters.get(spec.name), providers.list()):
        with pytest.raises(ServiceUnreachable, match="no Garrison worker answered"):
            await call


def working(status: ClusterStatus) -> bool:
    """Whether the command runs on every node."""
    return bool(status.nodes) and all(
        node.workload is not None and node.workload.state is WorkloadState.RUNNING
        for node in status.nodes
    )


async def test_logs_are_read_while_it_runs_and_after_it_is_gone(story: Story) -> None:
    spec = story.spec(nodes=2, command=["train"])
    assert spec.name is not None
    text = "zwölf\0Zeilen\n".encode() * 30_000
    async with story.worker():
        await story.clusters.quote(spec)
        await story.clusters.launch(spec.name)
        status = await wait_for(
            lambda: story.clusters.get(str(spec.name)), working, timeout=SOON, on_change=None
        )
        story.console.append_log(status.nodes[1].provider_id or "", "main", text)
        living = [part async for part in story.clusters.logs(spec.name, rank=1)]
        await story.clusters.terminate(spec.name)
        await story.clusters.wait(spec.name, phases={Phase.TERMINATED}, timeout=SOON)
        kept = [part async for part in story.clusters.logs(spec.name, rank=1)]
        first = [part async for part in story.clusters.logs(spec.name)]
        tail = [part async for part in story.clusters.logs(spec.name, rank=1, tail_bytes=7)]

    assert b"".join(living).endswith(text)
    assert b"".join(kept).startswith(b"".join(living))
    assert text not in b"".join(first)
    assert b"".join(tail) == b"".join(kept)[-7:]
