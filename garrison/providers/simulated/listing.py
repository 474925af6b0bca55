"""The cloud's list of one installation's machines, late or partly unknown if so scripted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from garrison.models.group import Group, Node, NodeStatus, WorkloadStatus
from garrison.providers.simulated import paper
from garrison.providers.simulated.desk import Visit
from garrison.providers.simulated.faults import (
    Call,
    Fault,
    FaultRule,
    Target,
    count_down,
    list_rules,
    matches,
)
from garrison.providers.simulated.machines import (
    Machine,
    Purchase,
    State,
    group_of,
    node_of,
    select_machines,
    status_at,
)
from garrison.providers.simulated.store import Tx, span

HIDDEN = State(NodeStatus.UNKNOWN, "the provider cannot tell this node's state")


@dataclass(frozen=True, slots=True)
class Listing:
    """What one list call read inside its transaction; turned into groups outside of it.

    Attributes:
        seen_at: The time that the list shows, earlier than now when it is late.
        hidden: Numbers of the machines whose state a rule hides.
    """

    seen_at: int
    rows: Sequence[tuple[Machine, Purchase]]
    workloads: dict[int, tuple[WorkloadStatus, ...]]
    hidden: frozenset[int]

    def groups(self) -> list[Group]:
        """Return the groups in the order of their purchase."""
        return [
            group_of(purchase, [self._node(machine) for machine, _ in members])
            for purchase, members in groupby(self.rows, key=lambda row: row[1])
        ]

    def _node(self, machine: Machine) -> Node:
        if machine.id in self.hidden:
            return node_of(machine, HIDDEN)
        state = status_at(machine, self.seen_at)
        running = state.status is NodeStatus.RUNNING
        return node_of(machine, state, self.workloads.get(machine.id, ()) if running else None)


def read_listing(visit: Visit, installation: str) -> Listing:
    """Read everything that an installation owns, in the call's transaction."""
    seen_at = visit.now - span(visit.hits.seconds(Fault.LATE_LIST))
    rows = [
        row
        for row in select_machines(visit.tx, installation=installation, forgotten_by=seen_at)
        if row[0].shown_at <= seen_at
    ]
    machines = [machine for machine, _ in rows]
    return Listing(
        seen_at=seen_at,
        rows=rows,
        workloads=paper.statuses_of(visit.tx, machines),
        hidden=_hide(visit.tx, rows, visit.now),
    )


def _hide(tx: Tx, rows: Sequence[tuple[Machine, Purchase]], now: int) -> frozenset[int]:
    """Apply the rules about single nodes' states; one list is one turn of a rule."""
    rules = list_rules(tx, now, Call.STATUS)
    met = {rule.id: found for rule in rules if (found := _matching(rule, rows))}
    acting = count_down(tx, [rule for rule in rules if rule.id in met])
    return frozenset(number for rule in acting for number in met[rule.id])


def _matching(rule: FaultRule, rows: Sequence[tuple[Machine, Purchase]]) -> list[int]:
    return [m.id for m, p in rows if m.terminated_at is None and matches(rule, _target(m, p))]


def _target(machine: Machine, purchase: Purchase) -> Target:
    return Target(
        Call.STATUS,
        token=purchase.token,
        owner=purchase.owner,
        region=purchase.region,
        nodes=((machine.provider_id, machine.rank),),
    )
