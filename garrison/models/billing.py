"""How long a life has been charged, and at what rate."""

from __future__ import annotations

from decimal import Decimal

from garrison.models.base import Message, Money, Time


class Meter(Message):
    """Charged time at a locked rate; `garrison.domain.pricing` has its rules.

    Attributes:
        rate_usd_per_hour: The accepted rate of the whole cluster.
        accrued_seconds: Charged time of the intervals that have ended.
        running_since: Start of the interval that is open; None while paused or stopped.
        stopped: It ended for good and never runs again.
    """

    rate_usd_per_hour: Money
    accrued_seconds: Decimal = Decimal(0)
    running_since: Time | None = None
    stopped: bool = False
