"""What a launch, a restart and a deletion do to the paper, now or later.

Everything here runs inside one transaction and knows neither faults nor the event loop. An order
holds all that its effect needs, so that the effect can come long after its caller has gone.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from garrison.errors import ErrorCode
from garrison.models.base import Message
from garrison.models.group import GroupRequest, NodeStatus, Refusal, RestartResult
from garrison.providers.simulated import runs
from garrison.providers.simulated.machines import (
    Machine,
    count_living,
    find_machine,
    find_purchase,
    free_stock,
    machines_of,
    status_at,
)
from garrison.providers.simulated.store import Tx, span
from garrison.providers.simulated.vendor import NO_CAPACITY

RECLAIM = "reclaim"
"""What a pending effect is called that no call has caused."""

TERMINATED_SHOWN = span(timedelta(minutes=5))
"""How long lists go on showing a terminated machine."""


class NodeFailure(Message):
    """Scripted: nodes of an order (one rank, or all) fail some time after they were bought."""

    after: int
    rank: int | None = None
    code: ErrorCode
    message: str


class NodeReclaim(Message):
    """Scripted: nodes of an order (one rank, or all) are taken back some time after a notice."""

    after: int
    lasts: int
    rank: int | None = None


class ReclaimOrder(Message):
    """The end of a notice, unless another one was given since."""

    provider_id: str


class LaunchOrder(Message):
    """All that a purchase needs when it takes effect, now or later.

    Attributes:
        late: How late lists show the machines.
        stop_rank: Scripted: this rank and those after it are refused, those before it stay.
    """

    request: GroupRequest
    installation: str
    usd: Decimal
    boot: int
    late: int = 0
    failures: tuple[NodeFailure, ...] = ()
    reclaims: tuple[NodeReclaim, ...] = ()
    stop_rank: int | None = None
    stop_code: ErrorCode = ErrorCode.INSUFFICIENT_CAPACITY
    stop_message: str = ""


class RestartOrder(Message):
    """A restart in place that takes effect, now or later."""

    installation: str
    provider_id: str
    token: str
    boot: int
    hung: bool = False


class TerminateOrder(Message):
    """A deletion that takes effect, now or later.

    Attributes:
        takes: How long the machines go on existing.
        spared: Provider ids whose deletion is refused.
    """

    installation: str
    token: str
    takes: int
    late: int = 0
    spared: tuple[str, ...] = ()


def buy(tx: Tx, order: LaunchOrder, now: int) -> Refusal | None:
    """Make the machines of an order, or none of them, and return why not."""
    request = order.request
    free = free_stock(tx, request.region, request.instance_type, now)
    if free is not None and free < request.count:
        return Refusal(
            message=f"{NO_CAPACITY}: {free} of {request.count} x {request.instance_type}"
            f" free in {request.region}"
        )
    purchase = _insert_purchase(tx, order, now)
    made = request.count if order.stop_rank is None else order.stop_rank
    tx.executemany(
        "INSERT INTO machines (provider_id, purchase, rank, installation, uid, region,"
        " instance_type, created_at, shown_at, booting_at, ready_at, fails_at, failure,"
        " failure_message) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [_new_machine(order, purchase, rank, now) for rank in range(made)],
    )
    for rank in range(made):
        _script_reclaim(tx, order, _provider_id(purchase, rank), rank, now)
    _note_peak(tx, "uid", request.uid, count_living(tx, now, uid=request.uid))
    _note_peak(tx, "token", request.token, count_living(tx, now, purchase=purchase))
    return None


def restart(tx: Tx, order: RestartOrder, now: int) -> RestartResult:
    """Boot a stopped, failed or hung machine again, once per token."""
    found = find_machine(tx, order.provider_id, order.installation)
    if found is None or found[0].ending_at is not None:
        return RestartResult.GONE
    if restarted_machine(tx, order.token) is not None:
        return RestartResult.RESTARTED
    status = status_at(found[0], now).status
    if status not in {NodeStatus.STOPPED, NodeStatus.FAILED} and not order.hung:
        return RestartResult.ALREADY_RUNNING
    tx.execute(
        "INSERT INTO restarts (token, provider_id, at) VALUES (?, ?, ?)",
        (order.token, order.provider_id, now),
    )
    boot_again(tx, found[0], ready_at=now + order.boot, now=now)
    return RestartResult.RESTARTED


def restarted_machine(tx: Tx, token: str) -> str | None:
    """Return the machine that a restart token was spent on."""
    row = tx.execute("SELECT provider_id FROM restarts WHERE token = ?", (token,)).fetchone()
    return str(row[0]) if row else None


def boot_again(tx: Tx, machine: Machine, *, ready_at: int, now: int) -> None:
    """Start a machine's next incarnation: same disk, same address, nothing running."""
    runs.close_all(tx, machine, now)
    tx.execute(
        "UPDATE machines SET booting_at = ?, ready_at = ?, incarnation = incarnation + 1,"
        " killed_at = NULL, fails_at = NULL, failure = NULL, failure_message = NULL WHERE id = ?",
        (now, ready_at, machine.id),
    )


