"""The simulated cloud's character beyond the contract: prices, stock, time, limits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import (
    InvalidSpec,
    NameConflict,
    PriceChanged,
    ProviderError,
    ProviderUnreachable,
    TooManyRequests,
    Unsupported,
)
from garrison.models.group import Group, GroupRequest, Node, NodeStatus, Refusal, RestartResult
from garrison.models.offer import CapacityType, Offer, OfferQuery, Stock
from garrison.providers.base import Provider, WorkloadRequest, Workloads
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.faults import Call, Fault, FaultRule
from garrison.providers.simulated.provider import SimulatedProvider

START = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """A cloud with a clock that moves when told."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cloud.sqlite"
        self.now = START
        self.console = SimulatedConsole(self.path, clock=lambda: self.now)

    def provider(self, **options: Any) -> SimulatedProvider:
        fields: dict[str, Any] = {
            "installation": "ours",
            "offers": [offer()],
            "clock": lambda: self.now,
        }
        return SimulatedProvider(self.path, **(fields | options))

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def script(self, call: Call, what: Fault = Fault.ERROR, **fields: Any) -> FaultRule:
        return self.console.add_fault(FaultRule(call=call, what=what, **fields))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def offer(**changes: Any) -> Offer:
    fields: dict[str, Any] = {
        "provider": "aws",
        "region": "us-east-1",
        "instance_type": "p5.48xlarge",
        "accelerator": "H100",
        "accelerator_count": Decimal(8),
        "memory_gib": Decimal(2048),
        "usd_per_hour": Decimal("98.32"),
    }
    return Offer(**(fields | changes))


def request(**changes: Any) -> GroupRequest:
    fields: dict[str, Any] = {
        "token": "token-1",
        "owner": "cluster/train-1",
        "uid": "uid-1",
        "name": "train-1",
        "region": "sim-a",
        "instance_type": "p5.48xlarge",
        "count": 3,
        "max_usd_per_node_hour": Decimal("98.32"),
    }
    return GroupRequest(**(fields | changes))


async def bought(provider: Provider, **changes: Any) -> Group:
    group = await provider.launch_group(request(**changes))
    assert isinstance(group, Group)
    return group


async def listed(provider: Provider) -> tuple[Node, ...]:
    (group,) = await provider.list_groups()
    return group.nodes


def test_it_is_a_provider_with_workloads(world: World) -> None:
    provider: Provider = world.provider(settle=timedelta(seconds=5))
    workloads: Workloads | None = provider.workloads

    assert workloads is not None
    assert provider.facts.simulated
    assert provider.facts.regions == ("sim-a", "sim-b", "sim-c")
    assert provider.facts.settle == timedelta(seconds=5)


async def test_every_priced_machine_is_sold_at_its_lowest_price_in_every_region(
    world: World,
) -> None:
    provider = world.provider(
        offers=[
            offer(usd_per_hour=Decimal("110"), root_disk_usd_per_gb_month=Decimal("0.08")),
            offer(region="us-west-2", usd_per_hour=Decimal("98.32")),
            offer(capacity_type=CapacityType.SPOT, usd_per_hour=Decimal("1")),
            offer(instance_type="slice", whole_machine=False),
            *(
                offer(instance_type=f"bad-{number}", usd_per_hour=price)
                for number, price in enumerate((None, Decimal(0), Decimal("0.0"), Decimal(-1)))
            ),
        ]
    )

    offers = await provider.list_offers(OfferQuery())

    sold = {(o.region, o.capacity_type, o.usd_per_hour) for o in offers}
    regions = ("sim-a", "sim-b", "sim-c")
    assert sold == {(r, CapacityType.ON_DEMAND, Decimal("98.32")) for r in regions} | {
        (r, CapacityType.SPOT, Decimal("39.328")) for r in regions
    }
    assert {o.instance_type for o in offers} == {"p5.48xlarge"}
    assert all(o.simulated and o.root_disk_usd_per_gb_month is None for o in offers)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param(OfferQuery(accelerator="h100"), 6, id="accelerator, any case"),
        pytest.param(OfferQuery(accelerator="A100"), 0, id="another accelerator"),
        pytest.param(OfferQuery(cpu_only=True), 0, id="no accelerator"),
        pytest.param(OfferQuery(min_gpus=Decimal(8)), 6, id="just enough GPUs"),
        pytest.param(OfferQuery(min_gpus=Decimal("8.5")), 0, id="too few GPUs"),
        pytest.param(OfferQuery(min_memory_gib=Decimal(2049)), 0, id="too little memory"),
        pytest.param(OfferQuery(max_usd_per_hour=Decimal("39.328")), 3, id="price at the bound"),
        pytest.param(OfferQuery(search="SIM-B"), 2, id="search"),
        pytest.param(OfferQuery(provider="aws"), 0, id="another provider"),
    ],
)
async def test_offers_are_filtered(world: World, query: OfferQuery, found: int) -> None:
    offers = await world.provider().list_offers(query)

    assert len(offers) == found


