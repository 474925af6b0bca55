"""How many machines a pool has, wants and may buy; all decisions of one pass in one place.

The limit is counted down within the pass: each decision to buy makes a machine that counts at
once, so that ten wishes in one second cannot pass it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from garrison.domain.packing.packing import AT_MAX, NOTHING_TO_BUY, Kind, Packing
from garrison.domain.pools.count import Counted, PoolCount, plan_count
from garrison.domain.pools.fallback import Mix
from garrison.domain.pools.life import add_event, price_text
from garrison.domain.pools.machines import YOUNG, add_machine, drain, end_machine
from garrison.domain.pools.market import kinds_of, memory_key, rank_offers, still_refused
from garrison.domain.pools.notice import note_successors, pack_successors, reserved, unreplaced
from garrison.domain.pools.places import (
    KEPT,
    kept_machines,
    key_of,
    note_waiting,
    pack_waiting,
    place_on,
    take_places,
    waiting_seats,
)
from garrison.domain.pools.seats import (
    CLOSING,
    change_seat,
    seats_on,
    used_machines,
    waiting_reason,
)
from garrison.domain.pools.stand_ins import (
    base_left,
    give_back_mixed,
    has_stand_ins,
    lacks_machines,
    only,
    seat_where_it_is_ready,
    stand_in_orders,
)
from garrison.domain.pools.trading import Market, hold_reason, market_now, prices_hold, room_left
from garrison.errors import ErrorCode
from garrison.models.nodepool import PoolOffer
from garrison.models.nodepool_state import Machine, MachineState, NodepoolState
from garrison.models.offer import CapacityType

OTHER_LIFE = "another life of the deployment may still have its places"
"""Why a replica waits that was not looked at."""

ASKING = "asking for prices"
"""Why a replica waits that may find a machine in a moment."""


def place_and_buy(state: NodepoolState, *, now: datetime) -> Market | None:
    """Give waiting replicas places, and decide what to buy; return what could be bought."""
    state.wants_offers = False
    note_waiting(state, now=now)
    if reason := waiting_reason(state):
        _give_reasons(state, None, reason)
        return None
    market = market_now(state, now=now)
    reason = hold_reason(state, now=now)
    room = 0 if reason else _room_to_buy(state, market)
    # Who gets a seat now depends on whether a machine can be bought for the others.
    found = pack_waiting(state, market.kinds, room=room, now=now)
    take_places(state, found.places)
    seat_where_it_is_ready(state, now=now)
    note_successors(state, pack_successors(state, [], room=0), {})
    market = replace(market, kept=found.kept)
    if not _needs_machines(state, found, now=now):
        state.blocked = state.market_trouble = None
        _give_reasons(state, found)
        return market
    if not reason and room_left(state) and not prices_hold(state, now=now):
        state.wants_offers, reason = True, ASKING
    if reason or not room_left(state):
        _give_reasons(state, found, reason or at_max(state))
        return market
    _buy(state, market, now=now)
    return market


def _room_to_buy(state: NodepoolState, market: Market) -> int:
    """Return how many machines may be bought in this pass.

    While something is wrong that a person must put right, and of what was refused a short while
    ago, one machine tries for all.
    """
    alone = state.blocked is not None or market.retries
    return min(room_left(state), 1) if alone else room_left(state)


def _needs_machines(state: NodepoolState, found: Packing, *, now: datetime) -> bool:
    never = set(found.never) if state.market.asked_at is not None else set()
    waiting = found.new or set(found.unplaced) - never or unreplaced(state)
    spares = count_pool(state, now=now).spares > 0
    return bool(waiting) or spares or lacks_machines(state, now=now)


def at_max(state: NodepoolState) -> str:
    """Return why nothing is bought at the limit."""
    limit = state.spec.max_instances if state.spec is not None else 0
    return f"{AT_MAX} ({limit})" if limit else "the nodepool is disabled (max_instances is 0)"


def _buy(state: NodepoolState, market: Market, *, now: datetime) -> None:
    room = _room_to_buy(state, market)
    if base := min(room, base_left(state)):
        first = only(market.kinds, market.offers, CapacityType.ON_DEMAND)
        room -= len(_place_on_new(state, market, first, base, now).new)
    found = _place_on_new(state, market, market.kinds, room, now)
    room -= len(found.new)
    room -= _replace_leaving(state, market, room=room, now=now)
    room -= _buy_spares(state, market, room=room, now=now)
    for kind in stand_in_orders(state, market.kinds, market.offers, room=room, now=now):
        _order(state, market.offers[kind], now=now)
    _give_reasons(state, found, _trouble(state, market), refused=market.refused)


def _trouble(state: NodepoolState, market: Market) -> str:
    """Return why no more is bought than was tried, empty if all that can be is."""
    if state.blocked is not None:
        return f"{state.blocked.code}: {state.blocked.message}"
    return market.reason if market.retries or not market.kinds else ""


def _place_on_new(
    state: NodepoolState, market: Market, kinds: Sequence[Kind], room: int, now: datetime
) -> Packing:
    """Order machines of some kinds for what waits, as many as there is room for."""
    found = pack_waiting(state, kinds, room=room, now=now)
    seats = {key_of(uid, seat): (uid, seat) for uid, seat in waiting_seats(state)}
    for new in found.new:
        machine = _order(state, market.offers[new.kind], now=now)
        place_on(state, machine.name, [seats[key] for key in new.keys])
    return found


def _buy_spares(state: NodepoolState, market: Market, *, room: int, now: datetime) -> int:
    """Order machines that nobody waits for; return how many."""
    spares = min(count_pool(state, now=now).spares, room) if market.kinds else 0
    for _ in range(spares):
        base = only(market.kinds, market.offers, CapacityType.ON_DEMAND) if base_left(state) else []
        best = min(base or market.kinds, key=lambda kind: kind.rank)
        _order(state, market.offers[best.name], now=now)
    return spares


def _replace_leaving(state: NodepoolState, market: Market, *, room: int, now: datetime) -> int:
    """Order machines for what is on those under notice; return how many."""
    found = pack_successors(state, market.kinds, room=room)
    bought: dict[str, str] = {}
    for new in found.new:
        machine = _order(state, market.offers[new.kind], now=now)
        bought.update(dict.fromkeys(new.keys, machine.name))
    note_successors(state, found, bought)
    return len(found.new)


def _order(state: NodepoolState, offer: PoolOffer, *, now: datetime) -> Machine:
    machine = add_machine(state, offer, now=now, fallback=_fallback(state, offer, now))
    text = f"{offer.offer.instance_type}, at most {price_text(offer.offer)}"
    add_event(state, "NodeOrdered", text, now=now, about=machine.name)
    return machine


def _fallback(state: NodepoolState, offer: PoolOffer, now: datetime) -> ErrorCode | None:
    """Return why on-demand is bought though spot was to go first, None if it is not so."""
    if offer.offer.capacity_type is not CapacityType.ON_DEMAND:
        return None
    refused = still_refused(state.market.refused, now)
    codes = [
        refused[memory_key(other)].code
        for other in state.market.offers
        if other.offer.capacity_type is CapacityType.SPOT
        and other.offer.instance_type == offer.offer.instance_type
        and memory_key(other) in refused
    ]
    return codes[0] if codes else None


def _give_reasons(
    state: NodepoolState, found: Packing | None, other: str = "", *, refused: str = ""
) -> None:
    """Say why each waiting replica waits.

    Args:
        state: Changed in place.
        found: What packing said of each; that no machine could ever take it goes first.
        other: What holds up all the others, empty if nothing does.
        refused: What else could be bought, had it not been refused.
    """
    said = found.unplaced if found is not None else {}
    known = state.market.asked_at is not None
    never = found.never if found is not None and known else ()
    for uid, seat in waiting_seats(state):
        words = said.get(key_of(uid, seat), OTHER_LIFE)
        if key_of(uid, seat) not in never:
            words = other or _in_full(state, words, refused)
        change_seat(state, uid, seat.demand.replica, reason=words)


def _in_full(state: NodepoolState, words: str, refused: str) -> str:
    if words == NOTHING_TO_BUY and refused:
        return f"{words}: {refused}"
    return at_max(state) if words == AT_MAX else words


def count_pool(
    state: NodepoolState, *, now: datetime, wanted: int = 0, blocked: int = 0
) -> PoolCount:
    """Return how many machines the pool wants beyond what replicas wait for; the youngest go.

    Where some stand in for others, which of them are too many is another rule's.
    """
    assert state.spec is not None
    kept, mixed = reserved(state), has_stand_ins(state.spec)
    counted = [
        Counted(
            machine.name,
            replicas=len(seats_on(state, machine.name)) or int(machine.name in kept),
            usable=machine.state in KEPT,
            empty_since=None if mixed else machine.empty_since,
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
        count = count_pool(state, now=now, blocked=_blocked_by_limit(state, market, now))
        for spared in (*count.release, *count.drain):
            machine = state.machines[spared.name]
            if machine.state is not MachineState.REQUESTED:
                lowered = spared in count.drain
                drain(state, spared.name, spared.reason, now=now, must_go=lowered)
        mix = give_back_mixed(state, now=now)
        state.release_at = count.next_at if mix is None else mix.next_at
        state.desired = _desired(state, mix, now)
    used = used_machines(state)
    for machine in list(state.machines.values()):
        if machine.state is MachineState.DRAINING and machine.name not in used:
            end_machine(state, machine.name, machine.why, now=now)


def _desired(state: NodepoolState, mix: Mix | None, now: datetime) -> int:
    missing = _missing(state, now)
    if mix is None:
        return count_pool(state, now=now, wanted=missing).desired
    assert state.spec is not None
    return min(state.spec.max_instances, mix.wanted_spot + mix.on_demand + missing)


def _mark_empty(state: NodepoolState, now: datetime) -> None:
    used = used_machines(state)
    for machine in kept_machines(state):
        empty = machine.state is MachineState.RUNNING and machine.name not in used
        if empty is (machine.empty_since is None):
            since = now if empty else None
            state.machines[machine.name] = machine.replace(empty_since=since)


def _blocked_by_limit(state: NodepoolState, market: Market, now: datetime) -> int:
    """Return how many machines are not bought only because the limit is reached."""
    waiting = len(waiting_seats(state))
    if room_left(state) or not waiting:
        return 0
    found = pack_waiting(state, market.kinds, room=waiting, now=now)
    return len(found.new)


def _missing(state: NodepoolState, now: datetime) -> int:
    """Return how many more machines it would take if the provider had everything."""
    assert state.spec is not None
    waiting = len(waiting_seats(state))
    if not waiting:
        return 0
    kinds = kinds_of(state.spec, rank_offers(state.spec, state.market.offers, {}, now))
    return len(pack_waiting(state, kinds, room=waiting, now=now).new)


def forgive(state: NodepoolState, *, now: datetime) -> None:
    """Forget machines that did not live for long once a later one did."""
    struck = state.last_strike_at
    ready = [machine.ready_at for machine in kept_machines(state)]
    if struck is not None and any(at and at > struck and now - at > YOUNG for at in ready):
        state.strikes, state.last_strike_at, state.buy_after = 0, None, None


def idle_since(state: NodepoolState) -> datetime | None:
    """Return since when machines run that nobody uses, None if it is not so."""
    machines: Iterable[Machine] = state.machines.values()
    if not any(machine.state is MachineState.RUNNING for machine in machines):
        return None
    return state.last_used_at or state.created_at
