"""What a nodepool may buy now, and in which order.

An offer that was refused, of whatever capacity type, is left alone for half an hour, so that a
pool neither hammers a sold-out place nor waits for it while another would do. Where no other would
do, its last resort (on-demand; spot for a pool that wants nothing else) is tried again after 1, 2,
4 and so on up to 30 minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from garrison.domain.packing.fitting import serves
from garrison.domain.packing.packing import Kind
from garrison.domain.rates import node_rate, rounded
from garrison.errors import ErrorCode
from garrison.models.cluster_state import Failure
from garrison.models.nodepool import NodepoolSpec, PoolOffer
from garrison.models.nodepool_state import RefusedOffer
from garrison.models.offer import CapacityType, Stock
from garrison.models.problems import printable_key
from garrison.models.resources import Resources

SPOT_MEMORY = timedelta(minutes=30)
"""How long a refused offer is left alone; of on-demand capacity too."""

FIRST_PAUSE = timedelta(minutes=1)
"""Before the first new try of what was refused, where nothing else can be bought."""

TRIES_MEMORY = 2 * SPOT_MEMORY
"""How long it is known how often an offer was refused, so that pauses grow."""

_FALLS_BACK = frozenset(
    {ErrorCode.INSUFFICIENT_CAPACITY, ErrorCode.QUOTA_EXCEEDED, ErrorCode.PRICE_CHANGED}
)
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a pool may buy.

    Attributes:
        offers: The one to buy first is first.
        reason: Why there is none, in words; empty where there is one.
        code: Of that reason.
        again_at: When the first of the refused offers is tried again if no other will do, None if
            there is none.
        resort: Refused ones that may be tried now all the same, for what nothing else will do.
        refused: What was refused and when it is tried again, in words; empty if nothing was.
    """

    offers: tuple[PoolOffer, ...]
    reason: str = ""
    code: ErrorCode | None = None
    again_at: datetime | None = None
    resort: tuple[PoolOffer, ...] = ()
    refused: str = ""


def falls_back(code: ErrorCode) -> bool:
    """Return whether the next offer is tried at once after a refusal.

    So it is for no capacity, a quota, or a price above the bid: each is about that offer alone.
    Wrong credentials or a wrong request would be refused everywhere, and a person must know.
    """
    return code in _FALLS_BACK


def memory_key(offer: PoolOffer) -> str:
    """Return what a refusal is remembered by: `g5.2xlarge/us-east-1/us-east-1a/spot`."""
    sold = offer.offer
    parts = (sold.instance_type, sold.region, sold.zone, sold.capacity_type.value)
    return "/".join(part for part in parts if part)


def still_refused(refused: Mapping[str, RefusedOffer], now: datetime) -> dict[str, RefusedOffer]:
    """Return the refusals that still count."""
    return {key: one for key, one in refused.items() if now < one.at + SPOT_MEMORY}


def note_refusal(
    known: Mapping[str, RefusedOffer],
    offer: PoolOffer,
    failure: Failure,
    *,
    ordered_at: datetime,
    now: datetime,
) -> dict[str, RefusedOffer]:
    """Return the refusals with one more.

    Args:
        known: Those before.
        offer: What was refused.
        failure: In which words.
        ordered_at: When the purchase was decided; those decided together are one try.
        now: When it was refused.
    """
    kept = {key: one for key, one in known.items() if now < one.at + TRIES_MEMORY}
    before = kept.get(memory_key(offer))
    tries = 1 if before is None else before.tries + (ordered_at > before.at)
    refused = RefusedOffer(at=now, code=failure.code, message=failure.message, tries=tries)
    return {**kept, memory_key(offer): refused}


def retry_at(spec: NodepoolSpec, offer: PoolOffer, refused: RefusedOffer) -> datetime:
    """Return when a refused offer is tried again if nothing else can be bought."""
    on_demand = CapacityType.ON_DEMAND
    resort = on_demand if on_demand in spec.capacity_types else CapacityType.SPOT
    if offer.offer.capacity_type is not resort:
        return refused.at + SPOT_MEMORY
    return refused.at + min(FIRST_PAUSE * (1 << min(refused.tries - 1, 10)), SPOT_MEMORY)


