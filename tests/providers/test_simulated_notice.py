"""Spot machines that the simulated cloud takes back, with a notice before."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import ConflictPhase, InvalidSpec, NotFound, ProviderUnreachable
from garrison.models.group import Group, GroupRequest, Node, NodeStatus, RestartResult
from garrison.models.offer import CapacityType, Offer
from garrison.providers.base import WorkloadRequest
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.faults import Call, Fault, FaultRule
from garrison.providers.simulated.provider import SimulatedProvider

OFFER = Offer(provider="x", instance_type="m1", usd_per_hour=Decimal(1))
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Cloud:
    """One account, at a time that a test says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = START
        self.console = SimulatedConsole(path, clock=lambda: self.now)
        self.provider = SimulatedProvider(
            path, installation="i", offers=[OFFER], clock=lambda: self.now
        )

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def buy(self, token: str = "t", **changes: Any) -> Group:
        fields: dict[str, Any] = {
            "token": token,
            "owner": "nodepool/cc/p",
            "uid": "u",
            "name": "p",
            "region": "sim-a",
            "instance_type": "m1",
            "capacity_type": CapacityType.SPOT,
            "count": 1,
            "max_usd_per_node_hour": Decimal(1),
        }
        group = await self.provider.launch_group(GroupRequest(**(fields | changes)))
        assert isinstance(group, Group)
        return group

    async def listed(self, token: str = "t") -> Node:
        groups = await self.provider.list_groups()
        return next(one.nodes[0] for one in groups if one.token == token)

    def rule(self, **fields: Any) -> FaultRule:
        given = {"call": Call.LAUNCH, "what": Fault.RECLAIM, **fields}
        return self.console.add_fault(FaultRule(**given))


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path / "cloud")


async def test_a_machine_under_notice_runs_on_and_is_taken_when_it_ends(cloud: Cloud) -> None:
    node = (await cloud.buy()).nodes[0]
    cloud.wait(10)
    before = await cloud.listed()

    cloud.console.notice(node.provider_id)
    told = await cloud.listed()
    cloud.wait(119.9)
    last = await cloud.listed()
    cloud.wait(0.1)
    taken = await cloud.listed()

    assert (before.notice_at, before.notice_ends_at) == (None, None)
    assert told.notice_at == START + timedelta(seconds=10)
    assert told.notice_ends_at == START + timedelta(seconds=130)
    assert (last.status, last.notice_ends_at) == (NodeStatus.RUNNING, told.notice_ends_at)
    assert (taken.status, taken.message) == (NodeStatus.TERMINATED, "taken back by the provider")
    assert taken.notice_at is None
    assert cloud.console.inventory() == []


async def test_what_ran_on_a_machine_ends_when_it_is_taken(cloud: Cloud) -> None:
    node = (await cloud.buy()).nodes[0]
    cloud.wait(10)
    await cloud.provider.workloads.start_workload(node, WorkloadRequest(name="w", command=("x",)))

    cloud.console.notice(node.provider_id, 30)
    cloud.wait(3600)
    with pytest.raises(ProviderUnreachable):
        await cloud.provider.workloads.list_workloads(node)

    (run,) = cloud.console.workload_runs()
    assert run.ended_at == START + timedelta(seconds=40)


async def test_a_machine_that_was_given_back_before_is_not_taken_again(cloud: Cloud) -> None:
    node = (await cloud.buy()).nodes[0]
    cloud.console.notice(node.provider_id, 60)
    cloud.wait(20)

    await cloud.provider.terminate_group("t")
    cloud.wait(60)

    assert (await cloud.listed()).message is None
    assert await cloud.provider.restart_node(node.provider_id, "r") is RestartResult.GONE


async def test_what_is_taken_is_in_stock_again(cloud: Cloud) -> None:
    node = (await cloud.buy()).nodes[0]
    cloud.console.set_stock("sim-a", "m1", 0)
    cloud.console.notice(node.provider_id, 60)

    cloud.wait(60)

    assert (await cloud.buy("other")).token == "other"


