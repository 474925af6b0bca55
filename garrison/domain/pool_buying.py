"""How many machines a pool has, wants and may buy; all decisions of one pass in one place.

The limit is counted down within the pass: each decision to buy makes a machine that counts at
once, so that ten wishes in one second cannot pass it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from garrison.domain.packing import AT_MAX, Bin, Item, Kind, Packing, pack
from garrison.domain.pool_count import Counted, PoolCount, plan_count
from garrison.domain.pool_life import add_event, is_closing, price_text
from garrison.domain.pool_machines import YOUNG, add_machine, drain, end_machine
from garrison.domain.pool_market import kinds_of, memory_key, rank_offers
from garrison.domain.pool_places import (
    KEPT,
    bins_of,
    item_of,
    kept_machines,
    key_of,
    pack_waiting,
    place_on,
    take_places,
    waiting_seats,
)
from garrison.domain.pool_seats import CLOSING, change_seat, seats_on, used_machines, waiting_reason
from garrison.errors import ErrorCode
from garrison.models.nodepool import PoolOffer
from garrison.models.nodepool_state import (
    Customer,
    Machine,
    MachineState,
    NodepoolState,
    Seat,
)
from garrison.models.offer import CapacityType
from garrison.models.placement import PoolSummary, ReplicaDemand

PRICES_HOLD = timedelta(minutes=15)
"""How old a price may be at which something is bought."""

OTHER_LIFE = "another life of the deployment may still have its places"
"""Why a replica waits that was not looked at."""

ASKING = "asking for prices"
"""Why a replica waits that may find a machine in a moment."""


@dataclass(frozen=True, slots=True)
class Market:
    """What can be bought now, best first, and in words why nothing can."""

    kinds: Sequence[Kind]
    offers: Mapping[str, PoolOffer]
    reason: str = ""


def room_left(state: NodepoolState) -> int:
    """Return how many machines may still be bought; all that may exist count."""
    if state.spec is None or is_closing(state):
        return 0
    return max(0, state.spec.max_instances - len(state.machines))


def market_now(state: NodepoolState, *, now: datetime) -> Market:
    """Return what can be bought at the prices that are known, old ones too."""
    assert state.spec is not None
    refused = state.market.refused
    ranking = rank_offers(
        state.spec,
        state.market.offers,
        {key: one.at for key, one in refused.items()},
        now,
        said={key: one.message for key, one in refused.items()},
    )
    return Market(
        kinds=kinds_of(state.spec, ranking),
        offers={memory_key(offer): offer for offer in ranking.offers},
        reason=_no_offer(state, ranking.reason),
    )


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


def place_and_buy(state: NodepoolState, *, now: datetime) -> Market | None:
    """Give waiting replicas places, and decide what to buy; return what could be bought."""
    state.wants_offers = False
    if reason := waiting_reason(state):
        _give_reasons(state, None, reason)
        return None
    market = market_now(state, now=now)
    found = pack_waiting(state, [], room=0)
    take_places(state, found.places)
    if not _needs_machines(state, found, now=now):
        state.blocked = state.market_trouble = None
        _give_reasons(state, found)
        return market
    reason = hold_reason(state, now=now)
    if not reason and room_left(state) and not prices_hold(state, now=now):
        state.wants_offers, reason = True, ASKING
    if reason or not room_left(state):
        _give_reasons(state, found, reason or at_max(state))
        return market
    _buy(state, market, now=now)
    return market


def _needs_machines(state: NodepoolState, found: Packing, *, now: datetime) -> bool:
    never = set(found.never) if state.market.asked_at is not None else set()
    return bool(set(found.unplaced) - never) or count_pool(state, now=now).spares > 0


def at_max(state: NodepoolState) -> str:
    """Return why nothing is bought at the limit."""
    limit = state.spec.max_instances if state.spec is not None else 0
    return f"{AT_MAX} ({limit})" if limit else "the nodepool is disabled (max_instances is 0)"


def _buy(state: NodepoolState, market: Market, *, now: datetime) -> None:
    # While something is wrong that a person must put right, one machine tries for all.
    room = room_left(state) if state.blocked is None else min(room_left(state), 1)
    found = pack_waiting(state, market.kinds, room=room)
    seats = {key_of(uid, seat): (uid, seat) for uid, seat in waiting_seats(state)}
    for new in found.new:
        machine = _order(state, market.offers[new.kind], now=now)
        place_on(state, machine.name, [seats[key] for key in new.keys])
        room -= 1
    spares = count_pool(state, now=now).spares
    for _ in range(min(spares, room) if market.kinds else 0):
        best = min(market.kinds, key=lambda kind: kind.rank)
        _order(state, market.offers[best.name], now=now)
    blocked = state.blocked
    trouble = "" if blocked is None else f"{blocked.code}: {blocked.message}"
    _give_reasons(state, found, trouble or ("" if market.kinds else market.reason))


def _order(state: NodepoolState, offer: PoolOffer, *, now: datetime) -> Machine:
    machine = add_machine(state, offer, now=now, fallback=_fallback(state, offer))
    text = f"{offer.offer.instance_type}, at most {price_text(offer.offer)}"
    add_event(state, "NodeOrdered", text, now=now, about=machine.name)
    return machine


def _fallback(state: NodepoolState, offer: PoolOffer) -> ErrorCode | None:
    """Return why on-demand is bought though spot was to go first, None if it is not so."""
    if offer.offer.capacity_type is not CapacityType.ON_DEMAND:
        return None
    refused = state.market.refused
    codes = [
        refused[memory_key(other)].code
        for other in state.market.offers
        if other.offer.capacity_type is CapacityType.SPOT
        and other.offer.instance_type == offer.offer.instance_type
        and memory_key(other) in refused
    ]
    return codes[0] if codes else None


def _give_reasons(state: NodepoolState, found: Packing | None, other: str = "") -> None:
    """Say why each waiting replica waits.

    Args:
        state: Changed in place.
        found: What packing said of each; that no machine could ever take it goes first.
        other: What holds up all the others, empty if nothing does.
    """
    said = found.unplaced if found is not None else {}
    known = state.market.asked_at is not None
    never = found.never if found is not None and known else ()
    for uid, seat in waiting_seats(state):
        words = said.get(key_of(uid, seat), OTHER_LIFE)
        if key_of(uid, seat) not in never:
            words = other or (at_max(state) if words == AT_MAX else words)
        change_seat(state, uid, seat.demand.replica, reason=words)


def count_pool(
    state: NodepoolState, *, now: datetime, wanted: int = 0, blocked: int = 0
) -> PoolCount:
    """Return how many machines the pool wants beyond what replicas wait for; the youngest go."""
    assert state.spec is not None
    counted = [
        Counted(
            machine.name,
            replicas=len(seats_on(state, machine.name)),
            usable=machine.state in KEPT,
            empty_since=machine.empty_since,
        )
        for machine in reversed(state.machines.values())
    ]
    return plan_count(state.spec, counted, wanted=wanted, blocked=blocked, now=now)


def close_down(state: NodepoolState, *, now: datetime) -> None:
    """Have all machines of a pool go that is being deleted."""
    for machine in kept_machines(state):
        if machine.state is not MachineState.REQUESTED:
            drain(state, machine.name, CLOSING, now=now)
        elif not machine.called:
            end_machine(state, machine.name, CLOSING, now=now)


def balance(state: NodepoolState, market: Market | None, *, now: datetime) -> None:
    """Give up machines above the limit and those that nobody needs; say how many are wanted."""
    _mark_empty(state, now)
    if market is not None:
        count = count_pool(state, now=now, blocked=_blocked_by_limit(state, market))
        for spared in (*count.release, *count.drain):
            machine = state.machines[spared.name]
            if machine.state is not MachineState.REQUESTED:
                lowered = spared in count.drain
                drain(state, spared.name, spared.reason, now=now, must_go=lowered)
        state.release_at = count.next_at
        state.desired = count_pool(state, now=now, wanted=_missing(state, now)).desired
    used = used_machines(state)
    for machine in list(state.machines.values()):
        if machine.state is MachineState.DRAINING and machine.name not in used:
            end_machine(state, machine.name, machine.why, now=now)


def _mark_empty(state: NodepoolState, now: datetime) -> None:
    used = used_machines(state)
    for machine in kept_machines(state):
        empty = machine.state is MachineState.RUNNING and machine.name not in used
        if empty is (machine.empty_since is None):
            since = now if empty else None
            state.machines[machine.name] = machine.replace(empty_since=since)


def _blocked_by_limit(state: NodepoolState, market: Market) -> int:
    """Return how many machines are not bought only because the limit is reached."""
    waiting = len(waiting_seats(state))
    if room_left(state) or not waiting:
        return 0
    found = pack_waiting(state, market.kinds, room=waiting)
    return len(found.new)


def _missing(state: NodepoolState, now: datetime) -> int:
    """Return how many more machines it would take if the provider had everything."""
    assert state.spec is not None
    waiting = len(waiting_seats(state))
    if not waiting:
        return 0
    kinds = kinds_of(state.spec, rank_offers(state.spec, state.market.offers, {}, now))
    return len(pack_waiting(state, kinds, room=waiting).new)


def forgive(state: NodepoolState, *, now: datetime) -> None:
    """Forget machines that did not live for long once a later one did."""
    struck = state.last_strike_at
    ready = [machine.ready_at for machine in kept_machines(state)]
    if struck is not None and any(at and at > struck and now - at > YOUNG for at in ready):
        state.strikes, state.last_strike_at, state.buy_after = 0, None, None


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
            self._known[like, room] = not pack([like], self.bins, self._kinds, room=room).unplaced
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


def idle_since(state: NodepoolState) -> datetime | None:
    """Return since when machines run that nobody uses, None if it is not so."""
    machines: Iterable[Machine] = state.machines.values()
    if not any(machine.state is MachineState.RUNNING for machine in machines):
        return None
    return state.last_used_at or state.created_at
