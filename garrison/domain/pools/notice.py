"""Machines that their provider said it will take: replaced first, then drained.

Room for the replicas on them is found or bought in the pass in which the notice is heard, before
any deployment asks for a successor. How the successors come is the deployments' business; what was
bought for them is kept for as long as a replica is left on the machine that goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from garrison.domain.health import notice_text
from garrison.domain.packing.packing import Bin, Item, Kind, Packing, pack
from garrison.domain.pools.machines import change, drain
from garrison.domain.pools.places import KEPT, bins_of, item_of
from garrison.domain.pools.seats import seats_on
from garrison.models.nodepool_state import Machine, MachineState, NodepoolState
from garrison.models.offer import CapacityType

_HEARS = frozenset({MachineState.STARTING, MachineState.RUNNING})


def heed_notices(state: NodepoolState, *, now: datetime) -> None:
    """Drain the machines under notice; what is not up yet is drained too, and so goes at once."""
    for machine in list(state.machines.values()):
        if machine.state in _HEARS and machine.node.notice_at is not None:
            spot = machine.offer.offer.capacity_type is CapacityType.SPOT
            why = f"{'spot ' if spot else ''}notice: {notice_text(machine.node)}"
            drain(state, machine.name, why, now=now)


def unreplaced(state: NodepoolState) -> list[Machine]:
    """Return the machines under notice for whose replicas no room was found or bought yet."""
    return [
        machine
        for machine in state.machines.values()
        if machine.state is MachineState.DRAINING
        and machine.node.notice_at is not None
        and not _has_successors(state, machine)
        and seats_on(state, machine.name)
    ]


def _has_successors(state: NodepoolState, machine: Machine) -> bool:
    if machine.successors is None:
        return False
    found = (state.machines.get(name) for name in machine.successors)
    return all(one is not None and one.state in KEPT for one in found)


def reserved(state: NodepoolState) -> set[str]:
    """Return the machines that are kept for replicas on machines under notice."""
    return {
        name
        for machine in state.machines.values()
        if machine.successors and seats_on(state, machine.name)
        for name in machine.successors
    }


def pack_successors(state: NodepoolState, kinds: Sequence[Kind], *, room: int) -> Packing:
    """Return where copies of the replicas on unreplaced machines would find a place."""
    items = [item for machine in unreplaced(state) for item in _items_on(state, machine)]
    if not items:
        return Packing((), (), {})
    return pack(items, _free_bins(state), kinds, room=room)


def _free_bins(state: NodepoolState) -> list[Bin]:
    """Return the machines that are to stay; those kept for other copies take none of these."""
    kept = reserved(state)
    return [replace(one, open=one.open and one.name not in kept) for one in bins_of(state)]


def _items_on(state: NodepoolState, machine: Machine) -> list[Item]:
    return [item_of(uid, seat) for uid, seat in seats_on(state, machine.name)]


def note_successors(state: NodepoolState, found: Packing, bought: Mapping[str, str]) -> None:
    """Remember which machines have the room that was found for all replicas of a machine.

    Args:
        state: Changed in place.
        found: What packing said of the copies.
        bought: The machines that were ordered, by the keys of the copies they are for.
    """
    for machine in unreplaced(state):
        keys = [item.key for item in _items_on(state, machine)]
        if not any(key in found.unplaced for key in keys):
            names = dict.fromkeys(bought[key] for key in keys if key in bought)
            change(state, machine.name, successors=tuple(names))
