"""The router as an ASGI application: who may ask, who answers, and how a request ended."""

from __future__ import annotations

import logging

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from garrison.errors import GarrisonError
from garrison.router.access_log import Entry
from garrison.router.answer import Answer
from garrison.router.config import RouterConfig
from garrison.router.control import Control
from garrison.router.headers import check_secret, check_token
from garrison.router.incoming import ClientGone
from garrison.router.metrics import RouterMetrics
from garrison.router.proxy import BrokenOff, Proxy
from garrison.router.routes import Routes
from garrison.router.target import origin_form, split_target

logger = logging.getLogger(__name__)

HEALTH = b"/-/healthz"


class App:
    """Serves one request after the other, of all connections."""

    def __init__(
        self,
        config: RouterConfig,
        proxy: Proxy,
        control: Control,
        routes: Routes,
        metrics: RouterMetrics,
    ) -> None:
        self._token = config.token
        self._secret = config.secret
        self._proxy = proxy
        self._control = control
        self._routes = routes
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; the server breaks off what is not answered whole."""
        raw: bytes = scope["raw_path"]
        entry = Entry(scope["method"], raw.decode("latin-1"))
        answer = Answer(send)
        try:
            await self._serve(scope, receive, answer, entry)
            entry.outcome = f"{(answer.status or 500) // 100}xx"
        except GarrisonError as error:
            await self._refuse(error, answer, entry)
        except (ClientGone, ClientDisconnect):
            entry.outcome = "aborted"
        except BrokenOff:
            entry.outcome = "broken"
            _reset(scope)
        except Exception:
            # The server would write a page of its own.
            logger.exception("request failed, by a fault of ours")
            await self._refuse(GarrisonError("a fault of the router"), answer, entry)
        finally:
            self._write_down(answer, entry)

    async def _serve(self, scope: Scope, receive: Receive, answer: Answer, entry: Entry) -> None:
        path = origin_form(scope["raw_path"])
        if path == HEALTH:
            await answer.say(200, "text/plain", b"ok\n")
            return
        check_token(scope["headers"], self._token)
        if path.startswith(b"/-/"):
            check_secret(scope["headers"], self._secret)
        if path == b"/metrics" or path.startswith(b"/-/"):
            await self._control.serve(scope, receive, path.decode("ascii"), answer)
            return
        target = split_target(path, scope["query_string"])
        self._control.note_request()
        await self._proxy.serve(scope, receive, target, answer, entry)

    async def _refuse(self, error: GarrisonError, answer: Answer, entry: Entry) -> None:
        if answer.status is not None:
            entry.outcome = "broken"
            return
        await answer.refuse(error)
        entry.outcome = f"{(answer.status or 500) // 100}xx"
        if entry.deployment == "-":
            self._metrics.refused(str(error.code))

    def _write_down(self, answer: Answer, entry: Entry) -> None:
        entry.status, entry.size = answer.status, answer.size
        if entry.deployment in self._routes:
            self._metrics.ended(entry.deployment, entry.outcome or "aborted", entry.seconds)
        entry.write()


def _reset(scope: Scope) -> None:
    """Have the connection end in an error, where its mere end would look like the answer's."""
    if scope["http_version"] == "1.0":
        scope["state"]["reset"]()
