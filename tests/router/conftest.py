"""Replicas that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.router.stage import Handler, Workload, greet

Play = Callable[..., Awaitable[Workload]]


@pytest.fixture
async def play() -> AsyncIterator[Play]:
    """Start a replica: `await play(handler, name="r-1")`."""
    started: list[Workload] = []

    async def start(handler: Handler = greet, name: str = "r-1", port: int = 0) -> Workload:
        workload = await Workload(name, handler, port=port).start()
        started.append(workload)
        return workload

    yield start
    for workload in started:
        await workload.die()
