"""A data directory on free ports, and `garrison` processes on it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from garrison.models.service import UpRecord
from garrison.service import read_up_record

PATIENCE = 30.0


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def eventually(what: str, claim: Callable[[], object], *, patience: float = PATIENCE) -> None:
    """Wait until a claim holds."""
    deadline = time.monotonic() + patience
    while not claim():
        assert time.monotonic() < deadline, f"not in {patience:g} s: {what}"
        time.sleep(0.02)


class Installation:
    """A data directory with three ports of its own, and everything that runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.ui_port, self.router_port = free_ports(3)
        self._logs = folder.parent / "logs"
        self._logs.mkdir()
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("GARRISON_", "TEMPORAL_"))}
        return {**kept, "GARRISON_DATA_DIR": str(self.folder)}

    @property
    def record(self) -> UpRecord:
        found = read_up_record(self.folder)
        assert found is not None
        return found

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> Running:
        """Start a `garrison` process."""
        out = self._logs / f"{len(self._started)}"
        with (
            out.with_suffix(".out").open("wb") as told,
            out.with_suffix(".err").open("wb") as complained,
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", "garrison.cli.app", *arguments],
                env=env or self.environment,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=complained,
            )
        self._started.append(process)
        return Running(process, out)

    def up(self, *more: str) -> Running:
        """Start `garrison up` on the installation's ports."""
        ports = ["--port", str(self.port), "--ui-port", str(self.ui_port)]
        if "--router-port" not in more:
            ports += ["--router-port", str(self.router_port)]
        return self.start("up", *ports, *more)

    def serving(self, *more: str) -> Running:
        """Start `garrison up` and wait until it serves."""
        running = self.up(*more)
        eventually("up serves", lambda: "Ctrl-C" in running.out or running.ended)
        assert not running.ended, running.err
        return running

    def servers(self) -> list[psutil.Process]:
        """Return every Temporal server that lives on the directory, whoever knows of it."""
        found = []
        for process in psutil.process_iter():
            try:
                alive = process.status() != psutil.STATUS_ZOMBIE
                if process.name() == "temporal" and alive and _is_in(process, self.folder):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for server in self.servers():
            server.kill()
        eventually("servers are gone", lambda: not self.servers())


class Running:
    """A `garrison` process."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path) -> None:
        self.process = process
        self._out = out

    @property
    def out(self) -> str:
        return self._out.with_suffix(".out").read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self._out.with_suffix(".err").read_text(encoding="utf-8")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def signal(self, sig: signal.Signals) -> None:
        self.process.send_signal(sig)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def status(self) -> int:
        """Wait for its end and return its exit status."""
        return self.process.wait(timeout=PATIENCE)


def _is_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return os.path.samefile(process.cwd(), folder)
    except OSError:
        return False
