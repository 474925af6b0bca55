"""What the outcome of a call, or an observation, makes of a pool's machines.

Each machine is a group of one under its own token. These functions change the one `NodepoolState`
in place; its workflow is the only writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from garrison.domain import cleanup as proof
from garrison.domain.health import OFF, listed_nodes, living_nodes, observe_nodes, starting_until
from garrison.domain.pools.life import (
    add_event,
    facts_of,
    next_trouble,
    note_blocked,
    price_text,
)
from garrison.domain.pools.market import falls_back, memory_key, note_refusal
from garrison.domain.pools.places import settle_places
from garrison.domain.pools.seats import vacate
from garrison.models.cluster_messages import PurchaseAnswer
from garrison.models.cluster_state import ClusterNode, Failure
from garrison.models.group import Group, Node, NodeStatus
from garrison.models.nodepool import PoolOffer
from garrison.models.nodepool_state import (
    Machine,
    MachineState,
    NodepoolState,
)
from garrison.models.observation import Observation
from garrison.models.offer import Offer
from garrison.models.resources import Resources

YOUNG = timedelta(minutes=10)
"""A machine that goes sooner after it was ready did not live for long."""

FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=5)
UP = frozenset({MachineState.STARTING, MachineState.RUNNING, MachineState.DRAINING})


def change(state: NodepoolState, name: str, /, **changes: object) -> Machine:
    """Change one machine and return it."""
    machine: Machine = state.machines[name].replace(**changes)
    state.machines[name] = machine
    return machine


def add_machine(
    state: NodepoolState, offer: PoolOffer, *, now: datetime, **fields: object
) -> Machine:
    """Decide to buy one more machine; from now on it counts."""
    number = state.next_number
    state.next_number += 1
    name = f"{state.uid}-{number}"
    machine: Machine = Machine(name=name, number=number, offer=offer, created_at=now)
    state.machines[name] = machine = machine.replace(**fields)
    return machine


def note_called(state: NodepoolState, name: str) -> None:
    """The purchase is about to be made; from now on it may have an effect."""
    change(state, name, called=True)


def note_bought(state: NodepoolState, name: str, answer: PurchaseAnswer, *, now: datetime) -> None:
    """Take the provider's answer: a machine, or a refusal.

    Only a refusal before which nothing was tried is certain to have left nothing.
    """
    if answer.refusal is not None:
        failure = Failure(code=answer.refusal.code, message=answer.refusal.message)
        _note_refused(state, name, failure, now=now)
        if answer.effects_until is None:
            vacate(state, name, failure.message, gone=True)
            del state.machines[name]
            return
        change(state, name, effects_until=answer.effects_until, call_ended_at=answer.ended_at)
        end_machine(state, name, failure.message, now=now)
        return
    assert answer.group is not None
    (listed,) = answer.group.nodes
    state.blocked = None
    _forget_refusal(state, memory_key(state.machines[name].offer))
    _note_asked(state, answer.ended_at, asked_at=answer.ended_at)
    machine = state.machines[name]
    known = {
        "status": NodeStatus.STARTING,
        "provider_id": listed.provider_id,
        "private_address": listed.private_address,
        "first_port": listed.first_port,
        "ssh": listed.ssh,
    }
    change(
        state,
        name,
        state=MachineState.STARTING,
        node=machine.node if machine.node.seen else machine.node.model_copy(update=known),
        call_ended_at=answer.ended_at,
        effects_until=answer.effects_until or answer.ended_at,
        start_deadline=now + facts_of(state).start_timeout,
    )
    offer = machine.offer.offer
    text = f"{offer.instance_type} ({_kind(machine)}) at {price_text(offer)}"
    add_event(state, "NodeBought", text, now=now, about=name, by=offer.provider)


def _kind(machine: Machine) -> str:
    kind = str(machine.offer.offer.capacity_type).replace("_", "-")
    return kind if machine.fallback is None else f"{kind}, fallback: {machine.fallback}"


def note_not_bought(
    state: NodepoolState, name: str, failure: Failure | None, *, now: datetime
) -> None:
    """The purchase was broken off (None) or failed: what it may have left is cleaned up."""
    bound = facts_of(state).effect_bound
    change(state, name, effects_until=now + bound, call_ended_at=now)
    if failure is not None:
        note_blocked(state, failure, now=now)
    why = failure.message if failure is not None else "the purchase was broken off"
    end_machine(state, name, why, now=now)


def _note_refused(state: NodepoolState, name: str, failure: Failure, *, now: datetime) -> None:
    """Remember what is not to be had; what a person must put right holds up every purchase."""
    offer = state.machines[name].offer
    state.last_error = failure
    if not falls_back(failure.code):
        note_blocked(state, failure, now=now)
        return
    state.blocked = None
    ordered_at = state.machines[name].created_at
    known = note_refusal(state.market.refused, offer, failure, ordered_at=ordered_at, now=now)
    state.market = state.market.replace(refused=known)
    kind = str(offer.offer.capacity_type).replace("_", "-")
    text = f"{offer.offer.instance_type} ({kind}): {failure.code}: {failure.message}"
    add_event(state, "NodeRefused", text, now=now, by=offer.offer.provider)


def _forget_refusal(state: NodepoolState, key: str) -> None:
    refused = {other: one for other, one in state.market.refused.items() if other != key}
    if len(refused) != len(state.market.refused):
        state.market = state.market.replace(refused=refused)


def note_prepared(state: NodepoolState, name: str, node: Node, *, now: datetime) -> None:
    """The node was reached in this boot; its replicas can be started."""
    machine = state.machines.get(name)
    if machine is None or machine.state not in UP:
        return
    known = machine.node.model_copy(update={"ssh": node.ssh or machine.node.ssh})
    machine = change(state, name, node=known, prepared=node, trouble=None)
    if machine.state is MachineState.STARTING:
        change(state, name, state=MachineState.RUNNING, ready_at=now)
        settle_places(state, name)
        add_event(state, "NodeReady", "can be reached", now=now, about=name)


def needs_preparing(machine: Machine) -> bool:
    """Return whether a node runs that was not reached since its last boot."""
    if machine.state not in UP or machine.node.status is not NodeStatus.RUNNING:
        return False
    return machine.prepared is None or machine.prepared.incarnation < machine.node.incarnation


def drain(
    state: NodepoolState, name: str, why: str, *, now: datetime, must_go: bool = False
) -> None:
    """Have a machine take nothing new, and go once it is empty."""
    machine = state.machines[name]
    if machine.state is MachineState.DRAINING and must_go and not machine.must_go:
        change(state, name, must_go=True, why=why)
    if machine.state in {MachineState.DRAINING, MachineState.TERMINATING}:
        return
    change(state, name, state=MachineState.DRAINING, why=why, must_go=must_go)
    add_event(state, "NodeDraining", why, now=now, about=name)


def end_machine(state: NodepoolState, name: str, why: str, *, now: datetime) -> None:
    """Begin to give a machine back; one that was never ordered is gone at once."""
    machine = state.machines[name]
    if machine.state is MachineState.TERMINATING:
        return
    if machine.node.notice_at is not None:
        _strike(state, machine, now)
    vacate(state, name, why, gone=True)
    if not machine.called:
        del state.machines[name]
        return
    begun = proof.begin_cleanup(
        effects_until=machine.effects_until or now, now=now, facts=facts_of(state)
    )
    change(
        state,
        name,
        state=MachineState.TERMINATING,
        cleanup=begun,
        why=why,
        trouble=None,
        empty_since=None,
    )
    add_event(state, "NodeEnding", why, now=now, about=name)


def lose(state: NodepoolState, name: str, why: str, *, now: datetime) -> None:
    """A machine is gone, or did not start: its replicas need another, and it is deleted."""
    machine = state.machines[name]
    if machine.node.notice_at is None:  # else its end counts it
        _strike(state, machine, now)
    end_machine(state, name, why, now=now)


def _strike(state: NodepoolState, machine: Machine, now: datetime) -> None:
    """Pause before the next purchase if a machine went that did not live for long."""
    if machine.ready_at is not None and now - machine.ready_at >= YOUNG:
        return
    state.strikes += 1
    pause = FIRST_PAUSE * (1 << min(state.strikes - 1, 10))
    state.buy_after = now + min(pause, LONGEST_PAUSE)
    state.last_strike_at = now


def give_up_dead(state: NodepoolState, *, now: datetime) -> None:
    """Lose the machines that are gone by the provider's word, or that did not start in time."""
    limit = facts_of(state).start_timeout
    for machine in list(state.machines.values()):
        node = machine.node
        if machine.state not in UP:
            continue
        if node.status in OFF:
            _give_up_off(state, machine, now)
        elif machine.ready_at is None and _is_over(machine.start_deadline, now):
            lose(state, machine.name, f"was not ready within {limit} (start timeout)", now=now)
        elif machine.ready_at is not None and _is_over(starting_until(node, limit), now):
            lose(state, machine.name, f"booted, but was not ready within {limit}", now=now)


