"""A deployment at zero behind the router, as people meet it: real processes, real requests."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from temporalio.client import Client

from garrison.client.garrison import Garrison
from garrison.failures import DATA_CONVERTER
from garrison.models.deployment import DeploymentStatus
from garrison.settings import load_settings
from tests.workers.installation import Installation, Running, eventually

SERVER = """
import http.server, os, pathlib, time

class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path != "/healthz":
            with open(os.environ["JOURNAL"], "a") as journal:
                journal.write(self.path + "\\n")
            time.sleep(float(os.environ.get("TAKES", "0.02")))
        body = os.environ["GARRISON_REPLICA"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *words):
        pass

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 512

Server((os.environ["HOST"], int(os.environ["PORT"])), Answer).serve_forever()
"""

PATIENCE = 40.0


class World:
    """An installation with the one deployment `web`, on processes of this machine."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self.installation = installation
        self.folder = folder
        self.journal = folder / "journal"
        self.journal.touch()
        self.base = f"http://127.0.0.1:{installation.router_port}"

    def write(self, **autoscale: Any) -> Path:
        """Write all files; return where they are."""
        files = self.folder / "files"
        files.mkdir()
        program = self.folder / "server.py"
        program.write_text(SERVER)
        knobs = {"min_replicas": 0, "max_replicas": 3, **autoscale}
        (files / "place.yaml").write_text(
            "compute_cluster: {id: here, cloud_provider: {id: local}, region: local}\n"
        )
        (files / "pool.yaml").write_text(
            textwrap.dedent(
                """
                nodepool:
                  id: processes
                  compute_cluster: {id: here}
                  instance_types: [{id: local}]
                  min_instances: 0
                  max_instances: 2
                  release_after_seconds: 1
                """
            )
        )
        (files / "web.yaml").write_text(
            textwrap.dedent(
                f"""
                deployment:
                  id: web
                  worker:
                    command: "exec {sys.executable} {program}"
                    port: 8000
                    env: {{JOURNAL: "{self.journal}", TAKES: "0.02"}}
                    resources: {{cpu: 100m, memory: 32Mi}}
                    health: {{path: /healthz, start_timeout: 30, interval: 1}}
                  drain_timeout_seconds: 5
                  autoscale_config: {json.dumps(knobs)}
                  scheduling_choice: 4
                  nodepools: [{{id: processes, compute_cluster: {{id: here}}}}]
                """
            )
        )
        return files

    async def apply(self, **autoscale: Any) -> None:
        """Make everything by the command line, and connect."""
        running = self.installation.start("apply", "-f", str(self.write(**autoscale)), "--yes")
        assert running.status() == 0, running.err
        client = await Client.connect(
            self.installation.record.address, data_converter=DATA_CONVERTER
        )
        self.garrison = Garrison(client, load_settings(self.installation.environment))

    async def until(self, claim: Callable[[DeploymentStatus], bool]) -> DeploymentStatus:
        """Return the first status of which a claim is true."""
        async with asyncio.timeout(PATIENCE):
            while not claim(status := await self.garrison.deployments.get("web")):
                await asyncio.sleep(0.05)
        return status

    async def without_machines(self) -> None:
        """Return once the nodepool has none, and no machine of the provider is left."""
        async with asyncio.timeout(PATIENCE):
            while (await self.garrison.nodepools.get("here", "processes")).nodes:
                await asyncio.sleep(0.05)

    @property
    def served(self) -> list[str]:
        return self.journal.read_text().splitlines()


@pytest.fixture
async def world(installation: Installation, tmp_path: Path) -> AsyncIterator[World]:
    installation.folder.mkdir(mode=0o700)
    settings = "load_interval: 0.5\nload_interval_busy: 0.5\nheartbeat_timeout: 6\n"
    (installation.folder / "garrison.yaml").write_text(settings)
    yield World(installation, tmp_path)
    for process in psutil.process_iter(["cmdline"]):
        if str(tmp_path) in " ".join(process.info["cmdline"] or ()):
            process.kill()


async def _ask(client: httpx.AsyncClient, path: str) -> int:
    return (await client.get(path)).status_code


async def _from_zero(world: World, count: int, name: str) -> list[int]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=world.base, timeout=PATIENCE, limits=limits) as client:
        asked = (_ask(client, f"/web/{name}-{number}") for number in range(count))
        return await asyncio.gather(*asked)


async def test_requests_at_zero_are_held_and_answered_and_all_is_given_back_once(
    world: World,
) -> None:
    world.installation.serving()
    await world.apply(scale_to_zero_delay_seconds=3, scale_down_delay_seconds=1, concurrency=1000)

    many = await _from_zero(world, 200, "many")
    ended = await world.until(lambda one: not one.replicas)
    await world.without_machines()

    assert many == [200] * 200
    assert sorted(world.served) == sorted(f"/many-{number}" for number in range(200))
    scaled = [event.message for event in ended.events if event.reason == "Scaled"]
    assert len(scaled) == 2
    assert "0 -> 1 replicas: wake: a request is waiting" in scaled[0]
    assert "1 -> 0 replicas: down: replica 1 unneeded" in scaled[1]
    assert not _processes(world)


def _router(world: World) -> Running:
    port = str(world.installation.router_port)
    running = world.installation.start("router", "--port", port)
    eventually("the router serves", lambda: "Ctrl-C" in running.out or running.ended)
    assert not running.ended, running.err
    return running


async def test_killed_worker_router_and_replica_lose_no_request_that_could_be_repeated(
    world: World,
) -> None:
    up = world.installation.serving("--router-port", "0")
    router = _router(world)
    await world.apply(max_replicas=1)

    # The worker dies while the first requests wait for the first replica.
    held = asyncio.create_task(_from_zero(world, 20, "held"))
    await world.until(lambda one: one.desired == 1)
    up.kill()
    world.installation.serving("--router-port", "0")
    answered = await held

    # A replica dies under load.
    loaded = asyncio.create_task(_from_zero(world, 300, "load"))
    while len(world.served) < 60:
        await asyncio.sleep(0.01)
    _processes(world)[0].kill()
    under_load = await loaded

    # The router dies, and with it what it carried; its successor knows all.
    router.kill()
    _router(world)
    after = await _from_zero(world, 3, "after")

    assert answered == [200] * 20
    assert {f"/held-{number}" for number in range(20)} <= set(world.served)
    assert under_load == [200] * 300
    assert after == [200] * 3
    assert (await world.garrison.deployments.get("web")).desired == 1


def _processes(world: World) -> list[psutil.Process]:
    """Return the replicas' own processes."""
    program = str(world.folder / "server.py")
    found = [
        process
        for process in psutil.process_iter(["cmdline"])
        if program in (process.info["cmdline"] or ())
    ]
    return sorted(found, key=lambda process: process.pid)
