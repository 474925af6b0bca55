"""Machines on demand that stand in for spot ones: what is ordered, who sits where, what goes back.

`pool_fallback` has the count. Here is what it means for a pool's machines: a spot machine is
ordered for replicas on a stand-in, a stand-in for a spot machine that is not ready. A replica that
nobody was told of goes where it can start first. A stand-in with replicas goes only once they fit
on ready spot machines, which are kept for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from garrison.domain.packing.packing import Bin, Item, Kind, Packing, pack
from garrison.domain.pools.fallback import Mix, Mixed, plan_mix
from garrison.domain.pools.machines import change, drain
from garrison.domain.pools.market import kinds_of, memory_key, rank_offers
from garrison.domain.pools.notice import reserved
from garrison.domain.pools.places import bins_of, item_of, kept_machines, take_places
from garrison.domain.pools.seats import seats_on
from garrison.models.group import NodeStatus
from garrison.models.nodepool import NodepoolSpec, PoolOffer
from garrison.models.nodepool_state import Machine, MachineState, NodepoolState
from garrison.models.offer import CapacityType

REACHED_WITHIN = timedelta(seconds=30)
"""How long replicas wait for a spot machine that runs though a stand-in was reached before."""

SPOT_IS_BACK = "spot machines have been ready for long enough; this one stood in for them"
UNUSED = "was empty for long enough"


def has_stand_ins(spec: NodepoolSpec) -> bool:
    """Return whether machines on demand stand in for spot ones in a pool."""
    return spec.on_demand_fallback and _is_mixed(spec)


def _is_mixed(spec: NodepoolSpec) -> bool:
    return {CapacityType.SPOT, CapacityType.ON_DEMAND} <= set(spec.capacity_types)


def base_left(state: NodepoolState) -> int:
    """Return how many of the next machines are to be on demand, as the base is not full yet."""
    assert state.spec is not None
    if not _is_mixed(state.spec):
        return 0
    there = sum(not _is_spot(machine) for machine in kept_machines(state))
    return max(0, state.spec.on_demand_base - there)


def only(
    kinds: Iterable[Kind], offers: Mapping[str, PoolOffer], capacity: CapacityType
) -> list[Kind]:
    """Return the kinds of one capacity type."""
    return [kind for kind in kinds if offers[kind.name].offer.capacity_type is capacity]


def mix_of(state: NodepoolState, *, now: datetime) -> Mix | None:
    """Return what a pool with stand-ins lacks and has too many of; None for any other pool."""
    if state.spec is None or not has_stand_ins(state.spec):
        return None
    kept, receiving = reserved(state), _receiving(_spread(state, now))
    machines = [
        Mixed(
            machine.name,
            spot=_is_spot(machine),
            replicas=len(seats_on(state, machine.name)) or int(machine.name in kept | receiving),
            ready_since=_ready_since(machine),
            empty_since=machine.empty_since,
        )
        for machine in kept_machines(state)
    ]
    wanted, fixed = _count_wanted(state, now)
    return plan_mix(state.spec, machines, wanted=wanted, fixed=fixed, now=now)


def _count_wanted(state: NodepoolState, now: datetime) -> tuple[int, int]:
    """Return how many machines replicas and spares need, if no stand-in were one too many.

    Besides, how many of those are on demand for what no spot machine could hold.
    """
    assert state.spec is not None
    stand_ins, found = _stand_ins(state), _spread(state, now)
    standing = {machine.name for machine in stand_ins}
    fixed = [m for m in stand_ins if any(i.key in found.unplaced for i in _copies(state, m))]
    used = {m.name for m in kept_machines(state) if m.name not in standing and _is_used(state, m)}
    needed = len(used | _receiving(found)) + len(found.new) + len(fixed)
    spare = max(state.spec.warm_instances, state.spec.min_instances - needed)
    return min(state.spec.max_instances, needed + spare), len(fixed)


def _spread(state: NodepoolState, now: datetime) -> Packing:
    """Return where all that is on stand-ins would be if spot were there for the asking."""
    assert state.spec is not None
    ranking = rank_offers(state.spec, state.market.offers, {}, now)
    offers = {memory_key(offer): offer for offer in ranking.offers}
    kinds = only(kinds_of(state.spec, ranking), offers, CapacityType.SPOT)
    going = [machine for machine in state.machines.values() if _is_awaited(state, machine)]
    items = [item for one in (*going, *_stand_ins(state)) for item in _copies(state, one)]
    bins = [one for one in bins_of(state) if _is_spot(state.machines[one.name])]
    room = len(state.machines)
    return pack(items, bins, kinds, room=room) if items else Packing((), (), {})


def _is_awaited(state: NodepoolState, machine: Machine) -> bool:
    """Return whether what is kept for a machine's replicas is still empty."""
    names = machine.successors or ()
    return bool(names) and not any(seats_on(state, name) for name in names)


def _receiving(found: Packing) -> set[str]:
    return {place.bin for place in found.places}


def _stand_ins(state: NodepoolState) -> list[Machine]:
    """Return the machines on demand beyond the base; those in use count as the base first."""
    assert state.spec is not None
    there = [machine for machine in kept_machines(state) if not _is_spot(machine)]
    ordered = sorted(there, key=lambda machine: not _is_used(state, machine))
    return ordered[state.spec.on_demand_base :]


