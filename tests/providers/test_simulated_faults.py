"""Fault rules: what they mean, whom they hit, how often, and the table of vendor codes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from garrison.errors import GarrisonError, ProviderError, ProviderUnreachable
from garrison.models.group import Group, GroupRequest, NodeStatus, Refusal
from garrison.models.offer import Offer, OfferQuery
from garrison.providers.simulated import vendor
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.faults import Call, Fault, FaultRule, Target, When, matches
from garrison.providers.simulated.provider import SimulatedProvider

OFFER = Offer(provider="x", instance_type="m1", usd_per_hour=Decimal(1))


class Clock:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def console(tmp_path: Path, clock: Clock) -> SimulatedConsole:
    return SimulatedConsole(tmp_path / "cloud", clock=clock)


@pytest.fixture
def provider(tmp_path: Path, clock: Clock) -> SimulatedProvider:
    return SimulatedProvider(tmp_path / "cloud", installation="i", offers=[OFFER], clock=clock)


def request(**changes: Any) -> GroupRequest:
    fields: dict[str, Any] = {
        "token": "t",
        "owner": "cluster/c1",
        "uid": "u",
        "name": "c1",
        "region": "sim-a",
        "instance_type": "m1",
        "count": 2,
        "max_usd_per_node_hour": Decimal(1),
    }
    return GroupRequest(**(fields | changes))


def rule(call: Call = Call.LIST, **fields: Any) -> FaultRule:
    return FaultRule(call=call, **({"code": "Strange"} | fields))


async def outcome(provider: SimulatedProvider, **changes: Any) -> str:
    try:
        answer = await provider.launch_group(request(**changes))
    except GarrisonError as error:
        return str(error.code)
    return str(answer.code) if isinstance(answer, Refusal) else "bought"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("InsufficientInstanceCapacity", "insufficient_capacity"),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", "insufficient_capacity"),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "insufficient_capacity"),
        ("Unsupported", "insufficient_capacity"),
        ("SpotMaxPriceTooLow", "insufficient_capacity"),
        ("VcpuLimitExceeded", "quota_exceeded"),
        ("MaxSpotInstanceCountExceeded", "quota_exceeded"),
        ("AuthFailure", "provider_auth"),
        ("UnauthorizedOperation", "provider_auth"),
        ("InvalidParameterValue", "invalid_spec"),
        ("RequestLimitExceeded", "too_many_requests"),
        ("RequestExpired", "provider_error"),
        ("ConnectionReset", "provider_unreachable"),
        ("NeverHeardOfIt", "provider_error"),
    ],
)
async def test_a_code_decides_what_a_launch_answers(
    console: SimulatedConsole, provider: SimulatedProvider, code: str, expected: str
) -> None:
    console.add_fault(rule(Call.LAUNCH, code=code))

    assert await outcome(provider) == expected
    assert console.inventory() == []
    assert await outcome(provider) == "bought"
    assert [c.result for c in console.calls()] == [expected, "ok"]


def test_the_table_in_the_docstring_names_every_code() -> None:
    lines = (vendor.__doc__ or "").replace("\\\n", "").splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.startswith("| ")]
    table = {
        kind.strip(): set(codes.split("`")[1::2])
        for kind, codes in rows
        if kind.strip() in set(vendor.Kind) - {vendor.Kind.UNKNOWN}
    }

    assert table == {str(kind): set(codes) for kind, codes in vendor._CODES.items()}


async def test_an_error_after_the_effect_hides_a_success(
    console: SimulatedConsole, provider: SimulatedProvider
) -> None:
    console.add_fault(rule(Call.LAUNCH, code="InternalError", when="after"))

    assert await outcome(provider) == "provider_unreachable"
    assert len(console.inventory()) == 2
    assert console.calls()[-1].result == "ok, then provider_unreachable"
    assert await outcome(provider) == "bought"
    assert console.peak(token="t") == console.peak(uid="u") == 2


async def test_a_request_lost_on_its_way_has_no_effect(
    console: SimulatedConsole, provider: SimulatedProvider
) -> None:
    console.add_fault(FaultRule(call=Call.LAUNCH, what=Fault.LOST_RESPONSE, when=When.BEFORE))

    assert await outcome(provider) == "provider_unreachable"
    assert console.inventory() == []


async def test_what_was_bought_is_not_refused_for_stock_when_asked_again(
    console: SimulatedConsole, provider: SimulatedProvider
) -> None:
    await outcome(provider)
    console.set_stock("sim-a", "m1", 0)
    kept = console.add_fault(FaultRule(call=Call.LAUNCH, what=Fault.REFUSAL))

    assert await outcome(provider) == "bought"
    assert console.list_faults() == [kept]
    assert await outcome(provider, token="t2") == "insufficient_capacity"


async def test_a_quota_met_half_way_is_the_answer_for_ever(
    console: SimulatedConsole, provider: SimulatedProvider
) -> None:
    console.add_fault(rule(Call.LAUNCH, code="VcpuLimitExceeded", rank=1))

    answers = [await outcome(provider), await outcome(provider)]

    assert answers == ["quota_exceeded"] * 2
    assert [machine["rank"] for machine in console.inventory()] == [0]


async def test_a_rank_beyond_the_group_hits_nobody(
    console: SimulatedConsole, provider: SimulatedProvider
) -> None:
    console.add_fault(rule(Call.LAUNCH, code="VcpuLimitExceeded", rank=2))

    assert await outcome(provider) == "bought"


async def test_a_rule_hits_as_often_as_it_says_after_those_it_skips(
    console: SimulatedConsole, provider: SimulatedProvider
) -> None:
    console.add_fault(rule(times=2, skip=1))

    seen = []
    for _ in range(5):
        try:
            await provider.list_groups()
            seen.append("ok")
        except ProviderError:
            seen.append("error")

    assert seen == ["ok", "error", "error", "ok", "ok"]
    assert console.list_faults() == []


async def test_a_rule_ends_with_its_time(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    console.add_fault(rule(times=None, lasts_seconds=20))

    clock.now += timedelta(seconds=19)
    with pytest.raises(ProviderError, match="Strange: scripted"):
        await provider.list_groups()
    clock.now += timedelta(seconds=1)

    assert await provider.list_groups() == []
    assert console.list_faults() == []


async def test_a_status_rule_is_used_up_by_lists_that_meet_its_node(
    console: SimulatedConsole, provider: SimulatedProvider
) -> None:
    console.add_fault(FaultRule(call=Call.STATUS, what=Fault.UNKNOWN, owner="c1", rank=1))
    await provider.list_groups()
    await outcome(provider)

    first = (await provider.list_groups())[0]
    second = (await provider.list_groups())[0]

    assert [n.status for n in first.nodes] == [NodeStatus.PENDING, NodeStatus.UNKNOWN]
    assert [n.status for n in second.nodes] == [NodeStatus.PENDING] * 2


async def test_a_late_purchase_shows_late_and_a_late_deletion_too(
    console: SimulatedConsole, provider: SimulatedProvider, clock: Clock
) -> None:
    console.add_fault(FaultRule(call=Call.LAUNCH, what=Fault.LATE_LIST, seconds=30))
    console.add_fault(FaultRule(call=Call.TERMINATE, what=Fault.LATE_LIST, seconds=400))
    await outcome(provider)
    clock.now += timedelta(seconds=29)

    hidden = await provider.list_groups()
    clock.now += timedelta(seconds=1)
    shown = await provider.list_groups()
    await provider.terminate_group("t")
    clock.now += timedelta(seconds=399)
    ghosts = (await provider.list_groups())[0].nodes
    clock.now += timedelta(seconds=1)
    ended = (await provider.list_groups())[0].nodes

    assert (len(hidden), len(shown)) == (0, 1)
    assert [n.status for n in ghosts] == [NodeStatus.RUNNING] * 2
    assert [n.status for n in ended] == [NodeStatus.TERMINATED] * 2
    assert console.inventory() == []


async def test_several_rules_act_together(
    console: SimulatedConsole, provider: SimulatedProvider
) -> None:
    console.add_fault(FaultRule(call=Call.LAUNCH, what=Fault.NODE_FAILS, rank=0))
    console.add_fault(FaultRule(call=Call.LAUNCH, what=Fault.LOST_RESPONSE))
    console.add_fault(rule(Call.LIST_OFFERS))

    with pytest.raises(ProviderUnreachable):
        await provider.launch_group(request())
    with pytest.raises(ProviderError):
        await provider.list_offers(OfferQuery())
    group = await provider.launch_group(request())

    assert isinstance(group, Group)
    assert [n.status for n in group.nodes] == [NodeStatus.FAILED, NodeStatus.PENDING]


@pytest.mark.parametrize(
    ("aim", "target", "hit"),
    [
        ({"owner": "cluster/c1"}, {"owner": "cluster/c1"}, True),
        ({"owner": "c1"}, {"owner": "cluster/c1"}, True),
        ({"owner": "1"}, {"owner": "cluster/c1"}, False),
        ({"region": "sim-a"}, {"region": "sim-b"}, False),
        ({"rank": 1}, {"nodes": (("sim-1-0", 0), ("sim-1-1", 1))}, True),
        ({"rank": 1, "node": "sim-1-0"}, {"nodes": (("sim-1-0", 0), ("sim-1-1", 1))}, False),
        ({"node": "sim-9-9"}, {"nodes": ()}, False),
        ({}, {}, True),
    ],
)
def test_a_rule_hits_only_what_it_is_aimed_at(
    aim: dict[str, Any], target: dict[str, Any], hit: bool
) -> None:
    assert matches(rule(Call.TERMINATE, **aim), Target(Call.TERMINATE, **target)) is hit


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"call": "list"}, id="an error without a code"),
        pytest.param({"call": "list", "what": "refusal"}, id="a list cannot be out of stock"),
        pytest.param({"call": "launch", "what": "latency"}, id="latency without seconds"),
        pytest.param({"call": "list", "code": "x", "owner": "c1"}, id="a list has no owner"),
        pytest.param({"call": "status", "code": "x"}, id="a status gives no error"),
        pytest.param({"call": "launch", "code": "x", "notice_seconds": 9}, id="no reclaim"),
        pytest.param({"call": "restart", "what": "reclaim"}, id="a restart is not taken back"),
        pytest.param(
            {"call": "launch", "what": "reclaim", "notice_seconds": -1}, id="a notice before now"
        ),
        pytest.param({"call": "reboot", "code": "x"}, id="an unknown call"),
        pytest.param({"call": "list", "code": "x", "times": 0}, id="never"),
        pytest.param({"call": "list", "code": "x", "tims": 3}, id="a misspelt field"),
        pytest.param(
            {"call": "launch", "what": "latency", "seconds": float("nan")}, id="not a number"
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FaultRule(**fields)
