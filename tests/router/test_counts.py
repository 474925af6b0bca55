"""What is counted for autoscaling: every count falls again, however a request ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

import pytest

from garrison.models.load import RouterLoad
from tests.router.conftest import Play
from tests.router.stage import Call, endpoints, routing, until


async def test_a_client_that_leaves_while_it_is_served_ends_the_request_at_once(
    play: Play,
) -> None:
    async def never(call: Call) -> None:
        await call.read()
        assert await call.reader.read() == b""
        raise ConnectionResetError

    replica = await play(never)
    async with routing(endpoints(replica)) as stage:
        _, writer = await stage.dial()
        writer.write(b"POST /llm/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\na")
        await until(lambda: len(replica.seen) == 1)
        before = stage.counts()
        writer.close()
        await asyncio.wait_for(replica.broken.wait(), 10)
        await until(lambda: stage.counts().running == 0)
        metrics = (await stage.client.get("/metrics")).text

    assert (before.running, before.completions) == (1, 0)
    assert stage.counts().completions == 1
    assert 'garrison_router_requests_total{code="aborted",deployment="llm"} 1.0' in metrics


async def test_a_client_that_leaves_in_the_middle_of_an_answer_ends_it(play: Play) -> None:
    async def forever(call: Call) -> None:
        await call.begin_chunks()
        while True:
            await call.chunk(b"data\n\n")
            await asyncio.sleep(0.001)

    replica = await play(forever)
    async with routing(endpoints(replica)) as stage:
        reader, writer = await stage.dial()
        writer.write(b"GET /llm/x HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"data")
        writer.close()
        await asyncio.wait_for(replica.broken.wait(), 10)
        await until(lambda: stage.counts().running == 0)


async def test_a_client_that_leaves_in_the_middle_of_its_body_ends_the_request(
    play: Play,
) -> None:
    async def read(call: Call) -> None:
        await call.read()
        await call.answer()

    replica = await play(read)
    async with routing(endpoints(replica)) as stage:
        _, writer = await stage.dial()
        writer.write(b"POST /llm/x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")
        await until(lambda: len(replica.seen) == 1)
        writer.close()
        await asyncio.wait_for(replica.broken.wait(), 10)
        await until(lambda: stage.counts().running == 0)

    assert replica.seen[0].body == b""


@pytest.mark.parametrize("side", ["request", "answer"])
async def test_a_client_that_stands_still_is_given_up(side: str, play: Play) -> None:
    async def much(call: Call) -> None:
        await call.begin_chunks()
        while True:
            await call.chunk(b"x" * 65536)

    replica = await play(much)
    async with routing(endpoints(replica), stall_seconds=0.2) as stage:
        _, writer = await stage.dial()
        length = b"content-length: 5\r\n" if side == "request" else b""
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"PUT /llm/x HTTP/1.1\r\nhost: x\r\n" + length + b"\r\n")
        await until(lambda: stage.counts().arrivals == 1)
        await until(lambda: stage.counts().running == 0)
        writer.close()

    assert stage.counts().completions == 1


async def test_counts_are_at_rest_after_a_storm(play: Play) -> None:
    rng = random.Random(4)

    async def moody(call: Call) -> None:
        mood = rng.randrange(4)
        if mood == 0:
            call.writer.transport.abort()
            return
        if mood == 1:
            await call.begin_chunks()
            await call.chunk(b"half")
            call.writer.transport.abort()
            return
        await call.read()
        await call.answer(b"x" * rng.randrange(100_000))

    async def ask(number: int) -> None:
        with contextlib.suppress(Exception):
            patience = None if number % 3 else 0.001 * (number % 50)
            async with asyncio.timeout(patience):
                content = b"x" * (number * 1000) if number % 2 else b""
                await stage.client.request(("GET", "POST")[number % 2], "/llm/x", content=content)

    replicas = [await play(moody, name=f"r-{number}") for number in range(3)]
    async with routing(endpoints(), hold_seconds=0.3) as stage:
        first = [asyncio.create_task(ask(number)) for number in range(60)]
        await until(lambda: stage.counts().queued > 20)
        await stage.tell(endpoints(*replicas, version=2))
        second = [asyncio.create_task(ask(number)) for number in range(90)]
        await replicas[0].die()
        await asyncio.gather(*first, *second)
        await until(lambda: stage.counts().running == stage.counts().queued == 0)
        known = (await stage.client.get("/-/endpoints/llm")).json()
        metrics = (await stage.client.get("/metrics")).text

    counts = stage.counts()
    assert counts.arrivals == counts.completions
    assert counts.arrivals > 80
    assert set(known["replicas"].values()) == {0}
    assert 'garrison_router_held{deployment="llm"} 0.0' in metrics
    assert 'garrison_router_running{deployment="llm"} 0.0' in metrics


async def test_three_hundred_streams_run_at_once(play: Play) -> None:
    finish = asyncio.Event()

    async def stream(call: Call) -> None:
        await call.begin_chunks()
        await call.chunk(b"first\n")
        await finish.wait()
        await call.chunk(b"last\n")
        await call.chunk(b"")

    async def ask() -> bytes:
        reader, writer = await stage.dial()
        writer.write(b"GET /llm/x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        got = await reader.read()
        writer.close()
        return got

    replica = await play(stream)
    async with routing(endpoints(replica)) as stage:
        asked = [asyncio.create_task(ask()) for _ in range(300)]
        await until(lambda: stage.counts().running == 300)
        finish.set()
        answers = await asyncio.gather(*asked)
        await until(lambda: stage.counts().running == 0)

    assert all(b"last\n" in one and one.endswith(b"0\r\n\r\n") for one in answers)


async def test_the_load_says_what_was_counted(play: Play) -> None:
    async with routing(endpoints(await play()), endpoints(id="idle")) as stage:
        await stage.client.get("/LLM/x")
        await stage.client.get("/nobody/x")
        load = RouterLoad.model_validate_json((await stage.client.get("/-/load")).content)

    assert load.router
    assert set(load.deployments) == {"llm"}
    assert load.deployments["llm"].arrivals == 1


async def test_two_starts_of_a_router_have_different_names() -> None:
    names = []
    for _ in range(2):
        async with routing() as stage:
            names.append((await stage.client.get("/-/load")).json()["router"])

    assert names[0] != names[1]


async def test_metrics_name_known_deployments_only(play: Play) -> None:
    async with routing(endpoints(await play())) as stage:
        await stage.client.get("/llm/x")
        await stage.client.get("/no-such/x")
        answer = await stage.client.get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain")
    assert 'garrison_router_requests_total{code="2xx",deployment="llm"} 1.0' in answer.text
    assert 'garrison_router_refused_total{code="not_found"} 1.0' in answer.text
    assert 'garrison_router_replicas_ready{deployment="llm"} 1.0' in answer.text
    assert "no-such" not in answer.text


async def test_one_line_a_request_without_its_query_or_headers(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="garrison.router.access")
    replica = await play(name="r-7")
    async with routing(endpoints(replica)) as stage:
        headers = {"authorization": "Bearer secret-1", "x-a": "secret-2"}
        await stage.client.post("/llm/a?key=secret-3", content=b"secret-4", headers=headers)
        await stage.client.get("/nobody/%0d%0ax")

    lines = [one.getMessage() for one in caplog.records if "access" in one.name]
    assert "secret" not in caplog.text
    assert lines[0].startswith("POST llm path=/a status=200 outcome=2xx bytes=5 seconds=")
    assert lines[0].endswith("replica=r-7 tries=1")
    assert lines[1].startswith("GET - path=/nobody/%0d%0ax status=404 outcome=4xx ")
