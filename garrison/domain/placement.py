"""Where a cluster is bought: the cheapest offer of exactly the wanted shape.

Offers are compared by the price of the whole cluster, at the cluster rate and with its root disks.
Every offer that was close is kept with the reason why it was passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from garrison.domain.accelerators import Wish
from garrison.domain.market import (
    Market,
    gpu_count,
    is_kind,
    settle,
    settle_size,
    understand,
)
from garrison.domain.rates import disk_rate, node_rate, rounded, usable_price
from garrison.errors import InvalidShape, InvalidSpec, PriceUnavailable, Unsupported
from garrison.models.cluster import ClusterShape, Orchestrator, ShapeLimits
from garrison.models.offer import CapacityType, Offer, Stock
from garrison.models.provider import ProviderFacts
from garrison.models.quote import Considered

MAX_CONSIDERED = 50
MAX_ALTERNATIVES = 20
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Placement:
    """Where to buy, and where else.

    Attributes:
        alternatives: Other places for a failover, best first, none dearer than `chosen`.
        considered: What was looked at, the chosen one first.
    """

    chosen: Offer
    alternatives: tuple[Offer, ...]
    gpus_per_node: int
    considered: tuple[Considered, ...]


def choose_offers(
    shape: ClusterShape,
    offers: Sequence[Offer],
    facts: Mapping[str, ProviderFacts],
    limits: ShapeLimits,
) -> Placement:
    """Return the best place for a cluster.

    Args:
        shape: What is wanted.
        offers: What is sold, live prices and own prices applied.
        facts: The configured providers by name; offers of others cannot be bought.
        limits: The operator's bounds.

    Raises:
        InvalidSpec: Unknown names, or wishes that contradict each other; all of them at once.
        InvalidShape: No machine has this size, or a limit is passed.
        Unsupported: No provider that sells it can do what is asked.
        PriceUnavailable: It is sold, but nobody says at what price.
    """
    if shape.orchestrator is not Orchestrator.NONE:
        raise Unsupported(f"orchestrator {shape.orchestrator} is not supported yet; use none")
    market = Market(shape, offers, facts)
    wish, gpus = settle(shape, market, limits)
    judged = [_judge(offer, shape, facts, gpus) for offer in _buyable(market, shape, wish)]
    good = sorted((j for j in judged if j.refusal is None), key=_rank)
    if not good:
        raise _nothing(shape, judged)
    best = good[0]
    others = [j for j in good[1:] if not _dearer(j, best)]
    return Placement(
        chosen=best.offer,
        alternatives=tuple(j.offer for j in others[:MAX_ALTERNATIVES]),
        gpus_per_node=gpus,
        considered=_considered(best, judged, _passed_over(market, shape, wish)),
    )


def consider_offers(
    shape: ClusterShape, offers: Sequence[Offer], facts: Mapping[str, ProviderFacts]
) -> tuple[Considered, ...]:
    """Return what was close and why it is not taken, for a quote that was refused.

    Never raises: of a shape that cannot be understood nothing was considered.
    """
    market = Market(shape, offers, facts)
    try:
        wish = understand(shape, market)
    except InvalidSpec:
        return ()
    passed = _passed_over(market, shape, wish)
    offers = _buyable(market, shape, wish)
    try:
        gpus = settle_size(shape, market, wish)
    except (InvalidShape, InvalidSpec):
        judged = [_Judged(o, refusal=f"has {o.accelerator_count:f} accelerators") for o in offers]
    else:
        judged = [_judge(offer, shape, facts, gpus) for offer in offers]
    return _considered(None, judged, passed)


def offer_label(offer: Offer) -> str:
    """Return an offer's place and machine: `aws/us-east-1/p5.48xlarge (8 x H100), spot`."""
    place = "/".join(part for part in (offer.provider, offer.zone or offer.region) if part)
    kind = "" if offer.capacity_type is CapacityType.ON_DEMAND else f", {offer.capacity_type}"
    return f"{place}/{machine_label(offer)}{kind}"


def machine_label(offer: Offer) -> str:
    """Return a machine's type and content: `p5.48xlarge (8 x H100)`."""
    if offer.accelerator is None or not offer.accelerator_count:
        return offer.instance_type
    return f"{offer.instance_type} ({offer.accelerator_count:f} x {offer.accelerator})"


@dataclass(frozen=True, slots=True)
class _Judged:
    """An offer with its price for the whole cluster, or with what speaks against it."""

    offer: Offer
    node_usd: Decimal | None = None
    total_usd: Decimal | None = None
    refusal: str | None = None
    incapable: bool = False


def _buyable(market: Market, shape: ClusterShape, wish: Wish | None) -> list[Offer]:
    """Return the offers of the wanted kind and capacity type, spot made up where need be."""
    kind = [o for o in market.here if o.whole_machine and is_kind(o, shape, wish)]
    exact = [o for o in kind if o.capacity_type is shape.capacity_type]
    if shape.capacity_type is not CapacityType.SPOT:
        return exact
    priced = {_place(o) for o in exact if usable_price(o.usd_per_hour) is not None}
    ceilings = [
        _as_spot(o)
        for o in kind
        if o.capacity_type is CapacityType.ON_DEMAND and _place(o) not in priced
    ]
    covered = {_place(o) for o in ceilings}
    return [o for o in exact if _place(o) in priced or _place(o) not in covered] + ceilings


