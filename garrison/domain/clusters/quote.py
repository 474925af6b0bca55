"""From the offers of one or several providers to one quote."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from garrison.domain.market import in_cluster, limit_problems, unknown_provider
from garrison.domain.placement import MAX_ALTERNATIVES, MAX_CONSIDERED, Placement
from garrison.domain.pricing import price_cluster
from garrison.domain.rates import node_rate
from garrison.errors import ErrorCode, InvalidSpec, Problem, Unsupported, error_of
from garrison.models.cluster import DEFAULT_ACCOUNT, ClusterSpec
from garrison.models.cluster_messages import PlaceAnswer, QuoteTerms
from garrison.models.cluster_state import QuoteIntent
from garrison.models.offer import Offer
from garrison.models.problems import printable_key, shown
from garrison.models.quote import Considered, Quote, QuoteRefusal

_WITHOUT_OPTIONS = frozenset({"local", "simulated"})
"""Adapters that have no options of their own."""

_FOREMOST = (
    ErrorCode.PRICE_UNAVAILABLE,
    ErrorCode.INVALID_SHAPE,
    ErrorCode.UNSUPPORTED,
    ErrorCode.INVALID_SPEC,
)
"""Which refusal says most when providers refuse differently: the one that came closest. Any other
code is of a provider that did not answer, and so might have had a place: it goes before all."""


def providers_to_ask(spec: ClusterSpec, terms: QuoteTerms) -> tuple[str, ...]:
    """Return the providers whose offers a quote is made from.

    Simulated ones, and this computer, are asked only by name.

    Raises:
        InvalidSpec: The named one is not configured, or there is none to choose from.
        Unsupported: Something is set that would be ignored.
    """
    real = tuple(name for name, facts in terms.providers.items() if not facts.simulated)
    named = spec.provider in terms.providers
    ignored = _ignored(spec, terms)
    nowhere = [] if named or (spec.provider is None and real) else [_no_provider(spec, terms)]
    if nowhere or ignored:
        # Nobody is asked what is sold; what needs no answer is still checked.
        over = limit_problems(spec.nodes, spec.gpus_per_node, terms.limits)
        problems = tuple(in_cluster([*nowhere, *ignored, *over]))
        refusal = InvalidSpec if nowhere or over else Unsupported
        raise refusal("the cluster cannot be placed", problems=problems)
    return (spec.provider,) if spec.provider is not None else real


def _no_provider(spec: ClusterSpec, terms: QuoteTerms) -> Problem:
    if spec.provider is not None:
        return unknown_provider(spec.provider, sorted(terms.providers))
    known = ", ".join(sorted(terms.providers))
    return Problem("provider", f"is needed: only {known} configured, used only when named")


def _ignored(spec: ClusterSpec, terms: QuoteTerms) -> list[Problem]:
    """Return the settings that no adapter would heed."""
    wrong: list[Problem] = []
    if spec.account != DEFAULT_ACCOUNT:
        message = f"{shown(spec.account)} is not supported; the only account is {DEFAULT_ACCOUNT!r}"
        wrong.append(Problem("account", message))
    named = terms.providers.get(spec.provider or "")
    for kind, options in spec.provider_options.items():
        field = f"provider_options.{printable_key(kind)}"
        if options and kind in _WITHOUT_OPTIONS:
            wrong.append(Problem(field, f"is not supported: {kind} takes no options"))
        elif options and named is not None and kind != named.type:
            message = f"is not supported: provider {named.name} is of type {named.type}"
            wrong.append(Problem(field, message))
    return wrong


def silent_place(provider: str, code: ErrorCode | None, message: str) -> PlaceAnswer:
    """Return what stands for the answer of a provider that could not be asked."""
    refusal = QuoteRefusal(code=code or ErrorCode.INTERNAL, message=message)
    row = Considered(offer=provider, verdict=f"could not be asked: {refusal.code}: {message}")
    return PlaceAnswer(provider=provider, refusal=refusal, considered=(row,))


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
    ranked = sorted(refusals, key=lambda r: _FOREMOST.index(r.code) if r.code in _FOREMOST else -1)
    same = [refusal for refusal in refusals if refusal.code is ranked[0].code]
    problems = dict.fromkeys(problem for refusal in same for problem in refusal.problems)
    message = "\n".join(dict.fromkeys(refusal.message for refusal in same))
    return error_of(ranked[0].code, message, problems=tuple(problems))


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
