"""The client's side of a request: its body as it comes, and whether the client is still there.

One task reads for as long as the request lives, so that a client that went away is noticed while
its request waits. The beginning of the body is kept so that it can be sent again; of what does not
fit nothing is read before somebody takes it, so that it waits in the client's socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from starlette.types import Message, Receive

READ_AHEAD = 64 * 1024


class ClientGone(Exception):
    """The client went away, or stopped to send what it had begun."""


class Budget:
    """Bytes that all bodies together may keep."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.used = 0

    @property
    def exhausted(self) -> bool:
        """Whether no more should be kept."""
        return self.used >= self._total


class Incoming:
    """One request's body. A context: whoever left it, `ClientGone` is raised inside.

    Args:
        receive: Of the server.
        keep: How many bytes of the body are kept to be sent again.
        budget: Shared with all other requests.
        stall: Seconds that the client may take for the next piece of its body.
    """

    def __init__(self, receive: Receive, *, keep: int, budget: Budget, stall: float) -> None:
        self._receive = receive
        self._keep = keep
        self._budget = budget
        self._stall = stall
        self._pieces: list[bytes] = []
        self._size = 0
        self._at = 0
        self._whole = True
        self._ended = False
        self._flowing = False
        self._reading = 0
        self._gone = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._owner: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Incoming:
        self._owner = asyncio.current_task()
        if self._owner is None:
            raise RuntimeError("a request is served in a task")
        self._cancelling = self._owner.cancelling()
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.finish()
        self._forget(len(self._pieces))
        if not self._gone or self._owner is None:
            return
        others = self._owner.uncancel() > self._cancelling
        if not (others and kind is asyncio.CancelledError):
            raise ClientGone from error

    def finish(self) -> None:
        """Look no more: the answer is about to end, and then the server tells of a client's end."""
        if self._reader is not None:
            self._reader.cancel()

    @property
    def whole(self) -> bool:
        """Whether the body can be sent from its beginning."""
        return self._whole

    @property
    def complete(self) -> bytes | None:
        """The body, once all of it is here; None before that, and of one that is too long."""
        return b"".join(self._pieces) if self._ended and self._whole else None

    async def begin(self) -> None:
        """Wait until there is something of the body, or known that there is none; then send it."""
        self._flow()
        while not self._ended and not self._pieces:
            await self._next()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body from its beginning, as it comes; `rewind` ends a former reader's right."""
        reading = self._reading
        self._flow()
        while self._at < len(self._pieces) or not self._ended:
            if self._at == len(self._pieces):
                await self._next()
                continue
            piece = self._pieces[self._at]
            self._at += 1
            if not self._whole:
                self._forget(self._at)
            self._room.set()
            yield piece
            if reading != self._reading:
                raise RuntimeError("another reader began anew")

    def rewind(self) -> None:
        """Nobody reads any more: what was kept waits for another reader, and so does the rest."""
        self._reading += 1
        self._at = 0
        self._flowing = False

    def _flow(self) -> None:
        self._flowing = True
        self._room.set()

    async def _next(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _read(self) -> None:
        while True:
            await self._have_room()
            try:
                async with asyncio.timeout(None if self._ended else self._stall):
                    message = await self._receive()
            except TimeoutError:
                message = {"type": "http.disconnect"}
            if message["type"] == "http.disconnect":
                self._leave()
                return
            self._take(message)

    async def _have_room(self) -> None:
        while not (self._ended or self._fits()):
            if self._flowing and self._whole:
                # It cannot be sent again from here on.
                self._whole = False
                self._forget(self._at)
                continue
            self._room.clear()
            await self._room.wait()

    def _fits(self) -> bool:
        if self._whole:
            return self._size < self._keep and not self._budget.exhausted
        return self._size < READ_AHEAD

    def _take(self, message: Message) -> None:
        piece = message.get("body", b"")
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
            self._budget.used += len(piece)
        self._ended = self._ended or not message.get("more_body", False)
        self._news.set()

    def _forget(self, count: int) -> None:
        size = sum(map(len, self._pieces[:count]))
        del self._pieces[:count]
        self._at = max(0, self._at - count)
        self._size -= size
        self._budget.used -= size

    def _leave(self) -> None:
        self._gone = True
        if self._owner is not None:
            self._owner.cancel()