def _is_used(state: NodepoolState, machine: Machine) -> bool:
    return bool(seats_on(state, machine.name)) or machine.name in reserved(state)


def _copies(state: NodepoolState, machine: Machine) -> list[Item]:
    return [item_of(uid, seat) for uid, seat in seats_on(state, machine.name)]


def _bins(state: NodepoolState) -> list[Bin]:
    """Return the machines that are to stay; what is kept for others takes nothing."""
    kept = reserved(state)
    return [replace(one, open=one.open and one.name not in kept) for one in bins_of(state)]


def _is_spot(machine: Machine) -> bool:
    return machine.offer.offer.capacity_type is CapacityType.SPOT


def _ready_since(machine: Machine) -> datetime | None:
    running = machine.node.status is NodeStatus.RUNNING
    if machine.state is not MachineState.RUNNING or machine.ready_at is None or not running:
        return None
    return max(machine.ready_at, machine.node.since or machine.ready_at)


def lacks_machines(state: NodepoolState, *, now: datetime) -> bool:
    """Return whether spot machines or stand-ins for them are missing."""
    mix = mix_of(state, now=now)
    return mix is not None and bool(mix.buy_spot or mix.buy_on_demand)


def stand_in_orders(
    state: NodepoolState,
    kinds: Sequence[Kind],
    offers: Mapping[str, PoolOffer],
    *,
    room: int,
    now: datetime,
) -> list[str]:
    """Return what to order by name of its kind: spot for what is missing, then what stands in."""
    mix = mix_of(state, now=now)
    if mix is None:
        return []
    spot = only(kinds, offers, CapacityType.SPOT)
    others = only(kinds, offers, CapacityType.ON_DEMAND)
    ordered = _spot_orders(state, spot, min(room, mix.buy_spot))
    unready = [m for m in kept_machines(state) if _is_spot(m) and _ready_since(m) is None]
    like = [m.offer.offer.instance_type for m in unready]
    like += [offers[name].offer.instance_type for name in ordered]
    wanted = max(0, min(room - len(ordered), mix.buy_on_demand)) if others else 0
    for number in range(wanted):
        wish = like[number] if number < len(like) else ""
        same = [kind for kind in others if offers[kind.name].offer.instance_type == wish]
        ordered.append(_best(same or others).name)
    return ordered


def _spot_orders(state: NodepoolState, kinds: Sequence[Kind], count: int) -> list[str]:
    if not kinds or count <= 0:
        return []
    items = [item for machine in _stand_ins(state) for item in _copies(state, machine)]
    bins = [one for one in _bins(state) if _is_spot(state.machines[one.name])]
    found = pack(items, bins, kinds, room=count)
    ordered = [new.kind for new in found.new]
    return ordered + [_best(kinds).name] * (count - len(ordered))


def _best(kinds: Sequence[Kind]) -> Kind:
    return min(kinds, key=lambda kind: kind.rank)


def seat_where_it_is_ready(state: NodepoolState, *, now: datetime) -> None:
    """Move replicas that wait for a spot machine to get up to stand-ins that are up.

    One that runs will be reached in a moment, and its replicas stay.
    """
    if state.spec is None or not has_stand_ins(state.spec):
        return
    late = [m for m in _unreached(state) if (end := _reached_by(m)) is None or end <= now]
    items = [item for machine in late for item in _copies(state, machine)]
    bins = [one for one in _bins(state) if _is_up(state.machines[one.name], spot=False)]
    if items and bins:
        take_places(state, pack(items, bins, (), room=0).places)


def _unreached(state: NodepoolState) -> list[Machine]:
    return [m for m in kept_machines(state) if _is_spot(m) and m.prepared is None]


def _reached_by(machine: Machine) -> datetime | None:
    """Return until when a machine that runs should be reached, None for one that does not run."""
    if machine.node.status is not NodeStatus.RUNNING or machine.node.since is None:
        return None
    return machine.node.since + REACHED_WITHIN


def reseat_times(state: NodepoolState) -> Iterable[datetime]:
    """Yield when replicas of spot machines that cannot be reached move to stand-ins."""
    if state.spec is not None and has_stand_ins(state.spec):
        times = map(_reached_by, _unreached(state))
        yield from (time for time in times if time is not None)


def _is_up(machine: Machine, *, spot: bool) -> bool:
    return _is_spot(machine) is spot and _ready_since(machine) is not None


def give_back_mixed(state: NodepoolState, *, now: datetime) -> Mix | None:
    """Drain the stand-ins that spot has made up for, and spot machines that nobody needs."""
    mix = mix_of(state, now=now)
    if mix is None:
        return None
    for name in mix.release:
        drain(state, name, UNUSED, now=now)
    for name in mix.retire:
        machine = state.machines[name]
        ready = [one for one in _bins(state) if _is_up(state.machines[one.name], spot=True)]
        found = pack(_copies(state, machine), ready, (), room=0)
        if not found.unplaced:
            drain(state, name, SPOT_IS_BACK, now=now)
            change(state, name, successors=tuple(dict.fromkeys(p.bin for p in found.places)))
    return mix
