"""The console: the truth about the cloud, and what a person can do to it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import (
    ConflictPhase,
    GarrisonError,
    InvalidSpec,
    NotFound,
    ProviderError,
    ProviderUnreachable,
)
from garrison.models.group import Group, GroupRequest, NodeStatus, RestartResult, WorkloadState
from garrison.models.offer import Offer
from garrison.providers.base import NodeSetup, WorkloadRequest
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.faults import Call, Fault, FaultRule
from garrison.providers.simulated.provider import SimulatedProvider

OFFER = Offer(provider="x", instance_type="m1", usd_per_hour=Decimal("1.50"))
KEY = "ssh-ed25519 AAAA me"


class Clock:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def console(tmp_path: Path, clock: Clock) -> SimulatedConsole:
    return SimulatedConsole(tmp_path / "sub" / "cloud", clock=clock)


@pytest.fixture
def provider(tmp_path: Path, clock: Clock) -> SimulatedProvider:
    return SimulatedProvider(
        tmp_path / "sub" / "cloud", installation="i", offers=[OFFER], clock=clock
    )


async def launch(provider: SimulatedProvider, clock: Clock, **changes: Any) -> Group:
    fields: dict[str, Any] = {
        "token": "t",
        "owner": "cluster/c1",
        "uid": "u",
        "name": "c1",
        "region": "sim-a",
        "instance_type": "m1",
        "count": 2,
        "max_usd_per_node_hour": Decimal("1.5"),
    }
    group = await provider.launch_group(GroupRequest(**(fields | changes)))
    clock.wait(2)
    assert isinstance(group, Group)
    return group


def test_an_empty_cloud_is_an_empty_list(console: SimulatedConsole) -> None:
    assert console.inventory() == []
    assert console.inventory(terminated=True) == []
    assert console.calls() == []
    assert console.peak(uid="nobody") == 0


async def test_the_inventory_is_json_with_every_field(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    await launch(provider, clock, count=1)

    (machine,) = json.loads(json.dumps(console.inventory()))

    assert machine == {
        "provider_id": "sim-1-0",
        "token": "t",
        "owner": "cluster/c1",
        "uid": "u",
        "rank": 0,
        "status": "running",
        "region": "sim-a",
        "instance_type": "m1",
        "capacity_type": "on_demand",
        "usd_per_hour": "1.50",
        "installation": "i",
        "created_at": "2026-01-01T12:00:00Z",
        "private_address": "10.0.0.1",
        "incarnation": 1,
        "notice_at": None,
        "notice_ends_at": None,
    }


async def test_terminated_machines_are_shown_on_request(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    await launch(provider, clock)
    await provider.terminate_group("t")
    clock.wait(86_400)

    assert console.inventory() == []
    assert [m["status"] for m in console.inventory(terminated=True)] == ["terminated"] * 2


async def test_a_killed_machine_is_revived_as_a_new_boot(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    group = await launch(provider, clock)
    node = group.nodes[0]
    await provider.workloads.start_workload(node, WorkloadRequest(name="w", command=("x",)))

    console.kill(node.provider_id)
    down = (await provider.list_groups())[0].nodes[0]
    console.revive(node.provider_id)
    booting = (await provider.list_groups())[0].nodes[0]
    clock.wait(2)
    up = (await provider.list_groups())[0].nodes[0]

    assert (down.status, down.workloads) == (NodeStatus.STOPPED, None)
    assert booting.status is NodeStatus.STARTING
    assert (up.status, up.incarnation) == (NodeStatus.RUNNING, 2)
    assert up.private_address == node.private_address
    assert up.workloads is not None
    assert up.workloads[0].state is WorkloadState.STOPPED


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda c: c.kill("sim-9-9"), id="kill"),
        pytest.param(lambda c: c.revive("sim-9-9"), id="revive"),
        pytest.param(lambda c: c.delete_node("sim-9-9"), id="delete"),
        pytest.param(lambda c: c.exit_workload("sim-9-9", 0), id="exit"),
        pytest.param(lambda c: c.read_log("sim-9-9", "w"), id="log"),
        pytest.param(lambda c: c.clear_faults(77), id="a fault rule"),
    ],
)
def test_what_does_not_exist_is_not_found(console: SimulatedConsole, act: Any) -> None:
    with pytest.raises(NotFound):
        act(console)


async def test_a_machine_in_the_wrong_state_is_a_conflict(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    node = (await launch(provider, clock)).nodes[0].provider_id

    with pytest.raises(ConflictPhase):
        console.revive(node)
    with pytest.raises(ConflictPhase):
        console.exit_workload(node, 0)
    console.kill(node)
    with pytest.raises(ConflictPhase):
        console.append_log(node, "w", b"x")
    await provider.terminate_group("t")
    with pytest.raises(ConflictPhase):
        console.kill(node)
    with pytest.raises(ConflictPhase):
        console.revive(node)


async def test_a_machine_removed_behind_our_back_vanishes_or_is_listed_as_terminated(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    group = await launch(provider, clock, count=3)
    console.delete_node(group.nodes[0].provider_id)
    console.delete_node(group.nodes[1].provider_id, vanish=False)

    (listed,) = await provider.list_groups()
    restart = await provider.restart_node(group.nodes[0].provider_id, "r")
    console.delete_node(group.nodes[1].provider_id)

    assert [(n.rank, n.status) for n in listed.nodes] == [
        (1, NodeStatus.TERMINATED),
        (2, NodeStatus.RUNNING),
    ]
    assert restart is RestartResult.GONE
    assert [n.rank for n in (await provider.list_groups())[0].nodes] == [2]
    assert [m["rank"] for m in console.inventory()] == [2]


async def test_the_peak_counts_machines_that_are_still_being_deleted(
    tmp_path: Path, clock: Clock
) -> None:
    console = SimulatedConsole(tmp_path / "cloud", clock=clock)
    provider = SimulatedProvider(
        tmp_path / "cloud",
        installation="i",
        offers=[OFFER],
        clock=clock,
        delete_takes=timedelta(seconds=60),
    )
    await launch(provider, clock, token="a", count=3)
    await provider.terminate_group("a")

    await launch(provider, clock, token="b", count=1)
    during = console.peak(uid="u")
    clock.wait(60)
    await launch(provider, clock, token="c", count=2)

    assert (during, console.peak(uid="u")) == (4, 4)
    assert [console.peak(token=token) for token in "abc"] == [3, 1, 2]
    with pytest.raises(InvalidSpec):
        console.peak()


async def test_a_delayed_purchase_counts_from_its_own_time(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    console.add_fault(FaultRule(call=Call.LAUNCH, what=Fault.DELAYED_EFFECT, seconds=30))
    with pytest.raises(ProviderUnreachable):
        await launch(provider, clock)
    ordered_at = clock.now

    clock.wait(3600)

    assert {m["created_at"] for m in console.inventory()} == {
        (ordered_at + timedelta(seconds=30)).isoformat().replace("+00:00", "Z")
    }
    assert console.peak(uid="u") == 2


@pytest.mark.parametrize("usd", ["0", "-1", "NaN", "Infinity"])
def test_a_price_must_be_a_positive_number(console: SimulatedConsole, usd: str) -> None:
    with pytest.raises(InvalidSpec, match=usd):
        console.set_price("m1", Decimal(usd))


def test_stock_is_never_below_zero(console: SimulatedConsole) -> None:
    with pytest.raises(InvalidSpec, match="-1"):
        console.set_stock("sim-a", "m1", -1)


async def test_the_log_of_calls_is_bounded(
    console: SimulatedConsole, provider: SimulatedProvider, tmp_path: Path
) -> None:
    await provider.list_groups()
    with closing(sqlite3.connect(tmp_path / "sub" / "cloud", isolation_level=None)) as file:
        file.execute("UPDATE sqlite_sequence SET seq = 204799 WHERE name = 'calls'")

    await provider.list_groups()

    assert len(console.calls()) == 1


async def test_keys_and_names_of_variables_are_kept(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    node = (await launch(provider, clock)).nodes[0]
    await provider.workloads.prepare_node(node, NodeSetup((KEY, KEY)))
    await provider.workloads.prepare_node(node, NodeSetup(("ssh-ed25519 BBBB you", KEY)))
    request = WorkloadRequest(name="w", command=("x",), env={"B": "1", "A": "2"})

    await provider.workloads.start_workload(node, request)

    assert console.authorized_keys(node.provider_id) == [KEY, "ssh-ed25519 BBBB you"]
    assert console.env_names(node.provider_id, "w") == ["A", "B"]


async def test_a_log_of_many_megabytes_is_read_back_whole(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    node = (await launch(provider, clock)).nodes[0]
    await provider.workloads.start_workload(node, WorkloadRequest(name="w", command=("x",)))
    begin = console.read_log(node.provider_id, "w").next_offset
    data = bytes(range(256)) * 20_000
    for at in range(0, len(data), 1_000_003):
        console.append_log(node.provider_id, "w", data[at : at + 1_000_003])

    middle = await provider.workloads.read_log(node, "w", offset=begin + 65_535, limit=3)

    assert console.read_log(node.provider_id, "w", offset=begin).data == data
    assert middle.data == data[65_535:65_538]


async def test_a_log_read_without_a_positive_limit_is_empty(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    node = (await launch(provider, clock)).nodes[0]
    await provider.workloads.start_workload(node, WorkloadRequest(name="w", command=("x",)))

    for limit in (0, -5):
        chunk = await provider.workloads.read_log(node, "w", offset=3, limit=limit)
        assert (chunk.offset, chunk.data) == (3, b"")


def test_a_file_that_is_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"these are my notes, not a cloud\n" * 100)

    with pytest.raises(ProviderError, match="is not a simulated cloud"):
        SimulatedConsole(path)
    with pytest.raises(GarrisonError):
        SimulatedConsole(tmp_path)

    assert path.read_bytes().startswith(b"these are my notes")
