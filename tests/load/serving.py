"""HTTP servers that answer what a test tells them to, and deployments that are followed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from garrison.models.deployment import AutoscaleConfig, LoadConfig, ReplicaState
from garrison.models.deployment_state import DeploymentEndpoints, ReplicaEndpoint
from garrison.models.load import Followed

CREATED = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    """What is answered; `slow_by` makes the body come so many seconds after the head."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    waits_for: threading.Event | None = None


class Served:
    """A server on a free port of loopback, from its making until `close`."""

    def __init__(
        self, respond: Callable[[Request], Response] | None = None, text: str = ""
    ) -> None:
        """Answer by a function, or always with `text`, which may be changed."""
        self.text = text
        self.requests: list[Request] = []
        self._respond = respond or (lambda request: Response(self.text.encode()))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("content-length", 0))
                request = Request(
                    self.command, self.path, dict(self.headers.items()), self.rfile.read(length)
                )
                served.requests.append(request)
                response = served._respond(request)
                self.send_response(response.status)
                for name, value in response.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(response.body)))
                self.end_headers()
                if response.waits_for is not None:
                    response.waits_for.wait(10)
                try:
                    self.wfile.write(response.body)
                except OSError:
                    self.close_connection = True  # who asked has heard enough

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler


def follow(
    load: LoadConfig, *, id: str = "d", ready: int = 1, endpoints: Mapping[str, str] | None = None
) -> Followed:
    """Return a deployment; `endpoints` are its ready replicas, by name."""
    said = DeploymentEndpoints(
        id=id,
        uid=f"uid-{id}",
        enabled=True,
        desired=ready,
        generation=1,
        replicas=tuple(
            ReplicaEndpoint(name=name, state=ReplicaState.READY, endpoint=url, revision=1)
            for name, url in (endpoints or {}).items()
        ),
    )
    return Followed(
        id=id,
        workflow_id=f"deployment/{id}",
        uid=f"uid-{id}",
        created_at=CREATED,
        version=1,
        autoscale=AutoscaleConfig(load=load),
        desired=ready,
        ready=ready,
        endpoints=said,
    )


class Clock:
    """Time as a test tells it."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