async def test_stock_is_counted_and_comes_back(world: World) -> None:
    provider = world.provider()
    world.console.set_stock("sim-a", "p5.48xlarge", 3)

    await bought(provider, token="one")
    full = await provider.launch_group(request(token="two", count=1))
    elsewhere = await provider.launch_group(request(token="three", region="sim-b"))
    await provider.terminate_group("one")
    after = await provider.launch_group(request(token="two", count=1))

    assert isinstance(full, Refusal)
    assert "0 of 1 x p5.48xlarge free in sim-a" in full.message
    assert isinstance(elsewhere, Group)
    assert isinstance(after, Group)


@pytest.mark.parametrize(
    ("free", "signal"), [(0, Stock.NONE), (7, Stock.LOW), (8, Stock.HIGH), (None, Stock.HIGH)]
)
async def test_the_stock_signal_follows_the_stock(
    world: World, free: int | None, signal: Stock
) -> None:
    await bought(world.provider())
    world.console.set_stock("sim-a", "p5.48xlarge", free)

    offers = await world.provider().list_offers(OfferQuery(region="sim-a"))

    assert {o.stock for o in offers} == {signal}


async def test_a_price_can_be_changed_in_one_region_and_back(world: World) -> None:
    provider = world.provider()
    world.console.set_price("p5.48xlarge", Decimal("100"), region="sim-a")

    with pytest.raises(PriceChanged, match=r"costs 100 USD/h.*98\.32 USD/h"):
        await provider.launch_group(request())
    elsewhere = await bought(provider, token="b", region="sim-b")
    spot = await bought(provider, token="s", capacity_type=CapacityType.SPOT)
    world.console.set_price("p5.48xlarge", None, region="sim-a")
    back = await bought(provider)

    assert elsewhere.usd_per_node_hour == back.usd_per_node_hour == Decimal("98.32")
    assert spot.usd_per_node_hour == Decimal("40.0")
    assert spot.capacity_type is CapacityType.SPOT


async def test_a_machine_boots_and_ends_by_the_clock(world: World) -> None:
    provider = world.provider(boot=timedelta(seconds=8), delete_takes=timedelta(seconds=90))
    seen = [(await bought(provider, count=1)).nodes[0].status]

    for seconds in (1.999999, 0.000001, 5.999999, 0.000001):
        world.wait(seconds)
        seen.append((await listed(provider))[0].status)
    await provider.terminate_group("token-1")
    ending = (await listed(provider))[0]
    world.wait(89)
    left = world.console.inventory()
    world.wait(1)
    ended = (await listed(provider))[0]
    world.wait(301)

    assert seen == [
        NodeStatus.PENDING,
        NodeStatus.PENDING,
        NodeStatus.STARTING,
        NodeStatus.STARTING,
        NodeStatus.RUNNING,
    ]
    assert (ending.status, ending.message) == (NodeStatus.STOPPED, "shutting down")
    assert [machine["status"] for machine in left] == ["terminating"]
    assert ended.status is NodeStatus.TERMINATED
    assert await provider.list_groups() == []
    assert world.console.inventory() == []


async def test_a_token_with_another_order_is_refused(world: World) -> None:
    provider = world.provider()
    await bought(provider)

    with pytest.raises(InvalidSpec, match="IdempotentParameterMismatch"):
        await provider.launch_group(request(count=4))
    with pytest.raises(NameConflict):
        await world.provider(installation="theirs").launch_group(request())

    assert len(world.console.inventory()) == 3


@pytest.mark.parametrize("count", [-1, 0, 1001, 10**12])
async def test_an_absurd_count_is_refused_at_once(world: World, count: int) -> None:
    with pytest.raises(InvalidSpec, match="count"):
        await world.provider().launch_group(request(count=count))


