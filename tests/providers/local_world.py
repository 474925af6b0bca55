"""A folder of real local nodes, for tests that look at processes and files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import asyncssh
import psutil

from garrison.models.group import (
    Group,
    GroupRequest,
    Node,
    NodeStatus,
    RestartPolicy,
    WorkloadState,
    WorkloadStatus,
)
from garrison.providers.base import NodeSetup, WorkloadRequest
from garrison.providers.local.provider import LocalProvider
from garrison.providers.local.store import NodeDir

REPOSITORY = Path(__file__).parents[2]
DEADLINE_SECONDS = 30.0

T = TypeVar("T")


def order(**changes: Any) -> GroupRequest:
    fields: dict[str, Any] = {
        "token": "token-1",
        "owner": "cluster/train-1",
        "uid": "uid-1",
        "name": "train-1",
        "region": "local",
        "instance_type": "local",
        "count": 1,
        "max_usd_per_node_hour": Decimal("0.01"),
    }
    return GroupRequest(**(fields | changes))


def shell(script: str, **changes: Any) -> WorkloadRequest:
    fields: dict[str, Any] = {
        "name": "main",
        "command": ("/bin/sh", "-c", script),
        "restart": RestartPolicy.NEVER,
    }
    return WorkloadRequest(**(fields | changes))


async def eventually(probe: Callable[[], Awaitable[T | None]]) -> T:
    """Return the first true answer of a probe."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if answer := await probe():
            return answer
        await asyncio.sleep(0.03)
    raise AssertionError("it never came true")


class LocalWorld:
    """One installation on one folder, in this process and in others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.key_file = folder / "installation_key"
        key = asyncssh.generate_private_key("ssh-ed25519")
        self.key_file.write_bytes(key.export_private_key())
        self.key_file.chmod(0o600)
        self._opened: list[LocalProvider] = []
        self.provider = self.open()
        self.on = self.provider.workloads

    @classmethod
    @asynccontextmanager
    async def opened(cls, folder: Path) -> AsyncIterator[LocalWorld]:
        world = cls(folder)
        try:
            yield world
        finally:
            await world.close()

    def open(self, **changes: Any) -> LocalProvider:
        fields: dict[str, Any] = {"installation": "ours", "installation_key": self.key_file}
        provider = LocalProvider(self.root, **(fields | changes))
        self._opened.append(provider)
        return provider

    async def close(self) -> None:
        for provider in self._opened:
            for group in await provider.list_groups():
                await provider.terminate_group(group.token)
            await provider.aclose()

    async def group(self, token: str = "token-1") -> Group | None:
        return next((g for g in await self.provider.list_groups() if g.token == token), None)

    async def node(self, rank: int = 0) -> Node:
        group = await self.group()
        assert group is not None
        return group.nodes[rank]

    async def launched(self, **changes: Any) -> tuple[Node, ...]:
        bought = await self.provider.launch_group(order(**changes))
        assert isinstance(bought, Group)

        async def running() -> Group | None:
            group = await self.group(bought.token)
            ready = group and all(node.status is NodeStatus.RUNNING for node in group.nodes)
            return group if ready else None

        return (await eventually(running)).nodes

    async def prepared(self, *keys: str, **changes: Any) -> Node:
        nodes = await self.launched(**changes)
        return await self.on.prepare_node(nodes[0], NodeSetup(keys))

    async def reaches(self, node: Node, state: WorkloadState, name: str = "main") -> WorkloadStatus:
        async def reached() -> WorkloadStatus | None:
            found = {status.name: status for status in await self.on.list_workloads(node)}
            return found[name] if name in found and found[name].state is state else None

        return await eventually(reached)

    async def logs(self, node: Node, text: str, name: str = "main") -> str:
        """Return a workload's log once it has some text."""

        async def logged() -> str | None:
            log = (await self.on.read_log(node, name, offset=0, limit=10_000_000)).data.decode()
            return log if text in log else None

        return await eventually(logged)

    def directory(self, node: Node) -> NodeDir:
        return NodeDir(self.root / "nodes" / node.provider_id)

    def agent(self, node: Node) -> int:
        return int(self.directory(node).status()["pid"])

    async def kill_agent(self, node: Node) -> None:
        os.kill(self.agent(node), signal.SIGKILL)

        async def stopped() -> bool:
            found = await self.group()
            return found is not None and any(
                n.provider_id == node.provider_id and n.status is NodeStatus.STOPPED
                for n in found.nodes
            )

        await eventually(stopped)

    def workload_file(self, node: Node, name: str, file: str) -> Path:
        return self.directory(node).home / ".garrison" / "workloads" / name / file

    def supervisor(self, node: Node, name: str = "main") -> int:
        return int(self.workload_file(node, name, "lock").read_text())

    def elsewhere(self, script: str) -> subprocess.Popen[bytes]:
        """Run a script in a process of its own, as another worker would be."""
        given = json.dumps([str(self.root), str(self.key_file)])
        return subprocess.Popen(
            [sys.executable, "-c", script, given],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )


def processes_with(text: str) -> list[int]:
    """Return the living processes that have a text among their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            if text in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


async def vanishes(text: str) -> None:
    """Wait until no process has a text among its arguments."""

    async def gone() -> bool:
        return not processes_with(text)

    await eventually(gone)
