"""The Temporal server that `garrison up` runs: one process on one SQLite file.

It outlives an `up` that was killed, and the next one takes it over.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError

from garrison.errors import ServiceUnreachable
from garrison.models.service import UpRecord
from garrison.private_files import replace
from garrison.service import ServiceAddress, connect, is_alive
from garrison.workers.server_file import ServerFile
from garrison.workers.server_process import (
    HOST,
    PAUSE,
    ServerPlan,
    end_process,
    find_server,
    kill_process,
    process_record,
    spawn_server,
)

PORT = 7233
UI_PORT = 8233
START_DEADLINE = timedelta(seconds=30)
TRY_TIMEOUT = timedelta(seconds=2)
RPC_TIMEOUT = timedelta(seconds=2)
LOG_TAIL_LINES = 12
STARTS = 2


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports asked for; None is that of a server that runs already, else the default."""

    frontend: int | None = None
    ui: int | None = None

    def fit(self, record: UpRecord) -> bool:
        """Whether a running server has the ports that were asked for."""
        return self.frontend in (None, record.port) and self.ui in (None, record.ui_port)


class EmbeddedServer:
    """The server of one data directory. To be used under `hold_data_dir` only.

    Attributes:
        adopted: It ran already, left by an earlier `up`.
    """

    def __init__(
        self,
        folder: Path,
        ports: Ports,
        *,
        namespace: str,
        attributes: Iterable[SearchAttributeKey[Any]] = (),
        adopt_patience: timedelta = timedelta(seconds=10),
        stop_patience: timedelta = timedelta(seconds=15),
    ) -> None:
        """Prepare; nothing is touched yet.

        Args:
            folder: The data directory.
            ports: To listen on.
            namespace: To work in, made if it is missing.
            attributes: Search attributes of a new file.
            adopt_patience: How long a server that runs already may take to answer.
            stop_patience: How long a server may take to end before it is killed.
        """
        self._folder = folder
        self._ports = ports
        self._namespace = namespace
        self._attributes = tuple(attributes)
        self._file = ServerFile(folder)
        self._adopt_patience = adopt_patience
        self._stop_patience = stop_patience
        self._record: UpRecord | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self.adopted = False

    @property
    def record(self) -> UpRecord:
        """What `up.json` says; only after `start`."""
        if self._record is None:
            raise RuntimeError("the server was not started")
        return self._record

    @property
    def log(self) -> Path:
        """Where the server's own output goes."""
        return self._folder / "temporal.log"

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        if self._child is not None and self._child.poll() is not None:
            return False
        return self._record is not None and is_alive(self._record.server)

    async def start(self) -> None:
        """Take over the server that runs, or start one, and wait until it answers.

        When this raises or is cancelled, a server that it started is gone again.

        Raises:
            PortTaken: Somebody else listens on a port.
            ServiceUnreachable: The server ended, does not answer, or there is no program.
            InvalidSpec: A port cannot be used.
        """
        if not await self._adopt():
            await self._start_new()
        self._file.finished()

    async def stop(self) -> None:
        """End the server: SIGTERM, and SIGKILL when that takes too long."""
        if self._record is None:
            return
        # An `up` that comes after this one was killed half-way must not take the server over.
        self._write(self._record.replace(stopping=True))
        await end_process(self._record.server, patience=self._stop_patience)
        self._forget()

    def kill(self) -> None:
        """End the server at once; what it acknowledged is in its file."""
        if self._record is not None:
            kill_process(self._record.server)
            self._forget()

    async def ended(self) -> None:
        """Return when the process has ended."""
        while self.running:
            await asyncio.sleep(PAUSE)

    def log_tail(self) -> str:
        """Return the last lines of the server's output."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_TAIL_LINES:])

    async def _adopt(self) -> bool:
        found = find_server(self._folder)
        if found is None:
            return False
        if self._fits(found) and await self._answers(found):
            self._write(found.replace(up=process_record(os.getpid())))
            self.adopted = True
            return True
        await end_process(found.server, patience=self._stop_patience)
        return False

    def _fits(self, found: UpRecord) -> bool:
        return not found.stopping and self._ports.fit(found) and found.namespace == self._namespace

    async def _answers(self, record: UpRecord) -> bool:
        try:
            await _until_answering(record, self._adopt_patience, lambda: is_alive(record.server))
        except ServiceUnreachable:
            return False
        return True

    async def _start_new(self) -> None:
        plan = ServerPlan(
            port=PORT if self._ports.frontend is None else self._ports.frontend,
            ui_port=UI_PORT if self._ports.ui is None else self._ports.ui,
            namespace=self._namespace,
            attributes=self._attributes,
        )
        for last in range(1, STARTS + 1):
            plan.check()
            self._file.prepare()
            try:
                return await self._start_once(plan)
            except ServiceUnreachable:
                # The server picks some ports for its own parts, and can be beaten to one.
                if last == STARTS or "address already in use" not in self.log_tail():
                    raise

    async def _start_once(self, plan: ServerPlan) -> None:
        child = self._child = spawn_server(plan, self._folder, self.log)
        try:
            self._write(self._new_record(child.pid, plan))
            await _until_answering(self.record, START_DEADLINE, lambda: self.running)
        except ServiceUnreachable as error:
            self._abandon(child)
            tail = self.log_tail()
            raise ServiceUnreachable(f"{error}; the end of {self.log}:\n{tail}") from error
        except BaseException:  # a signal during the start, too, leaves no server behind
            self._abandon(child)
            raise

    def _new_record(self, pid: int, plan: ServerPlan) -> UpRecord:
        return UpRecord(
            server=process_record(pid),
            up=process_record(os.getpid()),
            host=HOST,
            port=plan.port,
            ui_port=plan.ui_port,
            namespace=plan.namespace,
            started_at=datetime.now(UTC),
        )

    def _write(self, record: UpRecord) -> None:
        self._record = record
        replace(self._folder / "up.json", record.model_dump_json(indent=2) + "\n")

    def _abandon(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        self._forget()

    def _forget(self) -> None:
        (self._folder / "up.json").unlink(missing_ok=True)
        self._record = None
        if self._child is not None:
            self._child.wait()  # it has ended or was killed: reaped, it is no zombie
            self._child = None


async def _until_answering(
    record: UpRecord, patience: timedelta, alive: Callable[[], bool]
) -> None:
    """Wait until the server serves its namespace.

    Raises:
        ServiceUnreachable: It ended, or did not answer in time.
    """
    address = ServiceAddress(record.address, record.namespace, "garrison up")
    deadline = time.monotonic() + patience.total_seconds()
    reason = ""
    while time.monotonic() < deadline:
        if not alive():
            raise ServiceUnreachable("the Temporal server ended while it was awaited")
        try:
            client = await connect(address, timeout=TRY_TIMEOUT)
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=record.namespace), timeout=RPC_TIMEOUT
            )
            return
        except (ServiceUnreachable, RPCError) as error:
            reason = str(error)
        await asyncio.sleep(PAUSE)
    seconds = patience.total_seconds()
    raise ServiceUnreachable(
        f"the Temporal server (pid {record.server.pid}) does not answer at {record.address} "
        f"after {seconds:g} s: {reason}"
    )
