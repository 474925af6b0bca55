"""The simulated provider as the contract suite drives it: on a clock of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from garrison.errors import ErrorCode
from garrison.models.group import GroupRequest, Node
from garrison.models.offer import Offer
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.faults import Call, Fault, FaultRule
from garrison.providers.simulated.provider import SimulatedProvider
from tests.contracts.adapters import AdapterUnderTest, Can

CALLS = {
    "list_offers": Call.LIST_OFFERS,
    "launch_group": Call.LAUNCH,
    "list_groups": Call.LIST,
    "restart_node": Call.RESTART,
    "terminate_group": Call.TERMINATE,
    "prepare_node": Call.PREPARE,
    "start_workload": Call.START_WORKLOAD,
}
VENDOR_CODES = {
    ErrorCode.QUOTA_EXCEEDED: "VcpuLimitExceeded",
    ErrorCode.PROVIDER_AUTH: "AuthFailure",
    ErrorCode.INVALID_SPEC: "InvalidParameterValue",
    ErrorCode.TOO_MANY_REQUESTS: "RequestLimitExceeded",
    ErrorCode.PROVIDER_UNREACHABLE: "ConnectionReset",
    ErrorCode.PROVIDER_ERROR: "NobodyEverMappedThis",
}
MACHINE = Offer(
    provider="catalogue",
    instance_type="paper.8xlarge",
    accelerator="H100",
    accelerator_count=Decimal(8),
    memory_gib=Decimal(2048),
    usd_per_hour=Decimal("98.32"),
)


class SimulatedUnderTest:
    """One account in one file, whose clock moves only when told."""

    can = frozenset(Can)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self.console = SimulatedConsole(self._path, clock=self._clock)
        self.provider = self.reopened()

    @property
    def _path(self) -> Path:
        return self._folder / "cloud.sqlite"

    def _clock(self) -> datetime:
        return self._now

    def _open(self, installation: str) -> SimulatedProvider:
        return SimulatedProvider(
            self._path, installation=installation, offers=[MACHINE], clock=self._clock
        )

    def reopened(self) -> SimulatedProvider:
        return self._open("ours")

    def foreign(self) -> SimulatedProvider:
        return self._open("theirs")

    def request(self, **changes: Any) -> GroupRequest:
        fields: dict[str, Any] = {
            "token": "token-1",
            "owner": "cluster/train-1",
            "uid": "uid-1",
            "name": "train-1",
            "region": "sim-a",
            "instance_type": MACHINE.instance_type,
            "gpus_per_node": 8,
            "count": 2,
            "max_usd_per_node_hour": Decimal("98.32"),
        }
        return GroupRequest(**(fields | changes))

    async def existing(self, token: str) -> int:
        return sum(machine["token"] == token for machine in self.console.inventory())

    async def pass_time(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)

    def _script(self, call: Call, what: Fault, **fields: Any) -> None:
        self.console.add_fault(FaultRule(call=call, what=what, **fields))

    async def lose_response(self, call: str) -> None:
        self._script(CALLS[call], Fault.LOST_RESPONSE)

    async def delay_effect(self, call: str, seconds: float) -> None:
        self._script(CALLS[call], Fault.DELAYED_EFFECT, seconds=seconds)

    async def fail_call(self, call: str, code: ErrorCode, text: str) -> None:
        self._script(CALLS[call], Fault.ERROR, code=VENDOR_CODES[code], message=text)

    async def refuse_capacity(self) -> None:
        self.console.set_stock("sim-a", MACHINE.instance_type, 0)
        self._script(Call.RESTART, Fault.REFUSAL, times=None)

    async def refuse_part(self, rank: int) -> None:
        self._script(Call.LAUNCH, Fault.REFUSAL, rank=rank)

    async def list_late(self, seconds: float) -> None:
        self._script(Call.LIST, Fault.LATE_LIST, seconds=seconds, times=None)

    async def hide_node(self, node: Node) -> None:
        self._script(Call.STATUS, Fault.UNKNOWN, node=node.provider_id, times=None)

    async def raise_price(self) -> None:
        self.console.set_price(MACHINE.instance_type, Decimal("120.5"))

    async def stop_node(self, node: Node) -> None:
        self.console.kill(node.provider_id)

    async def remove_node(self, node: Node) -> None:
        self.console.delete_node(node.provider_id)

    async def fail_node(self, rank: int, text: str) -> None:
        self._script(Call.LAUNCH, Fault.NODE_FAILS, rank=rank, seconds=1, message=text)

    async def let_exit(self, node: Node, name: str, code: int) -> None:
        self.console.exit_workload(node.provider_id, code, name=name)

    def command_running(self) -> tuple[str, ...]:
        return ("sleep", "infinity")

    def command_exiting(self, code: int) -> tuple[str, ...]:
        return ("/bin/sh", "-c", f"exit {code}")

    async def write_log(self, node: Node, name: str, data: bytes) -> None:
        self.console.append_log(node.provider_id, name, data)

    def state_files(self) -> Sequence[Path]:
        return [path for path in self._folder.rglob("*") if path.is_file()]


@asynccontextmanager
async def simulated_under_test(folder: Path) -> AsyncIterator[AdapterUnderTest]:
    yield SimulatedUnderTest(folder)
