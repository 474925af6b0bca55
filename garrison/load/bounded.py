"""Reading over HTTP what may be slow, huge or not what it should be."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Body:
    """What was answered, whatever the status."""

    status: int
    content: bytes


class NoAnswerError(Exception):
    """Says why there is no answer, in words."""


@functools.cache
def trusted() -> ssl.SSLContext:
    """Return whom this machine trusts; reading that takes longer than many an answer."""
    return ssl.create_default_context()


async def read_body(
    client: httpx.AsyncClient, request: httpx.Request, *, seconds: float, most: int
) -> Body:
    """Return an answer that came whole in time, of at most so many bytes.

    Raises:
        NoAnswerError: There is none.
    """
    try:
        async with asyncio.timeout(seconds):
            answer = await client.send(request, stream=True)
            try:
                return Body(answer.status_code, await _read(answer, most))
            finally:
                await answer.aclose()
    except TimeoutError:
        raise NoAnswerError(f"no answer within {seconds:g} s") from None
    except httpx.HTTPError as error:
        # Its text may name what the request was sent with.
        raise NoAnswerError(f"no answer ({type(error).__name__})") from None


async def gather_within(tasks: Mapping[K, Awaitable[T]], seconds: float) -> dict[K, T]:
    """Return what is done in time, by key; the rest is cancelled and left out."""
    running = {key: asyncio.ensure_future(work) for key, work in tasks.items()}
    if not running:
        return {}
    try:
        await asyncio.wait(running.values(), timeout=seconds)
    finally:
        late = [task for task in running.values() if not task.done()]
        await _cancel(late)
    return {key: task.result() for key, task in running.items() if not task.cancelled()}


async def _cancel(tasks: Iterable[asyncio.Future[T]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _read(answer: httpx.Response, most: int) -> bytes:
    parts, size = [], 0
    async for part in answer.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > most:
            raise NoAnswerError(f"the answer is larger than {most // 2**20} MiB")
    return b"".join(parts)
