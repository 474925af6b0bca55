"""What a cluster costs: the quote that locks the rate, and the meter of its life.

All sums are exact decimals. The lines of a quote are whole millionths of a dollar, so that they
add up to the rate to the last digit; cents appear only where a person reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from garrison.domain.placement import Placement, machine_label
from garrison.domain.rates import HOURS_PER_MONTH, disk_rate, node_rate, rounded, usable_price
from garrison.errors import InvalidSpec, PriceChanged, PriceUnavailable
from garrison.models.billing import Meter
from garrison.models.cluster import ClusterShape
from garrison.models.offer import Offer
from garrison.models.problems import shown, suggestion
from garrison.models.provider import ProviderFacts
from garrison.models.quote import Quote, QuotePart

_SECONDS_PER_HOUR = 3600
_MICROSECOND = timedelta(microseconds=1)
_SHOWN_UNIT = Decimal("1e-9")


def price_cluster(
    shape: ClusterShape,
    placement: Placement,
    *,
    quote_id: str,
    now: datetime,
    valid_for: timedelta,
    facts: Mapping[str, ProviderFacts],
) -> Quote:
    """Return the quote for a whole cluster at its chosen place.

    Raises:
        PriceUnavailable: A part of it has no usable price.
    """
    offer = placement.chosen
    rate = node_rate(offer, shape.nodes)
    if rate is None:
        raise PriceUnavailable(f"no usable price is known for {offer.instance_type}")
    node_usd = rounded(rate)
    parts = (
        _node_part(offer, shape.nodes, node_usd),
        *_disk_parts(offer, shape),
        QuotePart(what="network", quantity=Decimal(shape.nodes), included=True),
    )
    providers = {offer.provider, *(other.provider for other in placement.alternatives)}
    return Quote(
        quote_id=quote_id,
        hourly_usd=sum((part.usd_per_hour or Decimal(0) for part in parts), Decimal(0)),
        node_usd_per_hour=node_usd,
        parts=parts,
        offer=offer,
        gpus_per_node=placement.gpus_per_node,
        alternatives=placement.alternatives,
        at_most=offer.price_is_ceiling,
        facts={name: facts[name] for name in sorted(providers) if name in facts},
        considered=placement.considered,
        quoted_at=now,
        expires_at=now + valid_for,
    )


def check_live_price(locked: Decimal, live: Decimal | None) -> None:
    """Return if a machine may be bought now.

    Args:
        locked: The accepted price of one machine per hour.
        live: What the provider asks now; None when it does not say.

    Raises:
        PriceChanged: The live price is above the accepted one.
        PriceUnavailable: There is no usable live price.
    """
    price = usable_price(live)
    if price is None:
        raise PriceUnavailable(f"the provider says no usable price ({live})")
    if price > locked:
        raise PriceChanged(f"{price:f} USD/h exceeds the accepted {locked:f} USD/h per node")


def start_meter(meter: Meter, now: datetime) -> Meter:
    """Return the meter running, also after a pause; a running or stopped one stays as it is."""
    if meter.stopped or meter.running_since is not None:
        return meter
    return meter.model_copy(update={"running_since": now})


def pause_meter(meter: Meter, now: datetime) -> Meter:
    """Return the meter halted; a halted one stays as it is."""
    accrued = charged_seconds(meter, now)
    return meter.model_copy(update={"accrued_seconds": accrued, "running_since": None})


def stop_meter(meter: Meter, now: datetime) -> Meter:
    """Return the meter halted for good."""
    return pause_meter(meter, now).model_copy(update={"stopped": True})


def charged_seconds(meter: Meter, now: datetime) -> Decimal:
    """Return the charged time up to now, exact to the microsecond."""
    if meter.running_since is None:
        return meter.accrued_seconds
    # A clock that went back charges nothing, rather than giving time back.
    open_for = max(now - meter.running_since, timedelta(0))
    return meter.accrued_seconds + Decimal(open_for // _MICROSECOND) / 1_000_000


def cost_usd(meter: Meter | None, now: datetime) -> Decimal:
    """Return what a life has cost up to now; nothing before its meter started."""
    if meter is None:
        return Decimal(0)
    return meter.rate_usd_per_hour * charged_seconds(meter, now) / _SECONDS_PER_HOUR


def cents(amount: Decimal) -> Decimal:
    """Return an amount as people read it."""
    return amount.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP)


def _price(offer: Offer) -> Any:
    return usable_price(offer.usd_per_hour)


_COLUMNS: dict[str, Callable[[Offer], Any]] = {
    "price": _price,
    "usd_per_hour": _price,
    "provider": lambda offer: offer.provider,
    "region": lambda offer: offer.region,
    "instance_type": lambda offer: offer.instance_type,
    "accelerator": lambda offer: offer.accelerator,
    "gpus": lambda offer: offer.accelerator_count,
    "accelerator_count": lambda offer: offer.accelerator_count,
    "accelerator_memory_gib": lambda offer: offer.accelerator_memory_gib,
    "vcpus": lambda offer: offer.vcpus,
    "memory_gib": lambda offer: offer.memory_gib,
    "capacity_type": lambda offer: offer.capacity_type.value,
    "stock": lambda offer: offer.stock.value,
    "as_of": lambda offer: offer.as_of,
}


def sort_offers(offers: Iterable[Offer], column: str, *, descending: bool = False) -> list[Offer]:
    """Return offers in the order of a column, unknown values last in either direction.

    Raises:
        InvalidSpec: There is no such column.
    """
    value = _COLUMNS.get(column.replace("-", "_").lower())
    if value is None:
        raise InvalidSpec(f"cannot sort by {shown(column)}; {suggestion(column, _COLUMNS)}")
    listed = list(offers)
    known = [offer for offer in listed if value(offer) is not None]
    unknown = [offer for offer in listed if value(offer) is None]
    return sorted(known, key=value, reverse=descending) + unknown


def _node_part(offer: Offer, nodes: int, node_usd: Decimal) -> QuotePart:
    return QuotePart(
        what=machine_label(offer),
        quantity=Decimal(nodes),
        unit_usd_per_hour=node_usd,
        usd_per_hour=node_usd * nodes,
    )


def _disk_parts(offer: Offer, shape: ClusterShape) -> tuple[QuotePart, ...]:
    size = shape.root_disk_gb
    rate = disk_rate(offer, size)
    if rate is None:
        raise PriceUnavailable(f"no price is known for a root disk with {offer.instance_type}")
    what = "root disk" if size is None else f"root disk {size} GB"
    nodes = Decimal(shape.nodes)
    if size is None or rate == 0:
        return (QuotePart(what=what, quantity=nodes, included=True),)
    month = offer.root_disk_usd_per_gb_month or Decimal(0)
    return (
        QuotePart(
            what=what,
            quantity=nodes * size,
            unit="GB",
            unit_usd_per_hour=(month / HOURS_PER_MONTH).quantize(_SHOWN_UNIT),
            usd_per_hour=rounded(rate * nodes),
        ),
    )
