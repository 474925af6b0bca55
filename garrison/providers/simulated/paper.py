"""Workloads on paper: a supervisor's states and a log's bytes, without a process.

What a supervisor would do at an exit is done at once, without its pauses. Values of environment
variables are secrets and are never written down; their names are.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from garrison.errors import ConflictPhase, NotFound
from garrison.models.group import LogChunk, RestartPolicy, WorkloadState, WorkloadStatus
from garrison.providers.base import WorkloadRequest
from garrison.providers.simulated import runs
from garrison.providers.simulated.machines import Machine
from garrison.providers.simulated.store import Tx

ENDED_BY_BOOT = "ended when the node restarted"
_CHUNK = 65_536
_ALIVE = WorkloadState.RUNNING
_ENDED = {WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.STOPPED}


class _Workload(NamedTuple):
    name: str
    generation: int
    incarnation: int
    command: str
    restart: str
    max_restarts: int
    state: str
    exit_code: int | None
    restarts: int
    failures: int
    log_size: int


_COLUMNS = ", ".join(_Workload._fields)


def start(tx: Tx, machine: Machine, request: WorkloadRequest, now: int) -> None:
    """Start a workload, unless this or a newer generation was started in this boot."""
    known = _find(tx, machine, request.name)
    if known is not None and _is_answered_by(known, request, machine):
        return
    if known is not None and _state(known, machine) is _ALIVE:
        _write(tx, machine, request.name, f"generation {known.generation}: stopped")
    tx.execute(
        "INSERT INTO workloads (machine, name, generation, incarnation, command, env_names,"
        " restart, max_restarts, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
        " ON CONFLICT DO UPDATE SET generation = ?3, incarnation = ?4, command = ?5,"
        " env_names = ?6, restart = ?7, max_restarts = ?8, state = ?9, exit_code = NULL,"
        " restarts = 0, failures = 0",
        (
            machine.id,
            request.name,
            request.generation,
            machine.incarnation,
            json.dumps(request.command),
            json.dumps(sorted(request.env)),
            request.restart,
            request.max_restarts,
            _ALIVE,
        ),
    )
    inside = f" in {request.image}" if request.image else ""
    command = shlex.join(request.command)
    _write(tx, machine, request.name, f"start{inside}: {command}")
    runs.begin(tx, machine, request, command, now)


def stop(tx: Tx, machine: Machine, name: str, now: int) -> None:
    """Stop a workload; one that is not there or has ended is left as it is."""
    known = _find(tx, machine, name)
    if known is None or _state(known, machine) is not _ALIVE:
        return
    _set_state(tx, machine, name, WorkloadState.STOPPED, None)
    _write(tx, machine, name, "stopped")
    runs.close(tx, machine, name, now)


def statuses(tx: Tx, machine: Machine) -> tuple[WorkloadStatus, ...]:
    """Return all workloads that a machine has, by name."""
    return statuses_of(tx, [machine]).get(machine.id, ())


def statuses_of(tx: Tx, machines: Sequence[Machine]) -> dict[int, tuple[WorkloadStatus, ...]]:
    """Return the workloads of many machines, by the machine's number."""
    by_number = {machine.id: machine for machine in machines}
    found: dict[int, list[WorkloadStatus]] = {}
    if not by_number:
        return {}
    rows = tx.execute(
        f"SELECT machine, {_COLUMNS} FROM workloads WHERE machine BETWEEN ? AND ?",
        (min(by_number), max(by_number)),
    )
    for number, *fields in rows:
        if number in by_number:
            status = _status(_Workload._make(fields), by_number[number])
            found.setdefault(number, []).append(status)
    return {number: tuple(items) for number, items in found.items()}


def end(tx: Tx, machine: Machine, name: str | None, code: int, now: int) -> list[str]:
    """Let running workloads exit, and do what their supervisor would; return their names.

    Raises:
        ConflictPhase: None of that name, or none at all, is running.
    """
    running = [w for w in _all(tx, machine) if _state(w, machine) is _ALIVE]
    ending = [w for w in running if name in {None, w.name}]
    if not ending:
        raise ConflictPhase(f"{machine.provider_id} runs no workload {name or ''}".rstrip())
    for workload in ending:
        _write(tx, machine, workload.name, f"exit code {code}")
        _supervise(tx, machine, workload, code, now)
    return [workload.name for workload in ending]


