"""What the router adds to a request: `python -m benchmarks.router`.

A replica and a router, each a process of its own, on loopback; the same client asks the replica
directly and through the router, in turns. The replica answers at once, so that all there is to see
is the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from multiprocessing.connection import Connection

import psutil

from benchmarks.figures import Figure, markdown, percentile, with_unit
from garrison.models.deployment import ReplicaState
from garrison.models.deployment_state import DeploymentEndpoints, ReplicaEndpoint
from garrison.router.config import RouterConfig
from garrison.router.process import keep_what_was_loaded
from garrison.router.router import Router

BODY = b'{"messages": [{"role": "user", "content": "hello"}]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n"
ANSWERED = b'{"text": "hi."}'
CLIENTS = (1, 32)
ROUNDS = 6


async def measure(*, requests: int, say: Callable[[str], None]) -> list[Figure]:
    """Return figures of latency, of each arm and each number of clients.

    Args:
        requests: Of each arm in each round.
        say: Prints progress.
    """
    figures = []
    with _replica() as port, _router(port) as (routed, process):
        arms = {"direct": (port, b"/x"), "router": (routed, b"/llm/x")}
        for clients in CLIENTS:
            taken: dict[str, list[float]] = {name: [] for name in arms}
            used = _cpu(process)
            for number in range(ROUNDS + 1):
                if number == 1:  # the first round only warms up
                    taken = {name: [] for name in arms}
                    used = _cpu(process)
                for name, (at, path) in arms.items():
                    taken[name] += await _ask(at, path, clients, requests)
            used = (_cpu(process) - used) / len(taken["router"])
            say(f"{clients} clients: " + "; ".join(f"{n} {_spread(t)}" for n, t in taken.items()))
            figures += _figures(clients, taken, used)
    return figures


def _figures(clients: int, taken: Mapping[str, list[float]], used: float) -> list[Figure]:
    both = "; ".join(f"{name} {_spread(times)}" for name, times in taken.items())
    who = "1 client" if clients == 1 else f"{clients} clients at once"
    added = {
        percent: percentile(taken["router"], percent) - percentile(taken["direct"], percent)
        for percent in (50, 99)
    }
    return [
        Figure(f"the router adds, {who}: p50", added[50] * 1000, "ms", detail=both),
        Figure("the same: p99", added[99] * 1000, "ms", detail=f"{len(taken['router'])} each"),
        Figure("the same: CPU of the router a request", used * 1000, "ms"),
    ]


async def _ask(port: int, path: bytes, clients: int, requests: int) -> list[float]:
    each = max(1, requests // clients)
    taken = await asyncio.gather(*(_client(port, path, each) for _ in range(clients)))
    return [one for times in taken for one in times]


async def _client(port: int, path: bytes, requests: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path, len(BODY))
    taken = []
    for _ in range(requests):
        began = time.perf_counter()
        writer.write(head + BODY)
        await reader.readuntil(b"\r\n\r\n")
        if await reader.readexactly(len(ANSWERED)) != ANSWERED:
            raise RuntimeError("that is not what the replica answers")
        taken.append(time.perf_counter() - began)
    writer.close()
    return taken


def _spread(seconds: list[float]) -> str:
    p50, p99 = (with_unit(percentile(seconds, one) * 1000, "") for one in (50, 99))
    return f"p50 {p50}, p99 {p99} ms"


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def _replica() -> Iterator[int]:
    with _child(_serve_replica) as (port, _):
        yield port


@contextlib.contextmanager
def _router(replica: int) -> Iterator[tuple[int, psutil.Process]]:
    with _child(_serve_router, replica) as (port, process):
        yield port, process


@contextlib.contextmanager
def _child(serve: Callable[..., None], *given: int) -> Iterator[tuple[int, psutil.Process]]:
    """Run something that serves in a process of its own; yield its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *given), daemon=True)
    process.start()
    try:
        if not ours.poll(30):
            raise RuntimeError("a process of the benchmark did not start")
        yield ours.recv(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.join()


def _serve_replica(told: Connection) -> None:
    asyncio.run(_answer_all(told))


async def _answer_all(told: Connection) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(len(BODY))
            writer.write(ANSWER + ANSWERED)
    writer.close()


def _serve_router(told: Connection, replica: int) -> None:
    asyncio.run(_route(told, replica))


async def _route(told: Connection, replica: int) -> None:
    async with Router.serving(RouterConfig(port=0), _Paper(replica)) as router:
        keep_what_was_loaded()
        told.send(int(router.address.rpartition(":")[2]))
        await asyncio.Event().wait()


class _Paper:
    """A directory of one deployment with one replica."""

    def __init__(self, port: int) -> None:
        endpoint = f"http://127.0.0.1:{port}"
        replica = ReplicaEndpoint(
            name="r-1", state=ReplicaState.READY, endpoint=endpoint, revision=1
        )
        self._told = DeploymentEndpoints(
            id="llm",
            uid="u-1",
            created_at=datetime.now(UTC),
            enabled=True,
            desired=1,
            generation=1,
            replicas=(replica,),
        )

    async def running(self) -> tuple[str, ...]:
        return ("llm",)

    async def endpoints(self, deployment: str) -> DeploymentEndpoints | None:
        return self._told if deployment == "llm" else None

    async def wake(self, deployment: str, uid: str) -> None:
        raise AssertionError("a deployment with a replica is not woken")


def main() -> None:
    """Measure, and print the table."""
    figures = asyncio.run(measure(requests=640, say=_print))
    _print(markdown(figures))


def _print(text: str) -> None:
    """Print to the terminal."""
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
