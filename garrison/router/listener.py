"""The listening socket, and the end of what came through it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from garrison.errors import InvalidSpec, PortTaken
from garrison.router.config import RouterConfig
from garrison.router.connection import Connection
from garrison.router.process import most_connections

MAX_HEADERS = 64 * 1024
BACKLOG = 2048


class Listener:
    """Accepts connections. uvicorn's own server is not used: it takes signals, and ends processes.

    Attributes:
        host: Where it listens, `port` the one it has.
    """

    def __init__(self, app: ASGIApp, config: RouterConfig) -> None:
        self._config = config
        self._most = most_connections(config.max_connections)
        self._state = ServerState()
        self._uvicorn = Config(
            app,
            http="h11",  # bounded headers, and stricter than the faster one
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=round(config.idle_seconds),
            h11_max_incomplete_event_size=MAX_HEADERS,
        )
        self._uvicorn.load()
        self.host = config.host
        self.port = config.port

    @contextlib.asynccontextmanager
    async def accepting(self) -> AsyncIterator[None]:
        """Accept connections in the body; let requests that go on end within the grace.

        Raises:
            PortTaken: Another program listens on the port.
            InvalidSpec: The port cannot be used by anybody, or not by this user.
        """
        server = await self._listen()
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            await self._end()

    async def _listen(self) -> asyncio.Server:
        config = self._config
        try:
            return await asyncio.get_running_loop().create_server(
                self._connection, config.host, config.port, backlog=BACKLOG
            )
        except PermissionError:
            raise InvalidSpec(
                f"this user may not listen on port {config.port}; choose another with --port"
            ) from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(
                    f"another program listens on port {config.port}; choose another with --port"
                ) from error
            raise InvalidSpec(f"this machine has no address {config.host}") from error

    def _connection(self) -> Connection:
        return Connection(
            self._uvicorn,
            self._state,
            header_seconds=self._config.header_seconds,
            most=self._most,
        )

    async def _end(self) -> None:
        for connection in tuple(self._state.connections):
            connection.shutdown()
        running = tuple(self._state.tasks)
        if running:
            _, late = await asyncio.wait(running, timeout=self._config.grace_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in tuple(self._state.connections):
            connection.transport.abort()


def shown_address(host: str, port: int) -> str:
    """Return the URL of an address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