def terminate(tx: Tx, order: TerminateOrder, now: int) -> None:
    """Delete the machines of a token that are ours and not yet being deleted."""
    purchase = find_purchase(tx, order.token)
    if purchase is None or purchase.installation != order.installation:
        return
    doomed = [
        machine
        for machine in machines_of(tx, purchase.id)
        if machine.ending_at is None and machine.provider_id not in order.spared
    ]
    for machine in doomed:
        end(tx, machine, now, gone_at=now + order.takes, late=order.late)


def end(tx: Tx, machine: Machine, now: int, *, gone_at: int, late: int = 0) -> None:
    """Delete one machine, and its disk with all that ran on it."""
    tx.execute(
        "UPDATE machines SET ending_at = ?, terminated_at = ?, end_late = ?, listed_until = ?"
        " WHERE id = ?",
        (now, gone_at, late, gone_at + late + TERMINATED_SHOWN, machine.id),
    )
    tx.execute("DELETE FROM workloads WHERE machine = ?", (machine.id,))
    tx.execute("DELETE FROM log WHERE machine = ?", (machine.id,))


def give_notice(tx: Tx, provider_id: str, *, at: int, ends_at: int) -> None:
    """Have a machine's owner told at a time that it is taken back at another."""
    tx.execute(
        "UPDATE machines SET notice_at = ?, taken_at = ? WHERE provider_id = ?",
        (at, ends_at, provider_id),
    )
    order = ReclaimOrder(provider_id=provider_id)
    tx.execute(
        'INSERT INTO pending (effect_at, call, "order") VALUES (?, ?, ?)',
        (ends_at, RECLAIM, order.model_dump_json()),
    )


def reclaim(tx: Tx, order: ReclaimOrder, at: int) -> None:
    """Take a machine back whose notice has ended; one that its owner gave back is gone already."""
    found = find_machine(tx, order.provider_id, None)
    if found is not None and found[0].ending_at is None and found[0].taken_at == at:
        end(tx, found[0], at, gone_at=at)


def vanish(tx: Tx, machine: Machine, now: int) -> None:
    """Delete one machine without a trace in any list."""
    if machine.terminated_at is None or machine.terminated_at > now:
        end(tx, machine, now, gone_at=now)
    tx.execute("UPDATE machines SET listed_until = ? WHERE id = ?", (now, machine.id))


def _insert_purchase(tx: Tx, order: LaunchOrder, now: int) -> int:
    request = order.request
    refused = order.stop_rank is not None
    cursor = tx.execute(
        "INSERT INTO purchases (token, installation, owner, uid, name, region, instance_type,"
        " capacity_type, usd, wanted, created_at, refused_code, refused_message)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            request.token,
            order.installation,
            request.owner,
            request.uid,
            request.name,
            request.region,
            request.instance_type,
            request.capacity_type,
            str(order.usd),
            request.count,
            now,
            order.stop_code if refused else None,
            order.stop_message if refused else None,
        ),
    )
    return int(cursor.lastrowid or 0)


def _new_machine(order: LaunchOrder, purchase: int, rank: int, now: int) -> tuple[object, ...]:
    failure = next((f for f in order.failures if f.rank in {None, rank}), None)
    return (
        _provider_id(purchase, rank),
        purchase,
        rank,
        order.installation,
        order.request.uid,
        order.request.region,
        order.request.instance_type,
        now,
        now + order.late,
        now,
        now + order.boot,
        now + failure.after if failure else None,
        failure.code if failure else None,
        failure.message if failure else None,
    )


def _provider_id(purchase: int, rank: int) -> str:
    return f"sim-{purchase}-{rank}"


def _script_reclaim(
    tx: Tx, order: LaunchOrder, provider_id: str, rank: int, bought_at: int
) -> None:
    for one in order.reclaims:
        if one.rank in {None, rank}:
            told_at = bought_at + one.after
            give_notice(tx, provider_id, at=told_at, ends_at=told_at + one.lasts)
            return


def _note_peak(tx: Tx, kind: str, key: str, machines: int) -> None:
    tx.execute(
        "INSERT INTO peaks (kind, key, machines) VALUES (?1, ?2, ?3)"
        " ON CONFLICT DO UPDATE SET machines = max(machines, ?3)",
        (kind, key, machines),
    )
