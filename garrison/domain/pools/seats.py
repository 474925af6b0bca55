"""What deployments want of a pool, and what each of them is told: the pool's half of the protocol.

The rules are in `docs/placement.md`. A customer is one life of a deployment; a seat is the place
of one of its replicas. These functions change the one `NodepoolState` in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from garrison.domain.packing.fitting import dominant_share
from garrison.domain.pools.life import add_event, is_closing, pool_name
from garrison.domain.rates import rounded
from garrison.domain.resource_ids import nodepool_workflow_id
from garrison.models.group import WorkloadState
from garrison.models.nodepool_state import Customer, Machine, MachineState, NodepoolState, Seat
from garrison.models.placement import (
    Demand,
    Placement,
    Placements,
    PlacementState,
    PoolSummary,
    ReplicaDemand,
)

FIRST_REPEAT = timedelta(seconds=5)
LONGEST_REPEAT = timedelta(seconds=40)
FAREWELLS = 200
CLOSING = "the nodepool is being deleted"
STARTING = "starting a node"


def owner_id(state: NodepoolState) -> str:
    """Return the workflow id of a pool, which its machines are tagged with."""
    return nodepool_workflow_id(state.compute_cluster, state.id)


def take_demand(state: NodepoolState, demand: Demand, *, now: datetime) -> bool:
    """Take what a deployment wants, unless it is older than what is known; return whether it was.

    Lives of one deployment are told apart, and the others are told something at once: who lives
    no longer is found out by that, and not by the order in which demands arrive.
    """
    customer = state.customers.get(demand.uid)
    if customer is None:
        if _is_thanks(state, demand):
            return False
        for uid, other in state.customers.items():
            if other.demand.deployment == demand.deployment:
                state.customers[uid] = other.replace(tell_due=now)
        state.customers[demand.uid] = _acknowledge(state, Customer(demand=demand), demand)
        return True
    if demand.generation < customer.demand.generation:
        return False
    state.customers[demand.uid] = _acknowledge(state, customer, demand)
    return True


def _is_thanks(state: NodepoolState, demand: Demand) -> bool:
    """Return whether a demand only acknowledges the last thing that its sender was told."""
    last = state.farewells.get(demand.uid)
    mine = demand.closing and demand.pool_uid == state.uid
    return mine and last is not None and demand.placements_seen >= last


def _acknowledge(state: NodepoolState, customer: Customer, demand: Demand) -> Customer:
    seen = demand.placements_seen if demand.pool_uid == state.uid else 0
    seen = max(customer.acknowledged, seen)
    said = customer.said
    done = said is not None and seen >= said.generation
    after: Customer = customer.replace(
        demand=demand,
        acknowledged=seen,
        named={
            machine: generation
            for machine, generation in customer.named.items()
            if seen <= generation or _names(said, machine)
        },
        tell_due=None if done else customer.tell_due,
    )
    return after


def _names(said: Placements | None, machine: str) -> bool:
    return said is not None and any(one.machine == machine for one in said.placements)


def sync_seats(state: NodepoolState) -> None:
    """Give each wanted replica a seat, and take those away that are not wanted any more."""
    for uid, customer in state.customers.items():
        wanted = {one.replica: one for one in customer.demand.replicas}
        if customer.demand.closing:
            wanted = {}
        seats = {
            replica: customer.seats.get(replica) or Seat(demand=demand)
            for replica, demand in wanted.items()
        }
        if seats != customer.seats:
            away = None if seats else _turned_away(customer)
            state.customers[uid] = customer.replace(seats=seats, turned_away=away)


def _turned_away(customer: Customer) -> ReplicaDemand | None:
    """Return one of the replicas that a customer withdraws while they wait for a machine."""
    waiting = (seat.demand for seat in customer.seats.values() if seat.machine is None)
    return next(waiting, None)


def change_seat(state: NodepoolState, uid: str, replica: str, **changes: object) -> None:
    """Change one seat."""
    customer = state.customers[uid]
    seat = customer.seats[replica].replace(**changes)
    if seat != customer.seats[replica]:
        seats = {**customer.seats, replica: seat}
        state.customers[uid] = customer.replace(seats=seats)


def seats_on(state: NodepoolState, machine: str) -> list[tuple[str, Seat]]:
    """Return the seats on a machine, each with its customer's uid."""
    return [
        (uid, seat)
        for uid, customer in state.customers.items()
        for seat in customer.seats.values()
        if seat.machine == machine
    ]


def used_machines(state: NodepoolState) -> set[str]:
    """Return the machines on which somebody has a replica, or may still believe so."""
    named = {machine for customer in state.customers.values() for machine in customer.named}
    seats = (seat for customer in state.customers.values() for seat in customer.seats.values())
    return named | {seat.machine for seat in seats if seat.machine is not None}


def was_placed(state: NodepoolState, uid: str, machine: str) -> bool:
    """Return whether a customer was told of a machine, so that something may run there."""
    return machine in state.customers[uid].named


def vacate(state: NodepoolState, machine: str, why: str, *, gone: bool) -> None:
    """Take the seats of a machine away.

    Args:
        state: Changed in place.
        machine: Whose seats.
        why: In words, for who waits.
        gone: What ran there is gone; else only those leave that were never told of it.
    """
    for uid, seat in seats_on(state, machine):
        placed = was_placed(state, uid, machine)
        if placed and not gone:
            continue
        change_seat(
            state,
            uid,
            seat.demand.replica,
            machine=None,
            devices=(),
            port=None,
            lost=seat.lost or placed,
            reason=why,
        )


