"""What of a request reaches a replica, and what of its answer the client."""

from __future__ import annotations

import asyncio
import gzip
import resource
from collections.abc import AsyncIterator, Callable

import pytest

from tests.router.conftest import Play
from tests.router.stage import Call, endpoints, routing, until

PATHS = {
    "/llm/v1/chat?model=a%20b&x=+": b"/v1/chat?model=a%20b&x=+",
    "/llm": b"/",
    "/llm/": b"/",
    "/llm?x=1": b"/?x=1",
    "/LLM/x": b"/x",
    "/llm//a//b": b"//a//b",
    "/llm/a%2Fb%2f%00%zz": b"/a%2Fb%2f%00%zz",
    "/llm/../other/x": b"/../other/x",
    "/llm/./%2e%2e/x": b"/./%2e%2e/x",
    "/llm/%0d%0aset-cookie:%20x": b"/%0d%0aset-cookie:%20x",
    "/llm/a;b=c@d:e?f=g?h&i=%26": b"/a;b=c@d:e?f=g?h&i=%26",
    "http://elsewhere:9/llm/x?y": b"/x?y",
}


async def test_paths_reach_a_replica_byte_for_byte(play: Play) -> None:
    replica = await play()
    async with routing(endpoints(replica)) as stage:
        for path in PATHS:
            await stage.raw(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())

    assert [one.target for one in replica.seen] == list(PATHS.values())


async def test_headers_of_one_hop_are_dropped_and_all_others_go_on(play: Play) -> None:
    replica = await play()
    async with routing(endpoints(replica)) as stage:
        await stage.raw(
            b"GET /llm/x HTTP/1.1\r\nHost: models.example\r\nConnection: close, X-Private\r\n"
            b"X-Private: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: Basic a\r\n"
            b"Upgrade: h2c\r\nAuthorization: Bearer of-the-model\r\nX-Two: a\r\nX-Two: b\r\n"
            b"X-Forwarded-For: 10.1.1.1\r\nX-Forwarded-Proto: https\r\nX-Text: \xc3\xa9\r\n\r\n"
        )

    (seen,) = replica.seen
    for name in ("connection", "x-private", "keep-alive", "te", "proxy-authorization", "upgrade"):
        assert seen.values(name) == []
    assert seen.values("host") == ["models.example"]
    assert seen.values("authorization") == ["Bearer of-the-model"]
    assert seen.values("x-two") == ["a", "b"]
    assert seen.values("x-forwarded-for") == ["10.1.1.1, 127.0.0.1"]
    assert seen.values("x-forwarded-host") == ["models.example"]
    assert seen.values("x-forwarded-proto") == ["http"]
    assert seen.values("x-forwarded-prefix") == ["/llm"]
    assert b"X-Text: \xc3\xa9".lower() in seen.head.lower()
    assert b"user-agent" not in seen.head.lower()
    assert b"accept" not in seen.head.lower()


async def test_an_answer_goes_to_the_client_as_it_came(play: Play) -> None:
    packed = gzip.compress(b"x" * 1000)

    async def teapot(call: Call) -> None:
        await call.write(
            b"HTTP/1.1 418 Teapot\r\nContent-Encoding: gzip\r\n"
            b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
            b"Connection: x-hop\r\nX-Hop: 1\r\nContent-Length: %d\r\n\r\n%b" % (len(packed), packed)
        )

    async with routing(endpoints(await play(teapot))) as stage:
        answer = await stage.raw(b"GET /llm HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 418 ")
    assert body == packed
    assert head.lower().count(b"set-cookie: ") == 2
    assert b"x-hop" not in head.lower()
    assert b"garrison-router" not in head.lower()


@pytest.mark.parametrize("status", [204, 304, 301, 500, 503])
async def test_every_status_of_a_replica_is_the_clients(status: int, play: Play) -> None:
    async def answer(call: Call) -> None:
        await call.write(b"HTTP/1.1 %d x\r\nlocation: /y\r\n" % status)
        await call.write(b"\r\n" if status in (204, 304) else b"content-length: 2\r\n\r\nno")

    async with routing(endpoints(await play(answer))) as stage:
        got = [await stage.client.get("/llm/x") for _ in range(2)]

    assert [one.status_code for one in got] == [status, status]
    assert got[0].headers["location"] == "/y"


async def test_head_has_a_length_and_no_body(play: Play) -> None:
    async def answer(call: Call) -> None:
        await call.write(b"HTTP/1.1 200 x\r\ncontent-length: 5\r\n\r\n")

    replica = await play(answer)
    async with routing(endpoints(replica)) as stage:
        got = [await stage.client.head("/llm/x") for _ in range(2)]

    assert [one.headers["content-length"] for one in got] == ["5", "5"]
    assert replica.seen[0].line == b"HEAD /x HTTP/1.1"