def append_log(tx: Tx, machine: Machine, name: str, data: bytes) -> None:
    """Append bytes to a workload's log, exactly as they are.

    Raises:
        NotFound: The machine has no such workload.
    """
    offset = _known(tx, machine, name).log_size
    for begin in range(0, len(data), _CHUNK):
        tx.execute(
            "INSERT INTO log (machine, name, offset, data) VALUES (?, ?, ?, ?)",
            (machine.id, name, offset + begin, data[begin : begin + _CHUNK]),
        )
    tx.execute(
        "UPDATE workloads SET log_size = log_size + ? WHERE machine = ? AND name = ?",
        (len(data), machine.id, name),
    )


def read_log(tx: Tx, machine: Machine, name: str, *, offset: int, limit: int) -> LogChunk:
    """Return a part of a log; an offset before or beyond it is moved to its bounds.

    Raises:
        NotFound: The machine has no such workload.
    """
    workload = _known(tx, machine, name)
    size = workload.log_size
    begin = min(max(0, size + offset if offset < 0 else offset), size)
    stop_at = min(size, begin + max(0, limit))
    rows = tx.execute(
        "SELECT offset, data FROM log WHERE machine = ? AND name = ?"
        " AND offset > ? AND offset < ? ORDER BY offset",
        (machine.id, name, begin - _CHUNK, stop_at),
    )
    data = b"".join(chunk[max(0, begin - at) : max(0, stop_at - at)] for at, chunk in rows)
    ended = _state(workload, machine) in _ENDED and stop_at == size
    return LogChunk(offset=begin, data=data, ended=ended)


def env_names(tx: Tx, machine: Machine, name: str) -> list[str]:
    """Return the names of the variables that a workload was given.

    Raises:
        NotFound: The machine has no such workload.
    """
    _known(tx, machine, name)
    (names,) = tx.execute(
        "SELECT env_names FROM workloads WHERE machine = ? AND name = ?", (machine.id, name)
    ).fetchone()
    return list(json.loads(names))


def _supervise(tx: Tx, machine: Machine, workload: _Workload, code: int, now: int) -> None:
    if not _starts_again(workload, code):
        state = WorkloadState.FAILED if code else WorkloadState.SUCCEEDED
        _set_state(tx, machine, workload.name, state, code)
        runs.close(tx, machine, workload.name, now)
        return
    tx.execute(
        "UPDATE workloads SET restarts = restarts + 1, failures = failures + ?"
        " WHERE machine = ? AND name = ?",
        (1 if code else 0, machine.id, workload.name),
    )
    command = shlex.join(json.loads(workload.command))
    _write(tx, machine, workload.name, f"start again: {command}")


def _starts_again(workload: _Workload, code: int) -> bool:
    policy = RestartPolicy(workload.restart)
    if code == 0:
        return policy is RestartPolicy.ALWAYS
    return policy is not RestartPolicy.NEVER and workload.failures < workload.max_restarts


def _is_answered_by(known: _Workload, request: WorkloadRequest, machine: Machine) -> bool:
    if known.generation != request.generation:
        return known.generation > request.generation  # a late retry must not undo a newer one
    return known.incarnation == machine.incarnation


def _state(workload: _Workload, machine: Machine) -> WorkloadState:
    state = WorkloadState(workload.state)
    if state is _ALIVE and workload.incarnation != machine.incarnation:
        return WorkloadState.STOPPED
    return state


def _status(workload: _Workload, machine: Machine) -> WorkloadStatus:
    state = _state(workload, machine)
    return WorkloadStatus(
        name=workload.name,
        state=state,
        exit_code=workload.exit_code,
        restarts=workload.restarts,
        message=ENDED_BY_BOOT if state != workload.state else None,
    )


def _all(tx: Tx, machine: Machine) -> list[_Workload]:
    rows = tx.execute(f"SELECT {_COLUMNS} FROM workloads WHERE machine = ?", (machine.id,))
    return [_Workload._make(row) for row in rows.fetchall()]


def _find(tx: Tx, machine: Machine, name: str) -> _Workload | None:
    row = tx.execute(
        f"SELECT {_COLUMNS} FROM workloads WHERE machine = ? AND name = ?", (machine.id, name)
    ).fetchone()
    return _Workload._make(row) if row else None


def _known(tx: Tx, machine: Machine, name: str) -> _Workload:
    known = _find(tx, machine, name)
    if known is None:
        raise NotFound(f"{machine.provider_id} has no workload {name}")
    return known


def _set_state(tx: Tx, machine: Machine, name: str, state: WorkloadState, code: int | None) -> None:
    tx.execute(
        "UPDATE workloads SET state = ?, exit_code = ? WHERE machine = ? AND name = ?",
        (state, code, machine.id, name),
    )


def _write(tx: Tx, machine: Machine, name: str, line: str) -> None:
    text = f"[simulated] rank {machine.rank}: {line}\n"
    append_log(tx, machine, name, text.encode(errors="backslashreplace"))