def rank_offers(
    spec: NodepoolSpec,
    offers: Sequence[PoolOffer],
    refused: Mapping[str, RefusedOffer],
    now: datetime,
) -> Ranking:
    """Return what a pool may buy now, in order.

    Instance types go by the pool's preference; within one, spot goes before on-demand, and then
    the price decides. An unknown price is never paid, nor one above the pool's limit.

    Args:
        spec: The pool's.
        offers: In any order.
        refused: How each offer was refused last, by `memory_key`.
        now: The time of the decision.
    """
    market = _Market(spec, offers, refused, now)
    rest = (market.again_at, tuple(market.resort), market.refused_words())
    if market.good:
        return Ranking(tuple(market.good), "", None, *rest)
    return Ranking((), market.reason(), market.code(), *rest)


def kinds_of(spec: NodepoolSpec, ranking: Ranking) -> tuple[Kind, ...]:
    """Return what packing can choose from, each named by the key of its offer.

    What the pool prefers is bought first, however many machines that takes.
    """
    return _kinds(spec, ranking.offers)


def resort_kinds(
    spec: NodepoolSpec, ranking: Ranking, needs: Iterable[Resources]
) -> tuple[Kind, ...]:
    """Return what else there is to choose from, bought last: for needs that no other offer meets.

    Args:
        spec: The pool's.
        ranking: Of its offers.
        needs: Of replicas that wait; where nothing else can be bought at all they do not matter.
    """
    unmet = [n for n in needs if not any(serves(n, good.capacity) for good in ranking.offers)]
    fit = [
        offer
        for offer in ranking.resort
        if not ranking.offers or any(serves(need, offer.capacity) for need in unmet)
    ]
    return _kinds(spec, fit, first=len(ranking.offers))


def _kinds(spec: NodepoolSpec, offers: Sequence[PoolOffer], *, first: int = 0) -> tuple[Kind, ...]:
    classes = sorted({_class(spec, offer) for offer in offers})
    return tuple(
        Kind(memory_key(offer), offer.capacity, price, first + classes.index(_class(spec, offer)))
        for offer in offers
        if (price := node_rate(offer.offer, 1)) is not None
    )


