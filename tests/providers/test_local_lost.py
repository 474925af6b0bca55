"""Local nodes whose data directory is gone: nothing of them runs on unseen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from garrison.providers.base import NodeSetup
from garrison.providers.local.processes import members
from tests.providers.local_world import (
    LocalWorld,
    eventually,
    processes_with,
    shell,
    vanishes,
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[LocalWorld]:
    async with LocalWorld.opened(tmp_path) as opened:
        yield opened
        # The world asks its own folder what to give back.
        for folder in ("groups", "nodes", "locks", "tombstones", "trash"):
            (opened.root / folder).mkdir(parents=True, exist_ok=True)


async def _runs(world: LocalWorld, rank: int) -> list[str]:
    """Start a marked process on a node and, on Linux, one that hides its mark; return both."""
    seconds = [str(uuid.uuid4().int % 10**12) for _ in range(2)]
    texts = [f"sleep {number}" for number in seconds]
    hidden = "env -i " if sys.platform == "linux" else ""
    node = await world.on.prepare_node(await world.node(rank), NodeSetup())
    await world.on.start_workload(node, shell(f"{texts[0]} & {hidden}{texts[1]} & wait"))

    async def running() -> bool:
        return all(map(processes_with, texts))

    await eventually(running)
    return texts


async def test_nodes_of_a_lost_data_directory_end_by_themselves(world: LocalWorld) -> None:
    nodes = await world.launched(count=2)
    texts = [text for rank in range(2) for text in await _runs(world, rank)]
    await world.kill_agent(nodes[1])

    shutil.rmtree(world.root)

    for text in (*texts, *(node.provider_id for node in nodes)):
        await vanishes(text)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how a file was opened")
async def test_a_process_that_only_looks_at_a_node_is_no_part_of_it(world: LocalWorld) -> None:
    (node,) = await world.launched()
    lock = world.directory(node).node_lock
    with lock.open("rb") as looking:
        worker = subprocess.Popen(["sleep", "60"], pass_fds=[looking.fileno()])
    try:
        found = members({node.provider_id: lock})
    finally:
        worker.kill()
        worker.wait()

    assert worker.pid not in found
    assert os.getpid() not in found
    assert world.agent(node) in found
