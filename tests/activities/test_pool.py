"""What a nodepool may conclude from a purchase, and which offers it gets to see."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from garrison.activities.pool import PoolActivities
from garrison.activities.provider import ProviderActivities
from garrison.errors import (
    GarrisonError,
    ProviderAuth,
    ProviderError,
    ProviderUnreachable,
    QuotaExceeded,
)
from garrison.models.cluster_messages import PurchaseAnswer, PurchaseRequest
from garrison.models.group import GroupRequest
from garrison.models.nodepool import PoolOffersRequest
from garrison.models.offer import CapacityType, Offer, OfferList, OfferQuery

NOW = datetime(2026, 5, 1, tzinfo=UTC)
BOUND = timedelta(minutes=1)
PURCHASE = PurchaseRequest(
    provider="sim",
    request=GroupRequest(
        token="u-0",
        owner="nodepool/cc/p",
        uid="u",
        name="cc-p-0",
        region="r",
        instance_type="m",
        count=1,
        max_usd_per_node_hour=Decimal(1),
    ),
)


class Calls:
    """A provider that fails as it is told to, and sells three offers."""

    def __init__(self, error: GarrisonError | None = None) -> None:
        self.error = error

    async def purchase_group(self, purchase: PurchaseRequest) -> PurchaseAnswer:
        assert self.error is not None
        raise self.error

    async def list_offers(self, query: OfferQuery) -> OfferList:
        sold = [
            Offer(provider="sim", region="r", instance_type="m.large", vcpus=2),
            Offer(provider="sim", region="elsewhere", instance_type="m.large"),
            Offer(provider="sim", region="r", instance_type="m.larger"),
        ]
        end = query.offset + 1
        more = end if end < len(sold) else None
        return OfferList(offers=tuple(sold[query.offset : end]), next_offset=more)


def activities(error: GarrisonError | None = None) -> PoolActivities:
    calls = cast(ProviderActivities, Calls(error))
    return PoolActivities(calls, effect_bound=BOUND, clock=lambda: NOW)


def on_try(attempt: int) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=attempt)
    return environment


def final(error: Any) -> GarrisonError:
    error.retryable = False
    return cast(GarrisonError, error)


@pytest.mark.parametrize(
    ("error", "attempt", "until"),
    [
        pytest.param(QuotaExceeded("q"), 1, None, id="refused at once leaves nothing"),
        pytest.param(ProviderAuth("a"), 1, None, id="no permission leaves nothing"),
        pytest.param(QuotaExceeded("q"), 2, NOW + BOUND, id="an earlier try may have bought"),
        pytest.param(final(ProviderError("?")), 5, NOW + BOUND, id="an unknown error says nothing"),
    ],
)
async def test_only_a_first_try_that_was_refused_is_sure_to_have_left_nothing(
    error: GarrisonError, attempt: int, until: datetime | None
) -> None:
    answer = await on_try(attempt).run(activities(error).buy_machine, PURCHASE)

    assert answer.refusal is not None
    assert answer.refusal.code is error.code
    assert answer.effects_until == until


async def test_a_passing_fault_of_a_purchase_is_left_to_the_retries() -> None:
    with pytest.raises(ProviderUnreachable):
        await on_try(1).run(activities(ProviderUnreachable("away")).buy_machine, PURCHASE)


async def test_offers_are_those_of_the_region_and_types_that_are_not_sold_are_named() -> None:
    request = PoolOffersRequest(
        provider="sim",
        region="r",
        instance_types=("m.large", "m.huge"),
        capacity_types=(CapacityType.ON_DEMAND,),
    )

    answer = await on_try(1).run(activities().pool_offers, request)

    (found,) = answer.offers
    assert (found.offer.instance_type, found.offer.region) == ("m.large", "r")
    assert found.capacity.cpu_milli == 2000
    assert answer.unknown_types == ("m.huge",)