def _give_up_off(state: NodepoolState, machine: Machine, now: datetime) -> None:
    node = machine.node
    said = f": {node.message}" if node.message else ""
    if machine.ready_at is None and node.failure is not None:
        failure = Failure(code=node.failure, message=node.message or "did not start")
        _note_refused(state, machine.name, failure, now=now)
    lose(state, machine.name, f"the node is {node.status}{said}", now=now)


def _is_over(time: datetime | None, now: datetime) -> bool:
    return time is not None and now >= time


def note_deleted(
    state: NodepoolState, name: str, *, ended_at: datetime, asked_for: datetime
) -> None:
    """A delete by token succeeded, and the watch was asked for a look."""
    machine = state.machines.get(name)
    if machine is None or machine.cleanup is None:
        return
    done = proof.note_deleted(machine.cleanup, ended_at=ended_at, asked_for=asked_for)
    change(state, name, cleanup=done, call_ended_at=ended_at, trouble=None)
    _note_asked(state, asked_for, asked_at=max(ended_at, asked_for))


def _note_asked(state: NodepoolState, asked_for: datetime, *, asked_at: datetime) -> None:
    """A call has asked the watch for a look at its end, unless that look has come before this.

    News goes ahead of outcomes: what was told between a call's end and the news of that end would
    be waited for in vain.
    """
    if state.observed_at is None or state.observed_at < asked_at:
        state.asked = asked_for