async def test_a_second_notice_and_one_without_sense_are_refused(cloud: Cloud) -> None:
    node = (await cloud.buy()).nodes[0].provider_id
    cloud.console.notice(node, 60)

    with pytest.raises(ConflictPhase, match="it is taken at 2026-01-01T12:01:00Z"):
        cloud.console.notice(node, 10)
    with pytest.raises(NotFound):
        cloud.console.notice("sim-9-9")
    for seconds in (-1, float("nan"), float("inf"), 1e9):
        with pytest.raises(InvalidSpec, match="give 0 to 10000000 s"):
            cloud.console.notice(node, seconds)
    cloud.wait(60)
    with pytest.raises(ConflictPhase, match="is deleted"):
        cloud.console.notice(node)


async def test_a_rule_takes_spot_machines_back_some_time_after_their_purchase(cloud: Cloud) -> None:
    rule = cloud.rule(seconds=600, notice_seconds=30)
    on_demand = await cloud.buy("fixed", capacity_type=CapacityType.ON_DEMAND)
    spot = await cloud.buy("spot")
    again = await cloud.buy("spot")

    cloud.wait(599)
    early = await cloud.listed("spot")
    cloud.wait(1)
    told = await cloud.listed("spot")
    cloud.wait(30)
    taken = await cloud.listed("spot")

    assert spot.nodes[0].notice_at is None
    assert again.nodes == spot.nodes
    assert early.notice_at is None
    assert told.notice_ends_at == START + timedelta(seconds=630)
    assert taken.status is NodeStatus.TERMINATED
    assert [m["token"] for m in cloud.console.inventory()] == [on_demand.token]
    assert rule.id not in [one.id for one in cloud.console.list_faults()]


async def test_a_rule_can_be_what_a_cloud_is_like_and_two_minutes_are_usual(cloud: Cloud) -> None:
    cloud.rule(times=None)

    for token in ("a", "b"):
        node = (await cloud.buy(token)).nodes[0]
        assert node.notice_ends_at == START + timedelta(minutes=2)


async def test_a_person_may_take_a_machine_before_its_rule_does(cloud: Cloud) -> None:
    cloud.rule(seconds=600)
    node = (await cloud.buy()).nodes[0].provider_id

    cloud.console.notice(node, 3600)
    cloud.wait(1200)
    scripted = await cloud.listed()
    cloud.wait(2400)

    assert scripted.status is NodeStatus.RUNNING
    assert (await cloud.listed()).status is NodeStatus.TERMINATED


async def test_a_purchase_that_took_effect_late_is_taken_in_time(cloud: Cloud) -> None:
    cloud.rule(seconds=10, notice_seconds=10)
    cloud.console.add_fault(FaultRule(call=Call.LAUNCH, what=Fault.DELAYED_EFFECT, seconds=30))
    with pytest.raises(ProviderUnreachable):
        await cloud.buy()

    cloud.wait(3600)

    assert cloud.console.inventory() == []
    assert len(cloud.console.inventory(terminated=True)) == 1


async def test_a_late_list_shows_a_notice_late(cloud: Cloud) -> None:
    node = (await cloud.buy()).nodes[0]
    cloud.wait(60)
    cloud.console.notice(node.provider_id)
    cloud.console.add_fault(FaultRule(call=Call.LIST, what=Fault.LATE_LIST, seconds=20, times=None))

    cloud.wait(19)
    early = await cloud.listed()
    cloud.wait(1)

    assert early.notice_at is None
    assert (await cloud.listed()).notice_at is not None


async def test_a_cloud_of_before_there_were_notices_keeps_its_machines(cloud: Cloud) -> None:
    await cloud.buy()
    with closing(sqlite3.connect(cloud.path, isolation_level=None)) as file:
        file.execute("ALTER TABLE machines DROP COLUMN notice_at")
        file.execute("ALTER TABLE machines DROP COLUMN taken_at")
        file.execute("PRAGMA user_version = 2")

    later = Cloud(cloud.path)
    later.wait(10)
    later.console.notice((await later.listed()).provider_id)

    assert (await later.listed()).notice_at == later.now
