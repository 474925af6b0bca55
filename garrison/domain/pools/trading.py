"""What a nodepool could buy now, and what holds it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from garrison.domain.packing.packing import Kind
from garrison.domain.pools.life import is_closing
from garrison.domain.pools.market import (
    SPOT_MEMORY,
    Ranking,
    kinds_of,
    memory_key,
    rank_offers,
    resort_kinds,
    retry_at,
)
from garrison.domain.pools.places import waiting_seats
from garrison.models.nodepool import PoolOffer
from garrison.models.nodepool_state import MachineState, NodepoolState

PRICES_HOLD = timedelta(minutes=15)
"""How old a price may be at which something is bought."""


@dataclass(frozen=True, slots=True)
class Market:
    """What can be bought now, best first, and in words why nothing can.

    Attributes:
        refused: What was refused a short while ago, in words, empty if nothing was.
        retries: All that can be bought is tried again after a refusal.
        kept: The machine that takes nobody more, for a replica that waited too long.
    """

    kinds: Sequence[Kind]
    offers: Mapping[str, PoolOffer]
    reason: str = ""
    refused: str = ""
    retries: bool = False
    kept: str | None = None


def room_left(state: NodepoolState) -> int:
    """Return how many machines may still be bought; all that may exist count."""
    if state.spec is None or is_closing(state):
        return 0
    return max(0, state.spec.max_instances - len(state.machines))


def market_now(state: NodepoolState, *, now: datetime) -> Market:
    """Return what can be bought at the prices that are known, old ones too."""
    assert state.spec is not None
    spec = state.spec
    ranking = _without_ordered(
        state, rank_offers(spec, state.market.offers, state.market.refused, now)
    )
    last = resort_kinds(spec, ranking, [s.demand.resources for _, s in waiting_seats(state)])
    return Market(
        kinds=(*kinds_of(spec, ranking), *last),
        offers={memory_key(offer): offer for offer in (*ranking.offers, *ranking.resort)},
        reason=_no_offer(state, ranking.reason),
        refused=ranking.refused,
        retries=bool(last) and not ranking.offers,
    )


def _without_ordered(state: NodepoolState, ranking: Ranking) -> Ranking:
    """Leave out what is being tried again already: one machine tries for all."""
    ordered = {
        memory_key(machine.offer)
        for machine in state.machines.values()
        if machine.state is MachineState.REQUESTED
    }
    left = tuple(offer for offer in ranking.resort if memory_key(offer) not in ordered)
    return replace(ranking, resort=left)


def refusal_times(state: NodepoolState) -> Iterable[datetime]:
    """Yield when what was refused can be bought again; soon, where machines are missing."""
    if state.spec is None:
        return
    known = {memory_key(offer): offer for offer in state.market.offers}
    missing = bool(waiting_seats(state)) or state.desired > len(state.machines)
    for key, one in state.market.refused.items():
        yield one.at + SPOT_MEMORY
        if missing and room_left(state) and key in known:
            yield retry_at(state.spec, known[key], one)


def _no_offer(state: NodepoolState, reason: str) -> str:
    unknown = ", ".join(state.market.unknown_types)
    if unknown and not state.market.offers:
        return f"{state.provider} does not sell {unknown} in {state.region}"
    return reason


def prices_hold(state: NodepoolState, *, now: datetime) -> bool:
    """Return whether something may be bought at the prices that are known."""
    asked = state.market.asked_at
    return asked is not None and now < asked + PRICES_HOLD


def hold_reason(state: NodepoolState, *, now: datetime) -> str:
    """Return in words why nothing is bought for a while, empty if something may be."""
    for trouble in (state.blocked, state.market_trouble):
        if trouble is not None and now < trouble.retry_at:
            return f"{trouble.code}: {trouble.message}"
    if state.buy_after is not None and now < state.buy_after:
        count = "a machine" if state.strikes == 1 else f"{state.strikes} machines in a row"
        return f"{count} did not live for long; the next is bought at {state.buy_after:%H:%M:%S}"
    return ""
