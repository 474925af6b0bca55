"""Sending updates to a workflow that is on its way from one run to the next.

A workflow that continues as new takes no update for a moment, and one that a signal reaches in
that moment does it again: whoever asks then is told to try again, in one of three ways. None of
them says that the update was accepted, and its request id keeps it from being carried out twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

T = TypeVar("T")

PAUSE = timedelta(milliseconds=100)

_BETWEEN_RUNS = {
    RPCStatusCode.FAILED_PRECONDITION: "workflow task failure",
    RPCStatusCode.RESOURCE_EXHAUSTED: "workflow is closing",
    RPCStatusCode.UNAVAILABLE: "update was aborted",
}
"""What the service answers; the SDK tries the last two again, for ten seconds."""


def is_between_runs(error: RPCError) -> bool:
    """Return whether an update was not taken because its workflow was continuing as new."""
    words = _BETWEEN_RUNS.get(error.status)
    return words is not None and words in error.message


@contextlib.asynccontextmanager
async def starting_with(start: WithStartWorkflowOperation[Any, Any]) -> AsyncIterator[None]:
    """Let the body send an update that starts its workflow, and fail only once.

    The SDK keeps a failure a second time, for who asks the start for its workflow; where nobody
    does, the event loop would complain of it later.
    """
    try:
        yield
    except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
        # It is there already, so that this does not wait.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await start.workflow_handle()
        raise


async def send_update(send: Callable[[], Awaitable[T]], *, within: timedelta) -> T:
    """Return the answer to an update, sent again while its workflow is between two runs.

    Args:
        send: Sends it once, with the same request id each time.
        within: How long it is sent again.

    Raises:
        RPCError: As the last try had it.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + within.total_seconds()
    while True:
        try:
            return await send()
        except RPCError as error:
            if not is_between_runs(error) or loop.time() >= end:
                raise
        await asyncio.sleep(PAUSE.total_seconds())
