"""The embedded server: started, taken over, refused, ended; real processes on free ports."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from temporalio.client import Client

from garrison.errors import InvalidSpec, PortTaken, ServiceUnreachable
from garrison.service import is_alive, read_up_record, running_server
from garrison.workers.embedded import EmbeddedServer, Ports
from garrison.workers.server_file import DATABASE, ServerFile
from garrison.workers.server_process import ServerPlan, check_port, find_server, spawn_server
from tests.workers.installation import Installation, free_ports


@pytest.fixture
def folder(installation: Installation) -> Path:
    installation.folder.mkdir(mode=0o700)
    return installation.folder


@pytest.fixture
async def server(installation: Installation, folder: Path) -> AsyncIterator[EmbeddedServer]:
    made = _server(installation)
    yield made
    made.kill()


def _server(
    installation: Installation,
    *,
    frontend: int | None = None,
    ui: int | None = None,
    patience: timedelta = timedelta(seconds=10),
) -> EmbeddedServer:
    return EmbeddedServer(
        installation.folder,
        Ports(frontend or installation.port, ui or installation.ui_port),
        namespace="default",
        adopt_patience=patience,
        stop_patience=patience,
    )


async def _start_something(client: Client, name: str) -> None:
    await client.start_workflow("Nothing", id=name, task_queue="nobody")


async def _connected(server: EmbeddedServer) -> Client:
    return await Client.connect(server.record.address)


async def test_a_started_server_answers_and_is_recorded_for_its_owner_alone(
    server: EmbeddedServer, folder: Path
) -> None:
    await server.start()

    await _start_something(await _connected(server), "one")
    record = running_server(folder)
    assert record == server.record
    assert record.up.pid == os.getpid()
    assert not server.adopted
    for name in ("up.json", "temporal.log", DATABASE):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


async def test_the_server_is_in_a_session_of_its_own(server: EmbeddedServer) -> None:
    await server.start()

    assert os.getsid(server.record.server.pid) == server.record.server.pid


async def test_a_stopped_server_leaves_no_process_no_zombie_and_no_record(
    server: EmbeddedServer, folder: Path
) -> None:
    await server.start()
    pid = server.record.server.pid

    await server.stop()

    assert not psutil.pid_exists(pid)
    assert read_up_record(folder) is None


async def test_a_server_left_alive_is_taken_over_with_all_that_it_holds(
    server: EmbeddedServer, installation: Installation
) -> None:
    await server.start()
    await _start_something(await _connected(server), "one")

    heir = _server(installation)
    await heir.start()

    assert heir.adopted
    assert heir.record.server == server.record.server
    await (await _connected(heir)).get_workflow_handle("one").describe()
    await heir.stop()
    assert installation.servers() == []


async def test_without_ports_a_server_is_taken_over_on_the_ports_it_has(
    server: EmbeddedServer, installation: Installation
) -> None:
    await server.start()

    heir = EmbeddedServer(installation.folder, Ports(), namespace="default")
    await heir.start()

    assert heir.adopted
    assert heir.record.port == installation.port


async def test_a_server_on_other_ports_than_asked_for_is_started_anew_on_the_same_file(
    server: EmbeddedServer, installation: Installation
) -> None:
    await server.start()
    await _start_something(await _connected(server), "one")
    (port,) = free_ports(1)

    moved = _server(installation, frontend=port)
    await moved.start()

    assert not moved.adopted
    assert moved.record.port == port
    await (await _connected(moved)).get_workflow_handle("one").describe()
    assert len(installation.servers()) == 1
    await moved.stop()


async def test_a_server_that_nobody_recorded_is_found_and_taken_over(
    server: EmbeddedServer, installation: Installation, folder: Path
) -> None:
    await server.start()
    (folder / "up.json").unlink()

    heir = _server(installation)
    await heir.start()

    assert heir.adopted
    assert heir.record.server == server.record.server


async def test_a_server_that_was_told_to_end_is_not_taken_over(
    server: EmbeddedServer, installation: Installation, folder: Path
) -> None:
    await server.start()
    stopping = server.record.replace(stopping=True)
    (folder / "up.json").write_text(stopping.model_dump_json())

    heir = _server(installation)
    await heir.start()

    assert not heir.adopted
    assert not is_alive(stopping.server)
    await heir.stop()


async def test_a_frozen_server_is_killed_and_replaced(
    server: EmbeddedServer, installation: Installation
) -> None:
    await server.start()
    frozen = server.record.server
    os.kill(frozen.pid, signal.SIGSTOP)

    heir = _server(installation, patience=timedelta(seconds=0.5))
    await heir.start()

    assert not heir.adopted
    assert not is_alive(frozen)
    await heir.stop()


async def test_what_was_acknowledged_outlives_a_killed_server(
    server: EmbeddedServer, installation: Installation
) -> None:
    await server.start()
    client = await _connected(server)
    for number in range(5):
        await _start_something(client, f"life-{number}")

    server.kill()
    again = _server(installation)
    await again.start()

    client = await _connected(again)
    for number in range(5):
        await client.get_workflow_handle(f"life-{number}").describe()
    await again.stop()


async def test_a_server_killed_in_its_very_first_start_leaves_no_file_that_is_used(
    installation: Installation, folder: Path
) -> None:
    ServerFile(folder).prepare()
    plan = ServerPlan(installation.port, installation.ui_port, "default")
    child = spawn_server(plan, folder, folder / "temporal.log")
    while not (folder / DATABASE).exists():
        await asyncio.sleep(0.001)
    child.kill()
    child.wait()

    server = _server(installation)
    await server.start()

    assert (folder / f"unfinished-{DATABASE}").exists()
    await _start_something(await _connected(server), "one")
    await server.stop()


async def test_a_file_on_which_a_server_answered_is_never_put_aside(
    server: EmbeddedServer, folder: Path
) -> None:
    await server.start()

    server.kill()
    ServerFile(folder).prepare()

    assert (folder / DATABASE).exists()
    assert not list(folder.glob("unfinished-*"))


@pytest.mark.parametrize("option", ["--port", "--ui-port"])
async def test_a_port_of_another_program_is_refused_with_the_remedy(
    option: str, server: EmbeddedServer, installation: Installation
) -> None:
    taken = installation.port if option == "--port" else installation.ui_port
    with socket.socket() as other:
        other.bind(("127.0.0.1", taken))
        other.listen()

        with pytest.raises(PortTaken, match=f"{taken}.*{option}"):
            await server.start()

    assert installation.servers() == []


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(InvalidSpec, match="from 1 to 65535"):
        check_port(port, "--port")


async def test_one_port_for_both_is_refused(installation: Installation, folder: Path) -> None:
    server = _server(installation, ui=installation.port)

    with pytest.raises(InvalidSpec, match="both"):
        await server.start()


async def test_a_start_that_is_cancelled_leaves_no_server(
    server: EmbeddedServer, installation: Installation, folder: Path
) -> None:
    start = asyncio.ensure_future(server.start())
    while find_server(folder) is None:
        await asyncio.sleep(0.001)

    start.cancel()
    await asyncio.wait({start})

    assert start.cancelled()
    assert installation.servers() == []
    assert read_up_record(folder) is None


async def test_a_server_that_cannot_use_its_file_fails_with_the_end_of_its_log(
    server: EmbeddedServer, installation: Installation, folder: Path
) -> None:
    (folder / DATABASE).write_text("this is no database, and somebody else wrote it here")

    with pytest.raises(ServiceUnreachable, match="file is not a database"):
        await server.start()

    assert installation.servers() == []
    assert read_up_record(folder) is None


async def test_the_end_of_a_killed_server_is_noticed(server: EmbeddedServer) -> None:
    await server.start()
    ended = asyncio.ensure_future(server.ended())

    os.kill(server.record.server.pid, signal.SIGKILL)

    await asyncio.wait_for(ended, 5)
    assert not server.running
