"""A client's connection: uvicorn's, with more bounds, and with errors in the router's form."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from garrison.errors import GarrisonError, InvalidRequest, NoReplica, http_status
from garrison.router.answer import MARK, error_body
from garrison.router.upstream import watch


def _quiet() -> logging.Logger:
    """Return a logger for what uvicorn says of single requests: anybody could fill a disk with it.

    The router writes a line of its own for each request that it could read.
    """
    logger = logging.getLogger("garrison.router.http")
    logger.setLevel(logging.CRITICAL + 1)
    return logger


class Connection(H11Protocol):
    """One connection.

    Args:
        config: Of the server.
        state: Shared by all connections.
        header_seconds: How long the headers of a request may take.
        most: Connections at once.
    """

    def __init__(
        self, config: Config, state: ServerState, *, header_seconds: float, most: int
    ) -> None:
        super().__init__(config, state, {"reset": self.reset})
        self.logger = _quiet()
        self.access_log = False
        self._header_seconds = header_seconds
        self._most = most
        self._headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless there are too many."""
        super().connection_made(transport)
        watch(cast(socket.socket, transport.get_extra_info("socket")))
        if len(self.connections) > self._most:
            error = NoReplica("the router has too many connections", retry_after_seconds=5)
            self._refuse(error)
            return
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; a request that was begun must be complete in time."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_headers()
        else:
            self._headers_came()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and break off an answer that has begun."""
        if self.cycle is not None and not self.cycle.response_complete:
            # Its body is broken: the request must not look as if it had ended.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._refuse(InvalidRequest("the request is not valid HTTP/1.1, or its headers too long"))

    def reset(self) -> None:
        """End the connection so that the other end takes it for an error."""
        connection = cast(socket.socket, self.transport.get_extra_info("socket"))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _refuse(self, error: GarrisonError) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = error_body(error)
        headers: list[tuple[bytes, bytes]] = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            MARK,
        ]
        status = http_status(error.code)
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await_headers(self) -> None:
        if self._headers_due is None:
            self._headers_due = self.loop.call_later(self._header_seconds, self._too_slow)

    def _headers_came(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _too_slow(self) -> None:
        self._headers_due = None
        self.transport.abort()
