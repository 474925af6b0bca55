"""Purchases and machines on paper: what exists, and in which state at a given time.

A state is computed from stored times and the time of asking; nothing has to tick. Everything
here runs inside one transaction and knows neither faults nor the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from garrison.errors import ErrorCode
from garrison.models.group import (
    Group,
    Node,
    NodeStatus,
    SshEndpoint,
    WorkloadStatus,
)
from garrison.models.offer import CapacityType
from garrison.providers.simulated.store import Tx, moment

TAKEN = "taken back by the provider"
SHUTTING_DOWN = "shutting down"
POWERED_OFF = "powered off"
_HOSTS = 254


class Purchase(NamedTuple):
    """One accepted order, kept for ever: it is the memory of its token.

    Attributes:
        wanted: How many machines were asked for.
        refused_code: Why some of them were refused, None when all were made.
    """

    id: int
    token: str
    installation: str
    owner: str
    uid: str
    name: str
    region: str
    instance_type: str
    capacity_type: str
    usd: str
    wanted: int
    created_at: int
    refused_code: str | None
    refused_message: str | None


class Machine(NamedTuple):
    """One machine's row.

    Attributes:
        shown_at: When lists begin to show it.
        killed_at: When it lost its power.
        fails_at: When its start fails, or it breaks.
        ending_at: When its deletion was ordered; `terminated_at`, when that is done.
        end_late: How late lists show the deletion.
        listed_until: When lists forget that it existed.
        notice_at: When its owner is told that it is taken back at `taken_at`.
    """

    id: int
    provider_id: str
    purchase: int
    rank: int
    created_at: int
    shown_at: int
    booting_at: int
    ready_at: int
    incarnation: int
    killed_at: int | None
    fails_at: int | None
    failure: str | None
    failure_message: str | None
    ending_at: int | None
    terminated_at: int | None
    end_late: int
    listed_until: int | None
    notice_at: int | None
    taken_at: int | None

    @property
    def private_address(self) -> str:
        """Its interconnect address, which no other machine ever gets."""
        block, host = divmod(self.id - 1, _HOSTS)
        return f"10.{block // 256 % 256}.{block % 256}.{host + 1}"


PURCHASE_COLUMNS = ", ".join(f"p.{name}" for name in Purchase._fields)
MACHINE_COLUMNS = ", ".join(f"m.{name}" for name in Machine._fields)


def find_purchase(tx: Tx, token: str) -> Purchase | None:
    """Return the purchase of a token, whoever made it."""
    row = tx.execute(
        f"SELECT {PURCHASE_COLUMNS} FROM purchases p WHERE token = ?", (token,)
    ).fetchone()
    return Purchase._make(row) if row else None


def machines_of(tx: Tx, purchase: int) -> list[Machine]:
    """Return all machines that a purchase ever had, by rank."""
    rows = tx.execute(
        f"SELECT {MACHINE_COLUMNS} FROM machines m WHERE purchase = ? ORDER BY rank", (purchase,)
    )
    return [Machine._make(row) for row in rows]


def find_machine(
    tx: Tx, provider_id: str, installation: str | None
) -> tuple[Machine, Purchase] | None:
    """Return a machine, if it is of an installation; None looks at all of them."""
    row = tx.execute(
        f"SELECT {MACHINE_COLUMNS}, {PURCHASE_COLUMNS}"
        " FROM machines m JOIN purchases p ON p.id = m.purchase WHERE m.provider_id = ?",
        (provider_id,),
    ).fetchone()
    if row is None:
        return None
    machine, purchase = split_row(row)
    if installation is not None and purchase.installation != installation:
        return None
    return machine, purchase


def split_row(row: Sequence[object]) -> tuple[Machine, Purchase]:
    """Return the two halves of a joined row."""
    width = len(Machine._fields)
    return Machine._make(row[:width]), Purchase._make(row[width:])


def select_machines(
    tx: Tx, *, installation: str | None, forgotten_by: int | None
) -> list[tuple[Machine, Purchase]]:
    """Return machines in order of purchase and rank.

    Args:
        tx: A transaction.
        installation: Whose; None for everybody's.
        forgotten_by: Leave out what lists had forgotten by this time; None for nothing.
    """
    # Two queries, each on the index, keep the cost at what is shown and not at what ever was.
    kept = ["TRUE"] if forgotten_by is None else _still_listed(forgotten_by)
    whose = "TRUE" if installation is None else "m.installation = ?"
    rows = [
        row
        for condition in kept
        for row in tx.execute(
            f"SELECT {MACHINE_COLUMNS}, {PURCHASE_COLUMNS}"
            " FROM machines m JOIN purchases p ON p.id = m.purchase"
            f" WHERE {whose} AND {condition}",
            () if installation is None else (installation,),
        )
    ]
    return sorted(map(split_row, rows), key=lambda pair: (pair[0].purchase, pair[0].rank))


def _still_listed(time: int) -> list[str]:
    return ["m.listed_until IS NULL", f"m.listed_until > {time:d}"]


def count_others(tx: Tx, now: int, *, installation: str) -> dict[str, int]:
    """Return how many machines exist of each other installation that has any."""
    return dict(
        tx.execute(
            "SELECT installation, count(*) FROM machines"
            " WHERE installation != ? AND (terminated_at IS NULL OR terminated_at > ?)"
            " GROUP BY installation ORDER BY installation",
            (installation, now),
        ).fetchall()
    )


def count_living(tx: Tx, now: int, **where: object) -> int:
    """Return how many machines exist, those still being deleted included."""
    condition = " AND ".join(f"{column} = ?" for column in where)
    found = 0
    for end in ("terminated_at IS NULL", f"terminated_at > {now:d}"):
        (number,) = tx.execute(
            f"SELECT count(*) FROM machines WHERE {condition} AND {end}", tuple(where.values())
        ).fetchone()
        found += number
    return found


def free_stock(tx: Tx, region: str, instance_type: str, now: int) -> int | None:
    """Return how many more machines can be bought in a place, None without limit."""
    row = tx.execute(
        "SELECT total FROM stock WHERE region = ? AND instance_type = ?", (region, instance_type)
    ).fetchone()
    if row is None:
        return None
    used = count_living(tx, now, region=region, instance_type=instance_type)
    return max(0, int(row[0]) - used)


class State(NamedTuple):
    """A machine's state at a time, with the provider's words.

    Attributes:
        notice_at: Of a notice that was given by then; it is taken at `notice_ends_at`.
    """

    status: NodeStatus
    message: str | None = None
    failure: ErrorCode | None = None
    notice_at: int | None = None
    notice_ends_at: int | None = None


def status_at(machine: Machine, time: int) -> State:
    """Return the state at a time; an earlier time gives the state as it was then."""
    state = _without_notice(machine, time)
    if state.status is NodeStatus.TERMINATED or not _passed(machine.notice_at, time):
        return state
    return state._replace(notice_at=machine.notice_at, notice_ends_at=machine.taken_at)


def _without_notice(machine: Machine, time: int) -> State:
    seen_end = time - machine.end_late
    if _passed(machine.terminated_at, seen_end):
        taken = machine.taken_at is not None and machine.ending_at == machine.taken_at
        return State(NodeStatus.TERMINATED, TAKEN if taken else None)
    if _passed(machine.ending_at, seen_end):
        return State(NodeStatus.STOPPED, SHUTTING_DOWN)
    if _passed(machine.fails_at, time):
        failure = ErrorCode(machine.failure) if machine.failure else None
        return State(NodeStatus.FAILED, machine.failure_message, failure)
    if _passed(machine.killed_at, time) or time < machine.booting_at:
        return State(NodeStatus.STOPPED, POWERED_OFF)
    if time >= machine.ready_at:
        return State(NodeStatus.RUNNING)
    # The first quarter of a first boot is the hunt for a host.
    hunt = (machine.ready_at - machine.booting_at) // 4
    pending = machine.incarnation == 1 and time < machine.booting_at + hunt
    return State(NodeStatus.PENDING if pending else NodeStatus.STARTING)


def node_of(
    machine: Machine, state: State, workloads: tuple[WorkloadStatus, ...] | None = None
) -> Node:
    """Return a machine as the port shows it."""
    return Node(
        rank=machine.rank,
        provider_id=machine.provider_id,
        status=state.status,
        incarnation=machine.incarnation,
        private_address=machine.private_address,
        ssh=SshEndpoint(host=machine.private_address),
        workloads=workloads,
        failure=state.failure,
        message=state.message,
        notice_at=_moment(state.notice_at),
        notice_ends_at=_moment(state.notice_ends_at),
    )


def _moment(value: int | None) -> datetime | None:
    return None if value is None else moment(value)


def group_of(purchase: Purchase, nodes: Iterable[Node]) -> Group:
    """Return a purchase as the port shows it."""
    return Group(
        token=purchase.token,
        owner=purchase.owner,
        uid=purchase.uid,
        region=purchase.region,
        instance_type=purchase.instance_type,
        capacity_type=CapacityType(purchase.capacity_type),
        usd_per_node_hour=Decimal(purchase.usd),
        created_at=moment(purchase.created_at),
        nodes=tuple(nodes),
    )


def _passed(limit: int | None, time: int) -> bool:
    return limit is not None and time >= limit
