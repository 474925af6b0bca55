"""Which promises a run broke: a pure function of what is known of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import combinations

from garrison.errors import ErrorCode
from garrison.models.cluster_state import CLOSED_PHASES, UP_PHASES, Phase
from garrison.models.group import NodeStatus
from tests.chaos.facts import Facts, Life, Machine

ON_THE_WAY = frozenset({None, Phase.LAUNCHING, Phase.PROVISIONING, Phase.TERMINATING})
CENT = Decimal("0.01")
SLACK = timedelta(seconds=1)
"""Between the clocks of a client that signals and a workflow that is told."""


class Kind(StrEnum):
    """Which promise is broken; `other` is a wrong bill, word or history.

    The two that are about replicas concern nodepools and deployments only.
    """

    DOUBLE_BUY = "double buy"
    LEAK = "leak"
    STUCK = "stuck"
    LOST_ACK = "lost acknowledgement"
    DOUBLE_RUN = "double run"
    LOST_REPLICA = "lost replica"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, and the words to look for it with."""

    kind: Kind
    what: str


def judge(facts: Facts) -> list[Violation]:
    """Return every broken promise, each once."""
    found = [
        *_double_buys(facts),
        *_leaks(facts),
        *(Violation(Kind.OTHER, text) for text in facts.complaints),
    ]
    for life in facts.lives.values():
        for rule in _LIFE_RULES:
            found += [Violation(kind, f"{_name(life)}: {text}") for kind, text in rule(life, facts)]
    return list(dict.fromkeys(found))


def _name(life: Life) -> str:
    return f"{life.plan.name} {life.status.uid[:8]}"


def _double_buys(facts: Facts) -> Iterator[Violation]:
    for (token, rank), count in Counter((m.token, m.rank) for m in facts.machines).items():
        if count > 1:
            yield Violation(Kind.DOUBLE_BUY, f"rank {rank} of {token} was bought {count} times")
    for uid, machines in by_uid(facts.machines).items():
        life = facts.lives.get(uid)
        if life is not None:
            yield from _crowds(life, machines)


def _crowds(life: Life, machines: list[Machine]) -> Iterator[Violation]:
    wanted = life.plan.nodes
    most = max(sum(overlap(one, other) for other in machines) for one in machines)
    if most > wanted:
        text = f"{_name(life)}: {most} machines at once instead of {wanted}"
        yield Violation(Kind.DOUBLE_BUY, text)
    for one, other in combinations(machines, 2):
        if one.region != other.region and (overlap(one, other) or overlap(other, one)):
            text = f"{_name(life)}: in {one.region} and {other.region} at once"
            yield Violation(Kind.DOUBLE_BUY, text)
    for token in {machine.token for machine in machines}:
        if not token.startswith(f"{life.status.uid}-"):
            text = f"{_name(life)}: bought under {token}, which it does not know"
            yield Violation(Kind.DOUBLE_BUY, text)


def overlap(one: Machine, other: Machine) -> bool:
    """Whether the other exists in the moment in which the one is made."""
    begun = other.created_at <= one.created_at
    return begun and (other.ended_at is None or other.ended_at > one.created_at)


def by_uid(machines: Iterable[Machine]) -> dict[str, list[Machine]]:
    """Return the machines of each life."""
    found: dict[str, list[Machine]] = {}
    for machine in machines:
        found.setdefault(machine.uid, []).append(machine)
    return found


def _leaks(facts: Facts) -> Iterator[Violation]:
    for machine in facts.machines:
        life = facts.lives.get(machine.uid)
        if life is None:
            if machine.ended_at is None:
                yield Violation(Kind.LEAK, f"{machine.provider_id} is nobody's")
        elif life.closed:
            yield from _outlived(life, machine)
        elif machine.ended_at is None and machine.provider_id not in _node_ids(life):
            yield Violation(Kind.LEAK, f"{_name(life)} does not know {machine.provider_id}")


def _outlived(life: Life, machine: Machine) -> Iterator[Violation]:
    end = life.status.ended_at
    if machine.ended_at is None:
        yield Violation(Kind.LEAK, f"{machine.provider_id} exists after {_name(life)} has ended")
    elif end is not None and machine.ended_at > end:
        late = (machine.ended_at - end).total_seconds()
        text = f"{machine.provider_id} existed for {late:g} s after {_name(life)} had ended"
        yield Violation(Kind.LEAK, text)


def _node_ids(life: Life) -> set[str | None]:
    return {node.provider_id for node in life.status.nodes}


Finding = tuple[Kind, str]


def _stuck(life: Life, facts: Facts) -> Iterator[Finding]:
    status = life.status
    if life.acknowledged("terminate") and not life.closed:
        yield Kind.STUCK, f"was told to terminate and is {status.phase}"
    elif not life.closed and (status.phase in ON_THE_WAY or status.phase in CLOSED_PHASES):
        yield Kind.STUCK, f"stays {status.phase}"
    if not life.closed and status.blocked is not None:
        yield Kind.STUCK, f"stays blocked: {status.blocked.code}: {status.blocked.message}"
    if status.phase is Phase.DEGRADED and not _may_stay_degraded(life):
        yield Kind.STUCK, f"stays degraded: {status.recovery.model_dump_json()}"


