"""The parent of every process of a harness: workers are forked from it, servers executed.

It has imported all that a worker needs, so that a worker lives within milliseconds of its order.
Whatever ends the harness, a kill -9 too, closes the pipe on which it orders; the nursery then
kills its children and ends. Run as `python -m tests.chaos.nursery`; one JSON order a line, the
child's process id for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GONE_AFTER = 10.0


class Nursery:
    """The harness's end of the pipe."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls) -> AsyncIterator[Nursery]:
        """Start one; at the end all of its children are gone, and it too."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.nursery"),
            cwd=ROOT,
            env=clean_environment(os.environ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C at the terminal is the harness's to handle
        )
        try:
            yield cls(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

    async def worker(self, *, env: Mapping[str, str], log: Path, sabotage: str | None) -> int:
        """Fork a worker and return its process id."""
        return await self._order({"env": dict(env), "log": str(log), "break": sabotage})

    async def program(self, command: Sequence[str], *, folder: Path, log: Path) -> int:
        """Execute a program in a folder and return its process id."""
        return await self._order({"command": [*command], "folder": str(folder), "log": str(log)})

    async def _order(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._turn:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            await self._process.stdin.drain()
            answer = await self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the nursery ended")
        return int(answer)


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without settings of Garrison's or Temporal's."""
    ours = ("GARRISON_", "TEMPORAL_")
    return {name: value for name, value in environ.items() if not name.startswith(ours)}


async def kill(pid: int) -> None:
    """End a process with -9 and return once it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(GONE_AFTER):
        while is_alive(pid):
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Return whether a child of a nursery lives; it reaps those that do not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _serve() -> None:
    # Imported here, as the harness's own process has no need of a worker's modules.
    from tests.chaos.worker import serve

    gc.freeze()  # what was imported stays shared with the children
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    children: list[int] = []
    try:
        for line in sys.stdin:
            pid = os.fork()
            if not pid:
                _become(json.loads(line), serve)
            children.append(pid)
            sys.stdout.write(f"{pid}\n")
            sys.stdout.flush()
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _become(order: dict[str, Any], serve: Any) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _redirect(order["log"])
        if "command" in order:
            os.chdir(order["folder"])
            os.execv(order["command"][0], order["command"])
        os.environ.update(order["env"])
        serve(order["break"])
    except Exception:
        traceback.print_exc()  # into the log, before this copy of the nursery goes
    finally:
        os._exit(1)


def _redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


if __name__ == "__main__":
    _serve()