def _as_spot(offer: Offer) -> Offer:
    """Return an on-demand offer as the ceiling of its spot price, at the provider's own price."""
    changes: dict[str, object] = {"capacity_type": CapacityType.SPOT, "price_is_ceiling": True}
    for own, asked in (
        ("usd_per_hour", offer.provider_usd_per_hour),
        ("cluster_usd_per_hour", offer.provider_cluster_usd_per_hour),
    ):
        if usable_price(asked) is not None:
            changes |= {own: asked, f"provider_{own}": None}
    return offer.model_copy(update=changes)


def _place(offer: Offer) -> tuple[str, str | None, str | None, str]:
    return offer.provider, offer.region, offer.zone, offer.instance_type


def _judge(
    offer: Offer, shape: ClusterShape, facts: Mapping[str, ProviderFacts], gpus: int
) -> _Judged:
    if gpu_count(offer) != gpus:
        return _Judged(offer, refusal=f"has {offer.accelerator_count:f} accelerators, not {gpus}")
    cannot = _cannot(offer, shape, facts[offer.provider])
    if cannot is not None:
        return _Judged(offer, refusal=cannot, incapable=True)
    node, disk = node_rate(offer, shape.nodes), disk_rate(offer, shape.root_disk_gb)
    if node is None:
        return _Judged(offer, refusal="price unknown")
    if disk is None:
        return _Judged(offer, node, refusal="price of the root disk unknown")
    return _Judged(offer, node, shape.nodes * (node + disk))


def _cannot(offer: Offer, shape: ClusterShape, provider: ProviderFacts) -> str | None:
    able = provider.capabilities
    if shape.capacity_type is CapacityType.SPOT and not able.spot:
        return f"{provider.name} sells no spot capacity"
    if shape.nodes > 1 and not able.gang:
        return f"{provider.name} does not sell several machines all or nothing"
    return None


def _rank(judged: _Judged) -> tuple[bool, Decimal, bool, str, str, str, str]:
    offer = judged.offer
    # Where the provider itself signals no stock, a purchase would be refused.
    return (
        offer.stock is Stock.NONE,
        judged.total_usd or Decimal(0),
        offer.price_is_ceiling,
        offer.provider,
        offer.region or "",
        offer.zone or "",
        offer.instance_type,
    )


def _dearer(judged: _Judged, best: _Judged) -> bool:
    # Both must hold: the machine is bought below the locked rate, and the sum is not passed.
    return (judged.total_usd or 0) > (best.total_usd or 0) or (judged.node_usd or 0) > (
        best.node_usd or 0
    )


def _nothing(shape: ClusterShape, judged: Sequence[_Judged]) -> PriceUnavailable | Unsupported:
    able = [j for j in judged if not j.incapable]
    unpriced = [j for j in able if j.refusal and j.refusal.startswith("price")]
    if unpriced:
        names = _named(f"{offer_label(j.offer)}: {j.refusal}" for j in unpriced)
        where = f"providers.{unpriced[0].offer.provider}.prices"
        return PriceUnavailable(f"no usable price is known ({names}); set one in {where}")
    reasons = {j.refusal for j in judged if j.incapable and j.refusal}
    if reasons:
        return Unsupported(_named(sorted(reasons)))
    return Unsupported(f"nobody sells this as {shape.capacity_type} capacity here")


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - _MAX_NAMED
    return "; ".join(listed[:_MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _passed_over(market: Market, shape: ClusterShape, wish: Wish | None) -> list[_Judged]:
    """Return offers of the wanted kind that were never in the running, with the reason."""
    if wish is None and shape.instance_type is None:
        return []
    never = (*(o for o in market.here if not o.whole_machine), *market.elsewhere)
    return [
        _Judged(offer, refusal=_why_not(offer, shape, market.facts))
        for offer in never
        if offer.capacity_type is CapacityType.ON_DEMAND and is_kind(offer, shape, wish)
    ]


def _why_not(offer: Offer, shape: ClusterShape, facts: Mapping[str, ProviderFacts]) -> str:
    if not offer.whole_machine:
        return "a price by the GPU or slice, no whole machine"
    if offer.provider not in facts:
        return f"provider {offer.provider} is not configured"
    if shape.provider is not None and offer.provider != shape.provider:
        return "another provider than the named one"
    if offer.simulated or facts[offer.provider].simulated:
        return f"only on paper or on this computer: provider {offer.provider} must be named"
    regions = facts[offer.provider].regions
    if regions and offer.region is not None and offer.region not in regions:
        return "a region that the settings do not allow"
    return "another region or zone than the named one"


def _considered(
    best: _Judged | None, judged: Sequence[_Judged], passed: Sequence[_Judged]
) -> tuple[Considered, ...]:
    good = sorted((j for j in judged if j.refusal is None), key=_rank)
    bad = [j for j in judged if j.refusal is not None]
    rows = [
        Considered(
            offer=offer_label(j.offer),
            usd_per_hour=rounded(j.total_usd) if j.total_usd is not None else None,
            verdict=_verdict(j, best),
        )
        for j in (*good, *bad, *passed)
    ]
    return tuple(rows[:MAX_CONSIDERED])


def _verdict(judged: _Judged, best: _Judged | None) -> str:
    if judged.refusal is not None:
        return judged.refusal
    if judged is best:
        return "chosen"
    if best is None or judged.total_usd is None or best.total_usd is None:
        return "possible"
    stock = "; no stock signalled" if judged.offer.stock is Stock.NONE else ""
    difference = judged.total_usd - best.total_usd
    if difference > 0:
        return f"dearer by {rounded(difference)} USD/h{stock}"
    return f"not dearer, a place for a failover{stock}"
