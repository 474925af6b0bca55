"""What tests of the router play with: replicas on real sockets, a directory on paper, clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from garrison.errors import ServiceUnreachable
from garrison.models.deployment import ReplicaState
from garrison.models.deployment_state import DeploymentEndpoints, ReplicaEndpoint
from garrison.models.load import LoadCounts
from garrison.router.config import Pace, RouterConfig
from garrison.router.router import Router

BORN = datetime(2026, 3, 1, tzinfo=UTC)
QUICK = Pace(held=(0.02,), aside=(0.05,), retry=0.01, missing=0.05)
SOON = 20.0
"""A deadline for what takes milliseconds, on a machine that is busy with other things."""


@dataclass
class Seen:
    """A request as it reached a replica."""

    line: bytes
    head: bytes
    body: bytes = b""

    @property
    def target(self) -> bytes:
        return self.line.split(b" ")[1]

    def values(self, name: str) -> list[str]:
        lines = [line.partition(b":") for line in self.head.split(b"\r\n")]
        wanted = name.lower().encode()
        return [v.strip().decode("latin-1") for n, _, v in lines if n.strip().lower() == wanted]


@dataclass
class Call:
    """A request at a replica that is being answered."""

    seen: Seen
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        if "chunked" in self.seen.values("transfer-encoding"):
            while size := int(await self._line(), 16):
                yield await self.reader.readexactly(size)
                await self.reader.readline()
            await self.reader.readline()
            return
        left = int((self.seen.values("content-length") or ["0"])[0])
        while left:
            piece = await self.reader.read(min(left, 65536))
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
            yield piece

    async def _line(self) -> bytes:
        if not (line := await self.reader.readline()):
            raise asyncio.IncompleteReadError(b"", 1)
        return line

    async def read(self) -> bytes:
        """Take the whole body."""
        self.seen.body = b"".join([piece async for piece in self.body()])
        return self.seen.body

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} x", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        sent = b"" if self.seen.line.startswith(b"HEAD ") else body
        await self.write("\r\n".join([*lines, "", ""]).encode() + sent)

    async def begin_chunks(self) -> None:
        await self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))


Handler = Callable[[Call], Awaitable[None]]


async def greet(call: Call) -> None:
    await call.read()
    await call.answer(b"hello")


@dataclass
class Workload:
    """A replica of some deployment: an HTTP server that does what its handler says.

    Attributes:
        seen: Every request whose headers came, in order.
        broken: Set when a client's connection ended while it was being answered.
    """

    name: str = "r-1"
    handler: Handler = greet
    host: str = "127.0.0.1"
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._writers)

    async def start(self) -> Workload:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def die(self) -> None:
        """End as a killed process does."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang_up(self) -> None:
        """Close every connection, as a server does with idle ones."""
        for writer in tuple(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while head := await _head(reader):
                line, _, rest = head.partition(b"\r\n")
                seen = Seen(line, rest)
                self.seen.append(seen)
                await self._handle(Call(seen, reader, writer))
                if writer.is_closing():
                    break
        except asyncio.CancelledError:
            pass  # it died
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _handle(self, call: Call) -> None:
        try:
            await self.handler(call)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.broken.set()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (ConnectionError, asyncio.IncompleteReadError):
        return b""


class Book:
    """A directory on paper.

    Attributes:
        told: What it answers, by id in lower case.
        wakes: Every wake, as id and uid.
        reads: Every id that was asked for.
        silent: Nobody answers.
    """

    def __init__(self, *told: DeploymentEndpoints) -> None:
        self.told = {one.id.lower(): one for one in told}
        self.wakes: list[tuple[str, str]] = []
        self.reads: list[str] = []
        self.silent = False

    async def running(self) -> tuple[str, ...]:
        self._check()
        return tuple(self.told)

    async def endpoints(self, deployment: str) -> DeploymentEndpoints | None:
        self.reads.append(deployment)
        self._check()
        return self.told.get(deployment)

    async def wake(self, deployment: str, uid: str) -> None:
        self._check()
        self.wakes.append((deployment, uid))

    def _check(self) -> None:
        if self.silent:
            raise ServiceUnreachable("nobody answers")


def endpoints(*replicas: Workload | ReplicaEndpoint, **changes: Any) -> DeploymentEndpoints:
    """Return what is told of the deployment `llm` with these replicas, ready if workloads."""
    listed = tuple(one if isinstance(one, ReplicaEndpoint) else ready(one) for one in replicas)
    fields: dict[str, Any] = {
        "id": "llm",
        "uid": "u-1",
        "created_at": BORN,
        "version": 1,
        "enabled": True,
        "desired": len(listed),
        "generation": 1,
        "replicas": listed,
    }
    return DeploymentEndpoints(**{**fields, **changes})


def ready(workload: Workload, state: ReplicaState = ReplicaState.READY) -> ReplicaEndpoint:
    return ReplicaEndpoint(name=workload.name, state=state, endpoint=workload.endpoint, revision=1)


@dataclass
class Stage:
    """A router that serves, its directory and a client of it."""

    router: Router
    book: Book
    client: httpx.AsyncClient

    @property
    def port(self) -> int:
        return int(self.router.address.rpartition(":")[2])

    def counts(self, deployment: str = "llm") -> LoadCounts:
        nothing = LoadCounts(running=0, queued=0, arrivals=0, completions=0)
        return self.router.load().deployments.get(deployment, nothing)

    async def tell(self, told: DeploymentEndpoints) -> httpx.Response:
        """Push a change, and let the directory say the same."""
        self.book.told[told.id.lower()] = told
        return await self.client.put(f"/-/endpoints/{told.id}", content=told.model_dump_json())

    async def raw(self, data: bytes) -> bytes:
        """Send bytes on a connection of their own; return all that comes until it ends."""
        reader, writer = await self.dial()
        writer.write(data)
        async with asyncio.timeout(SOON):
            with contextlib.suppress(ConnectionResetError):
                return await _all(reader, writer)
        return b""

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


async def _all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    try:
        return await reader.read()
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def routing(
    *told: DeploymentEndpoints, pace: Pace = QUICK, **config: Any
) -> AsyncIterator[Stage]:
    """Serve with a directory that knows some deployments."""
    book = Book(*told)
    settings = RouterConfig(port=0, pace=pace, **{"grace_seconds": 5.0, **config})
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
    async with (
        Router.serving(settings, book) as router,
        httpx.AsyncClient(
            base_url=router.address, timeout=SOON, limits=limits, trust_env=False
        ) as client,
    ):
        yield Stage(router, book, client)


async def until(claim: Callable[[], bool]) -> None:
    """Return once a claim holds; it is looked at again and again."""
    async with asyncio.timeout(SOON):
        while not claim():
            await asyncio.sleep(0.002)


async def until_true(claim: Callable[[], Awaitable[bool]]) -> None:
    """Return once a claim that has to be asked for holds."""
    async with asyncio.timeout(SOON):
        while not await claim():
            await asyncio.sleep(0.02)
