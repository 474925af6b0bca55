"""Waiting for a cluster, by asking it at growing pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

from garrison.domain.clusters.outcome import ENDED
from garrison.errors import ErrorCode, GarrisonError, QuoteExpired, WaitTimeout, error_of
from garrison.models.cluster_state import CLOSED_PHASES, Phase
from garrison.models.cluster_status import ClusterStatus

POLL_FIRST = 0.05
POLL_LONGEST = 1.0

OnChange = Callable[[ClusterStatus], None]


async def wait_for(
    read: Callable[[], Awaitable[ClusterStatus]],
    done: Callable[[ClusterStatus], bool],
    *,
    timeout: timedelta | None,
    on_change: OnChange | None,
    worth_reading: Callable[[], Awaitable[bool]] | None = None,
) -> ClusterStatus:
    """Return the first status that is `done`.

    Args:
        read: Reads one life of a cluster.
        done: Whether the wait is over.
        timeout: None waits for ever.
        on_change: Called with each status that differs from the last.
        worth_reading: Says for less than a read costs whether it can show anything new; None is
            always.

    Raises:
        WaitTimeout: The time passed; the cluster goes on.
        GarrisonError: The life ended otherwise: with its own error, if it failed.
    """
    last: dict[str, Any] | None = None
    async for _ in polling(timeout):
        if worth_reading is not None and not await worth_reading():
            continue
        status = await read()
        shown = status.model_dump(exclude={"cost_usd"})
        if on_change is not None and shown != last:
            on_change(status)
        last = shown
        if done(status):
            return status
        if status.phase in CLOSED_PHASES:
            raise _ended_otherwise(status)
    status = await read()
    if done(status):
        return status
    raise WaitTimeout(f"{status.name} is {status.phase} after {_seconds(timeout)}; it goes on")


def _seconds(length: timedelta | None) -> str:
    return "" if length is None else f"{length.total_seconds():g} s"


async def polling(timeout: timedelta | None) -> AsyncIterator[None]:
    """Yield at growing pauses, until the time is over."""
    loop = asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout.total_seconds()
    pause = POLL_FIRST
    while True:
        yield
        if end is not None and loop.time() >= end:
            return
        left = pause if end is None else min(pause, max(end - loop.time(), 0))
        await asyncio.sleep(left)
        pause = min(pause * 1.5, POLL_LONGEST)


def workload_ended(status: ClusterStatus) -> bool:
    """Return whether the command has ended on every node."""
    return bool(status.nodes) and all(
        node.workload is not None and node.workload.state in ENDED for node in status.nodes
    )


def _ended_otherwise(status: ClusterStatus) -> GarrisonError:
    if status.phase is Phase.FAILED and status.last_error is not None:
        return error_of(status.last_error.code, f"{status.name}: {status.last_error.message}")
    if status.phase is Phase.EXPIRED:
        return QuoteExpired(f"the quote of {status.name} expired")
    return error_of(ErrorCode.CONFLICT_PHASE, f"cluster {status.name} ended {status.phase}")
