"""The record of all processes that ever ran on paper machines; a machine's end does not erase it.

Workloads say what is; this says what was, and when. A process ends when it is stopped or replaced,
or exits, else with the power, the boot or the deletion of its machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from garrison.providers.base import WorkloadRequest
from garrison.providers.simulated.machines import Machine
from garrison.providers.simulated.store import Tx, moment


@dataclass(frozen=True, slots=True)
class Run:
    """One process.

    Attributes:
        ended_at: None while it runs.
        stopped: It was stopped or replaced, or had exited, before its machine ended it.
    """

    provider_id: str
    name: str
    generation: int
    incarnation: int
    command: str
    begun_at: datetime
    ended_at: datetime | None
    stopped: bool


def begin(tx: Tx, machine: Machine, request: WorkloadRequest, command: str, now: int) -> None:
    """Note that a process has begun, in the place of one of the same name."""
    close(tx, machine, request.name, now)
    tx.execute(
        "INSERT INTO runs (machine, name, generation, incarnation, command, begun_at)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (machine.id, request.name, request.generation, machine.incarnation, command, now),
    )


def close(tx: Tx, machine: Machine, name: str, now: int) -> None:
    """Note that a machine's process of a name has ended, if one was running."""
    tx.execute(
        "UPDATE runs SET ended_at = ?1, stopped = 1"
        " WHERE machine = ?2 AND name = ?3 AND ended_at IS NULL",
        (now, machine.id, name),
    )


def close_all(tx: Tx, machine: Machine, now: int) -> None:
    """Note that a machine has ended all its processes, at the latest by now."""
    ended = min(time for time in (*_ends(machine), now) if time is not None)
    tx.execute(
        "UPDATE runs SET ended_at = max(begun_at, ?) WHERE machine = ? AND ended_at IS NULL",
        (ended, machine.id),
    )


def select_runs(tx: Tx, now: int) -> list[Run]:
    """Return all processes that ever were, oldest first, as of now."""
    rows = tx.execute(
        "SELECT m.provider_id, r.name, r.generation, r.incarnation, r.command, r.begun_at,"
        " r.ended_at, r.stopped, m.killed_at, m.fails_at, m.ending_at"
        " FROM runs r JOIN machines m ON m.id = r.machine ORDER BY r.id"
    )
    return [_run(row, now) for row in rows.fetchall()]


def _ends(machine: Machine) -> tuple[int | None, ...]:
    return machine.killed_at, machine.fails_at, machine.ending_at


def _run(row: tuple[object, ...], now: int) -> Run:
    provider_id, name, generation, incarnation, command, begun_at, ended_at, stopped, *ends = row
    assert isinstance(begun_at, int)
    passed = [time for time in (ended_at, *ends) if isinstance(time, int) and time <= now]
    ended = ended_at if isinstance(ended_at, int) else min(passed, default=None)
    return Run(
        provider_id=str(provider_id),
        name=str(name),
        generation=int(str(generation)),
        incarnation=int(str(incarnation)),
        command=str(command),
        begun_at=moment(begun_at),
        ended_at=None if ended is None else moment(ended),
        stopped=bool(stopped),
    )
