"""What a nodepool's workflow does next.

`settle` applies demand, observations and time to the state and decides; `plan_steps` then names
the steps that are due and not under way. The workflow begins them all, and comes back with each
change, each outcome, and at the time that is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from garrison.domain import cleanup as proof
from garrison.domain.health import doubt_resolved_at, starting_until
from garrison.domain.pools.buying import (
    balance,
    close_down,
    forgive,
    idle_since,
    place_and_buy,
)
from garrison.domain.pools.life import facts_of, is_closing
from garrison.domain.pools.machines import UP, drain, give_up_dead, needs_preparing
from garrison.domain.pools.market import TRIES_MEMORY
from garrison.domain.pools.notice import heed_notices
from garrison.domain.pools.places import waiting_seats
from garrison.domain.pools.seats import make_statements, sync_seats, vacate
from garrison.domain.pools.stand_ins import reseat_times
from garrison.domain.pools.summary import summarize
from garrison.domain.pools.trading import PRICES_HOLD, refusal_times
from garrison.models.cluster_state import Blocked
from garrison.models.group import NodeStatus
from garrison.models.nodepool_state import Machine, MachineState, NodepoolState

UNREACHABLE_FOR = timedelta(minutes=10)
"""How long a node may be out of reach before its replicas are to go elsewhere."""

IDLE_FOR = timedelta(hours=24)
"""How long machines may run for nobody before that is pointed out."""

LOOK_AGAIN = timedelta(minutes=5)
"""After so long without an answer the watch is asked again: somebody may have ended it."""


@dataclass(frozen=True, slots=True)
class Join:
    """Enter the compute cluster, and read what is known of its provider."""

    key: str = "join"


@dataclass(frozen=True, slots=True)
class AskOffers:
    """Ask the provider what can be bought."""

    key: str = "offers"


@dataclass(frozen=True, slots=True)
class BuyMachine:
    """Make a purchase that was decided."""

    key: str


@dataclass(frozen=True, slots=True)
class PrepareMachine:
    """Reach a node."""

    key: str


@dataclass(frozen=True, slots=True)
class DeleteMachine:
    """Delete by token, then be told of a pass from `look_at` on."""

    key: str
    look_at: datetime


@dataclass(frozen=True, slots=True)
class LookAt:
    """Ask the watch for a pass from `not_before` on."""

    not_before: datetime
    deadman: bool = False
    key: str = "look"


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell a deployment its newest statement."""

    uid: str
    key: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave the compute cluster."""

    key: str = "leave"


Step = Join | AskOffers | BuyMachine | PrepareMachine | DeleteMachine | LookAt | Tell | Leave


def settle(state: NodepoolState, *, now: datetime) -> None:
    """Bring a state up to date, and decide; the same state twice changes nothing more."""
    if state.spec is None:
        return
    sync_seats(state)
    if state.facts is not None:
        give_up_dead(state, now=now)
        _drain_unreachable(state, now)
        heed_notices(state, now=now)
        if is_closing(state):
            close_down(state, now=now)
        for machine in list(state.machines.values()):
            if machine.state is MachineState.DRAINING:
                vacate(state, machine.name, machine.why, gone=False)
        _forget_refusals(state, now)
        forgive(state, now=now)
    market = place_and_buy(state, now=now)
    if state.facts is not None:
        balance(state, market, now=now)
    if any(customer.seats for customer in state.customers.values()):
        state.last_used_at = now
    if is_closing(state):
        state.desired = 0
    make_statements(state, summarize(state, market, now=now), now=now)
    state.observed_generation = state.generation


def _drain_unreachable(state: NodepoolState, now: datetime) -> None:
    for machine in list(state.machines.values()):
        end = _unreachable_until(machine)
        if machine.state is MachineState.RUNNING and end is not None and now >= end:
            drain(state, machine.name, "could not be reached for 10 minutes", now=now)


def _unreachable_until(machine: Machine) -> datetime | None:
    node = machine.node
    if node.status is not NodeStatus.UNREACHABLE or node.since is None:
        return None
    return node.since + UNREACHABLE_FOR


def _forget_refusals(state: NodepoolState, now: datetime) -> None:
    known = state.market.refused
    refused = {key: one for key, one in known.items() if now < one.at + TRIES_MEMORY}
    if len(refused) != len(state.market.refused):
        state.market = state.market.replace(refused=refused)


def is_finished(state: NodepoolState, busy: Collection[str]) -> bool:
    """Return whether the life is over: all is given back, and the compute cluster knows it."""
    return is_closing(state) and not state.machines and state.left and not busy


def plan_steps(state: NodepoolState, busy: Collection[str], *, now: datetime) -> list[Step]:
    """Return the steps of a settled state that are due and not under way."""
    return [step for step in _due(state, now) if step.key not in busy]


def _due(state: NodepoolState, now: datetime) -> Iterable[Step]:
    if state.spec is None or state.left:
        return
    if state.facts is None and not is_closing(state) and _may_try(state.blocked, now):
        yield Join()
    if state.facts is not None:
        yield from _market_steps(state, now)
        yield from _machine_steps(state, now)
        yield from _look_steps(state, now)
    for uid, customer in state.customers.items():
        if customer.tell_due is not None and now >= customer.tell_due:
            yield Tell(uid, f"tell/{uid}")
    if is_closing(state) and not state.machines and _may_try(state.blocked, now):
        yield Leave()


def _may_try(trouble: Blocked | None, now: datetime) -> bool:
    return trouble is None or now >= trouble.retry_at


def _market_steps(state: NodepoolState, now: datetime) -> Iterable[Step]:
    if state.wants_offers and _may_try(state.market_trouble, now):
        yield AskOffers()


def _machine_steps(state: NodepoolState, now: datetime) -> Iterable[Step]:
    for machine in state.machines.values():
        if not _may_try(machine.trouble, now):
            continue
        if machine.state is MachineState.REQUESTED:
            yield BuyMachine(machine.name)
        elif needs_preparing(machine):
            yield PrepareMachine(machine.name)
        elif machine.cleanup is not None:
            step = proof.plan_cleanup(machine.cleanup, now=now, facts=facts_of(state))
            if isinstance(step, proof.Delete):
                yield DeleteMachine(machine.name, step.look_at)


def _look_steps(state: NodepoolState, now: datetime) -> Iterable[Step]:
    if state.deadman_at is not None and now >= state.deadman_at:
        yield LookAt(now, deadman=True)
        return
    wanted, asked = wanted_pass(state, now=now), state.asked
    if wanted is None:
        return
    if asked is None or asked > wanted:
        yield LookAt(wanted)
    elif now >= asked + LOOK_AGAIN:
        yield LookAt(now)


def wanted_pass(state: NodepoolState, *, now: datetime) -> datetime | None:
    """Return the earliest pass that settles something, None when nothing is open.

    The watch keeps one wish of each owner, so the earliest goes first and the next one follows.
    """
    passes = [
        *(_wanted_for(machine, state, now) for machine in state.machines.values()),
        doubt_resolved_at(m.node for m in state.machines.values() if m.state in UP),
    ]
    return min((one for one in passes if one is not None), default=None)


def _wanted_for(machine: Machine, state: NodepoolState, now: datetime) -> datetime | None:
    if machine.cleanup is None:
        return None
    step = proof.plan_cleanup(machine.cleanup, now=now, facts=facts_of(state))
    if isinstance(step, proof.Look):
        return step.not_before
    waits = isinstance(step, proof.Await) and step.until is None
    return machine.cleanup.asked_for if waits else None


def next_time(state: NodepoolState, *, now: datetime) -> tuple[datetime | None, str]:
    """Return when time alone changes something, and what it is; None when it never does."""
    times = [(time, why) for time, why in _times(state) if time is not None and time > now]
    return min(times, default=(None, ""))


def _times(state: NodepoolState) -> Iterable[tuple[datetime | None, str]]:
    if state.blocked is not None:
        yield state.blocked.retry_at, f"try again after {state.blocked.code}"
    for customer in state.customers.values():
        yield customer.tell_due, "tell a deployment again"
    if state.facts is None or state.spec is None:
        return
    yield from _market_times(state)
    for machine in state.machines.values():
        yield from _machine_times(state, machine)
    yield state.release_at, "release an empty node"
    yield from ((at, "go on with a stand-in") for at in reseat_times(state))
    if state.asked is not None and state.machines:
        yield state.asked + LOOK_AGAIN, "ask the watch again"
    idle = idle_since(state)
    if idle is not None:
        yield idle + IDLE_FOR, "point out an idle nodepool"
    yield state.deadman_at, "deadman probe"


def _market_times(state: NodepoolState) -> Iterable[tuple[datetime | None, str]]:
    yield state.buy_after, "buy again after a machine that did not live for long"
    if state.market_trouble is not None:
        yield state.market_trouble.retry_at, "ask for prices again"
    for time in refusal_times(state):
        yield time, "try a refused offer again"
    if waiting_seats(state) and state.market.asked_at is not None:
        yield state.market.asked_at + PRICES_HOLD, "ask for new prices"


def _machine_times(state: NodepoolState, machine: Machine) -> Iterable[tuple[datetime | None, str]]:
    limit = facts_of(state).start_timeout
    if machine.trouble is not None:
        yield machine.trouble.retry_at, f"try again after {machine.trouble.code}"
    if machine.cleanup is not None:
        yield machine.cleanup.delete_due, "delete again"
        return
    if machine.ready_at is None:
        yield machine.start_deadline, "start timeout"
    else:
        yield starting_until(machine.node, limit), "boot timeout"
    yield _unreachable_until(machine), "drain a node that cannot be reached"
