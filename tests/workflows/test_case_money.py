"""What was never ready costs nothing, and what has no price is never quoted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

import pytest

from garrison.errors import PriceUnavailable
from garrison.models.cluster_state import Phase
from garrison.models.offer import Offer, OfferQuery
from garrison.providers.simulated.faults import Call, Fault
from garrison.providers.simulated.provider import SimulatedProvider
from garrison.settings import ProviderSettings
from tests.workflows.conftest import SOON, Story, VirtualStory

MINUTE = timedelta(minutes=1)


async def test_a19_three_tries_in_67_minutes_that_bought_nothing_whole_cost_nothing(
    virtual: VirtualStory,
) -> None:
    virtual.use(delete_takes=22 * MINUTE)
    virtual.fault(Call.LAUNCH, Fault.REFUSAL, rank=1, times=3)

    async with virtual.worker():
        quote = await virtual.launched(failover=True)
        ended = await virtual.ended(quote.name, within=timedelta(hours=3), every=5 * MINUTE)

    assert ended.ended_at is not None
    assert ended.ended_at - ended.phase_transitions[1].time > 66 * MINUTE
    assert ended.phase is Phase.FAILED
    assert len(ended.purchases) == 3
    assert ended.cost_usd == Decimal("0.00")
    assert ended.ready_at is None
    assert ended.billed_until is None
    assert virtual.machines(quote.uid) == []


async def test_a19_two_of_three_nodes_for_ten_minutes_cost_nothing(
    virtual: VirtualStory,
) -> None:
    virtual.use(boot=MINUTE)
    virtual.fault(Call.LAUNCH, Fault.NODE_FAILS, rank=2, seconds=30)
    virtual.fault(Call.TERMINATE, code="InternalError", times=None, lasts_seconds=600)

    async with virtual.worker():
        quote = await virtual.launched(nodes=3)
        ended = await virtual.ended(quote.name)

    assert ended.phase is Phase.FAILED
    assert ended.cost_usd == Decimal("0.00")
    assert ended.ready_at is None
    assert virtual.machines(quote.uid) == []


async def test_a19_a_failed_launch_is_listed_only_among_the_ended_and_as_never_ready(
    story: Story,
) -> None:
    story.fault(Call.LAUNCH, Fault.REFUSAL)

    async with story.worker():
        quote = await story.launched()
        await story.clusters.wait(quote.name, phases={Phase.FAILED}, timeout=SOON)
        living = await story.clusters.list(provider=story.name)
        (row,) = await story.clusters.list(provider=story.name, include_ended=True)

    assert living == []
    assert row.phase is Phase.FAILED
    assert row.ready_at is None
    assert row.cost_usd == Decimal(0)
    assert row.last_error == "insufficient_capacity"


class Carelessly(SimulatedProvider):
    """A cloud whose price list has rows with no price, or an absurd one."""

    rows: tuple[Offer, ...] = ()

    async def list_offers(self, query: OfferQuery) -> Sequence[Offer]:
        return [*self.rows, *await super().list_offers(query)]


def _row(name: str, usd: Decimal | None) -> Offer:
    return Offer.model_construct(
        provider="catalogue",
        instance_type=name,
        accelerator="H100",
        accelerator_count=Decimal(8),
        usd_per_hour=usd,
    )


UNPRICED = {"empty": None, "zero": Decimal(0), "nought": Decimal("0.0"), "minus": Decimal(-1)}


def _careless(virtual: VirtualStory, *priced: Offer) -> None:
    cloud = Carelessly(
        virtual.path,
        installation="test",
        name=virtual.name,
        regions=("sim-a",),
        offers=priced,
        clock=virtual.clock,
    )
    cloud.rows = tuple(
        _row(name, usd).model_copy(update={"provider": virtual.name, "region": "sim-a"})
        for name, usd in UNPRICED.items()
    )
    virtual.parts = virtual.parts_of(cloud)


async def test_a20_only_a_row_with_a_price_is_quoted(virtual: VirtualStory) -> None:
    _careless(virtual, _row("priced", Decimal("98.32")))

    async with virtual.worker():
        quote = await virtual.quote()

    verdicts = {row.offer: row.verdict for row in quote.considered}
    assert quote.offer.instance_type == "priced"
    assert quote.hourly_usd == Decimal("196.64")
    assert quote.alternatives == ()
    assert [text for name, text in verdicts.items() if "priced" not in name] == [
        "price unknown"
    ] * len(UNPRICED)


async def test_a20_without_any_price_nothing_is_quoted(virtual: VirtualStory) -> None:
    _careless(virtual)

    async with virtual.worker():
        with pytest.raises(PriceUnavailable):
            await virtual.quote()

    assert virtual.calls(Call.LAUNCH) == []


@pytest.mark.parametrize("own", [Decimal(10), Decimal(500)], ids=["below", "above"])
async def test_p3_an_own_price_is_paid_and_the_providers_own_rate_bounds_the_purchase(
    story: Story, own: Decimal
) -> None:
    async with story.worker():
        listed = (await story.quote()).offer
    prices = {listed.instance_type: {"usd_per_hour": own}}
    chosen = ProviderSettings.model_validate({"type": "simulated", "prices": prices})
    story.settings = story.settings.model_copy(update={"providers": {story.name: chosen}})
    story.use()

    async with story.worker():
        status = await story.running(instance_type=listed.instance_type, region=listed.region)

    assert listed.usd_per_hour is not None
    assert status.hourly_usd == 2 * own
    assert status.provider_hourly_usd == 2 * listed.usd_per_hour
    machines = story.machines()
    assert {Decimal(machine["usd_per_hour"]) for machine in machines} == {listed.usd_per_hour}
