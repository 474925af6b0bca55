"""The router, put together: `async with Router.serving(config, directory) as router: ...`."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

from garrison.models.load import RouterLoad
from garrison.router.app import App
from garrison.router.base import Directory
from garrison.router.config import RouterConfig, check_config
from garrison.router.control import Control
from garrison.router.listener import Listener, shown_address
from garrison.router.metrics import RouterMetrics
from garrison.router.proxy import Proxy
from garrison.router.routes import Routes
from garrison.router.upstream import Upstream


class Router:
    """A router that serves.

    Attributes:
        address: Such as `http://127.0.0.1:8000`.
    """

    def __init__(self, address: str, control: Control) -> None:
        self.address = address
        self._control = control

    def load(self) -> RouterLoad:
        """Return what was counted, as `/-/load` does."""
        return self._control.load()

    @classmethod
    @contextlib.asynccontextmanager
    async def serving(cls, config: RouterConfig, directory: Directory) -> AsyncIterator[Router]:
        """Serve in the running event loop for the time of the body; takes no signals.

        At the end nothing more is accepted, requests that wait are turned away at once, and those
        at a replica may end within the grace.

        Raises:
            InvalidSpec: It may not serve so; with every mistake.
            PortTaken: Another program listens on the port.
        """
        check_config(config)
        metrics = RouterMetrics()
        routes = Routes(config, directory, metrics)
        metrics.show(lambda: [route.gauges() for route in routes])
        control = Control(uuid.uuid4().hex, routes, metrics)
        async with Upstream.open(connect_seconds=config.connect_seconds) as upstream:
            proxy = Proxy(config, routes, upstream, metrics)
            listener = Listener(App(config, proxy, control, routes, metrics), config)
            async with routes.fresh(), listener.accepting():
                try:
                    yield cls(shown_address(listener.host, listener.port), control)
                finally:
                    routes.stop()
