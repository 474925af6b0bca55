"""Starting replicas, and waiting until they answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from garrison.activities.replicas import ReplicaActivities
from garrison.errors import InvalidSpec, NotFound, ProviderUnreachable
from garrison.models.deployment import HealthProbe
from garrison.models.group import LogChunk, Node, NodeStatus, WorkloadState, WorkloadStatus
from garrison.models.provider import ProviderFacts
from garrison.models.replica import (
    AwaitReplicaAnswer,
    AwaitReplicaRequest,
    ReadReplicaLogRequest,
    StartReplicaRequest,
    StopReplicaRequest,
)
from garrison.providers.base import Provider, WorkloadRequest

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
LOCAL = ProviderFacts(name="here", type="local", simulated=True)
ON_PAPER = ProviderFacts(name="sim", type="simulated", simulated=True)
NODE = Node(rank=0, provider_id="n1", status=NodeStatus.RUNNING, private_address="127.0.0.1")


class FakeWorkloads:
    """One node that says what it is told to say."""

    def __init__(self, *said: WorkloadState | Exception) -> None:
        self.said = list(said)
        self.started: list[WorkloadRequest] = []
        self.stopped: list[str] = []
        self.log: bytes | Exception = b""
        self.looked = asyncio.Event()

    async def start_workload(self, node: Node, request: WorkloadRequest) -> None:
        if self.said:
            said = self.said.pop(0)
            assert isinstance(said, Exception)
            raise said
        self.started.append(request)

    async def stop_workload(self, node: Node, name: str) -> None:
        self.stopped.append(name)

    async def list_workloads(self, node: Node) -> Sequence[WorkloadStatus]:
        self.looked.set()
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(said, Exception):
            raise said
        return [WorkloadStatus(name="r1", state=said, exit_code=3)]

    async def read_log(self, node: Node, name: str, *, offset: int, limit: int) -> LogChunk:
        if isinstance(self.log, Exception):
            raise self.log
        if name not in self.stopped:
            return LogChunk(offset=0, data=b"not stopped yet")
        start = max(len(self.log) + offset, 0) if offset < 0 else offset
        return LogChunk(offset=start, data=self.log[start : start + limit])


def activities(
    workloads: FakeWorkloads,
    facts: ProviderFacts = LOCAL,
    *,
    now: datetime = NOW,
    log_dir: Path = Path("nowhere"),
) -> ReplicaActivities:
    provider = cast(Provider, SimpleNamespace(facts=facts, workloads=workloads))
    return ReplicaActivities(
        provider, open_env=lambda env: dict(env), clock=lambda: now, log_dir=log_dir
    )


def waiting(port: int | None = None, **probe: Any) -> AwaitReplicaRequest:
    given = {"interval": timedelta(milliseconds=20), "timeout": timedelta(seconds=2), **probe}
    return AwaitReplicaRequest(
        provider="here",
        replica="r1",
        node=NODE,
        port=port,
        health=None if port is None else HealthProbe(**given),
        give_up_at=NOW + timedelta(minutes=10),
    )


async def answer(replicas: ReplicaActivities, request: AwaitReplicaRequest) -> AwaitReplicaAnswer:
    found: AwaitReplicaAnswer = await ActivityEnvironment().run(replicas.await_replica, request)
    return found


@asynccontextmanager
async def web_server(*statuses: int) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that answers with these statuses in turn, the last one for ever."""
    left, asked = list(statuses), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b"\r\n")[0])
        status = left.pop(0) if len(left) > 1 else left[0]
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


async def test_a_replica_is_ready_once_its_path_answers_well() -> None:
    workloads = FakeWorkloads(WorkloadState.RUNNING)
    async with web_server(503, 404, 302) as (port, asked):
        found = await answer(activities(workloads), waiting(port, path="/health"))

    assert found.ready
    assert asked == [b"GET /health HTTP/1.1"] * 3


async def test_without_a_path_an_open_port_is_enough() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await answer(activities(FakeWorkloads(WorkloadState.RUNNING)), waiting(port))

    assert found.ready


async def test_a_process_that_ends_is_not_waited_for() -> None:
    workloads = FakeWorkloads(WorkloadState.RUNNING, WorkloadState.FAILED)
    async with web_server(503) as (port, _):
        found = await answer(activities(workloads), waiting(port, path="/"))

    assert not found.ready
    assert found.reason == "its process has failed: exit code 3"


async def test_a_node_that_does_not_answer_says_nothing_about_the_process() -> None:
    workloads = FakeWorkloads(ProviderUnreachable("gone?"), WorkloadState.RUNNING)

    found = await answer(activities(workloads), waiting())

    assert found.ready


async def test_a_replica_that_never_answers_is_too_late() -> None:
    workloads = FakeWorkloads(WorkloadState.RUNNING)
    late = activities(workloads, now=NOW + timedelta(minutes=10))
    async with web_server(500) as (port, _):
        found = await answer(late, waiting(port, path="/up"))

    assert not found.ready
    assert found.reason == "not ready 600 s after its start: GET /up answers 500"


