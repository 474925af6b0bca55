"""What a refusal in one place means for the next."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from garrison.errors import ErrorCode
from garrison.models.cluster_state import Phase
from garrison.models.offer import Offer
from garrison.providers.simulated.faults import Call, Fault
from tests.workflows.conftest import VirtualStory, in_phase, phases


def _machine(name: str) -> Offer:
    return Offer(
        provider="catalogue",
        instance_type=name,
        accelerator="H100",
        accelerator_count=Decimal(8),
        memory_gib=Decimal(2048),
        usd_per_hour=Decimal("98.32"),
    )


def _two_machines_in_two_regions(virtual: VirtualStory) -> None:
    virtual.use(regions=("sim-a", "sim-b"), offers=(_machine("one"), _machine("two")))


@pytest.mark.parametrize(
    "code",
    [
        "InsufficientInstanceCapacity",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "Unsupported",
        "VcpuLimitExceeded",
    ],
)
async def test_a23_without_capacity_or_quota_the_next_region_is_tried(
    virtual: VirtualStory, code: str
) -> None:
    virtual.fault(Call.LAUNCH, code=code, region="sim-a", times=None)

    async with virtual.worker():
        quote = await virtual.launched(failover=True)
        running = await virtual.until(quote.name, in_phase(Phase.RUNNING))

    answers = [(tried.region, code in (tried.answer or "")) for tried in running.purchases]
    assert answers == [("sim-a", True), ("sim-b", False)]
    assert phases(running) == ["quoted", "launching", "provisioning", "running"]
    assert {m["region"] for m in virtual.machines(quote.uid)} == {"sim-b"}
    assert virtual.console.peak(uid=quote.uid) == 2
    assert len(virtual.calls(Call.LAUNCH)) == 2
    assert running.hourly_usd == quote.hourly_usd


@pytest.mark.parametrize(
    ("code", "means"),
    [
        ("InvalidParameterValue", ErrorCode.INVALID_SPEC),
        ("AuthFailure", ErrorCode.PROVIDER_AUTH),
    ],
)
async def test_a23_a_mistake_of_ours_fails_at_once_and_is_tried_nowhere_else(
    virtual: VirtualStory, code: str, means: ErrorCode
) -> None:
    virtual.fault(Call.LAUNCH, code=code, region="sim-a", times=None)

    async with virtual.worker():
        quote = await virtual.launched(failover=True)
        ended = await virtual.ended(quote.name)

    assert ended.phase is Phase.FAILED
    assert ended.last_error is not None
    assert ended.last_error.code is means
    assert code in ended.last_error.message
    assert len(virtual.calls(Call.LAUNCH)) == 1
    assert virtual.console.peak(uid=quote.uid) == 0


async def test_a23_an_unknown_code_is_tried_a_few_times_and_reported_with_its_text(
    virtual: VirtualStory,
) -> None:
    virtual.fault(Call.LAUNCH, code="NobodyEverMappedThis", message="the moon is full", times=None)

    async with virtual.worker():
        quote = await virtual.launched(failover=True)
        ended = await virtual.ended(quote.name)

    assert ended.phase is Phase.FAILED
    assert ended.last_error is not None
    assert ended.last_error.code is ErrorCode.PROVIDER_ERROR
    assert "NobodyEverMappedThis: the moon is full" in ended.last_error.message
    assert 1 < len(virtual.calls(Call.LAUNCH)) <= 5
    assert {call.token for call in virtual.calls(Call.LAUNCH)} == {f"{quote.uid}-0"}


async def test_a_quota_bars_its_whole_region(virtual: VirtualStory) -> None:
    _two_machines_in_two_regions(virtual)
    virtual.fault(Call.LAUNCH, code="VcpuLimitExceeded", region="sim-a", times=None)

    async with virtual.worker():
        quote = await virtual.launched(failover=True)
        running = await virtual.until(quote.name, in_phase(Phase.RUNNING))

    tried = [(one.region, one.instance_type) for one in running.purchases]
    assert tried == [("sim-a", "one"), ("sim-b", "one")]


async def test_missing_capacity_bars_only_its_own_machine(virtual: VirtualStory) -> None:
    _two_machines_in_two_regions(virtual)
    virtual.fault(Call.LAUNCH, Fault.REFUSAL, region="sim-a")

    async with virtual.worker():
        quote = await virtual.launched(failover=True)
        running = await virtual.until(quote.name, in_phase(Phase.RUNNING))

    tried = [(one.region, one.instance_type) for one in running.purchases]
    assert tried == [("sim-a", "one"), ("sim-a", "two")]


async def test_a_failover_never_goes_to_a_dearer_place(virtual: VirtualStory) -> None:
    _two_machines_in_two_regions(virtual)
    virtual.fault(Call.LAUNCH, Fault.REFUSAL, times=None)

    async with virtual.worker():
        for name in ("one", "two"):
            virtual.console.set_price(name, Decimal("98.33"), region="sim-b")
        quote = await virtual.launched(failover=True)
        ended = await virtual.ended(quote.name)

    assert ended.phase is Phase.FAILED
    assert {one.region for one in ended.purchases} == {"sim-a"}
    assert all(one.emptied_at is not None for one in ended.purchases)


async def test_a_node_that_does_not_start_for_lack_of_capacity_fails_over_as_a_whole(
    virtual: VirtualStory,
) -> None:
    virtual.fault(
        Call.LAUNCH,
        Fault.NODE_FAILS,
        rank=1,
        seconds=10,
        code="InsufficientInstanceCapacity",
        region="sim-a",
    )

    async with virtual.worker():
        quote = await virtual.launched(failover=True)
        running = await virtual.until(quote.name, in_phase(Phase.RUNNING))

    assert phases(running) == [
        *("quoted", "launching", "provisioning", "launching", "provisioning", "running")
    ]
    assert {m["region"] for m in virtual.machines(quote.uid)} == {"sim-b"}
    assert virtual.console.peak(uid=quote.uid) == 2
    assert [node.restarts for node in running.nodes] == [0, 0]


async def test_a_launch_without_failover_is_tried_in_one_place_only(
    virtual: VirtualStory,
) -> None:
    virtual.fault(Call.LAUNCH, Fault.REFUSAL)

    async with virtual.worker():
        quote = await virtual.launched()
        ended = await virtual.ended(quote.name)

    assert ended.phase is Phase.FAILED
    assert ended.last_error is not None
    assert ended.last_error.code is ErrorCode.INSUFFICIENT_CAPACITY
    assert len(virtual.calls(Call.LAUNCH)) == 1


async def test_nodes_that_are_not_ready_in_time_are_given_back(virtual: VirtualStory) -> None:
    virtual.use(boot=timedelta(hours=3))

    async with virtual.worker():
        quote = await virtual.launched()
        ended = await virtual.ended(quote.name, every=timedelta(minutes=3))

    assert ended.phase is Phase.FAILED
    assert ended.last_error is not None
    assert ended.last_error.code is ErrorCode.PROVIDER_ERROR
    assert "start timeout" in ended.last_error.message
    assert virtual.machines(quote.uid) == []
