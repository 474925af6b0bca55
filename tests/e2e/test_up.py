"""`garrison up` and `garrison worker` as a person runs them: real processes, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from garrison.cli.app import run
from garrison.failures import DATA_CONVERTER
from garrison.providers.simulated.console import SimulatedConsole
from garrison.service import is_alive, missing_search_attributes
from garrison.workers.server_process import ServerPlan, spawn_server
from garrison.workflows.visibility import ALL_KEYS, KIND, PHASE
from tests.workers.installation import Installation, Running, eventually, free_ports


@dataclass(frozen=True)
class Served:
    """An installation that `garrison up` serves, for tests that leave it as it is."""

    installation: Installation
    up: Running
    metrics_port: int


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    installation = Installation(tmp_path_factory.mktemp("served") / "data")
    (port,) = free_ports(1)
    up = installation.serving("--metrics-port", str(port))
    yield Served(installation, up, port)
    installation.close()


def _garrison(
    installation: Installation, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "garrison.cli.app", *arguments],
        env={**installation.environment, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def _client(installation: Installation) -> Client:
    return await Client.connect(installation.record.address, data_converter=DATA_CONVERTER)


async def _pretend_cluster(client: Client, name: str, phase: str, hourly_usd: str) -> None:
    await client.start_workflow(
        "Cluster",
        id=f"cluster/{name}",
        task_queue="nobody",
        memo={"uid": name, "hourly_usd": hourly_usd},
        search_attributes=TypedSearchAttributes(
            [SearchAttributePair(KIND, "cluster"), SearchAttributePair(PHASE, phase)]
        ),
    )


@contextlib.contextmanager
def _plain_server(installation: Installation) -> Iterator[str]:
    """A server as somebody else runs one: it knows nothing of us."""
    folder = installation.folder.with_name("plain")
    folder.mkdir()
    plan = ServerPlan(installation.port, installation.ui_port, "default")
    server = spawn_server(plan, folder, folder / "log")
    try:
        eventually("the server listens", lambda: _listens(installation.port))
        yield f"127.0.0.1:{installation.port}"
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_up_serves_tells_where_and_ends_with_nothing_left(
    installation: Installation,
) -> None:
    up = installation.serving()

    assert f"http://127.0.0.1:{installation.ui_port}" in up.out
    assert "local (this machine), simulated (on paper)" in up.out
    assert f"GARRISON_DATA_DIR='{installation.folder}'" in up.out
    client = await _client(installation)
    namespace = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace="default")
    )
    assert namespace.config.workflow_execution_retention_ttl.ToTimedelta().days == 90
    assert await missing_search_attributes(client, ALL_KEYS) == ()
    server = installation.record.server

    up.signal(signal.SIGINT)

    assert up.status() == 0
    assert up.out.splitlines()[-1] == "nothing goes on costing money"
    assert "ERROR" not in up.err
    assert "Traceback" not in up.err
    assert not is_alive(server)
    assert installation.servers() == []
    assert not (installation.folder / "up.json").exists()


def test_a_cluster_goes_on_while_up_is_away_and_can_be_ended_by_the_next(
    installation: Installation,
) -> None:
    installation.folder.mkdir(mode=0o700)
    (installation.folder / "garrison.yaml").write_text("watch_interval_busy: 0.3\n")
    first = installation.serving()
    shape = ("--name", "hello", "--provider", "simulated", "--nodes", "2", "--gpus-per-node", "0")
    bought = _garrison(installation, "cluster", "up", *shape, "--yes")
    assert bought.returncode == 0, bought.stderr

    first.signal(signal.SIGINT)
    assert first.status() == 0
    last = first.out.splitlines()[-1]
    assert re.fullmatch(
        r"1 cluster goes on at 0\.\d+ USD/h; its guard pauses until `garrison up` \(simulated\)",
        last,
    )
    cloud = SimulatedConsole(installation.folder / "simulated.db")
    assert len(cloud.inventory()) == 2

    second = installation.serving()
    ended = _garrison(installation, "cluster", "terminate", "hello", "--yes", "--wait")
    assert ended.returncode == 0, ended.stderr
    assert cloud.inventory() == []
    second.signal(signal.SIGINT)
    assert second.status() == 0
    assert second.out.splitlines()[-1] == "nothing goes on costing money"


def test_a_second_up_on_the_directory_is_refused(served: Served) -> None:
    second = served.installation.up()

    assert second.status() == 5
    assert second.err.startswith("error: port_taken: ")
    assert f"pid {served.up.process.pid}" in second.err
    assert served.installation.record.address in second.err
    assert not served.up.ended


def test_a_port_of_another_program_is_named_with_the_remedy(installation: Installation) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", installation.port))
        other.listen()

        up = installation.up()

        assert up.status() == 5
    assert up.err == (
        f"error: port_taken: another program listens on port {installation.port}; "
        "choose another with --port\n"
    )


def test_a_taken_metrics_port_starts_nothing(installation: Installation) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        up = installation.up("--metrics-port", str(other.getsockname()[1]))

        assert up.status() == 5
    assert "--metrics-port" in up.err
    assert not (installation.folder / "temporal.db").exists()


@pytest.mark.parametrize("port", ["0", "65536", "-1", "ssh"])
def test_what_is_no_port_is_a_usage_error(
    port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GARRISON_DATA_DIR", str(tmp_path / "data"))

    status = run(["up", "--port", port])

    assert status == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "data").exists()


def test_a_file_in_the_place_of_the_data_directory_is_refused(installation: Installation) -> None:
    installation.folder.touch()

    up = installation.up()

    assert up.status() == 2
    assert "Traceback" not in up.err
    assert str(installation.folder) in up.err


async def test_an_up_after_one_killed_takes_its_server_over(installation: Installation) -> None:
    first = installation.serving()
    server = installation.record.server
    first.kill()

    second = installation.serving()

    assert "taken over" in second.out
    assert installation.record.server == server
    assert installation.record.up.pid == second.process.pid


async def test_an_up_after_everything_was_killed_says_what_still_goes_on_costing_money(
    installation: Installation,
) -> None:
    first = installation.serving()
    client = await _client(installation)
    await _pretend_cluster(client, "a", "running", "50.00")
    await _pretend_cluster(client, "b", "degraded", "40.56")
    await _pretend_cluster(client, "c", "launching", "4")
    await _pretend_cluster(client, "d", "quoted", "1000")
    first.kill()
    os.kill(installation.record.server.pid, signal.SIGKILL)

    second = installation.serving()
    second.signal(signal.SIGTERM)

    assert second.status() == 0
    assert second.out.splitlines()[-1] == (
        "3 clusters go on at 94.56 USD/h; their guards pause until `garrison up`"
    )


def test_an_up_whose_server_dies_says_so_and_fails(installation: Installation) -> None:
    up = installation.serving()

    os.kill(installation.record.server.pid, signal.SIGKILL)

    assert up.status() == 5
    assert "error: service_unreachable: the Temporal server" in up.err
    assert not (installation.folder / "up.json").exists()


def test_a_second_interrupt_ends_everything_at_once(installation: Installation) -> None:
    up = installation.serving()
    server = installation.record.server

    # The two of one kind would be merged while the process has not looked yet.
    up.signal(signal.SIGINT)
    up.signal(signal.SIGTERM)

    assert up.status() == 130
    assert not is_alive(server)


def test_a_signal_during_the_start_leaves_no_server(installation: Installation) -> None:
    up = installation.up()
    eventually("a server begins", installation.servers)

    up.signal(signal.SIGTERM)

    assert up.status() == 0
    assert installation.servers() == []
    assert not (installation.folder / "up.json").exists()


def test_prometheus_gets_the_metrics_of_the_workers(served: Served) -> None:
    url = f"http://127.0.0.1:{served.metrics_port}/metrics"

    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()

    assert "temporal_worker_start" in text


def test_a_worker_serves_the_queues_it_was_given(served: Served) -> None:
    worker = served.installation.start("worker", "--queue", "provider-simulated")
    eventually("the worker serves", lambda: "Ctrl-C" in worker.out or worker.ended)
    assert "serving provider-simulated of" in worker.out
    worker.signal(signal.SIGTERM)

    assert worker.status() == 0
    assert worker.err == ""


def test_a_worker_without_a_service_says_what_to_do(installation: Installation) -> None:
    (nobody,) = free_ports(1)
    env = {**installation.environment, "TEMPORAL_ADDRESS": f"127.0.0.1:{nobody}"}

    worker = installation.start("worker", env=env)

    assert worker.status() == 5
    assert worker.err.startswith("error: service_unreachable: no Temporal Service answers")
    assert "garrison up" in worker.err


def test_a_worker_on_a_namespace_without_the_attributes_names_the_remedy(
    installation: Installation,
) -> None:
    with _plain_server(installation) as address:
        env = {"TEMPORAL_ADDRESS": address}
        worker = installation.start("worker", env={**installation.environment, **env})
        assert worker.status() == 1
        assert "garrison doctor --register" in worker.err

        registered = _garrison(installation, "doctor", "--register", **env)
        assert "registered GarrisonKind" in registered.stdout

        second = installation.start("worker", env={**installation.environment, **env})
        eventually("the worker serves", lambda: "Ctrl-C" in second.out or second.ended)
        assert not second.ended, second.err


def test_doctor_finds_everything_in_order_while_up_serves(served: Served) -> None:
    told: list[str] = []

    def healthy() -> bool:
        asked = _garrison(served.installation, "doctor", "-o", "json")
        told.append(asked.stdout)
        return asked.returncode == 0

    eventually("doctor is content", healthy)
    answer = json.loads(told[-1])
    assert answer["ok"] is True
    names = {check["name"] for check in answer["checks"]}
    assert {"service", "namespace", "search attributes", "queue watch", "sealing key"} <= names


def test_doctor_without_a_service_exits_with_5_and_names_the_remedy(
    installation: Installation,
) -> None:
    (nobody,) = free_ports(1)

    told = _garrison(installation, "doctor", TEMPORAL_ADDRESS=f"127.0.0.1:{nobody}")

    assert told.returncode == 5
    assert re.search(r"^service +fail .*garrison up", told.stdout, re.MULTILINE)


def test_version_knows_the_server_only_while_there_is_one(served: Served) -> None:
    (nobody,) = free_ports(1)

    def version(**env: str) -> Any:
        asked = _garrison(served.installation, "version", "-o", "json", **env)
        return json.loads(asked.stdout)["server"]

    assert version(TEMPORAL_ADDRESS=f"127.0.0.1:{nobody}") is None
    assert re.fullmatch(r"1\.\d+\.\d+.*", version())
