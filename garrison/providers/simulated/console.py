"""The simulated cloud's own console: look at the truth and rehearse incidents.

Works on the file alone, from any process, beside the workers that use it. What it shows is what
exists, never what a late list says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from garrison.errors import ConflictPhase, InvalidSpec, NotFound
from garrison.models.group import LogChunk, NodeStatus, WorkloadStatus
from garrison.models.offer import CapacityType
from garrison.providers.simulated import machines, orders, paper, runs, workloads
from garrison.providers.simulated.desk import CALLS_KEPT, apply_due
from garrison.providers.simulated.faults import (
    DEFAULT_NOTICE,
    LONGEST,
    FaultRule,
    add_rule,
    list_rules,
)
from garrison.providers.simulated.pricelist import EVERYWHERE
from garrison.providers.simulated.store import (
    Clock,
    Store,
    Tx,
    micros,
    moment,
    now_utc,
    span,
)

TERMINATING = "terminating"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One line of the log of provider calls.

    Attributes:
        result: `ok`, an error's code, a restart's result, `delayed`, `received` while it runs;
            `ok, then provider_unreachable` when the effect came and the answer did not.
        early: Made while an earlier answer's `Retry-After` was still running.
    """

    at: datetime
    call: str
    token: str
    owner: str
    result: str
    early: bool