def note_trouble(
    state: NodepoolState,
    name: str,
    failure: Failure,
    *,
    now: datetime,
    retry_after: float | None = None,
) -> None:
    """A call about one machine failed; it is made again after a pause, and others go on."""
    machine = state.machines.get(name)
    if machine is None:
        return
    trouble = next_trouble(machine.trouble, failure, now=now, retry_after=retry_after)
    change(state, name, trouble=trouble)
    state.last_error = failure


def observe(state: NodepoolState, seen: Observation, *, now: datetime) -> bool:
    """Take the provider watch's word; return whether it may be believed.

    A pass with suspiciously many bad nodes is not, until the next one has confirmed it.
    """
    if seen.uid != state.uid or state.facts is None or not seen.confirmed:
        return False
    if state.observed_at is not None and seen.begun_at <= state.observed_at:
        return False
    state.observed_at = seen.begun_at
    state.asked = None
    for name in list(state.machines):
        _observe_machine(state, name, seen, now)
    _adopt_strays(state, seen.groups, now)
    return True


def _observe_machine(state: NodepoolState, name: str, seen: Observation, now: datetime) -> None:
    machine = state.machines[name]
    groups = [group for group in seen.groups if group.token == name]
    believed = machine.call_ended_at is None or seen.begun_at >= machine.call_ended_at
    if machine.cleanup is not None:
        if believed:
            _observe_end(state, machine, len(living_nodes(groups)), seen.begun_at, now)
        return
    if not groups and not believed:
        return
    _observe_node(state, machine, seen, now)


def _observe_end(
    state: NodepoolState, machine: Machine, living: int, begun_at: datetime, now: datetime
) -> None:
    assert machine.cleanup is not None
    after = proof.note_observed(
        machine.cleanup, begun_at=begun_at, machines=living, facts=facts_of(state)
    )
    if after.proven:
        del state.machines[machine.name]
        add_event(state, "NodeGone", "is proven gone", now=now, about=machine.name)
        return
    change(state, machine.name, cleanup=after)


def _observe_node(state: NodepoolState, machine: Machine, seen: Observation, now: datetime) -> None:
    settle, called = facts_of(state).settle, machine.call_ended_at
    look = observe_nodes(
        [machine.node],
        seen,
        token=machine.name,
        settled=called is not None and seen.begun_at >= called + settle,
        settle=settle,
        now=now,
    )
    (node,) = look.nodes
    listed = listed_nodes(seen.groups, machine.name).get(0)
    works = machine.workloads
    if listed is not None and listed.workloads is not None:
        works = works if listed.incarnation < node.incarnation else listed.workloads
    change(state, machine.name, node=node, workloads=works)
    _note_status(state, machine, node, seen.provider, now)


def _note_status(
    state: NodepoolState, before: Machine, node: ClusterNode, provider: str, now: datetime
) -> None:
    if node.status is before.node.status:
        return
    said = f": {node.message}" if node.message else ""
    text = f"was {before.node.status} and is {node.status}{said}"
    reason = f"Node{node.status.capitalize()}"
    add_event(state, reason, text, now=now, about=before.name, by=provider)


def _adopt_strays(state: NodepoolState, groups: Iterable[Group], now: datetime) -> None:
    """Give back what is ours under a token that was proven empty, or that nobody knows."""
    for group in groups:
        if group.token in state.machines or not living_nodes((group,)):
            continue
        offer = Offer(
            provider=facts_of(state).name,
            region=group.region,
            zone=group.zone,
            instance_type=group.instance_type,
            capacity_type=group.capacity_type,
            usd_per_hour=group.usd_per_node_hour,
        )
        state.machines[group.token] = Machine(
            name=group.token,
            number=-1,
            offer=PoolOffer(offer=offer, capacity=Resources()),
            created_at=group.created_at,
            called=True,
        )
        text = "appeared after its place was proven empty; it is deleted"
        add_event(state, "NodeStray", text, now=now, about=group.token)
        end_machine(state, group.token, text, now=now)
