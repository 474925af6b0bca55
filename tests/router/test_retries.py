"""Replicas that die, refuse or hang up, and what may be sent again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from garrison.models.deployment import ReplicaState
from tests.router.conftest import Play
from tests.router.stage import QUICK, Call, Workload, endpoints, greet, ready, routing, until


async def abort(call: Call) -> None:
    """Take the whole request, and end as a killed process does."""
    await call.read()
    call.writer.transport.abort()


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_a_request_that_may_be_repeated_goes_to_another_replica(
    method: str, play: Play
) -> None:
    bad, good = await play(abort, name="a"), await play(name="b")
    async with routing(endpoints(bad, good)) as stage:
        answer = await stage.client.request(method, "/llm/x", content=b"body")

    assert answer.status_code == 200
    assert good.seen[0].body == b"body"
    assert len(good.seen) == 1


async def test_a_post_whose_replica_died_is_answered_502_and_executed_once(play: Play) -> None:
    bad, good = await play(abort, name="a"), await play(name="b")
    async with routing(endpoints(bad, good)) as stage:
        answer = await stage.client.post("/llm/x", content=b"buy one")

    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "replica_unreachable"
    assert answer.headers["garrison-router"] == "error"
    assert (len(bad.seen), len(good.seen)) == (1, 0)
    assert stage.counts().running == 0


async def test_a_post_with_an_idempotency_key_may_be_repeated(play: Play) -> None:
    bad, good = await play(abort, name="a"), await play(name="b")
    async with routing(endpoints(bad, good)) as stage:
        headers = {"idempotency-key": "k-1"}
        answer = await stage.client.post("/llm/x", content=b"buy one", headers=headers)

    assert answer.status_code == 200
    assert (good.seen[0].body, len(good.seen)) == (b"buy one", 1)


async def test_a_post_that_was_never_sent_goes_to_another_replica(play: Play) -> None:
    dead, good = await play(name="a"), await play(name="b")
    await dead.die()
    async with routing(endpoints(dead, good)) as stage:
        answers = [await stage.client.post("/llm/x", content=b"buy") for _ in range(4)]
        reads = len(stage.book.reads)

    assert {one.status_code for one in answers} == {200}
    assert len(good.seen) == 4
    assert reads > 1


async def test_a_post_waits_for_the_only_replica_to_take_connections_again(play: Play) -> None:
    dead = await play()
    await dead.die()
    async with routing(endpoints(dead)) as stage:
        asked = asyncio.create_task(stage.client.post("/llm/x", content=b"buy"))
        await until(lambda: stage.counts().queued == 1)
        back = await play(port=dead.port)
        answer = await asked

    assert answer.status_code == 200
    assert [one.body for one in back.seen] == [b"buy"]


async def test_a_replica_that_takes_no_connection_is_left_alone_for_a_while(play: Play) -> None:
    dead, good = await play(name="a"), await play(name="b")
    await dead.die()
    async with routing(endpoints(dead, good), pace=replace(QUICK, aside=(60.0,))) as stage:
        for _ in range(3):
            await stage.client.get("/llm/x")
        back = await play(name="a", port=dead.port)
        for _ in range(3):
            await stage.client.get("/llm/x")

    assert (len(back.seen), len(good.seen)) == (0, 6)


async def test_a_request_that_nobody_answers_is_sent_a_few_times_and_then_given_up(
    play: Play,
) -> None:
    bad = await play(abort)
    async with routing(endpoints(bad)) as stage:
        answer = await stage.client.get("/llm/x")

    assert answer.status_code == 502
    assert "it was sent 3 times" in answer.json()["error"]["message"]
    assert stage.counts().completions == 1


async def test_a_body_too_long_to_be_kept_is_not_sent_again(play: Play) -> None:
    bad, good = await play(abort, name="a"), await play(name="b")
    async with routing(endpoints(bad, good), replay_bytes=65536) as stage:
        answer = await stage.client.put("/llm/x", content=b"x" * 500_000)

    assert answer.status_code == 502
    assert (len(bad.seen), len(good.seen)) == (1, 0)


async def test_a_streamed_body_that_was_kept_is_sent_again_whole(play: Play) -> None:
    bad, good = await play(abort, name="a"), await play(name="b")

    async def body() -> AsyncIterator[bytes]:
        for number in range(20):
            yield b"%04d" % number * 256

    async with routing(endpoints(bad, good)) as stage:
        answer = await stage.client.put("/llm/x", content=body())

    assert answer.status_code == 200
    assert good.seen[0].body == b"".join(b"%04d" % number * 256 for number in range(20))


async def test_connections_that_a_replica_closed_while_idle_fail_no_post(play: Play) -> None:
    replica = await play()
    async with routing(endpoints(replica)) as stage:
        answers = []
        for _ in range(10):
            answers.append(await stage.client.post("/llm/x", content=b"one"))
            replica.hang_up()
            await until(lambda: replica.connections == 0)

    assert {one.status_code for one in answers} == {200}
    assert len(replica.seen) == 10


async def test_connections_are_used_again(play: Play) -> None:
    most = 0

    async def count(call: Call) -> None:
        nonlocal most
        most = max(most, replica.connections)
        await greet(call)

    replica = await play(count)
    async with routing(endpoints(replica)) as stage:
        for _ in range(5):
            await stage.client.post("/llm/x", content=b"one")

    assert most == 1


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_an_answer_whose_replica_died_in_the_middle_is_broken_off(
    framing: str, play: Play
) -> None:
    async def half(call: Call) -> None:
        if framing == "chunked":
            await call.begin_chunks()
            await call.chunk(b"half")
        else:
            await call.write(b"HTTP/1.1 200 x\r\ncontent-length: 8\r\n\r\nhalf")
        await heard.wait()
        call.writer.transport.abort()

    heard = asyncio.Event()
    async with routing(endpoints(await play(half))) as stage:
        got = []

        async def listen() -> None:
            async with stage.client.stream("GET", "/llm/x") as answer:
                async for piece in answer.aiter_raw():
                    got.append(piece)
                    heard.set()

        with pytest.raises(httpx.RemoteProtocolError):
            await listen()
        await until(lambda: stage.counts().running == 0)
        metrics = (await stage.client.get("/metrics")).text

    assert got == [b"half"]
    assert 'garrison_router_requests_total{code="broken",deployment="llm"} 1.0' in metrics


async def test_an_old_client_sees_an_error_where_the_answer_was_broken_off(play: Play) -> None:
    async def half(call: Call) -> None:
        await call.begin_chunks()
        await call.chunk(b"half")
        await heard.wait()
        call.writer.transport.abort()

    heard = asyncio.Event()
    async with routing(endpoints(await play(half))) as stage:
        reader, writer = await stage.dial()
        writer.write(b"GET /llm/x HTTP/1.0\r\n\r\n")
        head = await reader.readuntil(b"half")
        heard.set()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()

    # In HTTP/1.0 the end of the connection is the end of the answer.
    assert b"transfer-encoding" not in head.lower()


async def test_an_answer_that_is_no_http_is_502(play: Play) -> None:
    async def nonsense(call: Call) -> None:
        await call.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        call.writer.close()

    async with routing(endpoints(await play(nonsense))) as stage:
        answer = await stage.client.post("/llm/x", content=b"a")

    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "replica_unreachable"


async def test_a_replica_that_is_drained_gets_nothing_new_and_ends_what_it_has(
    play: Play,
) -> None:
    finish = asyncio.Event()

    async def slow(call: Call) -> None:
        if call.seen.target == b"/slow":
            await finish.wait()
        await call.answer(call.seen.target)

    old, new = await play(slow, name="old"), await play(slow, name="new")
    async with routing(endpoints(old)) as stage:
        running = asyncio.create_task(stage.client.get("/llm/slow"))
        await until(lambda: stage.counts().running == 1)
        draining = endpoints(ready(old, ReplicaState.DRAINING), ready(new), version=2)
        told = (await stage.tell(draining)).json()
        for _ in range(3):
            await stage.client.get("/llm/quick")
        gone = (await stage.tell(endpoints(new, version=3))).json()
        finish.set()
        answer = await running
        after = (await stage.client.get("/-/endpoints/llm")).json()

    assert (len(old.seen), len(new.seen)) == (1, 3)
    assert (answer.status_code, answer.text) == (200, "/slow")
    assert told["replicas"] == {"old": 1, "new": 0}
    assert gone["replicas"] == {"old": 1, "new": 0}
    assert after["replicas"] == {"new": 0}


async def test_a_replica_that_accepts_nothing_in_time_counts_as_not_reached(play: Play) -> None:
    good = await play(name="b")
    with socket.socket() as deaf:
        # Its queue of connections is full: further ones are neither accepted nor refused.
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        filling = [_begin(deaf.getsockname()[1]) for _ in range(4)]
        silent = Workload("a", port=deaf.getsockname()[1])
        async with routing(endpoints(silent, good), connect_seconds=0.2) as stage:
            answers = [await stage.client.post("/llm/x", content=b"a") for _ in range(2)]
        for one in filling:
            one.close()

    assert {one.status_code for one in answers} == {200}
    assert len(good.seen) == 2


def _begin(port: int) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(("127.0.0.1", port))
    return made


@pytest.mark.parametrize("state", [one for one in ReplicaState if one is not ReplicaState.READY])
async def test_only_ready_replicas_get_requests(state: ReplicaState, play: Play) -> None:
    other, good = await play(name="other"), await play(name="good")
    async with routing(endpoints(ready(other, state), ready(good))) as stage:
        for _ in range(4):
            await stage.client.get("/llm/x")

    assert (len(other.seen), len(good.seen)) == (0, 4)
