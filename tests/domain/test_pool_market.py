"""What a nodepool may buy now, and in which order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.domain.packing.packing import Kind
from garrison.domain.pools.market import (
    SPOT_MEMORY,
    TRIES_MEMORY,
    Ranking,
    falls_back,
    kinds_of,
    memory_key,
    note_refusal,
    rank_offers,
    resort_kinds,
    retry_at,
    still_refused,
)
from garrison.errors import ErrorCode, GarrisonError
from garrison.models.cluster_state import Failure
from garrison.models.nodepool import NodepoolSpec, PoolOffer
from garrison.models.nodepool_state import RefusedOffer
from garrison.models.offer import CapacityType, Offer, Stock
from garrison.models.resources import Resources
from garrison.providers.simulated import vendor

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
SMALL = Resources(cpu_milli=8000, accelerators=1)


def spec(*types: str, **overrides: Any) -> NodepoolSpec:
    fields = {"id": "p", "compute_cluster": "c", "capacity_types": (ON_DEMAND, SPOT)}
    return NodepoolSpec(**{**fields, "instance_types": types or ("a",), **overrides})


def sold(price: str | None = "1", name: str = "a", **overrides: Any) -> PoolOffer:
    fields = {"provider": "cloud", "region": "r1", "instance_type": name}
    usd = Decimal(price) if price is not None else None
    return PoolOffer(offer=Offer(**{**fields, "usd_per_hour": usd, **overrides}), capacity=SMALL)


def spot(price: str | None = "0.4", name: str = "a", **overrides: Any) -> PoolOffer:
    return sold(price, name, capacity_type=SPOT, **overrides)


def refusal(ago: timedelta = timedelta(0), *, said: str = "", tries: int = 1) -> RefusedOffer:
    code = ErrorCode.INSUFFICIENT_CAPACITY
    return RefusedOffer(at=NOW - ago, code=code, message=said, tries=tries)


def refusals(
    *offers: PoolOffer, ago: timedelta = timedelta(0), said: str = "", tries: int = 1
) -> dict[str, RefusedOffer]:
    return {memory_key(offer): refusal(ago, said=said, tries=tries) for offer in offers}


def rank(
    pool: NodepoolSpec, *offers: PoolOffer, refused: dict[str, RefusedOffer] | None = None
) -> Ranking:
    return rank_offers(pool, offers, refused or {}, NOW)


def test_the_pools_order_of_types_goes_before_the_price() -> None:
    dear, cheap = sold("9", "b"), sold("1", "a")

    assert rank(spec("b", "a"), cheap, dear).offers == (dear, cheap)


def test_within_a_type_spot_goes_before_on_demand_even_if_it_is_dearer() -> None:
    demand, dear_spot, other = sold("1"), spot("2"), spot("0.1", "b")

    assert rank(spec("a", "b"), other, demand, dear_spot).offers == (dear_spot, demand, other)


def test_then_the_price_decides_and_then_the_place() -> None:
    first, second, third = (
        sold("1", zone="z2"),
        sold("2", zone="z1"),
        sold("2", zone="z3"),
    )

    assert rank(spec(), third, second, first).offers == (first, second, third)
    elsewhere = sold("2", region="r2", zone="z1")
    assert rank(spec(), elsewhere, second).offers == (second, elsewhere)


def test_where_the_provider_signals_no_stock_is_tried_last_of_its_class() -> None:
    empty, dearer, demand = spot("0.1", stock=Stock.NONE, zone="z"), spot("0.9"), sold()

    assert rank(spec(), demand, empty, dearer).offers == (dearer, empty, demand)


@pytest.mark.parametrize(
    "offer",
    [sold("1", "b"), sold(capacity_type=CapacityType.RESERVED), sold(whole_machine=False)],
    ids=["another type", "another capacity type", "no whole machine"],
)
def test_what_the_pool_does_not_want_is_not_bought(offer: PoolOffer) -> None:
    ranking = rank(spec(), offer)

    assert ranking == Ranking(
        (), "a is not sold here as on-demand or spot capacity", ErrorCode.UNSUPPORTED
    )


def test_a_type_is_meant_in_whatever_case_it_is_written() -> None:
    assert rank(spec("G5.XLarge"), sold(name="g5.xlarge")).offers


@pytest.mark.parametrize("price", [None, "0", "-1"])
def test_an_unknown_price_is_never_paid(price: str | None) -> None:
    ranking = rank(spec(), spot(price), sold(price, zone="z"))

    assert ranking == Ranking((), "the price of a is unknown", ErrorCode.PRICE_UNAVAILABLE)
    assert rank(spec(), spot(price), sold()).offers == (sold(),)


def test_nothing_is_bought_above_the_pools_limit_and_something_at_it() -> None:
    pool = spec(max_usd_per_hour=Decimal("1.20"))

    above = rank(pool, sold("1.200001"), sold("3", zone="z"))

    assert rank(pool, sold("1.20")).offers
    assert above.reason == "every price is above 1.20 USD/h, the lowest is 1.200001 USD/h"
    assert above.code is ErrorCode.BUDGET_EXCEEDED


def test_a_price_for_several_machines_together_is_not_a_pools() -> None:
    together = sold("3", cluster_usd_per_hour=Decimal(1))
    alone = sold("2", zone="z", cluster_usd_per_hour=Decimal(9))

    assert rank(spec(max_usd_per_hour=Decimal(2)), together, alone).offers == (alone,)
    assert kinds_of(spec(), Ranking((together,)))[0].usd_per_hour == 3


@pytest.mark.parametrize("refused", [spot(), sold()], ids=["spot", "on-demand"])
def test_a_refused_offer_is_left_alone_for_half_an_hour(refused: PoolOffer) -> None:
    other = sold("5", "b")
    last = SPOT_MEMORY - timedelta(microseconds=1)

    at_once = rank(spec("a", "b"), refused, other, refused=refusals(refused))
    before = rank(spec("a", "b"), refused, other, refused=refusals(refused, ago=last))
    after = rank(spec("a", "b"), refused, other, refused=refusals(refused, ago=SPOT_MEMORY))

    assert at_once.offers == before.offers == (other,)
    assert after == Ranking((refused, other))


def test_a_refusal_is_about_one_type_place_and_capacity_type() -> None:
    refused = spot(zone="z1")
    others = (
        spot(zone="z2"),
        sold(zone="z1"),
        spot("1", "b", zone="z1"),
        spot("2", region="r2", zone="z1"),
    )

    ranking = rank(spec("a", "b"), refused, *others, refused=refusals(refused))

    assert set(map(memory_key, ranking.offers)) == set(map(memory_key, others))
    assert memory_key(refused) == "a/r1/z1/spot"
    assert memory_key(sold()) == "a/r1/on_demand"


def test_only_refusals_that_count_are_kept() -> None:
    kept = {"new": refusal(), "old": refusal(SPOT_MEMORY)}

    assert still_refused(kept, NOW) == {"new": refusal()}


def test_a_pool_that_only_wants_spot_waits_for_it_and_says_when_it_tries_again() -> None:
    pool = spec(capacity_types=(SPOT,))
    refused = refusals(spot(), said="InsufficientInstanceCapacity: there is none, sorry", tries=3)

    ranking = rank(pool, spot(), sold(), refused=refused)

    words = "no spot capacity (InsufficientInstanceCapacity), again at 12:04 UTC"
    assert ranking == Ranking(
        (),
        words,
        ErrorCode.INSUFFICIENT_CAPACITY,
        NOW + timedelta(minutes=4),
        refused=words,
    )


def test_the_first_refusal_to_end_says_when_it_is_tried_again() -> None:
    refused = refusals(spot(), ago=timedelta(minutes=12)) | refusals(sold(), tries=6)

    ranking = rank(spec(), spot(), sold(), refused=refused)

    assert ranking.reason == "no spot or on-demand capacity, again at 12:18 UTC"
    assert ranking.again_at == NOW + timedelta(minutes=18)


@pytest.mark.parametrize(
    ("tries", "minutes"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 30), (7, 30), (99, 30)]
)
def test_the_last_resort_is_tried_again_after_pauses_that_double_up_to_half_an_hour(
    tries: int, minutes: int
) -> None:
    both, refused = spec(), refusal(tries=tries)

    assert retry_at(both, sold(), refused) == NOW + timedelta(minutes=minutes)
    assert retry_at(both, spot(), refused) == NOW + SPOT_MEMORY
    assert retry_at(spec(capacity_types=(SPOT,)), spot(), refused) == retry_at(
        both, sold(), refused
    )


def test_what_was_refused_is_bought_before_its_time_only_where_nothing_else_will_do() -> None:
    large, small = sold("9", "b"), sold("1", "a")
    large = large.model_copy(update={"capacity": SMALL.replace(accelerators=8)})
    pool, ago = spec("a", "b", capacity_types=(ON_DEMAND,)), timedelta(minutes=1)
    two = Resources(accelerators=2)

    beside = rank(pool, small, large, refused=refusals(large, ago=ago))
    alone = rank(pool, small, large, refused=refusals(large, small, ago=ago))
    early = rank(pool, large, refused=refusals(large, ago=timedelta(seconds=59)))

    assert resort_kinds(pool, beside, [Resources(accelerators=1)]) == ()
    assert [kind.name for kind in resort_kinds(pool, beside, [two])] == [memory_key(large)]
    assert len(resort_kinds(pool, alone, [])) == 2
    assert resort_kinds(pool, early, [two]) == ()
    assert "tried again now" in alone.refused


def test_what_is_tried_again_is_bought_after_all_else_that_is_for_sale() -> None:
    refused, dear = sold("1", "a"), sold("9", "b")
    large = refused.model_copy(update={"capacity": SMALL.replace(accelerators=8)})
    pool = spec("a", "b", capacity_types=(ON_DEMAND,))

    ranking = rank(pool, large, dear, refused=refusals(large, ago=timedelta(minutes=1)))
    (last,) = resort_kinds(pool, ranking, [Resources(accelerators=2)])

    assert all(kind.rank < last.rank for kind in kinds_of(pool, ranking))


def test_purchases_that_were_decided_together_are_one_try() -> None:
    failure = Failure(code=ErrorCode.INSUFFICIENT_CAPACITY, message="none")
    later = NOW + timedelta(minutes=1)

    once = note_refusal({}, sold(), failure, ordered_at=NOW, now=NOW)
    together = note_refusal(once, sold(), failure, ordered_at=NOW, now=NOW)
    again = note_refusal(together, sold(), failure, ordered_at=later, now=later)
    much_later = later + TRIES_MEMORY
    anew = note_refusal(again, sold(), failure, ordered_at=much_later, now=much_later)

    tries = [known[memory_key(sold())].tries for known in (once, together, again, anew)]
    assert tries == [1, 1, 2, 1]


def test_several_reasons_are_told_together() -> None:
    pool = spec("a", "b", "c", max_usd_per_hour=Decimal(2))

    ranking = rank(pool, spot(), sold("3", "b"), sold(None, "c"), refused=refusals(spot()))

    assert ranking.reason == (
        "no spot capacity, again at 12:30 UTC; every other price is above 2.00 USD/h,"
        " the lowest is 3.00 USD/h; the price of c is unknown"
    )
    assert ranking.code is ErrorCode.INSUFFICIENT_CAPACITY


def test_a_known_price_that_is_too_high_is_told_from_the_unknown_ones() -> None:
    pool = spec("a", "b", max_usd_per_hour=Decimal(2))

    assert rank(pool, sold("3"), sold(None, "b")).reason == (
        "every other price is above 2.00 USD/h, the lowest is 3.00 USD/h; the price of b is unknown"
    )


def test_many_names_are_counted_and_each_is_told_once() -> None:
    offers = [sold(None, name) for name in "abcde"]

    reason = rank(spec(*"abcde"), *offers, sold(None, "a", zone="z")).reason

    assert reason == "the price of a, b, c and 2 more is unknown"
    assert rank(spec(*"abc"), *offers[:3]).reason == "the price of a, b, c is unknown"


def test_a_vendors_words_cannot_steer_a_terminal() -> None:
    refused = refusals(spot(), said="\x1b[2J" + "x" * 1000)

    reason = rank(spec(), spot(), refused=refused).reason

    assert reason.isprintable()
    assert len(reason) < 200


def test_two_rows_of_the_same_machine_are_one_offer_at_the_lower_price() -> None:
    assert rank(spec(), sold("3"), sold("2")).offers == (sold("2"),)


def test_packing_chooses_by_type_and_capacity_type_before_price() -> None:
    offers = (sold("9", "b"), spot("0.4", "a"), sold("1", "a"), spot("0.5", "a", zone="z"))
    pool = spec("a", "b")

    kinds = kinds_of(pool, rank(pool, *offers))

    assert kinds == (
        Kind("a/r1/spot", SMALL, Decimal("0.4"), 0),
        Kind("a/r1/z/spot", SMALL, Decimal("0.5"), 0),
        Kind("a/r1/on_demand", SMALL, Decimal("1"), 1),
        Kind("b/r1/on_demand", SMALL, Decimal("9"), 2),
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("InsufficientInstanceCapacity", True),
        ("MaxSpotInstanceCountExceeded", True),
        ("SpotMaxPriceTooLow", True),
        ("UnauthorizedOperation", False),
        ("InvalidParameterValue", False),
    ],
)
def test_the_next_offer_is_tried_after_refusals_that_are_about_one_offer(
    code: str, *, expected: bool
) -> None:
    assert falls_back(vendor.failure_of(code)) is expected


@pytest.mark.parametrize("code", sorted(set(ErrorCode)))
def test_any_other_failure_is_for_a_person_or_for_another_try(code: ErrorCode) -> None:
    about_one = {"insufficient_capacity", "quota_exceeded", "price_changed"}

    assert falls_back(code) is (code.value in about_one)


def test_a_quota_is_known_as_such_where_a_purchase_raises_it() -> None:
    error: GarrisonError = vendor.error_for(
        "MaxSpotInstanceCountExceeded", "no more", retry_after_seconds=None
    )

    assert falls_back(error.code)


OFFERS = st.lists(
    st.builds(
        sold,
        st.sampled_from([None, "0", "0.5", "1", "2", "3"]),
        st.sampled_from(["a", "b", "c"]),
        zone=st.sampled_from([None, "z1", "z2"]),
        capacity_type=st.sampled_from(CapacityType),
        stock=st.sampled_from(Stock),
    ),
    max_size=8,
)


@given(OFFERS, st.lists(st.integers(0, 40), max_size=8), st.randoms(use_true_random=False))
def test_what_is_ranked_may_be_bought_and_nothing_else_is_kept_back(
    offers: list[PoolOffer], ages: list[int], chance: Any
) -> None:
    pool = spec("b", "a", max_usd_per_hour=Decimal(2))
    pairs = zip(map(memory_key, offers), ages, strict=False)
    refused = {key: refusal(timedelta(minutes=age)) for key, age in pairs}
    mixed = list(offers)
    chance.shuffle(mixed)

    ranking = rank(pool, *offers, refused=refused)

    allowed = {
        memory_key(one)
        for one in offers
        if one.offer.instance_type in ("a", "b")
        and one.offer.capacity_type is not CapacityType.RESERVED
        and one.offer.usd_per_hour is not None
        and 0 < one.offer.usd_per_hour <= 2
        and NOW - refused.get(memory_key(one), refusal(SPOT_MEMORY)).at >= SPOT_MEMORY
    }
    keys = [memory_key(one) for one in ranking.offers]
    assert {memory_key(one) for one in ranking.resort}.isdisjoint(keys)
    assert sorted(keys) == sorted(allowed)
    assert bool(ranking.reason) is not bool(keys)
    assert (ranking.code is None) is bool(keys)
    assert [memory_key(one) for one in rank(pool, *mixed, refused=refused).offers] == keys