class SimulatedConsole:
    """Everything that a person or a test does to the cloud from outside.

    Args:
        path: The file that is the account; it is created if it is missing.
        clock: The same clock as the providers have that use the file.
    """

    def __init__(self, path: Path, *, clock: Clock = now_utc) -> None:
        self._store = Store(path)
        self._clock = clock

    def inventory(self, *, terminated: bool = False) -> list[dict[str, Any]]:
        """Return all machines that exist, of every installation, oldest first, for JSON.

        Args:
            terminated: Also those that are gone, as far back as the file goes.
        """
        with self._store.transaction() as tx:
            now = self._settled(tx)
            rows = machines.select_machines(
                tx, installation=None, forgotten_by=None if terminated else now
            )
        return [
            _entry(machine, purchase, now)
            for machine, purchase in rows
            if terminated or not _is_gone(machine, now)
        ]

    def kill(self, node: str) -> None:
        """Cut a machine's power: it is `stopped` until it is restarted or revived.

        Raises:
            NotFound: There is no such machine.
            ConflictPhase: It is being deleted, or gone.
        """
        with self._store.transaction() as tx:
            now = self._settled(tx)
            machine = _living(tx, node)
            tx.execute("UPDATE machines SET killed_at = ? WHERE id = ?", (now, machine.id))

    def revive(self, node: str) -> None:
        """Let a machine without power boot by itself, as long as its last boot took.

        Raises:
            NotFound: There is no such machine.
            ConflictPhase: It is being deleted or gone, or it has power.
        """
        with self._store.transaction() as tx:
            now = self._settled(tx)
            machine = _living(tx, node)
            if machines.status_at(machine, now).status is not NodeStatus.STOPPED:
                raise ConflictPhase(f"{node} is not stopped")
            boot = machine.ready_at - machine.booting_at
            orders.boot_again(tx, machine, ready_at=now + boot, now=now)

    def notice(self, node: str, seconds: float = DEFAULT_NOTICE) -> None:
        """Tell a machine's owner that it is taken back, and take it when that time has passed.

        Raises:
            InvalidSpec: The time is negative, or longer than a rule may last.
            NotFound: There is no such machine.
            ConflictPhase: It is being deleted or gone, or under notice already.
        """
        if not 0 <= seconds <= LONGEST:
            raise InvalidSpec(f"a notice of {seconds:g} s is none; give 0 to {LONGEST} s")
        with self._store.transaction() as tx:
            now = self._settled(tx)
            machine = _living(tx, node)
            told, end = machine.notice_at, machine.taken_at
            if told is not None and end is not None and told <= now:
                raise ConflictPhase(f"{node} is under notice already: it is taken at {_text(end)}")
            orders.give_notice(tx, node, at=now, ends_at=now + span(seconds))

    def delete_node(self, node: str, *, vanish: bool = True) -> None:
        """Remove a machine behind its owner's back; one already gone stays gone.

        Args:
            node: Its provider id.
            vanish: Lists lose it at once and without a word. Otherwise they say `terminated` for
                a while, as when a spot machine is reclaimed without notice.

        Raises:
            NotFound: There is no such machine.
        """
        with self._store.transaction() as tx:
            now = self._settled(tx)
            machine = _machine(tx, node)
            if vanish:
                orders.vanish(tx, machine, now)
            elif not _is_gone(machine, now):
                orders.end(tx, machine, now, gone_at=now)

    def add_fault(self, rule: FaultRule) -> FaultRule:
        """Script an incident; returns the rule with its id."""
        with self._store.transaction() as tx:
            return add_rule(tx, rule, self._settled(tx))

    def list_faults(self) -> list[FaultRule]:
        """Return the rules in force, oldest first, with what is left of their counts."""
        with self._store.transaction() as tx:
            return list_rules(tx, self._settled(tx))

    def clear_faults(self, rule_id: int | None = None) -> int:
        """Remove one rule, or all of them, and return how many.

        Raises:
            NotFound: No rule has this id (any more).
        """
        with self._store.transaction() as tx:
            removed = tx.execute(
                "DELETE FROM faults WHERE ?1 IS NULL OR id = ?1", (rule_id,)
            ).rowcount
        if rule_id is not None and not removed:
            raise NotFound(f"there is no fault rule {rule_id}")
        return removed

    def set_stock(self, region: str, instance_type: str, free: int | None) -> None:
        """Set how many more machines can be bought in a place; None is without limit.

        A machine that ends is free again.

        Raises:
            InvalidSpec: The number is negative.
        """
        if free is not None and free < 0:
            raise InvalidSpec(f"stock {free} is below zero")
        with self._store.transaction() as tx:
            now = self._settled(tx)
            place = (region, instance_type)
            tx.execute("DELETE FROM stock WHERE region = ? AND instance_type = ?", place)
            if free is not None:
                used = machines.count_living(tx, now, region=region, instance_type=instance_type)
                tx.execute(
                    "INSERT INTO stock (region, instance_type, total) VALUES (?, ?, ?)",
                    (*place, used + free),
                )

    def set_price(
        self,
        instance_type: str,
        usd_per_hour: Decimal | None,
        *,
        region: str | None = None,
        capacity_type: CapacityType = CapacityType.ON_DEMAND,
    ) -> None:
        """Change the live price; None returns to the catalogue's.

        Args:
            instance_type: Whose price.
            usd_per_hour: For one machine.
            region: Only there; None for every region without a price of its own.
            capacity_type: Spot follows the on-demand price until it is set itself.

        Raises:
            InvalidSpec: The price is not a positive number.
        """
        if usd_per_hour is not None and not (usd_per_hour.is_finite() and usd_per_hour > 0):
            raise InvalidSpec(f"{usd_per_hour} is no price")
        key = (region or EVERYWHERE, instance_type, capacity_type)
        with self._store.transaction() as tx:
            tx.execute(
                "DELETE FROM prices WHERE region = ? AND instance_type = ? AND capacity_type = ?",
                key,
            )
            if usd_per_hour is not None:
                tx.execute(
                    "INSERT INTO prices (region, instance_type, capacity_type, usd)"
                    " VALUES (?, ?, ?, ?)",
                    (*key, str(usd_per_hour)),
                )

    def calls(self, call: str | None = None, *, limit: int = CALLS_KEPT) -> list[CallRecord]:
        """Return the newest provider calls, oldest first."""
        with self._store.transaction() as tx:
            rows = tx.execute(
                "SELECT at, call, token, owner, result, early FROM calls"
                " WHERE ?1 IS NULL OR call = ?1 ORDER BY id DESC LIMIT ?2",
                (call, limit),
            ).fetchall()
        return [
            CallRecord(moment(at), name, token, owner, result, bool(early))
            for at, name, token, owner, result, early in reversed(rows)
        ]

    def peak(self, *, uid: str | None = None, token: str | None = None) -> int:
        """Return the largest number of machines that ever existed at once under a life or token.

        Machines still being deleted count. Exactly one of the two is given.

        Raises:
            InvalidSpec: None or both are given.
        """
        if (uid is None) == (token is None):
            raise InvalidSpec("peak needs a uid or a token")
        kind, key = ("uid", uid) if uid is not None else ("token", token)
        with self._store.transaction() as tx:
            self._settled(tx)
            row = tx.execute(
                "SELECT machines FROM peaks WHERE kind = ? AND key = ?", (kind, key)
            ).fetchone()
        return int(row[0]) if row else 0

    def exit_workload(self, node: str, code: int, *, name: str | None = None) -> list[str]:
        """Let a node's running workloads exit with a code; returns their names.

        Raises:
            NotFound: There is no such machine.
            ConflictPhase: It does not run, or nothing (of that name) runs on it.
        """
        with self._store.transaction() as tx:
            now = self._settled(tx)
            return paper.end(tx, _running(tx, node, now), name, code, now)

    def append_log(self, node: str, name: str, data: bytes) -> None:
        """Let a workload write bytes to its log.

        Raises:
            NotFound: There is no such machine or workload.
            ConflictPhase: The machine does not run.
        """
        with self._store.transaction() as tx:
            paper.append_log(tx, _running(tx, node, self._settled(tx)), name, data)

    def read_log(self, node: str, name: str, *, offset: int = 0, limit: int = 1 << 30) -> LogChunk:
        """Return a workload's log, also of a machine that does not answer.

        Raises:
            NotFound: There is no such machine or workload.
        """
        with self._store.transaction() as tx:
            return paper.read_log(tx, _machine(tx, node), name, offset=offset, limit=limit)

    def list_workloads(self, node: str) -> list[WorkloadStatus]:
        """Return a machine's workloads.

        Raises:
            NotFound: There is no such machine.
        """
        with self._store.transaction() as tx:
            return list(paper.statuses(tx, _machine(tx, node)))

    def workload_runs(self) -> list[runs.Run]:
        """Return every process that ever ran on a machine, oldest first, also of gone machines."""
        with self._store.transaction() as tx:
            return runs.select_runs(tx, self._settled(tx))

    def env_names(self, node: str, name: str) -> list[str]:
        """Return the names of the variables that a workload was given.

        Raises:
            NotFound: There is no such machine or workload.
        """
        with self._store.transaction() as tx:
            return paper.env_names(tx, _machine(tx, node), name)

    def authorized_keys(self, node: str) -> list[str]:
        """Return the public keys that may log in to a machine.

        Raises:
            NotFound: There is no such machine.
        """
        with self._store.transaction() as tx:
            return workloads.authorized_keys(tx, _machine(tx, node))

    def _settled(self, tx: Tx) -> int:
        """Let due effects happen first, so that what is shown is the truth of now."""
        now = micros(self._clock())
        apply_due(tx, now)
        return now


