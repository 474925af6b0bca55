"""Heartbeats for activities that wait on a slow provider."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import TypeVar

from temporalio import activity

INTERVAL = timedelta(seconds=5)

T = TypeVar("T")


@contextlib.asynccontextmanager
async def beating(*details: object) -> AsyncIterator[None]:
    """Heartbeat every few seconds while the body runs."""

    async def beat() -> None:
        while True:
            activity.heartbeat(*details)
            await asyncio.sleep(INTERVAL.total_seconds())

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def to_the_end(call: Awaitable[T], *, bound: timedelta) -> T:
    """Await a call that must not be abandoned half-way: a cancel waits for its outcome.

    Args:
        call: A provider call that may buy something.
        bound: How long to wait after a cancel.

    Raises:
        asyncio.CancelledError: Cancelled, and the outcome did not come within `bound`.
    """
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.done():
            raise
        done, _ = await asyncio.wait({task}, timeout=bound.total_seconds())
        if done:
            return task.result()
        task.cancel()
        raise
