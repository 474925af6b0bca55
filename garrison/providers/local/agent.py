"""The process that is a local node: it holds the node's lock and serves SSH on its address.

Started by `machines.py` with two locks and a listening socket already in hand, so that there is
no moment at which the node is alive and its lock free. It ends on SIGTERM, and when its directory
is no longer there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from garrison.providers.local.files import read_json, write_json
from garrison.providers.local.processes import birth, end_members
from garrison.providers.local.sshd import Machine, serve

LOOK_SECONDS = 2.0


class Agent:
    """One boot of one node.

    Attributes:
        path: The node's directory.
        node_lock_fd: Handed to every process of the node.
        socket_fd: The listening SSH socket.
    """

    def __init__(self, path: Path, *, node_lock_fd: int, socket_fd: int) -> None:
        self.path = path
        self.node_lock_fd = node_lock_fd
        self.socket_fd = socket_fd
        self._incarnation = int((path / "incarnation").read_text())

    async def run(self) -> None:
        """Serve until told to end."""
        self._tell("starting")
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        machine = self._machine()
        with socket.socket(fileno=self.socket_fd) as sock:
            server = await serve(machine, sock, self.path / "host_key")
            self._tell("ready")
            await self._until(stop, machine)
            server.close()

    def failed(self, error: BaseException) -> None:
        """Record why the node does not come up."""
        self._tell("failed", message=f"{type(error).__name__}: {error}")

    async def _until(self, stop: asyncio.Event, machine: Machine) -> None:
        while self.path.is_dir():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_SECONDS)
                return
        # A machine whose disk is gone runs nothing.
        end_members({machine.node_id: self._lock_without_name()}, grace=0)

    def _lock_without_name(self) -> Path:
        """Return where the lock that all processes of the node hold is found without its file.

        Some of them have nothing else by which they could be known. From here on we do not hold
        it ourselves.
        """
        if sys.platform != "linux":
            return self.path / "node.lock"
        look = os.open(f"/proc/self/fd/{self.node_lock_fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.close(self.node_lock_fd)
        return Path(f"/proc/self/fd/{look}")

    def _machine(self) -> Machine:
        spec = read_json(self.path / "spec.json") or {}
        return Machine(
            node_id=spec["node_id"],
            incarnation=self._incarnation,
            home=self.path / "home",
            login=spec["user"],
            lock_fd=self.node_lock_fd,
            installation_key=spec["installation_key"],
        )

    def _tell(self, state: str, **more: Any) -> None:
        pid = os.getpid()
        known = {"incarnation": self._incarnation, "pid": pid, "birth": birth(pid)}
        write_json(self.path / "status.json", {"state": state, **known, **more})


def main(directory: str, lock_fd: str, node_lock_fd: str, socket_fd: str) -> None:
    """Be the agent of a node's directory."""
    for descriptor in (lock_fd, node_lock_fd, socket_fd):
        os.set_inheritable(int(descriptor), False)
    agent = Agent(Path(directory), node_lock_fd=int(node_lock_fd), socket_fd=int(socket_fd))
    try:
        asyncio.run(agent.run())
    except Exception as error:
        # Told where the list finds it; the traceback goes to the node's log.
        agent.failed(error)
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
