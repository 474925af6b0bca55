"""From the offers of one or several providers to one quote."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from garrison.domain.placement import MAX_ALTERNATIVES, MAX_CONSIDERED, Placement
from garrison.domain.pricing import price_cluster
from garrison.domain.rates import node_rate
from garrison.errors import ErrorCode, InvalidSpec, Problem, error_of
from garrison.models.cluster import ClusterSpec
from garrison.models.cluster_messages import PlaceAnswer, QuoteTerms
from garrison.models.cluster_state import QuoteIntent
from garrison.models.offer import Offer
from garrison.models.problems import suggestion
from garrison.models.quote import Quote, QuoteRefusal

_FOREMOST = (
    ErrorCode.PRICE_UNAVAILABLE,
    ErrorCode.INVALID_SHAPE,
    ErrorCode.UNSUPPORTED,
    ErrorCode.INVALID_SPEC,
)
"""Which refusal says most when providers refuse differently: the one that came closest."""


def providers_to_ask(spec: ClusterSpec, terms: QuoteTerms) -> tuple[str, ...]:
    """Return the providers whose offers a quote is made from.

    Simulated ones, and this computer, are asked only by name.

    Raises:
        InvalidSpec: The named one is not configured, or there is none to choose from.
    """
    if spec.provider is not None:
        if spec.provider not in terms.providers:
            hint = suggestion(spec.provider, sorted(terms.providers))
            problem = Problem("cluster.provider", f"{spec.provider!r} is not configured{hint}")
            raise InvalidSpec("no such provider", problems=(problem,))
        return (spec.provider,)
    names = tuple(name for name, facts in terms.providers.items() if not facts.simulated)
    if not names:
        known = ", ".join(sorted(terms.providers))
        problem = Problem(
            "cluster.provider", f"is needed: only {known} are configured, used only when named"
        )
        raise InvalidSpec("which provider?", problems=(problem,))
    return names


def merge_places(answers: Sequence[PlaceAnswer], nodes: int) -> Placement:
    """Return the best place over all providers.

    Args:
        answers: One of each provider that was asked.
        nodes: Size of the cluster; several nodes may have a rate of their own.

    Raises:
        GarrisonError: No provider has a place; with the code that says most.
    """
    found = [answer for answer in answers if answer.offers]
    if not found:
        raise _refused([answer.refusal for answer in answers if answer.refusal is not None])
    best = min(found, key=lambda answer: _rate(answer.offers[0], nodes))
    alike = [answer for answer in found if answer.gpus_per_node == best.gpus_per_node]
    limit = _rate(best.offers[0], nodes)
    # The chosen one stays first; `sorted` keeps each provider's own order among equals.
    others = [
        offer
        for answer in alike
        for offer in answer.offers
        if offer != best.offers[0] and _rate(offer, nodes) <= limit
    ]
    considered = [
        row
        for answer in (best, *(a for a in answers if a is not best))
        for row in answer.considered
    ]
    return Placement(
        chosen=best.offers[0],
        alternatives=tuple(sorted(others, key=lambda o: _rate(o, nodes))[:MAX_ALTERNATIVES]),
        gpus_per_node=best.gpus_per_node,
        considered=tuple(considered[:MAX_CONSIDERED]),
    )


def _rate(offer: Offer, nodes: int) -> Decimal:
    rate = node_rate(offer, nodes)
    return Decimal("Infinity") if rate is None else rate


def _refused(refusals: Sequence[QuoteRefusal]) -> Exception:
    ranked = sorted(refusals, key=lambda r: _FOREMOST.index(r.code) if r.code in _FOREMOST else 99)
    foremost = ranked[0]
    same = [refusal.message for refusal in refusals if refusal.code is foremost.code]
    return error_of(foremost.code, "\n".join(dict.fromkeys(same)))


def quote_cluster(
    intent: QuoteIntent, place: Placement, terms: QuoteTerms, *, now: datetime
) -> Quote:
    """Return the locked price of the whole cluster at a place.

    Raises:
        PriceUnavailable: A part of it has no usable price.
    """
    return price_cluster(
        intent.spec.shape(),
        place,
        quote_id=intent.quote_id,
        now=now,
        valid_for=terms.valid_for,
        facts=terms.providers,
    )