def drop_customer(state: NodepoolState, uid: str, *, now: datetime) -> None:
    """Forget a life that has ended; what it left running on a node cannot be known.

    So such a node takes nothing new, and goes once it is empty.
    """
    customer = state.customers.pop(uid, None)
    if customer is None:
        return
    name = customer.demand.deployment
    left = set(customer.named) | {seat.machine for seat in customer.seats.values()}
    for machine in state.machines.values():
        if machine.name in left and machine.prepared is not None and _takes_seats(machine):
            why = f"{name} ended without stopping what it ran here"
            changed = {"state": MachineState.DRAINING, "why": why}
            state.machines[machine.name] = machine.replace(**changed)
    add_event(state, "DeploymentGone", f"{name} lives no longer; its places are free", now=now)


def _takes_seats(machine: Machine) -> bool:
    return machine.state in {MachineState.STARTING, MachineState.RUNNING}


def make_statements(
    state: NodepoolState, summaries: dict[str, PoolSummary], *, now: datetime
) -> None:
    """Renew what each customer is to be told, where that has changed.

    Prices and use alone are no reason to tell, nor is a process that runs as it was started: they
    go with the next statement.
    """
    for uid, customer in list(state.customers.items()):
        placements = tuple(_placement(state, seat) for seat in customer.seats.values())
        said = customer.said
        if said is not None and _says(said) == (
            tuple(map(_news, placements)),
            customer.demand.generation,
            is_closing(state),
            summaries[uid].full,
        ):
            continue
        state.statements += 1
        statement = Placements(
            nodepool=owner_id(state),
            uid=state.uid,
            deployment_uid=uid,
            generation=state.statements,
            demand_generation=customer.demand.generation,
            placements=placements,
            pool=summaries[uid],
            closing=is_closing(state),
        )
        named = {one.machine: state.statements for one in placements if one.machine is not None}
        state.customers[uid] = customer.replace(
            said=statement,
            named={**customer.named, **named},
            turned_away=customer.turned_away if summaries[uid].full else None,
            tells=0,
            tell_due=now,
        )


def _says(said: Placements) -> tuple[tuple[Placement, ...], int, bool, bool]:
    full = said.pool.full if said.pool is not None else False
    return tuple(map(_news, said.placements)), said.demand_generation, said.closing, full


def _news(placement: Placement) -> Placement:
    work = placement.workload
    if work is None or work.state is not WorkloadState.RUNNING or work.restarts:
        return placement
    told: Placement = placement.replace(workload=None)
    return told


def _placement(state: NodepoolState, seat: Seat) -> Placement:
    machine = state.machines.get(seat.machine or "")
    replica = seat.demand.replica
    if machine is None or machine.prepared is None:
        return Placement(
            replica=replica,
            state=PlacementState.LOST if seat.lost else PlacementState.PENDING,
            reason=seat.reason if machine is None else STARTING,
            coming=machine is not None,
        )
    draining = is_closing(state) or machine.state is MachineState.DRAINING
    why = CLOSING if is_closing(state) else machine.why
    return Placement(
        replica=replica,
        state=PlacementState.DRAINING if draining else PlacementState.PLACED,
        machine=machine.name,
        node=machine.prepared,
        port=seat.port,
        devices=seat.devices,
        workload=next((work for work in machine.workloads if work.name == replica), None),
        usd_per_hour=_share_of_price(machine, seat.demand),
        must_go=is_closing(state) or machine.must_go,
        ends_at=machine.node.notice_ends_at if draining else None,
        reason=why if draining else "",
    )


def _share_of_price(machine: Machine, demand: ReplicaDemand) -> Decimal | None:
    price = machine.offer.offer.usd_per_hour
    if price is None or demand.exclusive:
        return price
    share = min(dominant_share(demand.resources, machine.offer.capacity), Fraction(1))
    return rounded(price * share.numerator / share.denominator)


def note_told(
    state: NodepoolState, uid: str, generation: int, *, found: bool, now: datetime
) -> None:
    """A statement was delivered, or there is nobody to take it."""
    customer = state.customers.get(uid)
    if customer is None or customer.said is None:
        return
    if not found:
        drop_customer(state, uid, now=now)
        return
    if customer.said.generation != generation:
        return  # a newer one is due already
    if customer.demand.closing:
        del state.customers[uid]  # it wants nothing more, and was told that it has nothing
        state.farewells[uid] = generation
        while len(state.farewells) > FAREWELLS:
            del state.farewells[next(iter(state.farewells))]
        return
    tells = customer.tells + 1
    pause = min(FIRST_REPEAT * (1 << min(tells - 1, 10)), LONGEST_REPEAT)
    done = customer.acknowledged >= generation
    due = None if done else now + pause
    state.customers[uid] = customer.replace(tells=tells, tell_due=due)


def tell_all_again(state: NodepoolState, *, now: datetime) -> None:
    """Have each customer told once more, as with each deadman probe."""
    for uid, customer in state.customers.items():
        state.customers[uid] = customer.replace(tell_due=now)


def doubt_customers(state: NodepoolState, uids: Iterable[str], *, now: datetime) -> None:
    """Have customers told something at once that may live no longer; that finds it out."""
    for uid in uids:
        customer = state.customers.get(uid)
        if customer is not None:
            state.customers[uid] = customer.replace(tell_due=now)


def waiting_reason(state: NodepoolState) -> str:
    """Return why nothing can be placed at all for now, empty if it can."""
    if is_closing(state):
        return CLOSING
    if state.facts is None:
        return f"nodepool {pool_name(state)} is not yet in its compute cluster"
    return ""
