"""Which machine each replica of a pool gets, and what must be bought for those that get none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from garrison.domain.packing.packing import Bin, Held, Item, Kind, Packing, Place, pack
from garrison.domain.pools.seats import change_seat
from garrison.models.group import NodeStatus
from garrison.models.nodepool_state import Customer, Machine, MachineState, NodepoolState, Seat

KEPT = frozenset({MachineState.REQUESTED, MachineState.STARTING, MachineState.RUNNING})
"""States of machines that are to stay."""

PATIENCE = timedelta(minutes=10)
"""After so long in vain the replica that waits longest has a machine kept for it."""

_GOOD = frozenset({NodeStatus.PENDING, NodeStatus.STARTING, NodeStatus.RUNNING})


def kept_machines(state: NodepoolState) -> list[Machine]:
    """Return the machines that are to stay, oldest first."""
    return [machine for machine in state.machines.values() if machine.state in KEPT]


def key_of(uid: str, seat: Seat) -> str:
    """Return what a seat is called among all seats of the pool."""
    return f"{uid}/{seat.demand.replica}"


def item_of(uid: str, seat: Seat) -> Item:
    """Return a seat as the packing rules know it."""
    demand = seat.demand
    return Item(key_of(uid, seat), demand.resources, demand.exclusive, demand.port)


def waiting_seats(state: NodepoolState) -> list[tuple[str, Seat]]:
    """Return the seats without a machine, with their customers' uids."""
    return [(uid, seat) for uid, seat in _seats(state.customers) if seat.machine is None]


def _seats(customers: dict[str, Customer]) -> Iterable[tuple[str, Seat]]:
    for uid, customer in customers.items():
        for seat in customer.seats.values():
            yield uid, seat


def bins_of(state: NodepoolState) -> list[Bin]:
    """Return the machines that are to stay, with what they hold."""
    held: dict[str, list[Held]] = {}
    for uid, seat in _seats(state.customers):
        if seat.machine is not None:
            one = Held(item_of(uid, seat), seat.devices, seat.port)
            held.setdefault(seat.machine, []).append(one)
    return [_bin(machine, tuple(held.get(machine.name, ()))) for machine in kept_machines(state)]


def _bin(machine: Machine, held: tuple[Held, ...]) -> Bin:
    return Bin(
        machine.name,
        machine.offer.capacity,
        held,
        open=machine.node.status in _GOOD,
        first_port=machine.node.first_port,
    )


def note_waiting(state: NodepoolState, *, now: datetime) -> None:
    """Remember since when each seat waits: also one whose machine was lost, from then on.

    One whose machine never came up has waited all the time.
    """
    for uid, seat in list(_seats(state.customers)):
        machine = state.machines.get(seat.machine or "")
        up = machine is not None and machine.prepared is not None
        since = None if up else seat.since or now
        if since != seat.since:
            change_seat(state, uid, seat.demand.replica, since=since)


def pack_waiting(
    state: NodepoolState, kinds: Sequence[Kind], *, room: int, now: datetime
) -> Packing:
    """Return what becomes of the seats without a machine; who waited longer is asked first."""
    first = _first_lives(state)
    waiting = [(uid, seat) for uid, seat in waiting_seats(state) if uid in first]
    waiting.sort(key=lambda one: one[1].since or now)
    overdue = {
        key_of(uid, seat)
        for uid, seat in waiting
        if seat.since is not None and now >= seat.since + PATIENCE
    }
    return pack(
        [item_of(uid, seat) for uid, seat in waiting],
        bins_of(state),
        kinds,
        room=room,
        unbuyable=[offer.capacity for offer in state.market.offers],
        overdue=overdue,
    )


def _first_lives(state: NodepoolState) -> set[str]:
    """Return the customers before whom no other life of their deployment is known.

    Of two lives one has ended; which one, the telling finds out in a moment.
    """
    first: dict[str, str] = {}
    for uid, customer in state.customers.items():
        first.setdefault(customer.demand.deployment, uid)
    return set(first.values())


def take_places(state: NodepoolState, places: Iterable[Place]) -> None:
    """Give seats the machines that were found for them."""
    found = {place.key: place for place in places}
    for uid, seat in list(_seats(state.customers)):
        place = found.get(key_of(uid, seat))
        if place is not None:
            change_seat(
                state,
                uid,
                seat.demand.replica,
                machine=place.bin,
                devices=place.devices,
                port=place.port,
                reason="",
            )


def settle_places(state: NodepoolState, name: str) -> None:
    """Choose devices and ports anew on a machine that nobody was told of yet.

    Only now is it known which ports are its own. What finds no place any more waits again.
    """
    seats = [(uid, seat) for uid, seat in _seats(state.customers) if seat.machine == name]
    for uid, seat in seats:
        change_seat(state, uid, seat.demand.replica, machine=None, devices=(), port=None)
    place_on(state, name, seats)


def place_on(state: NodepoolState, name: str, seats: Iterable[tuple[str, Seat]]) -> None:
    """Put seats on one machine, as far as they fit."""
    items = [item_of(uid, seat) for uid, seat in seats]
    machine = _bin(state.machines[name], ())
    take_places(state, pack(items, [machine], (), room=0).places)
