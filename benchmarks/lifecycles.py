"""Whole lives beside raw workflows: throughput, CPU, events, acknowledgements."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.arms import Arm, GarrisonArm, all_at_once, live
from benchmarks.figures import Figure, median, ratio, spread
from benchmarks.installation import Installation, installed, raw_arm
from benchmarks.processes import WorkerProcess
from benchmarks.raw_worker import BUYS
from benchmarks.sample import events_until_running

IN_FLIGHT = 24


@dataclass
class Lane:
    """One arm with its worker and its samples, one of each kind a round."""

    arm: Arm
    worker: WorkerProcess
    per_second: list[float] = field(default_factory=list)
    worker_ms: list[float] = field(default_factory=list)
    server_ms: list[float] = field(default_factory=list)


Say = Callable[[str], None]


async def measure(*, rounds: int, lives: int, say: Say) -> list[Figure]:
    """Return the figures of whole lives.

    Args:
        rounds: How often each arm has its turn.
        lives: Lives in a turn.
        say: Prints progress.
    """
    async with installed() as installation:
        worker = await installation.worker()
        arm = GarrisonArm(installation.client, installation.settings, nodes=2)
        await live(arm, "warm-up")
        sample = await installation.take_sample(arm)
        say(f"a life is {sample.summary()}: {', '.join(call.name for call in sample.calls)}")
        lanes = [Lane(arm, worker)]
        for name in ("raw", BUYS):
            lane = Lane(raw_arm(installation, arm, name), await installation.worker(name))
            await live(lane.arm, "warm-up")
            lanes.append(lane)
        for number in range(rounds):
            for lane in lanes:
                await _turn(installation, lane, number, lives)
                say(_line(lane))
        events = await _events(arm, [f"r{rounds - 1}-{i}" for i in range(lives)])
        return _figures(lanes, events, sample.summary())


async def _turn(installation: Installation, lane: Lane, number: int, lives: int) -> None:
    names = [f"r{number}-{i}" for i in range(lives)]
    before = lane.worker.cpu, installation.server_cpu, time.monotonic()
    await all_at_once(lambda name: live(lane.arm, name), names, at_once=IN_FLIGHT)
    after = lane.worker.cpu, installation.server_cpu, time.monotonic()
    worker, server, took = (b - a for a, b in zip(before, after, strict=True))
    lane.per_second.append(lives / took)
    lane.worker_ms.append(worker / lives * 1000)
    lane.server_ms.append(server / lives * 1000)


def _line(lane: Lane) -> str:
    return (
        f"{lane.arm.name}: {lane.per_second[-1]:.2f} lives/s, worker {lane.worker_ms[-1]:.0f} ms, "
        f"server {lane.server_ms[-1]:.0f} ms a life"
    )


async def _events(arm: GarrisonArm, names: list[str]) -> list[int]:
    """Return for each life how many events its history had when it came to run."""
    counts = []
    for name in names:
        history = await arm.handle(name).fetch_history()
        counts.append(events_until_running(history))
    return counts


def _figures(lanes: list[Lane], events: list[int], life: str) -> list[Figure]:
    ours, raw, buys = lanes
    return [
        Figure(
            "cluster lifecycles/s",
            ratio(ours.per_second, raw.per_second),
            "x",
            goal=0.85,
            at_least=True,
            detail=f"{_both(ours.per_second, raw.per_second, '/s')}; {life}",
        ),
        Figure(
            "worker CPU per lifecycle",
            ratio(ours.worker_ms, raw.worker_ms),
            "x",
            goal=1.3,
            detail=_both(ours.worker_ms, raw.worker_ms, "ms"),
        ),
        Figure(
            "the same, against raw activities that call the simulated cloud",
            ratio(ours.worker_ms, buys.worker_ms),
            "x",
            detail=_both(ours.worker_ms, buys.worker_ms, "ms"),
        ),
        Figure(
            "server CPU per lifecycle",
            ratio(ours.server_ms, raw.server_ms),
            "x",
            detail=_both(ours.server_ms, raw.server_ms, "ms"),
        ),
        Figure(
            "history events, quote -> running",
            max(events),
            goal=60,
            detail=f"most of {len(events)} lives, {IN_FLIGHT} at once; median {median(events):g}",
        ),
    ]


def _both(ours: list[float], raw: list[float], unit: str) -> str:
    return f"{spread(ours, unit)}, raw {spread(raw, unit)}"
