"""What a pool tells deployments of itself, so that they can choose between several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from garrison.domain.packing.packing import Bin, Item, pack
from garrison.domain.pools.life import is_closing
from garrison.domain.pools.places import bins_of, item_of
from garrison.domain.pools.seats import waiting_reason
from garrison.domain.pools.trading import Market, hold_reason, room_left
from garrison.models.nodepool_state import Customer, NodepoolState, Seat
from garrison.models.placement import PoolSummary, ReplicaDemand


def summarize(
    state: NodepoolState, market: Market | None, *, now: datetime
) -> dict[str, PoolSummary]:
    """Return for each customer what it needs to know to choose between pools."""
    assert state.spec is not None
    best = min(market.kinds, key=lambda kind: kind.rank, default=None) if market else None
    asked = _Room(state, market, bins_of(state), held_up=bool(hold_reason(state, now=now)))
    summary = PoolSummary(
        provider=state.provider or "",
        region=state.region,
        usd_per_hour=best.usd_per_hour if best is not None and room_left(state) else None,
        utilization=_utilization(asked.bins),
        capacity_types=state.spec.capacity_types,
    )
    return {
        uid: summary.replace(full=_is_full(state, customer, asked))
        for uid, customer in state.customers.items()
    }


def _utilization(bins: Sequence[Bin]) -> Decimal:
    parts = ("accelerators", "cpu_milli")
    for part in parts:
        total = sum(getattr(one.capacity, part) for one in bins)
        if total:
            used = sum(getattr(h.item.resources, part) for one in bins for h in one.held)
            return Decimal(int(used * 1000 // total)) / 1000
    return Decimal(0)


class _Room:
    """Whether one more replica finds room; asked once for each of its kind, mostly all alike."""

    def __init__(
        self, state: NodepoolState, market: Market | None, bins: Sequence[Bin], *, held_up: bool
    ) -> None:
        self.bins = bins
        kept = market.kept if market is not None else None
        self._open = [replace(one, open=one.open and one.name != kept) for one in bins]
        self._kinds = market.kinds if market is not None else ()
        self._left = room_left(state)
        self._unknown = bool(self._left) and state.market.asked_at is None
        self._held_up = held_up
        self._known: dict[tuple[Item, int], bool] = {}

    def is_there(self, demand: ReplicaDemand, *, soon: bool) -> bool:
        """Return whether a replica finds room; `soon` counts no purchase that is put off."""
        if self._unknown:
            return True
        room = 0 if soon and self._held_up else self._left
        like = replace(item_of("", Seat(demand=demand)), key="")
        if (like, room) not in self._known:
            self._known[like, room] = not pack([like], self._open, self._kinds, room=room).unplaced
        return self._known[like, room]


def _is_full(state: NodepoolState, customer: Customer, room: _Room) -> bool:
    """Return whether one more replica like those of a customer would have to wait."""
    assert state.spec is not None
    if is_closing(state) or not state.spec.max_instances:
        return True
    if waiting_reason(state):
        return False
    if any(seat.machine is None for seat in customer.seats.values()):
        return not state.wants_offers
    if customer.turned_away is not None:
        return not room.is_there(customer.turned_away, soon=True)
    seat = next(iter(customer.seats.values()), None)
    return seat is not None and not room.is_there(seat.demand, soon=False)
