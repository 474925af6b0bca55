"""Reading a node's log through the workers, which can reach it when this process cannot."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import RetryPolicy

from garrison.client.translation import translated
from garrison.errors import NotFound, ProviderUnreachable
from garrison.models.cluster_messages import ReadLogRequest
from garrison.models.group import LogChunk
from garrison.models.queues import provider_queue

CALL_TIMEOUT = timedelta(seconds=20)
POLL_SECONDS = 0.5

Refresh = Callable[[], Awaitable[tuple[ReadLogRequest, bool]]]
"""Returns where to read now, and whether the command has ended for good."""


async def read_log(client: Client, request: ReadLogRequest, offset: int) -> AsyncIterator[bytes]:
    """Yield a log from an offset to its present end; negative counts from the end."""
    while True:
        chunk = await _chunk(client, request, offset)
        if not chunk.data:
            return
        yield chunk.data
        offset = chunk.next_offset


async def stream_log(
    client: Client, request: ReadLogRequest, offset: int, refresh: Refresh
) -> AsyncIterator[bytes]:
    """Yield a log as it grows, each byte once, until the command has ended for good.

    Args:
        client: Connected.
        request: Where to read at first.
        offset: Where to begin; negative counts from the end.
        refresh: Asked when nothing new came, since the node may have moved or gone.
    """
    ended = False
    while True:
        try:
            chunk = await _chunk(client, request, offset)
        except (NotFound, ProviderUnreachable):
            # Not started yet, restarting, or gone for good: the cluster's state tells.
            if ended:
                return
            chunk = LogChunk(offset=max(offset, 0), data=b"")
        if chunk.data:
            yield chunk.data
            offset = chunk.next_offset
            continue
        if ended:
            return
        request, ended = await refresh()
        if not ended:
            await asyncio.sleep(POLL_SECONDS)


async def _chunk(client: Client, request: ReadLogRequest, offset: int) -> LogChunk:
    with translated(f"log of node {request.rank} of {request.cluster}"):
        chunk: LogChunk = await client.execute_activity(
            "read_log",
            request.model_copy(update={"offset": offset}),
            id=f"read-log/{request.cluster}/{uuid.uuid4()}",
            task_queue=provider_queue(request.provider),
            result_type=LogChunk,
            schedule_to_close_timeout=CALL_TIMEOUT,
            start_to_close_timeout=CALL_TIMEOUT,
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=f"log of node {request.rank} of {request.cluster}",
        )
    return chunk
