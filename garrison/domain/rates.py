"""What one machine costs by the hour, from an offer.

A price that is missing, zero, negative or not a number is unknown: it ranks behind every known
one and is never quoted.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

from garrison.models.offer import Offer

HOURS_PER_MONTH = 730
"""The month of cloud price lists: 365 days / 12."""

_ABSURD = Decimal(10**9)
_CENT = Decimal("0.01")
_MICRO = Decimal("0.000001")


def usable_price(value: Decimal | None) -> Decimal | None:
    """Return a price that can be quoted, else None."""
    if value is None or not value.is_finite() or not 0 < value < _ABSURD:
        return None
    return value


def node_rate(offer: Offer, nodes: int) -> Decimal | None:
    """Return the hourly price of one machine among `nodes`, None when it is unknown.

    Several machines together are charged at the provider's cluster rate where it has one.
    """
    cluster = usable_price(offer.cluster_usd_per_hour) if nodes > 1 else None
    return cluster if cluster is not None else usable_price(offer.usd_per_hour)


def provider_rate(offer: Offer, nodes: int) -> Decimal | None:
    """Return what the provider itself asks by the hour for one machine among `nodes`.

    It differs from `node_rate` where the operator set a price of its own.
    """
    asked = {
        "usd_per_hour": offer.provider_usd_per_hour,
        "cluster_usd_per_hour": offer.provider_cluster_usd_per_hour,
    }
    given = {name: price for name, price in asked.items() if usable_price(price) is not None}
    return node_rate(offer.model_copy(update=given), nodes)


def disk_rate(offer: Offer, size_gb: int | None) -> Decimal | None:
    """Return the hourly price of one machine's root disk: 0 when included, None when unknown.

    Args:
        offer: What is bought.
        size_gb: None for the provider's default disk, which comes with the rate.
    """
    if size_gb is None or offer.simulated:
        return Decimal(0)
    per_month = usable_price(offer.root_disk_usd_per_gb_month)
    if per_month is not None:
        return size_gb * per_month / HOURS_PER_MONTH
    return None if offer.root_disk_price_unknown else Decimal(0)


def rounded(value: Decimal) -> Decimal:
    """Return an amount in whole millionths, with at least the cents written.

    Rounded up, since a quote must not be below what will be charged.
    """
    exact = value.quantize(_MICRO, rounding=ROUND_CEILING).normalize()
    return exact.quantize(_CENT) if exact == exact.quantize(_CENT) else exact
