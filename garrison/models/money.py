"""Money as text, the same for people and programs."""

from __future__ import annotations

from decimal import Decimal


def show_usd(amount: Decimal) -> str:
    """Return an exact amount with at least two decimals, and no zeros after those."""
    whole, _, cents = f"{amount:f}".partition(".")
    return f"{whole}.{cents.rstrip('0').ljust(2, '0')}"
