"""The real processes of one run, in a folder of its own: a server on a file, and workers."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError

from garrison.errors import ServiceUnreachable
from garrison.service import ServiceAddress, connect, find_temporal
from garrison.settings import Settings, load_settings
from garrison.workers.server_process import ServerPlan
from garrison.workflows.visibility import ALL_KEYS
from tests.chaos.diary import Diary
from tests.chaos.nursery import Nursery, is_alive, kill
from tests.chaos.plan import BOOT, DELETE, REGIONS, SETTLE

NAMESPACE = "default"
TASK_TIMEOUT = 'history.defaultWorkflowTaskTimeout="4s"'
"""Shorter than the server's own 10 s, for which a task waits whose server was killed."""

SERVER_PATIENCE = 60.0
TEND_EVERY = 0.3
CALM_AFTER = 20.0
"""Seconds after a kill of the server in which a worker may end."""
CONFIG = f"""
installation: chaos
watch_interval: 1
watch_interval_busy: 0.5
heartbeat_timeout: 3
providers:
  simulated:
    regions: [{", ".join(REGIONS)}]
    boot_seconds: {BOOT}
    settle_seconds: {SETTLE:g}
    delete_seconds: {DELETE}
"""


class Stage:
    """Starts, kills and starts again."""

    def __init__(
        self, nursery: Nursery, folder: Path, diary: Diary, *, workers: int, sabotage: str | None
    ) -> None:
        self._nursery = nursery
        self._diary = diary
        self._folder = folder
        self._sabotage = sabotage
        port, ui_port = _free_ports(2)
        self._plan = ServerPlan(port, ui_port, namespace=NAMESPACE, attributes=ALL_KEYS)
        self._server: int | None = None
        self._workers: list[int | None] = [None] * workers
        self._turn = asyncio.Lock()
        self._server_turn = asyncio.Lock()
        self._closing = False
        self.worker_kills = 0
        self.server_kills = 0
        self.deaths: list[int] = []
        self._server_killed_at = -CALM_AFTER
        self.data = folder / "data"
        self.data.mkdir(mode=0o700)
        (self.data / "garrison.yaml").write_text(CONFIG)
        self.settings: Settings = load_settings(self._environment())

    @property
    def cloud(self) -> Path:
        """The file that is the cloud."""
        return self.settings.simulated_cloud("simulated")

    def _environment(self) -> dict[str, str]:
        return {
            "GARRISON_DATA_DIR": str(self.data),
            "GARRISON_USER": "chaos",
            "TEMPORAL_ADDRESS": f"127.0.0.1:{self._plan.port}",
        }

    async def open(self) -> Client:
        """Start everything and return a client of the server."""
        await self._start_server()
        client = await self._connected()
        await self._start_workers()
        async with asyncio.timeout(SERVER_PATIENCE):
            while not all("serving" in self._log(index) for index in range(len(self._workers))):
                await asyncio.sleep(0.05)
        return client

    def _log(self, index: int) -> str:
        path = self._folder / f"worker-{index}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    async def close(self) -> None:
        """End everything; only files are left."""
        self._closing = True
        for pid in [*self._workers, self._server]:
            if pid is not None:
                await kill(pid)

    async def kill_workers(self, *, all: bool, down: float, first: int = 0) -> None:
        """Kill one worker, or all of them, with -9, and start them again after a while.

        Who comes while workers are down or being killed waits its turn, so that each order ends
        with workers alive.
        """
        async with self._turn:
            chosen = range(len(self._workers)) if all else [first % len(self._workers)]
            for index in chosen:
                pid = self._workers[index]
                if pid is not None:
                    await kill(pid)
                    self._diary.note("stage", f"killed worker {index}")
                    self._workers[index] = None
                    self.worker_kills += 1
            await asyncio.sleep(down)
            await self._start_workers()

    async def kill_server(self, *, down: float) -> None:
        """Kill the server with -9, and start it again on the same file after a while."""
        async with self._server_turn:
            if self._server is not None:
                await kill(self._server)
                self._diary.note("stage", "killed the server")
                self._server = None
                self._server_killed_at = time.monotonic()
                self.server_kills += 1
            await asyncio.sleep(down)
            await self._start_server()
            await self._connected()

    async def mend(self) -> None:
        """Have everything run again; a worker that ended by itself is started anew."""
        async with self._server_turn, self._turn:
            if self._server is None or not is_alive(self._server):
                await self._start_server()
            await self._start_workers()

    async def tend(self) -> None:
        """Start workers again that ended by themselves, until cancelled.

        One that meets no server at its start may end so, as its supervisor would try again.
        """
        while True:
            async with self._turn:
                calm = time.monotonic() - self._server_killed_at > CALM_AFTER
                for pid in self._workers:
                    if pid is not None and not is_alive(pid):
                        self._diary.note("stage", f"{pid} ended by itself")
                        self.deaths += [pid] * calm
                await self._start_workers()
            await asyncio.sleep(TEND_EVERY)

    async def _start_workers(self) -> None:
        for index, pid in enumerate(self._workers):
            if (pid is None or not is_alive(pid)) and not self._closing:
                self._workers[index] = await self._nursery.worker(
                    env=self._environment(),
                    log=self._folder / f"worker-{index}.log",
                    sabotage=self._sabotage,
                )
                self._diary.note("stage", f"started worker {index} as {self._workers[index]}")

    async def _start_server(self) -> None:
        program = find_temporal()
        command = [*self._plan.command(program), "--dynamic-config-value", TASK_TIMEOUT]
        self._server = await self._nursery.program(
            command, folder=self.data, log=self._folder / "server.log"
        )
        self._diary.note("stage", f"started the server as {self._server}")

    async def _connected(self) -> Client:
        address = ServiceAddress(f"127.0.0.1:{self._plan.port}", NAMESPACE, "chaos")
        loop = asyncio.get_running_loop()
        end = loop.time() + SERVER_PATIENCE
        while True:
            try:
                client = await connect(address, runtime=_runtime(), timeout=timedelta(seconds=2))
                await client.count_workflows("", rpc_timeout=timedelta(seconds=2))
                return client
            except (ServiceUnreachable, RPCError):
                if loop.time() > end:
                    raise
                if self._server is None or not is_alive(self._server):
                    await self._start_server()  # it was beaten to a port of its own
                await asyncio.sleep(0.05)


@functools.cache
def _runtime() -> Runtime:
    """Return a runtime that does not print that a server which was killed is away."""
    quiet = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    return Runtime(telemetry=TelemetryConfig(logging=quiet))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