async def test_on_paper_a_replica_is_ready_when_its_process_runs() -> None:
    workloads = FakeWorkloads(WorkloadState.PENDING, WorkloadState.RUNNING)

    found = await answer(activities(workloads, ON_PAPER), waiting(1, path="/health"))

    assert found.ready


def starting() -> StartReplicaRequest:
    return StartReplicaRequest(
        provider="here",
        replica="r1",
        generation=4,
        node=NODE,
        command=("serve",),
        sealed_env={"TOKEN": "t", "PORT": "1"},
        env={"PORT": "8000"},
    )


async def test_a_replica_is_started_with_its_own_and_with_opened_variables() -> None:
    workloads = FakeWorkloads()

    said = await ActivityEnvironment().run(activities(workloads).start_replica, starting())

    (work,) = workloads.started
    assert said.failed is None
    assert (work.name, work.generation, work.command) == ("r1", 4, ("serve",))
    assert work.env == {"TOKEN": "t", "PORT": "8000"}


async def test_what_cannot_work_on_a_node_is_an_answer() -> None:
    workloads = FakeWorkloads(InvalidSpec("docker is not installed"))

    said = await ActivityEnvironment().run(activities(workloads).start_replica, starting())

    assert said.failed == "docker is not installed"


async def test_a_node_that_does_not_answer_is_asked_again() -> None:
    workloads = FakeWorkloads(ProviderUnreachable("no answer"))

    with pytest.raises(ProviderUnreachable) as raised:
        await ActivityEnvironment().run(activities(workloads).start_replica, starting())

    assert raised.value.retryable


async def test_a_secret_that_is_missing_today_is_looked_for_again() -> None:
    def closed(env: dict[str, str]) -> dict[str, str]:
        raise InvalidSpec("there is no secret HF")

    provider = cast(Provider, SimpleNamespace(facts=LOCAL, workloads=FakeWorkloads()))
    replicas = ReplicaActivities(
        provider, open_env=closed, clock=lambda: NOW, log_dir=Path("nowhere")
    )

    with pytest.raises(InvalidSpec) as raised:
        await ActivityEnvironment().run(replicas.start_replica, starting())

    assert raised.value.retryable


STOP = StopReplicaRequest(provider="here", replica="r1", node=NODE)
SAVED = ReadReplicaLogRequest(provider="here", replica="r1")


async def test_a_replica_is_stopped_by_its_name_and_its_log_outlives_its_node(
    tmp_path: Path,
) -> None:
    workloads = FakeWorkloads()
    workloads.log = b"one\ntwo\n"
    replicas = activities(workloads, log_dir=tmp_path)

    await ActivityEnvironment().run(replicas.stop_replica, STOP)
    workloads.log = ProviderUnreachable("gone")
    whole = await ActivityEnvironment().run(replicas.read_replica_log, SAVED)
    end = SAVED.model_copy(update={"offset": -4, "node": NODE})
    last = await ActivityEnvironment().run(replicas.read_replica_log, end)

    assert workloads.stopped == ["r1"]
    assert whole == LogChunk(offset=0, data=b"one\ntwo\n", ended=True, saved=True)
    assert last == LogChunk(offset=4, data=b"two\n", ended=True, saved=True)


async def test_of_a_long_log_the_end_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garrison.activities.log_keeper.REPLICA_BYTES", 5)
    monkeypatch.setattr("garrison.activities.log_keeper.LOG_CHUNK", 2)
    workloads = FakeWorkloads()
    workloads.log = b"0123456789"
    replicas = activities(workloads, log_dir=tmp_path)

    await ActivityEnvironment().run(replicas.stop_replica, STOP)
    kept = await ActivityEnvironment().run(replicas.read_replica_log, SAVED)

    assert kept == LogChunk(offset=5, data=b"56789", ended=True, saved=True)


async def test_a_log_that_is_not_to_be_had_holds_up_no_stop(tmp_path: Path) -> None:
    workloads = FakeWorkloads()
    workloads.log = ProviderUnreachable("no answer")
    replicas = activities(workloads, log_dir=tmp_path)

    await ActivityEnvironment().run(replicas.stop_replica, STOP)

    assert workloads.stopped == ["r1"]
    with pytest.raises(NotFound, match="no log of replica r1 was kept"):
        await ActivityEnvironment().run(replicas.read_replica_log, SAVED)


async def test_a_node_that_does_not_give_its_log_holds_a_stop_up_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garrison.activities.log_keeper.SAVE_SECONDS", 0.05)
    replicas = activities(SilentLogs(), log_dir=tmp_path)

    async with asyncio.timeout(5):
        await ActivityEnvironment().run(replicas.stop_replica, STOP)

    assert not list(tmp_path.rglob("*.log"))


class SilentLogs(FakeWorkloads):
    async def read_log(self, node: Node, name: str, *, offset: int, limit: int) -> LogChunk:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")
