"""The watch of a load on a real server: a router's counts move a deployment's count."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from garrison.activities.loads import TemporalLoads, load_watch_id
from garrison.models.deployment import AutoscaleConfig, LoadKind
from garrison.models.load import LoadWatchStatus, WakeRequest
from garrison.models.queues import TASK_QUEUE
from garrison.workers.main import now_utc
from garrison.workflows.load_watch import LoadWatchWorkflow
from tests.workflows.conftest import SOON, Story
from tests.workflows.stub_pool import DeploymentStory

KNOBS = AutoscaleConfig(
    max_replicas=3,
    traffic_history=timedelta(seconds=60),
    scale_up_delay=timedelta(0),
    scale_down_delay=timedelta(seconds=1),
    scale_to_zero_delay=timedelta(seconds=1),
    concurrency=10,
)


class PaperRouter:
    """Tells counts that a test sets, and keeps what it is told."""

    def __init__(self) -> None:
        self.deployments: dict[str, dict[str, float]] = {}
        self.told: list[dict[str, Any]] = []
        router = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer({"router": "paper", "deployments": router.deployments})

            def do_PUT(self) -> None:
                length = int(self.headers["content-length"])
                router.told.append(json.loads(self.rfile.read(length)))
                self.answer({"router": "paper"})

            def answer(self, said: dict[str, Any]) -> None:
                body = json.dumps(said).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def count(self, deployment: str, running: float, arrivals: float) -> None:
        counts = {"running": running, "queued": 0, "arrivals": arrivals}
        self.deployments[deployment] = {**counts, "completions": arrivals - running}


@pytest.fixture
def router() -> Iterator[PaperRouter]:
    paper = PaperRouter()
    thread = Thread(target=paper.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield paper
    paper.server.shutdown()
    thread.join()
    paper.server.server_close()


@pytest.fixture
async def deployed(story: Story, router: PaperRouter) -> AsyncIterator[DeploymentStory]:
    interval = timedelta(milliseconds=100)
    changes = {"load_interval": interval, "load_interval_busy": interval}
    story.parts = dataclasses.replace(
        story.parts,
        settings=story.settings.model_copy(update=changes),
        routers=(router.address,),
    )
    deployed = DeploymentStory(story)
    deployed.ids.append(load_watch_id(LoadKind.ROUTER))
    yield deployed
    await deployed.end()


async def test_a_deployment_follows_what_a_router_counts_down_to_nothing(
    deployed: DeploymentStory, router: PaperRouter
) -> None:
    async with deployed.working():
        await deployed.pool("a", await deployed.buy(2))
        await deployed.create(deployed.spec("a", autoscale=KNOBS))
        await deployed.handle.signal("wake", WakeRequest(asked_at=now_utc()))
        await deployed.until(lambda one: one.ready == 1)
        router.count(deployed.name, running=15, arrivals=15)
        busy = await deployed.until(lambda one: one.ready == 2)
        router.count(deployed.name, running=0, arrivals=15)
        idle = await deployed.until(lambda one: not one.replicas)

    assert "; demand 1.5" in busy.reason
    assert busy.demand == 1.5
    assert idle.reason.startswith("down: replica 1 unneeded for ")
    last = router.told[-1]
    assert [one["state"] for one in router.told[-1]["replicas"]] in ([], ["draining"])
    assert last["uid"] == deployed.uid
    assert all(one["id"] == deployed.name for one in router.told)


async def test_a_watch_that_was_ended_by_hand_learns_again_whom_to_follow(
    deployed: DeploymentStory, router: PaperRouter
) -> None:
    loads = TemporalLoads(deployed.client, task_queue=TASK_QUEUE, heartbeat=timedelta(seconds=10))
    watch = deployed.client.get_workflow_handle(load_watch_id(LoadKind.ROUTER))

    async def follows() -> bool:
        said: LoadWatchStatus = await watch.query(LoadWatchWorkflow.get)
        return deployed.name in said.followed

    async with deployed.working(), asyncio.timeout(SOON.total_seconds()):
        await deployed.create(deployed.spec("a", autoscale=KNOBS))
        while not await follows():
            await asyncio.sleep(0.05)
        await watch.terminate("by hand")
        await loads.start(LoadKind.ROUTER)
        while not await follows():
            await asyncio.sleep(0.05)
