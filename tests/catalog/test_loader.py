"""The catalogue: exact prices, and unknown ones that are never free."""

from __future__ import annotations

from decimal import Decimal

import pytest

from garrison.catalog.loader import (
    disk_price,
    load_disk_prices,
    load_offers,
    read_offers,
    read_price,
)
from garrison.models.offer import CapacityType, Offer

HEADER = (
    "provider,region,instance_type,vcpus,memory_gib,accelerator,accelerator_count,"
    "accelerator_memory_gib,price_usd_per_hour_on_demand,price_usd_per_hour_spot,source,as_of\n"
)


def row(price: str, *, spot: str = "", as_of: str = "2026", count: str = "8") -> str:
    return f"aws,r,p5,192,2048,H100,{count},80,{price},{spot},list,{as_of}\n"


def on_demand(text: str) -> list[Offer]:
    offers = read_offers(HEADER + text)
    return [offer for offer in offers if offer.capacity_type is CapacityType.ON_DEMAND]


@pytest.mark.parametrize(
    "text",
    [None, "", " ", "0", "0.0", "0.000", "NaN", "n/a", "-1", "inf", "-inf", "1e3", "1_000", "1,5"],
)
def test_what_is_no_price_is_unknown(text: str | None) -> None:
    assert read_price(text) is None


@pytest.mark.parametrize("text", ["$3", "9" * 50, "free", "٣", "0x10", "+1", "1.", ".5"])
def test_absurd_text_is_no_price(text: str) -> None:
    assert read_price(text) is None


def test_a_price_is_exact() -> None:
    assert str(read_price(" 98.320000 ")) == "98.320000"
    assert read_price("0.0001") == Decimal("0.0001")


def test_an_unknown_price_makes_an_offer_without_price_and_no_spot_offer() -> None:
    (offer,) = read_offers(HEADER + row("n/a", spot="0"))

    assert offer.usd_per_hour is None
    assert offer.accelerator_count == 8


def test_a_known_spot_price_is_an_offer_of_its_own() -> None:
    plain, spot = read_offers(HEADER + row("98.32", spot="30.5"))

    assert (plain.capacity_type, plain.usd_per_hour) == (
        CapacityType.ON_DEMAND,
        Decimal("98.32"),
    )
    assert (spot.capacity_type, spot.usd_per_hour) == (CapacityType.SPOT, Decimal("30.5"))
    assert not spot.price_is_ceiling


@pytest.mark.parametrize(
    ("rows", "price"),
    [
        pytest.param(row("9", as_of="2026-02") + row("5", as_of="2025"), "9", id="newest first"),
        pytest.param(row("5", as_of="2025") + row("9", as_of="2026-02"), "9", id="newest last"),
        pytest.param(row("9") + row("5") + row("7"), "5", id="cheapest of equally new ones"),
        pytest.param(row("") + row("5"), "5", id="a price before none"),
        pytest.param(row("5") + row("0"), "5", id="zero is not cheaper"),
    ],
)
def test_of_equal_rows_one_counts(rows: str, price: str) -> None:
    (offer,) = on_demand(rows)

    assert offer.usd_per_hour == Decimal(price)


@pytest.mark.parametrize("count", ["0.5", "0.125", "1.5"])
def test_a_slice_is_no_whole_machine(count: str) -> None:
    (offer,) = on_demand(row("1", count=count))

    assert not offer.whole_machine


def test_the_shipped_catalogue_is_read_whole() -> None:
    offers = load_offers()

    assert len([o for o in offers if o.capacity_type is CapacityType.ON_DEMAND]) == 863
    assert "provider" not in {offer.provider for offer in offers}
    keys = [(o.provider, o.region, o.instance_type, o.capacity_type) for o in offers]
    assert len(keys) == len(set(keys))
    assert all(o.usd_per_hour is None or o.usd_per_hour > 0 for o in offers)
    assert all(o.source and o.as_of for o in offers)


def test_shipped_prices_by_the_gpu_are_no_machines() -> None:
    odd = {offer.provider for offer in load_offers() if not offer.whole_machine}

    assert odd == {"aws", "nebius"}  # AWS sells slices of an L4
    assert all(not o.whole_machine for o in load_offers() if o.provider == "nebius")


def test_disks_are_priced_where_somebody_said_the_price() -> None:
    by_region = {
        o.region: o for o in load_offers() if o.provider == "aws" and o.instance_type == "g5.xlarge"
    }

    assert by_region["us-east-1"].root_disk_usd_per_gb_month == Decimal("0.08")
    assert not by_region["us-east-1"].root_disk_price_unknown
    assert by_region["eu-north-1"].root_disk_usd_per_gb_month is None
    assert by_region["eu-north-1"].root_disk_price_unknown


def test_volume_prices_are_found_by_region() -> None:
    price = disk_price("aws", "us-west-2", "volume")

    assert price is not None
    assert price.usd_per_gb_month == Decimal("0.30")
    assert disk_price("aws", "eu-north-1", "volume") is None
    assert disk_price("lambda", None, "volume") is None
    assert len(load_disk_prices()) == 5
