"""The router's client: one pool of connections to all replicas.

aiohttp, since it holds up. httpx looks at every connection whenever a request begins or ends, and
reads no answer before the whole body is sent. CPU of a bare proxy, with httpx and with aiohttp:
1.0 and 0.8 ms a request alone, 1.9 and 0.35 with 32 at once, 13 and 1.6 for each of 500 streams of
20 events.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
from yarl import URL

IDLE_SECONDS = 1.0
"""How long an unused connection is used again. Servers close theirs after 2 to 5 s, by their own
clock, and a request that meets the closing could not be repeated: it may have been read."""

QUIET_SECONDS = 30
"""After so long a silence the other machine is asked whether it is still there, three times within
as long again: one that lost its power answers nothing, and its requests would count for ever."""

MAX_HEADERS = 64 * 1024
AUTOMATIC = ("accept", "accept-encoding", "content-type", "user-agent")


class NotSent(Exception):
    """No connection came about: the replica has seen nothing of the request."""


class NoAnswer(Exception):
    """The request was sent, in part or whole, and nothing usable came back."""


class Upstream:
    """Sends requests to replicas."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, *, connect_seconds: float) -> AsyncIterator[Upstream]:
        """Yield a client; all its connections are closed afterwards."""
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=_watched_socket
        )
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=AUTOMATIC,
            max_line_size=MAX_HEADERS,
            max_field_size=MAX_HEADERS,
        ) as session:
            yield cls(session)

    async def send(
        self,
        method: str,
        address: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | AsyncIterator[bytes] | None,
    ) -> aiohttp.ClientResponse:
        """Send a request, and return the answer once its headers are here.

        Args:
            method: Of HTTP.
            address: With path and query exactly as they are to be sent.
            headers: Without those that frame the body, but for the length of one that is streamed.
            body: Whole, or piece by piece; in chunks unless the headers have its length.

        Raises:
            NotSent, NoAnswer: There is none.
        """
        try:
            return await self._session.request(
                method,
                URL(address, encoded=True),
                headers=headers,
                data=body,
                allow_redirects=False,
            )
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ConnectionTimeoutError,
            aiohttp.InvalidURL,
        ) as error:
            raise NotSent(_said(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswer(_said(error)) from error


def _watched_socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = info
    made = socket.socket(family, kind, protocol)
    watch(made)
    return made


def watch(connection: socket.socket) -> None:
    """Have the system notice when the other machine is gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, QUIET_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, QUIET_SECONDS // 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        # The same for what was sent and is not acknowledged, which keep-alive does not see.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2 * QUIET_SECONDS * 1000)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