def _may_stay_degraded(life: Life) -> bool:
    recovery = life.status.recovery
    if life.plan.removed or (life.plan.cuts and not recovery.automatic and not recovery.attempts):
        return True
    # A machine that stops beside an attempt waits for the next one, a minute later.
    return life.plan.cuts > 1 and recovery.next_attempt_at is not None


def _lost_acks(life: Life, facts: Facts) -> Iterator[Finding]:
    yield from _lost_launch(life, facts)
    yield from _lost_terminate(life)
    switches = life.acknowledged("recovery")
    if switches and life.status.recovery.automatic is not switches[-1].automatic:
        yield Kind.LOST_ACK, f"recovery was switched to {switches[-1].automatic} in vain"
    reasons = {event.reason for event in life.status.events}
    if life.acknowledged("recover") and "RecoverRequested" not in reasons:
        yield Kind.LOST_ACK, "a recovery attempt was asked for in vain"


def _lost_launch(life: Life, facts: Facts) -> Iterator[Finding]:
    status = life.status
    if not life.acknowledged("launch"):
        return
    if not status.purchases:
        yield Kind.LOST_ACK, "was launched and never tried to buy"
    for number, purchase in enumerate(status.purchases):
        bought = any(p.token == f"{status.uid}-{number}" and not p.refused for p in facts.purchases)
        if purchase.code is ErrorCode.PRICE_CHANGED and bought:
            yield Kind.LOST_ACK, "was bought at its price and given up as too dear"
    code = status.last_error.code if status.last_error else None
    may_fail = life.plan.may_fail | ({ErrorCode.PRICE_CHANGED} if life.plan.rises else set())
    if status.phase is Phase.FAILED and code not in may_fail:
        yield Kind.LOST_ACK, f"was launched and failed without a cause: {status.last_error}"


def _lost_terminate(life: Life) -> Iterator[Finding]:
    status = life.status
    for ack in life.acknowledged("terminate"):
        accepted = status.terminate_accepted_at
        if status.phase is Phase.FAILED:
            continue  # it had ended of itself, as its launch did not work
        if accepted is None:
            yield Kind.LOST_ACK, f"a terminate acknowledged at {ack.at} is not known"
        elif ack.by_signal and ack.at > accepted + SLACK:
            continue  # it repeats one that was accepted before
        elif not ack.by_signal and accepted != ack.at:
            yield Kind.LOST_ACK, f"a terminate of {ack.at} became one of {accepted}"
    if life.closed and status.phase is not None and status.phase not in CLOSED_PHASES:
        yield Kind.LOST_ACK, f"its workflow has ended while it is {status.phase}"


def _money(life: Life, facts: Facts) -> Iterator[Finding]:
    status = life.status
    if status.ready_at is None:
        if status.cost_usd or status.billed_until is not None or status.charged_seconds:
            yield Kind.OTHER, f"was never ready and is billed {status.cost_usd}"
        return
    end = status.terminate_accepted_at or facts.at
    if status.billed_until is not None and status.billed_until > end:
        yield Kind.OTHER, f"is billed until {status.billed_until}, after {end}"
    hours = Decimal((end - status.ready_at).total_seconds()) / 3600
    if status.cost_usd > (status.hourly_usd or 0) * hours + CENT:
        yield Kind.OTHER, f"is billed {status.cost_usd} for {hours:.4f} hours"


def _prices(life: Life, facts: Facts) -> Iterator[Finding]:
    locked = life.status.hourly_usd
    for purchase in facts.purchases:
        if purchase.uid != life.status.uid:
            continue
        if locked is None or purchase.usd * purchase.wanted > locked:
            yield Kind.OTHER, f"was bought at {purchase.usd} a node, above {locked} for all"


def _words(life: Life, facts: Facts) -> Iterator[Finding]:
    yield from ((Kind.OTHER, text) for text in life.faults)
    status = life.status
    if status.phase not in UP_PHASES:
        return
    living = {m.provider_id: m for m in facts.machines if not m.ended_at and m.uid == status.uid}
    for node in status.nodes:
        machine = living.get(node.provider_id or "")
        if machine is not None and machine.rank != node.rank:
            yield Kind.OTHER, f"takes {machine.provider_id} for rank {node.rank}"
        if machine is None and node.status is NodeStatus.RUNNING:
            yield Kind.OTHER, f"says that {node.provider_id} runs, which does not exist"
    boots = sum(machine.boots - 1 for machine in living.values())
    if boots > life.plan.cuts:
        yield Kind.OTHER, f"had {boots} restarts for {life.plan.cuts} power cuts"


_LIFE_RULES: tuple[Callable[[Life, Facts], Iterable[Finding]], ...] = (
    _stuck,
    _lost_acks,
    _money,
    _prices,
    _words,
)
