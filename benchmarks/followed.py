"""Deployments at rest behind a router, at zero and with a replica: what it costs to follow them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

from benchmarks.elastic import Estate, Size
from benchmarks.figures import Figure
from benchmarks.idle import Window, rest_figures, watch
from benchmarks.installation import Installation, installed
from garrison.activities.loads import load_watch_id
from garrison.models.deployment import LoadKind
from garrison.models.load import LoadWatchReport
from garrison.router.config import router_config
from garrison.router.directory import TemporalDirectory
from garrison.router.router import Router

UP = 10
"""One in so many has a replica, which is held; the others are at zero, where the load decides."""


async def measure(
    *, deployments: int, settle: float, window: float, say: Callable[[str], None]
) -> list[Figure]:
    """Return the figures of deployments that nobody sends anything.

    Args:
        deployments: How many.
        settle: Seconds from the last start to the window of rest.
        window: Seconds.
        say: Prints progress.
    """
    size = Size(pools=5, deployments=deployments, replicas=1, port=8000)
    async with installed(router={"port": _free_port()}) as installation:
        directory = TemporalDirectory(installation.client)
        worker = await installation.worker()
        async with Router.serving(router_config(installation.settings), directory):
            await asyncio.sleep(min(settle, 30))
            empty, rss = await watch(installation, worker, window), worker.rss
            say(f"idle server {empty.server:.2f} %, worker {empty.worker:.2f} %")
            estate = Estate(installation, worker, size, "rest")
            created = await estate.create()
            up = estate.deployments[::UP]
            await estate.scale(up, 1, nodes=len(up))
            say(f"{deployments} deployments after {created:.1f} s, {len(up)} with a replica")
            await asyncio.sleep(settle)
            before = await estate.events()
            full = await watch(installation, worker, window)
            events = await estate.events() - before
            report = await _until_followed(installation, deployments)
            each = (worker.rss - rss) / deployments / 1000
            end = await estate.end()
        say(f"at rest: {full}, {events} events; {report.followed} followed; {end.seconds:.1f} s")
    return _figures(size, empty, full, events, each, report, end.stuck + end.machines)


async def _until_followed(installation: Installation, deployments: int) -> LoadWatchReport:
    """Return what the observer of the load last said of itself, once it follows all."""
    handle = installation.client.get_workflow_handle(load_watch_id(LoadKind.ROUTER))
    converter = installation.client.data_converter
    until = time.monotonic() + 60
    while True:
        found = await handle.describe()
        for pending in found.raw_description.pending_activities:
            [said] = await converter.decode(pending.heartbeat_details.payloads)
            report = LoadWatchReport.model_validate(said)
            if report.followed == deployments or time.monotonic() > until:
                return report
        await asyncio.sleep(1)


def _figures(
    size: Size,
    empty: Window,
    full: Window,
    events: int,
    each: float,
    report: LoadWatchReport,
    left: int,
) -> list[Figure]:
    count = size.deployments
    return [
        *rest_figures(f"{count} deployments at rest behind a router", empty, full),
        Figure("the same: worker memory above an empty worker", each, "kB a deployment", goal=80),
        Figure("the same: history events in the window", events, goal=0, detail="of all of them"),
        Figure(
            "the same: not followed, or of unknown load",
            count - report.followed + report.missing,
            goal=0,
            detail=f"what is remembered of all: {len(report.memories) / 1000:.0f} kB a heartbeat",
        ),
        Figure("the same, all deleted: stuck, or machines left", left, goal=0),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
