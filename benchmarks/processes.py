"""Processes that are measured: their CPU, memory and end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PATIENCE = 60.0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that exactly this process has used, user and system."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


class WorkerProcess:
    """A worker that runs.

    Attributes:
        start_seconds: From the start of the process until it polled.
    """

    def __init__(self, child: subprocess.Popen[bytes], log: Path, start_seconds: float) -> None:
        self._child = child
        self._log = log
        self.start_seconds = start_seconds

    @classmethod
    async def start(cls, arm: str, folder: Path, *more: str) -> WorkerProcess:
        """Start a worker and wait until it polls.

        Raises:
            RuntimeError: It ended, or does not poll within a minute.
        """
        log, ready = folder / f"worker-{arm}.log", folder / f"worker-{arm}.ready"
        ready.unlink(missing_ok=True)
        command = ["-m", "benchmarks.worker_process", arm, str(folder), str(ready), *more]
        began = time.monotonic()
        with log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, *command],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            await until(lambda: ready.exists() or child.poll() is not None, pause=0.01)
            if child.poll() is not None:
                raise RuntimeError(f"the worker ended: {log.read_text()[-2000:]}")
        except BaseException:
            child.kill()
            child.wait()
            raise
        return cls(child, log, time.monotonic() - began)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    @property
    def cpu(self) -> float:
        """CPU seconds used so far."""
        return cpu_seconds(self.pid)

    @property
    def rss(self) -> int:
        """Resident memory in bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def log_tail(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-2000:]

    async def stop(self) -> float:
        """Ask it to end with SIGTERM, wait for it, and return how many seconds that took."""
        began = time.monotonic()
        if self._child.poll() is None:
            self._child.terminate()
            try:
                await asyncio.to_thread(self._child.wait, PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return time.monotonic() - began

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._child.kill()
        self._child.wait()


async def until(claim: Callable[[], bool], *, pause: float, patience: float = PATIENCE) -> None:
    """Return once a claim is true.

    Raises:
        RuntimeError: It did not come true in time.
    """
    end = time.monotonic() + patience
    while not claim():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {patience:g} s")
        await asyncio.sleep(pause)


def _environment() -> dict[str, str]:
    # Whatever service or installation the caller uses otherwise is not what is measured.
    ours = ("TEMPORAL_", "GARRISON_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
