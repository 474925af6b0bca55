"""A worker that is killed with -9 in the moment of a purchase: nothing is lost or bought twice.

One test for all moments, as what a dead worker held is only given to another after its heartbeat
timeout.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from garrison.models.cluster_state import Phase
from garrison.providers.simulated.faults import Call, Fault, When
from tests.workflows.conftest import Story, phases

SCRIPT = Path(__file__).with_name("worker_process.py")
ROOT = Path(__file__).parents[2]
PATIENTLY = timedelta(seconds=60)


@asynccontextmanager
async def _worker_process(story: Story) -> AsyncIterator[asyncio.subprocess.Process]:
    address = story.client.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SCRIPT), address, str(story.folder), story.name),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).strip() == b"polling"
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_a2_a_worker_killed_in_the_moment_of_a_purchase_neither_leaks_nor_buys_twice(
    story: Story,
) -> None:
    before, after, ended_after = (f"{what}-{story.name}" for what in ("before", "after", "ended"))
    story.fault(Call.LAUNCH, Fault.LATENCY, when=When.BEFORE, seconds=60, owner=f"cluster/{before}")
    for name in (after, ended_after):
        story.fault(
            Call.LAUNCH, Fault.LATENCY, when=When.AFTER, seconds=60, owner=f"cluster/{name}"
        )

    async with _worker_process(story) as process:
        quotes = {name: await story.launched(name=name) for name in (before, after, ended_after)}
        async with asyncio.timeout(20):
            while len(story.calls(Call.LAUNCH)) < 3 or len(story.machines()) < 4:
                await asyncio.sleep(0.02)
        await story.clusters.terminate(before)
        await story.clusters.terminate(ended_after)
        process.send_signal(signal.SIGKILL)
    async with story.worker():
        running = await story.clusters.wait(after, phases={Phase.RUNNING}, timeout=PATIENTLY)
        ends = [
            await story.clusters.wait(name, phases={Phase.TERMINATED}, timeout=PATIENTLY)
            for name in (before, ended_after)
        ]
        kept = story.machines(running.uid)
        await story.clusters.terminate(after)
        await story.clusters.wait(after, phases={Phase.TERMINATED}, timeout=PATIENTLY)

    assert len(kept) == 2
    assert [story.console.peak(uid=quotes[name].uid) for name in (after, ended_after)] == [2, 2]
    assert [phases(end)[-2:] for end in ends] == [["terminating", "terminated"]] * 2
    assert story.machines() == []
