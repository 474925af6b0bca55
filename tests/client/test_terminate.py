"""A terminate that the service takes no update for goes by signal, which waits until it can act."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from garrison.client.clusters import Clusters
from garrison.errors import ServiceUnreachable
from garrison.settings import Settings


class _Described:
    async def memo(self) -> dict[str, str]:
        return {"uid": "uid-1"}


class _Handle:
    """A cluster whose updates the service refuses."""

    def __init__(self, status: RPCStatusCode) -> None:
        self._status = status
        self.signals: list[str] = []

    async def execute_update(self, *_: Any, **__: Any) -> None:
        raise RPCError("no", self._status, b"")

    async def describe(self, **_: Any) -> _Described:
        return _Described()

    async def signal(self, name: str, *_: Any, **__: Any) -> None:
        self.signals.append(name)


class _Client:
    def __init__(self, handle: _Handle) -> None:
        self._handle = handle

    def get_workflow_handle(self, *_: Any, **__: Any) -> _Handle:
        return self._handle

    get_workflow_handle_for = get_workflow_handle


def _clusters(handle: _Handle, folder: Path) -> Clusters:
    settings = Settings(data_dir=folder, log_dir=folder / "logs", owner="ann")
    return Clusters(cast(Client, _Client(handle)), settings)


@pytest.mark.parametrize(
    "status", [RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.FAILED_PRECONDITION]
)
async def test_a_terminate_goes_by_signal_where_no_update_is_taken(
    status: RPCStatusCode, tmp_path: Path
) -> None:
    handle = _Handle(status)

    ack = await _clusters(handle, tmp_path).terminate("c")

    assert ack.uid == "uid-1"
    assert handle.signals == ["terminate"]


async def test_a_terminate_that_cannot_reach_the_service_says_so(tmp_path: Path) -> None:
    handle = _Handle(RPCStatusCode.UNAVAILABLE)

    with pytest.raises(ServiceUnreachable):
        await _clusters(handle, tmp_path).terminate("c")

    assert handle.signals == []
