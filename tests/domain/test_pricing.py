"""What a cluster costs: exact, locked, metered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.domain.placement import choose_offers
from garrison.domain.pricing import (
    cents,
    charged_seconds,
    check_live_price,
    cost_usd,
    pause_meter,
    price_cluster,
    sort_offers,
    start_meter,
    stop_meter,
)
from garrison.errors import InvalidSpec, PriceChanged, PriceUnavailable
from garrison.models.billing import Meter
from garrison.models.cluster import ClusterShape, ShapeLimits
from garrison.models.offer import CapacityType, Offer
from garrison.models.provider import Capabilities, ProviderFacts
from garrison.models.quote import Quote

NOW = datetime(2026, 8, 6, 12, tzinfo=UTC)
FACTS = {"cloud": ProviderFacts(name="cloud", type="aws", capabilities=Capabilities(spot=True))}
LIMITS = ShapeLimits(max_nodes=1000)

prices = st.decimals("0.000001", "100000", places=6)
spans = st.timedeltas(timedelta(0), timedelta(days=400))


def offer(price: Decimal | str | None, **overrides: Any) -> Offer:
    fields: dict[str, Any] = {
        "provider": "cloud",
        "region": "r1",
        "instance_type": "p5",
        "accelerator": "H100",
        "accelerator_count": Decimal(8),
        "usd_per_hour": Decimal(price) if price is not None else None,
    }
    return Offer(**{**fields, **overrides})


def quote(*offers: Offer, **shape: Any) -> Quote:
    wanted = ClusterShape(accelerator="H100", **shape)
    placement = choose_offers(wanted, offers, FACTS, LIMITS)
    return price_cluster(
        wanted,
        placement,
        quote_id="q1",
        now=NOW,
        valid_for=timedelta(minutes=15),
        facts=FACTS,
    )


def test_a_quote_is_for_the_whole_cluster() -> None:
    made = quote(offer("98.32"), nodes=2)

    assert str(made.hourly_usd) == "196.64"
    assert str(made.node_usd_per_hour) == "98.32"
    assert made.expires_at == NOW + timedelta(minutes=15)
    assert [(part.what, part.included) for part in made.parts] == [
        ("p5 (8 x H100)", False),
        ("root disk", True),
        ("network", True),
    ]
    assert made.parts[1].usd_per_hour is None
    assert set(made.facts) == {"cloud"}


def test_several_nodes_are_quoted_at_the_cluster_rate() -> None:
    sold = offer("98.32", cluster_usd_per_hour=Decimal("90"))

    assert quote(sold, nodes=1).hourly_usd == Decimal("98.32")
    assert quote(sold, nodes=3).hourly_usd == 270
    assert quote(sold, nodes=3).node_usd_per_hour == 90


def test_root_disks_are_a_part_of_the_quote_where_they_cost_extra() -> None:
    made = quote(offer("10", root_disk_usd_per_gb_month=Decimal("0.08")), nodes=2, root_disk_gb=365)

    disk = made.parts[1]
    assert (disk.what, disk.quantity, disk.unit) == ("root disk 365 GB", Decimal(730), "GB")
    assert disk.usd_per_hour == Decimal("0.08")
    assert str(made.hourly_usd) == "20.08"
    assert made.node_usd_per_hour == 10


def test_a_disk_that_the_rate_covers_is_included_which_is_not_zero() -> None:
    made = quote(offer("10"), root_disk_gb=500)

    assert (made.parts[1].included, made.parts[1].usd_per_hour) == (True, None)
    assert made.hourly_usd == 10


def test_spot_without_a_price_is_an_upper_bound() -> None:
    assert quote(offer("10"), capacity_type="spot").at_most
    assert not quote(
        offer("10"), offer("4", capacity_type=CapacityType.SPOT), capacity_type="spot"
    ).at_most


@given(
    price=prices,
    cluster=st.none() | prices,
    disk=st.none() | st.decimals("0.0001", "10", places=4),
    size=st.none() | st.integers(1, 1_000_000),
    nodes=st.integers(1, 1000),
)
def test_the_parts_add_up_to_the_rate_and_cover_what_is_charged(
    price: Decimal, cluster: Decimal | None, disk: Decimal | None, size: int | None, nodes: int
) -> None:
    sold = offer(price, cluster_usd_per_hour=cluster, root_disk_usd_per_gb_month=disk)

    made = quote(sold, nodes=nodes, root_disk_gb=size)

    parts = [part.usd_per_hour for part in made.parts if part.usd_per_hour is not None]
    assert made.hourly_usd == sum(parts, Decimal(0))
    assert made.hourly_usd == made.hourly_usd.quantize(Decimal("0.000001"))
    rate = cluster if cluster is not None and nodes > 1 else price
    extra = (disk or Decimal(0)) * (size or 0) / 730
    exact = nodes * (rate + extra)
    assert exact <= made.hourly_usd + Decimal("1e-15")
    assert made.hourly_usd - exact < Decimal("0.000002")
    assert made.node_usd_per_hour == rate
    assert Quote.model_validate_json(made.model_dump_json()) == made


@given(st.lists(prices, min_size=1, max_size=8), st.integers(1, 8))
def test_no_alternative_is_above_the_locked_rate(asked: list[Decimal], nodes: int) -> None:
    made = quote(*(offer(p, region=f"r{n}") for n, p in enumerate(asked)), nodes=nodes)

    assert made.node_usd_per_hour == min(asked)
    for other in made.alternatives:
        assert other.usd_per_hour is not None
        assert other.usd_per_hour <= made.node_usd_per_hour


def test_a_live_price_above_the_locked_one_is_refused_naming_both() -> None:
    with pytest.raises(PriceChanged, match="9 USD/h exceeds the accepted 3 USD/h"):
        check_live_price(Decimal(3), Decimal(9))


@pytest.mark.parametrize("live", ["3", "2.999999", "0.01"])
def test_a_live_price_up_to_the_locked_one_is_accepted(live: str) -> None:
    check_live_price(Decimal(3), Decimal(live))


@pytest.mark.parametrize("live", [None, Decimal(0), Decimal(-1), Decimal("NaN"), Decimal("inf")])
def test_a_live_price_that_is_none_is_no_permission(live: Decimal | None) -> None:
    with pytest.raises(PriceUnavailable):
        check_live_price(Decimal(3), live)


def meter(rate: str = "10") -> Meter:
    return Meter(rate_usd_per_hour=Decimal(rate))


def test_a_meter_that_never_started_costs_nothing() -> None:
    assert cost_usd(meter(), NOW + timedelta(days=9)) == 0
    assert cost_usd(None, NOW) == 0


def test_a_meter_charges_by_the_second() -> None:
    running = start_meter(meter("36"), NOW)

    assert cost_usd(running, NOW + timedelta(seconds=1)) == Decimal("0.01")
    assert cost_usd(running, NOW + timedelta(hours=2)) == 72


def test_a_pause_charges_nothing_and_a_stop_is_final() -> None:
    running = start_meter(meter(), NOW)
    paused = pause_meter(running, NOW + timedelta(hours=1))
    again = start_meter(paused, NOW + timedelta(hours=5))
    stopped = stop_meter(again, NOW + timedelta(hours=6))

    assert cost_usd(paused, NOW + timedelta(hours=4)) == 10
    assert cost_usd(stopped, NOW + timedelta(days=9)) == 20
    assert start_meter(stopped, NOW + timedelta(hours=7)) == stopped
    assert start_meter(again, NOW + timedelta(hours=9)) == again
    assert pause_meter(paused, NOW + timedelta(hours=9)) == paused


def test_a_clock_that_goes_back_gives_nothing_back() -> None:
    running = start_meter(meter(), NOW)

    assert cost_usd(running, NOW - timedelta(hours=1)) == 0
    assert pause_meter(running, NOW - timedelta(hours=1)).accrued_seconds == 0


@given(prices, spans, spans)
def test_cost_never_falls(rate: Decimal, first: timedelta, then: timedelta) -> None:
    running = start_meter(Meter(rate_usd_per_hour=rate), NOW)

    assert 0 <= cost_usd(running, NOW + first) <= cost_usd(running, NOW + first + then)


@given(prices, st.lists(spans, max_size=10))
def test_any_split_of_the_time_costs_the_same_as_the_whole(
    rate: Decimal, intervals: list[timedelta]
) -> None:
    split, at = Meter(rate_usd_per_hour=rate), NOW
    for interval in intervals:
        split = pause_meter(start_meter(split, at), at + interval)
        split = Meter.model_validate_json(split.model_dump_json())
        at += interval

    whole = pause_meter(start_meter(Meter(rate_usd_per_hour=rate), NOW), at)

    assert charged_seconds(split, at) == charged_seconds(whole, at)
    assert cost_usd(split, at) == cost_usd(whole, at)


def test_cents_are_for_people() -> None:
    assert str(cents(Decimal("0.005"))) == "0.01"
    assert str(cents(Decimal("1"))) == "1.00"


@pytest.mark.parametrize("descending", [False, True])
def test_unknown_prices_are_last_in_either_direction(descending: bool) -> None:
    offers = [offer(p, region=str(p)) for p in (None, "0", "3", "-1", "98.32", "1")]

    ordered = sort_offers(iter(offers), "price", descending=descending)

    known = ["98.32", "3", "1"] if descending else ["1", "3", "98.32"]
    assert [o.region for o in ordered] == [*known, "None", "0", "-1"]


def test_an_unknown_column_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidSpec, match="did you mean 'price'"):
        sort_offers([], "prize")