async def test_every_mistake_of_an_order_is_told_at_once(world: World) -> None:
    with pytest.raises(InvalidSpec) as caught:
        await world.provider().launch_group(
            request(token="", region="mars", zone="a", instance_type="x", options={"a": 1})
        )

    assert {problem.field for problem in caught.value.problems} == {
        "token",
        "region",
        "zone",
        "instance_type",
        "options",
    }


async def test_reserved_machines_are_not_sold(world: World) -> None:
    with pytest.raises(Unsupported):
        await world.provider().launch_group(request(capacity_type=CapacityType.RESERVED))


async def test_hostile_names_are_only_text(world: World) -> None:
    hostile = "'); DROP TABLE machines; --"
    provider = world.provider()

    group = await bought(provider, token=hostile, owner=hostile, uid="ü\n\t%", name=hostile)
    await provider.restart_node(hostile, hostile)
    await provider.terminate_group(hostile + "%")

    assert group.token == hostile
    assert [m["uid"] for m in world.console.inventory()] == ["ü\n\t%"] * 3


async def test_a_refused_rank_leaves_the_nodes_before_it(world: World) -> None:
    provider = world.provider()
    world.script(Call.LAUNCH, code="ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", rank=2)
    world.script(Call.TERMINATE, code="Busy", message="try again in 60 seconds", rank=1, times=4)

    refusal = await provider.launch_group(request())
    left = []
    for _ in range(4):
        with pytest.raises(ProviderError, match="try again in 60 seconds"):
            await provider.terminate_group("token-1")
        left.append([machine["rank"] for machine in world.console.inventory()])
    await provider.terminate_group("token-1")

    assert isinstance(refusal, Refusal)
    assert "node 2: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" in refusal.message
    assert left == [[1]] * 4
    assert world.console.inventory() == []


async def test_a_hidden_node_is_rebooted_by_a_restart(world: World) -> None:
    provider = world.provider()
    node = (await bought(provider)).nodes[1]
    world.wait(2)
    rule = world.script(Call.STATUS, Fault.UNKNOWN, owner="train-1", rank=1, times=None)

    with pytest.raises(ProviderUnreachable):
        await provider.workloads.list_workloads(node)
    result = await provider.restart_node(node.provider_id, "restart-1")
    world.console.clear_faults(rule.id)
    world.wait(2)

    assert result is RestartResult.RESTARTED
    assert [n.incarnation for n in await listed(provider)] == [1, 2, 1]


async def test_a_failed_node_is_restarted_in_place(world: World) -> None:
    provider = world.provider()
    world.script(Call.LAUNCH, Fault.NODE_FAILS, rank=2, seconds=20)
    await bought(provider)
    world.wait(20)
    failed = (await listed(provider))[2]

    result = await provider.restart_node(failed.provider_id, "restart-1")
    world.wait(2)

    assert (failed.status, failed.message) == (NodeStatus.FAILED, "failed: no capacity")
    assert result is RestartResult.RESTARTED
    assert (await listed(provider))[2].status is NodeStatus.RUNNING


async def test_a_restart_token_belongs_to_one_machine(world: World) -> None:
    provider = world.provider()
    nodes = (await bought(provider)).nodes
    for node in nodes:
        world.console.kill(node.provider_id)

    await provider.restart_node(nodes[0].provider_id, "restart-1")

    with pytest.raises(InvalidSpec, match="restart-1"):
        await provider.restart_node(nodes[1].provider_id, "restart-1")


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("Unsupported", RestartResult.UNSUPPORTED),
        ("InsufficientInstanceCapacity", RestartResult.NO_CAPACITY),
        ("InvalidInstanceID.NotFound", RestartResult.GONE),
    ],
)
async def test_a_scripted_restart_answers_without_effect(
    world: World, code: str, result: RestartResult
) -> None:
    provider = world.provider()
    node = (await bought(provider)).nodes[0]
    world.console.kill(node.provider_id)
    world.script(Call.RESTART, code=code)

    assert await provider.restart_node(node.provider_id, "restart-1") is result

    assert (await listed(provider))[0].status is NodeStatus.STOPPED


