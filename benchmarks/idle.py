"""A large healthy fleet that nobody touches: CPU, memory, events, lists, provider calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalio.client import Client

from benchmarks.arms import GarrisonArm, all_at_once, live
from benchmarks.figures import Figure, median, spread
from benchmarks.installation import Installation, installed, raw_arm
from benchmarks.processes import WorkerProcess
from garrison.activities.owners import PAGE
from garrison.workflows.watch_report import read_report

AT_ONCE = 24
LISTS = 5
RAW_SHARE = 4
"""Of the fleet's size is that of the raw one, whose memory is all that is looked at."""

WATCHED = 20
"""Clusters whose histories are compared over the window."""


@dataclass(frozen=True, slots=True)
class Window:
    """What a stretch of time with nothing to do has used.

    Attributes:
        server: Percent of one core.
        worker: The same.
        passes: Complete passes of the watch that were seen to end.
        lists: List calls that the provider received.
    """

    server: float
    worker: float
    passes: int
    lists: int


async def measure(
    *, clusters: int, nodes: int, settle: float, window: float, say: Callable[[str], None]
) -> list[Figure]:
    """Return the figures of an idle fleet.

    Args:
        clusters: How many.
        nodes: Of each.
        settle: Seconds from the last start to the window.
        window: Seconds.
        say: Prints progress.
    """
    async with installed() as installation:
        worker = await installation.worker()
        arm = GarrisonArm(installation.client, installation.settings, nodes=nodes)
        await live(arm, "warm-up")
        await asyncio.sleep(min(settle, 30))
        empty = await watch(installation, worker, window)
        rss = worker.rss
        say(f"idle server {empty.server:.2f} %, worker {empty.worker:.2f} %, {rss >> 20} MiB")
        names = [f"f{i}" for i in range(clusters)]
        began = time.monotonic()
        await all_at_once(arm.begin, names, at_once=AT_ONCE)
        say(f"{clusters} clusters of {nodes} nodes run after {time.monotonic() - began:.0f} s")
        await asyncio.sleep(settle)
        lengths = await _lengths(arm, names[:WATCHED])
        full = await watch(installation, worker, window)
        grown = await _lengths(arm, names[:WATCHED])
        per_cluster = (worker.rss - rss) / clusters / 1000
        say(f"idle fleet: server {full.server:.2f} %, worker {full.worker:.2f} %")
        listed = await _list(installation, arm, clusters)
        raw = await _raw_memory(installation, arm, clusters // RAW_SHARE)
        return [
            *rest_figures(f"idle fleet of {clusters} clusters", empty, full),
            Figure(
                "the same: worker memory above an empty worker",
                per_cluster,
                "kB a cluster",
                goal=80,
                detail=f"{nodes} nodes each; a raw workflow takes {raw:.0f} kB",
            ),
            Figure(
                "the same: history events in the window",
                sum(grown) - sum(lengths),
                goal=0,
                detail=f"of {len(lengths)} clusters, {window:g} s",
            ),
            *listed,
            Figure(
                "provider list calls per watch pass",
                full.lists / full.passes if full.passes else float("nan"),
                goal=1,
                detail=f"{full.lists} calls, {full.passes} passes, {clusters * nodes} nodes "
                f"in {clusters} clusters",
            ),
        ]


def rest_figures(what: str, empty: Window, full: Window) -> list[Figure]:
    """Return what something that rests takes above the same server and worker without it."""
    return [
        Figure(
            f"{what}: server CPU above an idle server",
            full.server - empty.server,
            "points of a core",
            goal=3,
            detail=f"{full.server:.2f} %, idle {empty.server:.2f} %",
        ),
        Figure(
            "the same: worker CPU above an idle worker",
            full.worker - empty.worker,
            "points of a core",
            detail=f"{full.worker:.2f} %, idle {empty.worker:.2f} %",
        ),
    ]


async def _raw_memory(installation: Installation, like: GarrisonArm, lives: int) -> float:
    """Return how many kB a raw workflow takes that waits as a running cluster does."""
    await installation.take_sample(like)
    raw = raw_arm(installation, like)
    worker = await installation.worker(raw.name)
    await live(raw, "warm-up")
    before = worker.rss
    await all_at_once(raw.begin, [f"f{i}" for i in range(lives)], at_once=AT_ONCE)
    return (worker.rss - before) / lives / 1000


async def watch(installation: Installation, worker: WorkerProcess, window: float) -> Window:
    """Watch everything for a while, from the end of a pass on."""
    await _next_pass(installation.client, None)
    calls = len(installation.console.calls("list"))
    before = installation.server_cpu, worker.cpu, time.monotonic()
    seen = await _next_pass(installation.client, None)
    passes = 0
    while time.monotonic() - before[2] < window:
        ended = await _next_pass(installation.client, seen)
        passes, seen = passes + 1, ended
    after = installation.server_cpu, worker.cpu, time.monotonic()
    server, mine, took = (b - a for a, b in zip(before, after, strict=True))
    lists = len(installation.console.calls("list")) - calls
    return Window(server / took * 100, mine / took * 100, passes, lists)


async def _next_pass(client: Client, after: datetime | None) -> datetime:
    """Return when a pass ended, as soon as one has after a time; asks as little as it can."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        report = await read_report(client, "simulated")
        if report is not None and report.passed_at is not None and report.passed_at != after:
            return report.passed_at
        await asyncio.sleep(1)
    raise RuntimeError("the watch made no pass within two minutes")


async def _lengths(arm: GarrisonArm, names: list[str]) -> list[int]:
    return [(await arm.handle(name).describe()).history_length for name in names]


async def _list(installation: Installation, arm: GarrisonArm, clusters: int) -> list[Figure]:
    counted = _count_lists(installation.client)
    taken = []
    rows = 0
    for _ in range(LISTS):
        began = time.monotonic()
        rows = len(await arm.clusters.list())
        taken.append(time.monotonic() - began)
    pages = -(-clusters // PAGE)
    if rows != clusters:
        raise RuntimeError(f"{rows} of {clusters} clusters are listed")
    return [
        Figure(f"list of {rows} clusters", median(taken), "s", goal=1, detail=spread(taken, "s")),
        Figure(
            "visibility queries per page of a list",
            counted() / LISTS / pages,
            goal=1,
            detail=f"{counted()} queries, {LISTS} lists, {pages} pages of {PAGE}",
        ),
    ]


def _count_lists(client: Client) -> Callable[[], int]:
    """Count the list requests that this client sends from now on."""
    service: Any = client.workflow_service
    send = service.list_workflow_executions
    sent = 0

    async def counting(*args: Any, **options: Any) -> Any:
        nonlocal sent
        sent += 1
        return await send(*args, **options)

    service.list_workflow_executions = counting
    return lambda: sent