class _Market:
    """The offers that a pool wants, sorted by what speaks against them.

    Attributes:
        good: Nothing; the best is first.
        resort: That they were refused, long enough ago for a new try.
        again_at: When the first of the refused ones is tried again.
    """

    def __init__(
        self,
        spec: NodepoolSpec,
        offers: Sequence[PoolOffer],
        refused: Mapping[str, RefusedOffer],
        now: datetime,
    ) -> None:
        self._spec = spec
        self._now = now
        self._said = waiting = still_refused(refused, now)
        mine = [offer for offer in offers if _is_wanted(spec, offer)]
        there = [offer for offer in mine if memory_key(offer) not in waiting]
        self._refused = [offer for offer in mine if memory_key(offer) in waiting]
        self._unknown = [offer for offer in there if node_rate(offer.offer, 1) is None]
        self._dear = [offer for offer in there if _is_dear(spec, offer)]
        bad = (*self._unknown, *self._dear)
        self.good = _distinct(
            sorted((o for o in there if o not in bad), key=lambda o: _order(spec, o))
        )
        retries = {memory_key(o): retry_at(spec, o, waiting[memory_key(o)]) for o in self._refused}
        due = [o for o in self._refused if retries[memory_key(o)] <= now and _is_payable(spec, o)]
        self.resort = _distinct(sorted(due, key=lambda o: _order(spec, o)))
        self.again_at = min(retries.values(), default=None)

    def code(self) -> ErrorCode:
        """Return the code of why there is no good offer."""
        if self._refused:
            return ErrorCode.INSUFFICIENT_CAPACITY
        if self._dear:
            return ErrorCode.BUDGET_EXCEEDED
        return ErrorCode.PRICE_UNAVAILABLE if self._unknown else ErrorCode.UNSUPPORTED

    def reason(self) -> str:
        """Return in words why there is no good offer."""
        words = (self.refused_words(), self._dear_words(), self._unknown_words())
        return "; ".join(filter(None, words)) or self._unsold_words()

    def refused_words(self) -> str:
        """Return what was refused, with the provider's code, and when it is tried again."""
        if not self._refused or self.again_at is None:
            return ""
        kinds = dict.fromkeys(_label(offer.offer.capacity_type) for offer in self._refused)
        texts = [self._said[memory_key(offer)].message for offer in self._refused]
        why = _named(filter(None, map(_vendor_code, texts)))
        due = self.again_at <= self._now
        again = "tried again now" if due else f"again at {self.again_at:%H:%M} UTC"
        return f"no {' or '.join(kinds)} capacity{f' ({why})' if why else ''}, {again}"

    def _dear_words(self) -> str:
        prices = [node_rate(offer.offer, 1) for offer in self._dear]
        least = min((price for price in prices if price is not None), default=None)
        limit = self._spec.max_usd_per_hour
        if least is None or limit is None:
            return ""
        whose = "every other price" if self._refused or self._unknown else "every price"
        return f"{whose} is above {rounded(limit)} USD/h, the lowest is {rounded(least)} USD/h"

    def _unknown_words(self) -> str:
        names = _named(offer.offer.instance_type for offer in self._unknown)
        return f"the price of {names} is unknown" if names else ""

    def _unsold_words(self) -> str:
        kinds = " or ".join(map(_label, self._spec.capacity_types))
        return f"{_named(self._spec.instance_types)} is not sold here as {kinds} capacity"


def _is_wanted(spec: NodepoolSpec, offer: PoolOffer) -> bool:
    sold = offer.offer
    return (
        sold.whole_machine
        and sold.capacity_type in spec.capacity_types
        and sold.instance_type.lower() in _preference(spec)
    )


def _is_dear(spec: NodepoolSpec, offer: PoolOffer) -> bool:
    price, limit = node_rate(offer.offer, 1), spec.max_usd_per_hour
    return price is not None and limit is not None and price > limit


def _is_payable(spec: NodepoolSpec, offer: PoolOffer) -> bool:
    return node_rate(offer.offer, 1) is not None and not _is_dear(spec, offer)


def _preference(spec: NodepoolSpec) -> list[str]:
    return [name.lower() for name in spec.instance_types]


def _class(spec: NodepoolSpec, offer: PoolOffer) -> tuple[int, bool]:
    """Return how much an offer is preferred, whatever its price."""
    sold = offer.offer
    return (
        _preference(spec).index(sold.instance_type.lower()),
        sold.capacity_type is not CapacityType.SPOT,
    )


def _order(
    spec: NodepoolSpec, offer: PoolOffer
) -> tuple[tuple[int, bool], bool, Decimal, str, str]:
    sold = offer.offer
    # Where the provider itself signals no stock, a purchase would be refused.
    return (
        _class(spec, offer),
        sold.stock is Stock.NONE,
        node_rate(sold, 1) or Decimal(0),
        sold.region or "",
        sold.zone or "",
    )


def _distinct(ordered: Iterable[PoolOffer]) -> list[PoolOffer]:
    """Return the first offer of each key: two rows may tell of the same machine."""
    first: dict[str, PoolOffer] = {}
    for offer in ordered:
        first.setdefault(memory_key(offer), offer)
    return list(first.values())


def _label(capacity: CapacityType) -> str:
    return capacity.value.replace("_", "-")


def _vendor_code(text: str) -> str:
    """Return the code that a vendor's words begin with, else the words."""
    return printable_key(text.partition(":")[0].strip())


def _named(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - _MAX_NAMED
    return ", ".join(distinct[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
