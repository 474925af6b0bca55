"""The answer to a client: what was sent of it, and the router's own errors."""

from __future__ import annotations

import json
from collections.abc import Sequence

from starlette.types import Send

from garrison.errors import ErrorCode, GarrisonError, http_status
from garrison.router.headers import Raw

MARK = (b"garrison-router", b"error")
"""On the router's own errors, and on no replica's answer."""

_STATUS = {ErrorCode.UNSUPPORTED: 501}


class Answer:
    """One answer.

    Attributes:
        status: Of HTTP, None before it began.
        size: Bytes of the body that were sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        self.size = 0

    async def begin(self, status: int, headers: Sequence[Raw]) -> None:
        """Send the status and the headers."""
        self.status = status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": list(headers)}
        )

    async def go_on(self, piece: bytes, *, more: bool) -> None:
        """Send a piece of the body at once."""
        self.size += len(piece)
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def say(self, status: int, kind: str, body: bytes, *headers: Raw) -> None:
        """Send a whole answer."""
        length = (b"content-length", b"%d" % len(body))
        await self.begin(status, [(b"content-type", kind.encode()), length, *headers])
        await self.go_on(body, more=False)

    async def refuse(self, error: GarrisonError) -> None:
        """Send an error of the router."""
        status = _STATUS.get(error.code) or http_status(error.code)
        await self.say(status, "application/json", error_body(error), MARK, *_advice(error))


def error_body(error: GarrisonError) -> bytes:
    """Return an error as JSON."""
    said = {"error": {"code": str(error.code), "message": str(error)}}
    return json.dumps(said).encode() + b"\n"


def _advice(error: GarrisonError) -> list[Raw]:
    advice = []
    if error.retry_after_seconds is not None:
        advice.append((b"retry-after", b"%d" % max(1, round(error.retry_after_seconds))))
    if error.code is ErrorCode.UNAUTHORIZED:
        advice.append((b"www-authenticate", b"Bearer"))
    if error.code is ErrorCode.INVALID_REQUEST:
        # Where the next request begins is in doubt.
        advice.append((b"connection", b"close"))
    return advice
