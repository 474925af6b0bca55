"""What the router itself answers: `/metrics` and everything under `/-/`."""

from __future__ import annotations

import asyncio
import logging

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Receive, Scope

from garrison.errors import InvalidSpec, NotFound, Problem, RequestTooLarge
from garrison.models.deployment_state import DeploymentEndpoints
from garrison.models.load import RouterDeployment, RouterLoad
from garrison.router.answer import Answer
from garrison.router.metrics import RouterMetrics
from garrison.router.route import Route
from garrison.router.routes import Routes

ENDPOINTS = "/-/endpoints/"
MOST_BODY = 2**20
ASKED_WITHIN = 60.0
"""Seconds; workers ask every router that they know of several times in that."""

logger = logging.getLogger(__name__)


class Control:
    """Tells what is known and counted, and takes what is told."""

    def __init__(self, router: str, routes: Routes, metrics: RouterMetrics) -> None:
        self._router = router
        self._routes = routes
        self._metrics = metrics
        self._asked_at = asyncio.get_running_loop().time()
        self._warned = False

    def note_request(self) -> None:
        """Warn once if requests come while no worker asks for their counts."""
        silence = asyncio.get_running_loop().time() - self._asked_at
        if silence > ASKED_WITHIN and not self._warned:
            self._warned = True
            logger.warning(
                "no worker has asked this router for its counts for %.0f s, so its requests keep "
                "no replica: list its address in `router.addresses` of the workers' settings",
                silence,
            )

    async def serve(self, scope: Scope, receive: Receive, path: str, answer: Answer) -> None:
        """Answer one request.

        Raises:
            NotFound: There is nothing of that path and method.
            InvalidSpec, RequestTooLarge: What is told cannot be taken.
        """
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method == "GET" and path == "/metrics":
            await answer.say(200, CONTENT_TYPE_LATEST, self._metrics.text())
        elif method == "GET" and path == "/-/load":
            self._asked_at, self._warned = asyncio.get_running_loop().time(), False
            await _json(answer, self.load().model_dump_json())
        elif path.startswith(ENDPOINTS) and method in ("GET", "PUT"):
            name = path.removeprefix(ENDPOINTS)
            route = await (self._told(scope, receive, name) if method == "PUT" else self._of(name))
            await _json(answer, self._known(route).model_dump_json())
        else:
            raise NotFound(f"the router has nothing at {method} {path}")

    def load(self) -> RouterLoad:
        """Return what was counted of every deployment that had a request."""
        counted = {route.id: route.counts() for route in self._routes if route.arrivals}
        return RouterLoad(router=self._router, deployments=counted)

    async def _of(self, name: str) -> Route:
        route = self._routes.known(name.lower())
        if route is None:
            raise NotFound(f"this router knows no deployment {name}")
        return route

    async def _told(self, scope: Scope, receive: Receive, name: str) -> Route:
        told = _parse(await _body(Request(scope, receive)))
        if told.id.lower() != name.lower():
            problem = Problem("id", f"is {told.id!r}, but the path names {name!r}")
            raise InvalidSpec("these are the endpoints of another deployment", problems=(problem,))
        return self._routes.take(told)

    def _known(self, route: Route) -> RouterDeployment:
        return RouterDeployment(
            router=self._router, queued=route.queued, replicas=route.replicas.counts()
        )


async def _body(request: Request) -> bytes:
    pieces, size = [], 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > MOST_BODY:
            raise RequestTooLarge(f"endpoints take at most {MOST_BODY} bytes")
    return b"".join(pieces)


def _parse(body: bytes) -> DeploymentEndpoints:
    try:
        return DeploymentEndpoints.model_validate_json(body)
    except ValidationError as error:
        problems = tuple(
            Problem(".".join(map(str, one["loc"])), one["msg"])
            for one in error.errors(include_url=False, include_input=False)
        )
        raise InvalidSpec("these are no endpoints of a deployment", problems=problems) from None


async def _json(answer: Answer, text: str) -> None:
    await answer.say(200, "application/json", text.encode())
