"""The shipped catalogue: what machines cost, with source and date.

A price that is missing, zero, negative or not a plain number is unknown (None), which is never
free. A row gives an on-demand offer and, where a spot price is known, a spot offer.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files

from garrison.models.offer import CapacityType, Offer

_PRICE = re.compile(r"\d{1,6}(\.\d{1,12})?")
_QUANTITY = re.compile(r"\d{1,9}(\.\d{1,9})?")
_PER_GPU_PREFIX = "per-GPU"
_FAR = Decimal(10**9)


@dataclass(frozen=True, slots=True)
class DiskPrice:
    """Price of a kind of disk in a region; `kind` is `root_disk` or `volume`."""

    provider: str
    region: str
    kind: str
    product: str
    usd_per_gb_month: Decimal | None
    source: str
    as_of: str


@cache
def load_offers() -> tuple[Offer, ...]:
    """Return every offer of the shipped catalogue, in the order of the file."""
    return read_offers(_shipped("offers.csv"), load_disk_prices())


@cache
def load_disk_prices() -> tuple[DiskPrice, ...]:
    """Return every disk and volume price of the shipped catalogue."""
    return read_disk_prices(_shipped("storage.csv"))


def disk_price(provider: str, region: str | None, kind: str) -> DiskPrice | None:
    """Return the usable price of a kind of disk in a region, None when nobody said it."""
    return next(
        (
            price
            for price in load_disk_prices()
            if (price.provider, price.region, price.kind) == (provider, region, kind)
            and price.usd_per_gb_month is not None
        ),
        None,
    )


def read_offers(text: str, disks: Iterable[DiskPrice] = ()) -> tuple[Offer, ...]:
    """Return the offers of a CSV file in the catalogue's form.

    Of several rows for the same instance type in the same region the newest counts, and of
    equally new ones the cheapest.
    """
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        key = (row["provider"], row["region"], row["instance_type"])
        if key not in rows or _age(row) > _age(rows[key]):
            rows[key] = row
    root = {
        (disk.provider, disk.region): disk.usd_per_gb_month
        for disk in disks
        if disk.kind == "root_disk"
    }
    return tuple(offer for row in rows.values() for offer in _offers(row, root))


def read_disk_prices(text: str) -> tuple[DiskPrice, ...]:
    """Return the prices of a CSV file in the form of `storage.csv`."""
    return tuple(
        DiskPrice(
            provider=row["provider"],
            region=row["region"],
            kind=row["kind"],
            product=row["product"],
            usd_per_gb_month=read_price(row["price_usd_per_gb_month"]),
            source=row["source"],
            as_of=row["as_of"],
        )
        for row in csv.DictReader(io.StringIO(text))
    )


def read_price(text: str | None) -> Decimal | None:
    """Return a price exactly as written; None unless it is a plain number above zero."""
    text = (text or "").strip()
    price = Decimal(text) if text.isascii() and _PRICE.fullmatch(text) else None
    return price if price else None


def _age(row: Mapping[str, str]) -> tuple[str, Decimal]:
    """Sort key: newer is greater, then cheaper is greater, an unknown price least."""
    price = read_price(row["price_usd_per_hour_on_demand"])
    return row["as_of"], -(price if price is not None else _FAR)


def _offers(
    row: Mapping[str, str], root_disks: Mapping[tuple[str, str], Decimal | None]
) -> Iterable[Offer]:
    count = _quantity(row["accelerator_count"]) or Decimal(0)
    disk = root_disks.get((row["provider"], row["region"]))
    machine = row["instance_type"]
    vcpus = _quantity(row["vcpus"])
    on_demand = Offer(
        provider=row["provider"],
        region=row["region"] or None,
        instance_type=machine,
        vcpus=int(vcpus) if vcpus is not None else None,
        memory_gib=_quantity(row["memory_gib"]),
        accelerator=row["accelerator"] or None,
        accelerator_count=count,
        accelerator_memory_gib=_quantity(row["accelerator_memory_gib"]),
        usd_per_hour=read_price(row["price_usd_per_hour_on_demand"]),
        root_disk_usd_per_gb_month=disk,
        root_disk_price_unknown=disk is None,
        whole_machine=count == count.to_integral_value()
        and not machine.startswith(_PER_GPU_PREFIX),
        source=row["source"],
        as_of=row["as_of"],
    )
    yield on_demand
    spot = read_price(row["price_usd_per_hour_spot"])
    if spot is not None:
        yield on_demand.model_copy(
            update={"capacity_type": CapacityType.SPOT, "usd_per_hour": spot}
        )


def _quantity(text: str) -> Decimal | None:
    text = text.strip()
    return Decimal(text) if text.isascii() and _QUANTITY.fullmatch(text) else None


def _shipped(name: str) -> str:
    return (files("garrison.catalog") / name).read_text(encoding="utf-8")
