"""What the contract suite needs from each adapter's stand-in.

To add an adapter: write a class with this protocol in a module of its own, and name it in
`ADAPTERS` of `conftest.py`. A test is skipped only for what an adapter cannot do by nature.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from garrison.errors import ErrorCode
from garrison.models.group import Group, GroupRequest, Node, NodeStatus
from garrison.providers.base import Provider

T = TypeVar("T")
ROUNDS = 600


class Can(StrEnum):
    """What a stand-in can be made to do."""

    LOSE_RESPONSE = "lose the answer to a call that worked"
    DELAY_EFFECT = "let a call take effect after its caller has gone"
    FAIL_CALL = "answer a call with a vendor's error"
    REFUSE_CAPACITY = "have no capacity"
    REFUSE_PART = "make some machines of a group and refuse the others"
    LIST_LATE = "list late"
    HIDE_NODE = "list a node without knowing its state"
    CHANGE_PRICE = "change its prices"
    SHARE_ACCOUNT = "hold machines of another installation"
    STOP_NODE = "let a machine lose its power"
    REMOVE_NODE = "remove a machine behind our back"
    FAIL_NODE = "let a machine fail while it starts"


class AdapterUnderTest(Protocol):
    """An adapter on a stand-in of its cloud, with an empty account."""

    @property
    def can(self) -> frozenset[Can]:
        """What the methods below may be asked for."""
        ...

    @property
    def provider(self) -> Provider:
        """The adapter."""
        ...

    def reopened(self) -> Provider:
        """Return the adapter as a restarted worker would build it, on the same account."""
        ...

    def foreign(self) -> Provider:
        """Return the adapter of another installation on the same account."""
        ...

    def request(self, **changes: Any) -> GroupRequest:
        """Return an order that the stand-in can fill, for two machines unless changed."""
        ...

    async def existing(self, token: str) -> int:
        """Return how many machines of a token exist in truth, whatever a list says."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Let time go by: on a clock of the stand-in if it has one, else a moment in truth."""
        ...

    async def lose_response(self, call: str) -> None:
        """Let the next call (`launch_group`, ...) work and its answer get lost."""
        ...

    async def delay_effect(self, call: str, seconds: float) -> None:
        """Let the next call end without an answer and take effect later."""
        ...

    async def fail_call(self, call: str, code: ErrorCode, text: str) -> None:
        """Let the next call fail with the vendor's error that means `code`, in these words."""
        ...

    async def refuse_capacity(self) -> None:
        """Have no machine in stock from now on."""
        ...

    async def refuse_part(self, rank: int) -> None:
        """Let the next launch make the nodes before a rank and refuse the rest."""
        ...

    async def list_late(self, seconds: float) -> None:
        """Let lists show everything this late from now on."""
        ...

    async def hide_node(self, node: Node) -> None:
        """Let the cloud lose sight of a node's state from now on."""
        ...

    async def raise_price(self) -> None:
        """Raise the price above what `request` accepts."""
        ...

    async def stop_node(self, node: Node) -> None:
        """Cut a machine's power."""
        ...

    async def remove_node(self, node: Node) -> None:
        """Delete a machine without telling us."""
        ...

    async def fail_node(self, rank: int, text: str) -> None:
        """Let a node of the next launch fail while it starts, in these words."""
        ...

    async def let_exit(self, node: Node, name: str, code: int) -> None:
        """Let a running workload, once started as `command_exiting(code)`, exit."""
        ...

    def command_running(self) -> tuple[str, ...]:
        """Return a command that runs until it is stopped."""
        ...

    def command_exiting(self, code: int) -> tuple[str, ...]:
        """Return a command that exits with a code when `let_exit` says so, or by itself."""
        ...

    async def write_log(self, node: Node, name: str, data: bytes) -> None:
        """Let a running workload write these bytes."""
        ...

    def state_files(self) -> Sequence[Path]:
        """Return all files that the adapter and its nodes keep."""
        ...


Factory = Callable[[Path], AbstractAsyncContextManager[AdapterUnderTest]]


def needs(subject: AdapterUnderTest, *abilities: Can) -> None:
    """Skip a test of what this adapter's cloud cannot do by nature."""
    missing = [ability for ability in abilities if ability not in subject.can]
    if missing:
        pytest.skip(f"its cloud cannot {' or '.join(missing)}")


async def until(subject: AdapterUnderTest, probe: Callable[[], Awaitable[T | None]]) -> T:
    """Return the first answer of a probe that is not None or False, while time goes by."""
    for _ in range(ROUNDS):
        answer = await probe()
        if answer:
            return answer
        await subject.pass_time(1.0)
    raise AssertionError("it never came true")


async def find(provider: Provider, token: str) -> Group | None:
    """Return the listed group of a token."""
    return next((g for g in await provider.list_groups() if g.token == token), None)


async def launched(subject: AdapterUnderTest, **changes: Any) -> Group:
    """Buy a group and return it with all nodes running and reachable."""
    request = subject.request(**changes)
    bought = await subject.provider.launch_group(request)
    assert isinstance(bought, Group)

    async def ready() -> Group | None:
        group = await find(subject.provider, request.token)
        return group if group and all_nodes(group, NodeStatus.RUNNING) else None

    return await until(subject, ready)


def all_nodes(group: Group, *statuses: NodeStatus) -> bool:
    """Return whether every node of a group is in one of the states."""
    return all(node.status in statuses for node in group.nodes)


async def gone(subject: AdapterUnderTest, token: str) -> bool:
    """Return whether a list shows no machine of a token, or only terminated ones."""
    group = await find(subject.provider, token)
    return group is None or all_nodes(group, NodeStatus.TERMINATED)
