"""Heartbeats for activities that wait on a slow provider."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

from temporalio import activity

BEATS = 6
"""How many heartbeats a timeout is long, so that a few late ones are no death."""


def beat_pause() -> float:
    """Return how many seconds the running activity may pause between two heartbeats."""
    timeout = activity.info().heartbeat_timeout or timedelta(seconds=30)
    return timeout.total_seconds() / BEATS


@contextlib.asynccontextmanager
async def beating(*details: object) -> AsyncIterator[None]:
    """Heartbeat every few seconds while the body runs; what is over at once costs none."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(beat_pause())
            activity.heartbeat(*details)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
