"""An accepted price before it is paid: the whole cluster, in parts."""

from __future__ import annotations

from decimal import Decimal

from pydantic import Field

from garrison.errors import ErrorCode, Problem
from garrison.models.base import Message, Money, Time
from garrison.models.offer import Offer
from garrison.models.provider import ProviderFacts


class QuotePart(Message):
    """One line of a quote.

    Attributes:
        what: `p5.48xlarge (8 x H100)`, `root disk 200 GB`, `network`.
        unit: What one of `quantity` is: `node`, `GB`.
        unit_usd_per_hour: None when `included`.
        usd_per_hour: None when `included`.
        included: The node's rate covers it, which is not the same as zero.
    """

    what: str
    quantity: Decimal
    unit: str = "node"
    unit_usd_per_hour: Money | None = None
    usd_per_hour: Money | None = None
    included: bool = False


class Considered(Message):
    """An offer that was looked at, and why it was chosen or passed over."""

    offer: str
    usd_per_hour: Money | None = None
    verdict: str


class Quote(Message):
    """A locked rate for the whole cluster.

    Attributes:
        hourly_usd: Sum of the parts for all nodes; the locked rate.
        node_usd_per_hour: What one machine may cost at most when it is bought.
        offer: The chosen offer; `alternatives` are further places for `failover`, in order, none
            above the locked rate.
        at_most: The rate is an upper bound (spot without a known price).
        facts: The chosen providers' facts by provider name.
        stock_note: Stock is a signal for one node; joint stock is known only at launch.
    """

    quote_id: str
    hourly_usd: Money
    node_usd_per_hour: Money
    parts: tuple[QuotePart, ...]
    offer: Offer
    gpus_per_node: int
    alternatives: tuple[Offer, ...] = ()
    at_most: bool = False
    facts: dict[str, ProviderFacts] = Field(default_factory=dict)
    considered: tuple[Considered, ...] = ()
    quoted_at: Time
    expires_at: Time


class QuoteRefusal(Message):
    """Why no quote could be made.

    Attributes:
        message: All of it, as people read it.
        problems: The mistakes by field of the cluster, where it has any.
    """

    code: ErrorCode
    message: str
    problems: tuple[Problem, ...] = ()
    considered: tuple[Considered, ...] = ()