def _machine(tx: Tx, node: str) -> machines.Machine:
    found = machines.find_machine(tx, node, None)
    if found is None:
        raise NotFound(f"there is no simulated machine {node}")
    return found[0]


def _living(tx: Tx, node: str) -> machines.Machine:
    machine = _machine(tx, node)
    if machine.ending_at is not None:
        raise ConflictPhase(f"{node} is deleted")
    return machine


def _running(tx: Tx, node: str, now: int) -> machines.Machine:
    machine = _machine(tx, node)
    status = machines.status_at(machine, now).status
    if status is not NodeStatus.RUNNING:
        raise ConflictPhase(f"{node} is {status}")
    return machine


def _is_gone(machine: machines.Machine, now: int) -> bool:
    return machine.terminated_at is not None and machine.terminated_at <= now


def _entry(machine: machines.Machine, purchase: machines.Purchase, now: int) -> dict[str, Any]:
    state = machines.status_at(machine, now)
    return {
        "provider_id": machine.provider_id,
        "token": purchase.token,
        "owner": purchase.owner,
        "uid": purchase.uid,
        "rank": machine.rank,
        "status": _true_status(machine, now),
        "region": purchase.region,
        "instance_type": purchase.instance_type,
        "capacity_type": purchase.capacity_type,
        "usd_per_hour": purchase.usd,
        "installation": purchase.installation,
        "created_at": _text(machine.created_at),
        "private_address": machine.private_address,
        "incarnation": machine.incarnation,
        "notice_at": _text(state.notice_at),
        "notice_ends_at": _text(state.notice_ends_at),
    }


def _text(time: int | None) -> str | None:
    return None if time is None else moment(time).isoformat().replace("+00:00", "Z")


def _true_status(machine: machines.Machine, now: int) -> str:
    if _is_gone(machine, now):
        return NodeStatus.TERMINATED
    if machine.ending_at is not None and machine.ending_at <= now:
        return TERMINATING
    return machines.status_at(machine, now).status
