"""The process of an embedded Temporal server: its command line, finding it, ending it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
from temporalio.common import SearchAttributeKey

from garrison.errors import InvalidSpec, PortTaken, ServiceUnreachable
from garrison.models.service import ProcessRecord, UpRecord
from garrison.service import find_temporal, is_alive, read_up_record, type_name
from garrison.workers.server_file import DATABASE

HOST = "127.0.0.1"
PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """What a server is started with."""

    port: int
    ui_port: int
    namespace: str
    attributes: tuple[SearchAttributeKey[Any], ...] = ()

    def command(self, program: str) -> list[str]:
        """Return the command line; its working directory is the data directory.

        The name of the database becomes part of a URL, where a path with a `?` would be cut
        short; a bare file name is safe.
        """
        flags = [
            ("--db-filename", DATABASE),
            ("--sqlite-pragma", "journal_mode=WAL"),
            ("--sqlite-pragma", "synchronous=NORMAL"),
            ("--ip", HOST),
            ("--port", str(self.port)),
            ("--ui-port", str(self.ui_port)),
            ("--namespace", self.namespace),
            ("--log-level", "warn"),
            ("--dynamic-config-value", "frontend.enableServerVersionCheck=false"),
        ]
        flags += [("--search-attribute", f"{k.name}={type_name(k)}") for k in self.attributes]
        parts = (part for flag in flags for part in flag)
        settings = ("--disable-config-file", "--disable-config-env")
        return [program, *settings, "server", "start-dev", "--ui-disable-news-fetch", *parts]

    def check(self) -> None:
        """Check that the ports can be used.

        Raises:
            PortTaken: Another program listens on one.
            InvalidSpec: One cannot be used by anybody, or not by this user.
        """
        if self.port == self.ui_port:
            raise InvalidSpec(f"--port and --ui-port are both {self.port}")
        check_port(self.port, "--port")
        check_port(self.ui_port, "--ui-port")


def spawn_server(plan: ServerPlan, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, where no Ctrl-C at a terminal reaches it.

    Raises:
        ServiceUnreachable: There is no `temporal` program, or it cannot be run.
    """
    command = plan.command(find_temporal())
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    try:
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), "ab") as output:
            return subprocess.Popen(
                command,
                cwd=folder,
                env=_environment(os.environ.items()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
            )
    except OSError as error:
        raise ServiceUnreachable(
            f"the Temporal server cannot be started: {command[0]}: {error.strerror}"
        ) from error


def process_record(pid: int) -> ProcessRecord:
    """Return how a living process of ours is told from a later one."""
    return ProcessRecord(pid=pid, created=psutil.Process(pid).create_time())


def find_server(folder: Path) -> UpRecord | None:
    """Return the server that runs on a data directory, by its record or by its command line.

    There can be one without a record: `up` was killed in the instant between starting and
    recording it. A second server on the same file must never be started.
    """
    record = read_up_record(folder)
    if record is not None and is_alive(record.server):
        return record
    for process in psutil.process_iter():
        try:
            if process.name() == "temporal" and _serves(process, folder):
                return _record_from_command(process)
        except (psutil.Error, OSError, ValueError):
            continue  # of another user, or gone while looked at
    return None


async def end_process(record: ProcessRecord, *, patience: timedelta) -> None:
    """Have a process end itself, kill it when it takes too long, and wait until it is gone."""
    deadline = time.monotonic() + patience.total_seconds()
    _send(record, psutil.Process.terminate)
    while is_alive(record):
        if time.monotonic() > deadline:
            _send(record, psutil.Process.kill)
        await asyncio.sleep(PAUSE)


def kill_process(record: ProcessRecord) -> None:
    """End a process at once."""
    _send(record, psutil.Process.kill)


def check_port(port: int, option: str, host: str = HOST) -> None:
    """Check that a port of this machine can be listened on.

    Args:
        port: The port.
        option: Where a person chooses another.
        host: An IP address of this machine.

    Raises:
        PortTaken: Another program listens on it.
        InvalidSpec: It cannot be used by anybody, or not by this user.
    """
    if not 1 <= port <= 65535:
        raise InvalidSpec(f"{option} must be from 1 to 65535, not {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do: a connection of an earlier run that is still fading is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except PermissionError:
            raise InvalidSpec(f"this user may not listen on port {port}; see {option}") from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise InvalidSpec(f"this machine has no address {host}") from None
            raise PortTaken(
                f"another program listens on port {port}; choose another with {option}"
            ) from error


def _serves(process: psutil.Process, folder: Path) -> bool:
    command = process.cmdline()
    if "start-dev" not in command or DATABASE not in command:
        return False
    alive = process.status() != psutil.STATUS_ZOMBIE
    return alive and os.path.samefile(process.cwd(), folder)


def _record_from_command(process: psutil.Process) -> UpRecord:
    command = process.cmdline()
    given = dict(itertools.pairwise(command))
    created = process.create_time()
    this = ProcessRecord(pid=process.pid, created=created)
    return UpRecord(
        server=this,
        up=this,
        host=HOST,
        port=int(given.get("--port", 0)),
        ui_port=int(given.get("--ui-port", 0)),
        namespace=given.get("--namespace", ""),
        started_at=datetime.fromtimestamp(created, UTC),
    )


def _send(record: ProcessRecord, order: Callable[[psutil.Process], None]) -> None:
    if not is_alive(record):
        return
    try:
        order(psutil.Process(record.pid))
    except psutil.NoSuchProcess:
        return  # it ended meanwhile, which is what was wanted


def _environment(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    # Neither profiles of Temporal's tools nor our secrets are the server's business.
    ours = {n: v for n, v in variables if not n.startswith(("TEMPORAL_", "GARRISON_"))}
    return {**ours, "TEMPORAL_VERSION_CHECK_DISABLED": "1"}