async def test_a_delayed_restart_and_a_retry_boot_once(world: World) -> None:
    provider = world.provider()
    node = (await bought(provider)).nodes[0]
    world.console.kill(node.provider_id)
    world.script(Call.RESTART, Fault.DELAYED_EFFECT, seconds=30)

    with pytest.raises(ProviderUnreachable):
        await provider.restart_node(node.provider_id, "restart-1")
    await provider.restart_node(node.provider_id, "restart-1")
    world.wait(60)

    assert (await listed(provider))[0].incarnation == 2


async def test_a_caller_who_waits_for_a_delayed_effect_gets_the_answer(world: World) -> None:
    provider = world.provider()
    world.script(Call.LAUNCH, Fault.DELAYED_EFFECT, seconds=5)
    world.script(Call.LAUNCH, Fault.LATENCY, when="after", seconds=0.05)

    call = asyncio.create_task(provider.launch_group(request()))
    while not world.console.calls("launch"):
        await asyncio.sleep(0)
    world.wait(5)
    group = await call

    assert isinstance(group, Group)
    assert group.created_at == START + timedelta(seconds=5)
    assert len(world.console.inventory()) == 3


async def test_a_call_cancelled_before_its_effect_has_none(world: World) -> None:
    provider = world.provider()
    world.script(Call.LAUNCH, Fault.LATENCY, seconds=600)

    call = asyncio.create_task(provider.launch_group(request()))
    while not world.console.calls("launch"):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert world.console.inventory() == []
    assert [c.result for c in world.console.calls()] == ["received"]


async def test_calls_beyond_the_limit_are_told_to_wait_and_early_ones_are_noted(
    world: World,
) -> None:
    provider = world.provider(calls_per_second=2, retry_after=timedelta(seconds=7))

    await provider.list_groups()
    await provider.list_groups()
    with pytest.raises(TooManyRequests) as first:
        await provider.list_groups()
    world.wait(3)
    with pytest.raises(TooManyRequests) as second:
        await provider.terminate_group("any")
    world.wait(4)
    await provider.list_groups()

    assert (first.value.retry_after_seconds, second.value.retry_after_seconds) == (7.0, 4.0)
    assert [call.early for call in world.console.calls()] == [False, False, False, True, False]
    assert [c.result for c in world.console.calls()][2:4] == ["too_many_requests"] * 2


async def test_workloads_do_not_count_as_calls_of_the_account(world: World) -> None:
    provider = world.provider(calls_per_second=1, boot=timedelta(0))
    node = (await bought(provider)).nodes[0]

    for _ in range(5):
        await provider.workloads.list_workloads(node)

    assert not any(call.early for call in world.console.calls())


async def test_a_scripted_retry_after_is_told_and_watched(world: World) -> None:
    provider = world.provider()
    await bought(provider)
    world.script(Call.TERMINATE, code="Busy", retry_after_seconds=60)

    with pytest.raises(ProviderError) as caught:
        await provider.terminate_group("token-1")
    world.wait(59)
    await provider.terminate_group("token-1")

    assert caught.value.retry_after_seconds == 60
    assert [c.early for c in world.console.calls("terminate")] == [False, True]


async def test_a_supervisor_restarts_a_failing_workload_up_to_its_limit(world: World) -> None:
    provider = world.provider(boot=timedelta(0))
    node = (await bought(provider)).nodes[0]
    await provider.workloads.start_workload(
        node, WorkloadRequest(name="w", command=("train", "a b"), max_restarts=2)
    )

    seen = []
    for _ in range(3):
        world.console.exit_workload(node.provider_id, 9)
        (status,) = await provider.workloads.list_workloads(node)
        seen.append((status.state, status.restarts, status.exit_code))
    log = await provider.workloads.read_log(node, "w", offset=0, limit=10_000)

    assert seen == [("running", 1, None), ("running", 2, None), ("failed", 2, 9)]
    assert log.data.count(b"rank 0: start again: train 'a b'\n") == 2
    assert log.ended


async def test_an_older_generation_that_comes_late_changes_nothing(world: World) -> None:
    provider = world.provider(boot=timedelta(0))
    node = (await bought(provider)).nodes[0]
    newer = WorkloadRequest(name="w", command=("new",), generation=2)

    await provider.workloads.start_workload(node, newer)
    await provider.workloads.start_workload(node, WorkloadRequest(name="w", command=("old",)))

    log = world.console.read_log(node.provider_id, "w")
    assert b"old" not in log.data