async def test_events_arrive_one_by_one(play: Play) -> None:
    heard = asyncio.Queue[bytes]()

    async def echo_what_the_client_heard(call: Call) -> None:
        await call.begin_chunks()
        for number in range(5):
            await call.chunk(b"data: %d\n\n" % number)
            # The next one is not even written before the client has this one.
            assert await heard.get() == b"data: %d\n\n" % number
        await call.chunk(b"")

    events = []
    async with (
        routing(endpoints(await play(echo_what_the_client_heard))) as stage,
        stage.client.stream("GET", "/llm/events") as answer,
        asyncio.timeout(10),
    ):
        async for event in answer.aiter_raw():
            events.append(event)
            heard.put_nowait(event)

    assert events == [b"data: %d\n\n" % number for number in range(5)]


@pytest.mark.parametrize("length", [True, False], ids=["with a length", "in chunks"])
async def test_a_long_upload_streams_through_within_bounded_memory(
    length: bool, play: Play
) -> None:
    total, piece = 30 * 2**20, b"x" * 65536
    sizes: list[int] = []

    async def measure(call: Call) -> None:
        async for part in call.body():
            sizes.append(len(part))
        await call.answer(str(sum(sizes)).encode())

    async def body() -> AsyncIterator[bytes]:
        for _ in range(total // len(piece)):
            yield piece

    async with routing(endpoints(await play(measure))) as stage:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        headers = {"content-length": str(total)} if length else {}
        answer = await stage.client.post("/llm/x", content=body(), headers=headers)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert answer.text == str(total)
    assert (after - before) * 1024 < total / 2


async def test_a_slow_replica_stops_the_client_instead_of_filling_memory(play: Play) -> None:
    go_on = asyncio.Event()
    sent = 0

    async def wait_then_read(call: Call) -> None:
        await go_on.wait()
        async for _ in call.body():
            pass
        await call.answer()

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(400):
            sent += 65536
            yield b"x" * 65536

    replica = await play(wait_then_read)
    async with routing(endpoints(replica)) as stage:
        task = asyncio.create_task(stage.client.put("/llm/x", content=body()))
        stuck = await _last_value(lambda: sent)
        go_on.set()
        answer = await task

    assert stuck < 400 * 65536
    assert answer.status_code == 200


async def _last_value(read: Callable[[], int]) -> int:
    """Return a value once it has been the same for a while."""
    last, same = read(), 0
    while same < 30:
        await asyncio.sleep(0.01)
        same = same + 1 if read() == last else 0
        last = read()
    return last


async def test_an_empty_post_keeps_its_length(play: Play) -> None:
    replica = await play()
    async with routing(endpoints(replica)) as stage:
        await stage.client.post("/llm/x")

    assert replica.seen[0].values("content-length") == ["0"]


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on(play: Play) -> None:
    replica = await play()
    async with routing(endpoints(replica)) as stage:
        reader, writer = await stage.dial()
        writer.write(
            b"POST /llm/x HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n"
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"12345")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()

    assert head.startswith(b"HTTP/1.1 200 ")
    assert replica.seen[0].body == b"12345"
    assert replica.seen[0].values("expect") == []


async def test_a_refused_client_is_not_told_to_send_its_body(play: Play) -> None:
    async with routing(endpoints(enabled=False)) as stage:
        await until(lambda: "llm" in stage.book.reads)
        answer = await stage.raw(
            b"POST /llm/x HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\nexpect: 100-continue\r\n"
            b"connection: close\r\n\r\n"
        )

    assert answer.startswith(b"HTTP/1.1 503 ")


async def test_an_answer_that_comes_before_the_end_of_the_request_is_passed_on(play: Play) -> None:
    async def refuse(call: Call) -> None:
        await call.answer(b"too much", status=413, connection="close")
        call.writer.close()

    replica = await play(refuse)
    async with routing(endpoints(replica)) as stage:
        reader, writer = await stage.dial()
        writer.write(b"POST /llm/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nbegin")
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
        await until(lambda: stage.counts().running == 0)
        writer.close()

    assert head.startswith(b"HTTP/1.1 413 ")
    assert stage.counts().completions == 1


async def test_requests_are_spread_by_what_is_under_way_and_else_in_turn(play: Play) -> None:
    hold = asyncio.Event()

    async def slow(call: Call) -> None:
        if call.seen.target == b"/slow":
            await hold.wait()
        await call.answer(b"ok")

    replicas = [await play(slow, name=f"r-{number}") for number in range(3)]
    async with routing(endpoints(*replicas)) as stage:
        for _ in range(6):
            await stage.client.get("/llm/quick")
        in_turn = [len(one.seen) for one in replicas]
        stuck = asyncio.create_task(stage.client.get("/llm/slow"))
        await until(lambda: stage.counts().running == 1)
        busy = next(one for one in replicas if one.seen[-1].target == b"/slow")
        for _ in range(6):
            await stage.client.get("/llm/quick")
        hold.set()
        await stuck

    assert in_turn == [2, 2, 2]
    assert len(busy.seen) == 3
