"""The local provider as the contract suite drives it: real processes, real time."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncssh

from garrison.errors import ErrorCode
from garrison.models.group import GroupRequest, Node
from garrison.providers.local.files import is_held, read_json
from garrison.providers.local.provider import LocalProvider
from tests.contracts.adapters import AdapterUnderTest, Can

KEY = asyncssh.generate_private_key("ssh-ed25519")


class LocalUnderTest:
    """A folder of nodes, shared with another installation."""

    can = frozenset({Can.SHARE_ACCOUNT, Can.STOP_NODE, Can.REMOVE_NODE, Can.HIDE_NODE})

    def __init__(self, folder: Path) -> None:
        self._root = folder / "nodes"
        self._opened: list[LocalProvider] = []
        self.provider = self.reopened()

    def _open(self, installation: str) -> LocalProvider:
        provider = LocalProvider(self._root, installation=installation, installation_key=KEY)
        self._opened.append(provider)
        return provider

    def reopened(self) -> LocalProvider:
        return self._open("ours")

    def foreign(self) -> LocalProvider:
        return self._open("theirs")

    def request(self, **changes: Any) -> GroupRequest:
        fields: dict[str, Any] = {
            "token": "token-1",
            "owner": "cluster/train-1",
            "uid": "uid-1",
            "name": "train-1",
            "region": "local",
            "instance_type": "local",
            "count": 2,
            "max_usd_per_node_hour": Decimal("0.01"),
        }
        return GroupRequest(**(fields | changes))

    async def existing(self, token: str) -> int:
        return sum(
            is_held(path / "lock") and (read_json(path / "spec.json") or {}).get("token") == token
            for path in (self._root / "nodes").iterdir()
        )

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.05))

    async def hide_node(self, node: Node) -> None:
        # A frozen machine: it holds its lock, its address accepts, and nothing answers.
        os.kill(self._agent(node), signal.SIGSTOP)

    async def stop_node(self, node: Node) -> None:
        os.kill(self._agent(node), signal.SIGKILL)
        while is_held(self._root / "nodes" / node.provider_id / "lock"):
            await asyncio.sleep(0.01)

    async def remove_node(self, node: Node) -> None:
        await self.stop_node(node)
        shutil.rmtree(self._root / "nodes" / node.provider_id)

    def _agent(self, node: Node) -> int:
        status = read_json(self._root / "nodes" / node.provider_id / "status.json") or {}
        return int(status["pid"])

    async def let_exit(self, node: Node, name: str, code: int) -> None:
        """It exits by itself."""

    def command_running(self) -> tuple[str, ...]:
        # Whatever is put into the folder `said` goes to the log, part by part.
        script = 'while :; do for f in said.*; do cat "$f" && rm "$f"; done 2>&-; sleep 0.02; done'
        return ("/bin/sh", "-c", script)

    def command_exiting(self, code: int) -> tuple[str, ...]:
        return ("/bin/sh", "-c", f"exit {code}")

    async def write_log(self, node: Node, name: str, data: bytes) -> None:
        home = self._root / "nodes" / node.provider_id / "home"
        (home / "saying").write_bytes(data)
        (home / "saying").rename(home / "said.1")

    def state_files(self) -> Sequence[Path]:
        return [path for path in self._root.rglob("*") if path.is_file()]

    async def close(self) -> None:
        """Give back what tests left."""
        for provider in (self.reopened(), self.foreign()):
            for group in await provider.list_groups():
                await provider.terminate_group(group.token)
        for provider in self._opened:
            await provider.aclose()

    async def lose_response(self, call: str) -> None:
        raise NotImplementedError

    async def delay_effect(self, call: str, seconds: float) -> None:
        raise NotImplementedError

    async def fail_call(self, call: str, code: ErrorCode, text: str) -> None:
        raise NotImplementedError

    async def refuse_capacity(self) -> None:
        raise NotImplementedError

    async def refuse_part(self, rank: int) -> None:
        raise NotImplementedError

    async def list_late(self, seconds: float) -> None:
        raise NotImplementedError

    async def raise_price(self) -> None:
        raise NotImplementedError

    async def fail_node(self, rank: int, text: str) -> None:
        raise NotImplementedError


@asynccontextmanager
async def local_under_test(folder: Path) -> AsyncIterator[AdapterUnderTest]:
    under_test = LocalUnderTest(folder)
    try:
        yield under_test
    finally:
        await under_test.close()
