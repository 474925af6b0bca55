"""Requests of deployments that have no replica yet."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.router.conftest import Play
from tests.router.stage import BORN, QUICK, Call, Stage, Workload, endpoints, routing, until


async def test_two_hundred_held_requests_are_answered_after_one_wake(play: Play) -> None:
    replicas = [await play(name=f"r-{number}") for number in range(2)]
    async with routing(endpoints()) as stage:
        sent = b"GET /llm HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        asked = [asyncio.create_task(stage.raw(sent)) for _ in range(200)]
        await until(lambda: stage.counts().queued == 200 and bool(stage.book.wakes))
        looks = len(stage.book.reads)
        await until(lambda: len(stage.book.reads) > looks + 3)
        await stage.tell(endpoints(*replicas, version=2))
        answers = await asyncio.gather(*asked)

    assert {one[:13] for one in answers} == {b"HTTP/1.1 200 "}
    assert stage.book.wakes == [("llm", "u-1")]
    assert [len(one.seen) for one in replicas] == [100, 100]
    counts = stage.counts()
    assert (counts.queued, counts.running) == (0, 0)
    assert (counts.arrivals, counts.completions) == (200, 200)


async def test_a_replica_that_the_directory_shows_is_found_without_being_told(play: Play) -> None:
    replica = await play()
    async with routing(endpoints()) as stage:
        asked = asyncio.create_task(stage.client.get("/llm/x"))
        await until(lambda: stage.counts().queued == 1)
        stage.book.told["llm"] = endpoints(replica, version=2)
        answer = await asked

    assert answer.status_code == 200


async def test_a_wake_is_repeated_as_long_as_the_deployment_stays_at_zero() -> None:
    async with routing(endpoints(), pace=replace(QUICK, wake=0.1)) as stage:
        asked = asyncio.create_task(stage.client.get("/llm/x"))
        await until(lambda: len(stage.book.wakes) == 3)
        await stage.tell(endpoints(desired=1, version=2))
        woken, looks = len(stage.book.wakes), len(stage.book.reads)
        await until(lambda: len(stage.book.reads) > looks + 10)
        asked.cancel()

    assert len(stage.book.wakes) == woken


async def test_a_deployment_that_starts_replicas_already_is_not_woken(play: Play) -> None:
    async with routing(endpoints(desired=1)) as stage:
        asked = asyncio.create_task(stage.client.get("/llm/x"))
        await until(lambda: stage.counts().queued == 1)
        looks = len(stage.book.reads)
        await until(lambda: len(stage.book.reads) > looks + 3)
        await stage.tell(endpoints(await play(), version=2))
        await asked

    assert stage.book.wakes == []


async def test_who_waited_long_enough_is_told_when_to_come_again() -> None:
    async with routing(endpoints(), hold_seconds=0.1) as stage:
        answer = await stage.client.get("/llm/x")

    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert answer.headers["garrison-router"] == "error"
    assert answer.json()["error"]["code"] == "no_replica"
    counts = stage.counts()
    assert (counts.queued, counts.running, counts.arrivals, counts.completions) == (0, 0, 1, 1)


@pytest.mark.parametrize(("each", "together"), [(2, 100), (100, 2)])
async def test_only_so_many_requests_wait(each: int, together: int) -> None:
    async with routing(endpoints(), held_each=each, held_all=together) as stage:
        asked = [asyncio.create_task(stage.client.get("/llm/x")) for _ in range(2)]
        await until(lambda: stage.counts().queued == 2)
        refused = await stage.client.get("/llm/x")
        still = stage.counts().queued
        for one in asked:
            one.cancel()
        await until(lambda: stage.counts().queued == 0)

    assert (refused.status_code, still) == (429, 2)
    assert refused.json()["error"]["code"] == "too_many_requests"
    assert refused.headers["retry-after"] == "5"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_client_that_goes_away_leaves_the_queue(method: str, play: Play) -> None:
    replica = await play()
    async with routing(endpoints()) as stage:
        _, writer = await stage.dial()
        writer.write(
            f"{method} /llm/x HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc".encode()
        )
        await until(lambda: stage.counts().queued == 1)
        writer.close()
        await until(lambda: stage.counts().queued == 0)
        await stage.tell(endpoints(replica, version=2))
        await stage.client.get("/llm/after")

    assert [one.target for one in replica.seen] == [b"/after"]
    assert stage.counts().completions == 2


async def test_the_body_of_a_held_request_is_sent_once_a_replica_is_there(play: Play) -> None:
    replica = await play()
    body = b"y" * 300_000
    async with routing(endpoints(), replay_bytes=100_000) as stage:
        asked = asyncio.create_task(stage.client.post("/llm/x", content=body))
        await until(lambda: stage.counts().queued == 1)
        await stage.tell(endpoints(replica, version=2))
        answer = await asked

    assert answer.status_code == 200
    assert replica.seen[0].body == body


async def test_held_bodies_together_take_no_more_than_their_budget(play: Play) -> None:
    replica = await play()
    body = b"y" * 200_000
    async with routing(endpoints(), replay_bytes_all=300_000) as stage:
        asked = [asyncio.create_task(stage.client.post("/llm/x", content=body)) for _ in range(8)]
        await until(lambda: stage.counts().queued == 8)
        await stage.tell(endpoints(replica, version=2))
        answers = await asyncio.gather(*asked)

    assert {one.status_code for one in answers} == {200}
    assert [len(one.body) for one in replica.seen] == [200_000] * 8


async def test_a_disabled_deployment_refuses_at_once_also_those_that_wait() -> None:
    async with routing(endpoints()) as stage:
        asked = asyncio.create_task(stage.client.get("/llm/x"))
        await until(lambda: stage.counts().queued == 1)
        await stage.tell(endpoints(enabled=False, version=2))
        waited, late = await asked, await stage.client.get("/llm/x")

    for answer in (waited, late):
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "deployment_disabled"
    assert stage.counts().arrivals == 1


async def test_a_deployment_that_no_request_can_wake_refuses_with_its_reason() -> None:
    told = endpoints(wakeable=False, reason="held at 0 by ana")
    async with routing(told) as stage:
        answer = await stage.client.get("/llm/x")

    assert answer.status_code == 503
    assert answer.json()["error"] == {
        "code": "no_replica",
        "message": "deployment llm: held at 0 by ana",
    }
    assert stage.counts().arrivals == 0


async def test_who_waits_for_a_deployment_that_is_deleted_is_told_so() -> None:
    async with routing(endpoints()) as stage:
        asked = asyncio.create_task(stage.client.get("/llm/x"))
        await until(lambda: stage.counts().queued == 1)
        del stage.book.told["llm"]
        answer = await asked
        metrics = (await stage.client.get("/metrics")).text

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert 'deployment="llm"' not in metrics


async def test_a_new_life_of_an_id_is_woken_under_its_own_uid() -> None:
    async with routing(endpoints(), pace=replace(QUICK, wake=0.05)) as stage:
        asked = asyncio.create_task(stage.client.get("/llm/x"))
        await until(lambda: ("llm", "u-1") in stage.book.wakes)
        born = BORN + timedelta(hours=1)
        await stage.tell(endpoints(uid="u-2", created_at=born, version=0))
        await until(lambda: ("llm", "u-2") in stage.book.wakes)
        asked.cancel()


async def test_what_is_known_is_served_while_nobody_can_be_asked(play: Play) -> None:
    replica = await play()
    async with routing(endpoints(replica), pace=replace(QUICK, stale=0)) as stage:
        await stage.client.get("/llm/x")
        stage.book.silent = True
        answers = [await stage.client.get("/llm/x") for _ in range(3)]

    assert [one.status_code for one in answers] == [200] * 3


async def test_who_waits_while_nobody_can_be_asked_is_served_afterwards(play: Play) -> None:
    replica = await play()
    async with routing() as stage:
        stage.book.silent = True
        stage.book.told = {"llm": endpoints(replica), "zero": endpoints(id="zero")}
        unknown = asyncio.create_task(stage.client.get("/llm/x"))
        await until(lambda: stage.book.reads.count("llm") > 2)
        stage.book.silent = False
        answer = await unknown

    assert answer.status_code == 200


async def test_a_deployment_nobody_can_be_asked_about_is_unknown_not_missing() -> None:
    async with routing(hold_seconds=0.1) as stage:
        stage.book.silent = True
        answer = await stage.client.get("/llm/x")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "service_unreachable"
    assert "retry-after" in answer.headers


async def test_a_wake_that_nobody_heard_is_sent_again() -> None:
    async with routing(endpoints()) as stage:
        await until(lambda: "llm" in stage.book.reads)
        stage.book.silent = True
        asked = asyncio.create_task(stage.client.get("/llm/x"))
        looks = len(stage.book.reads)
        await until(lambda: len(stage.book.reads) > looks + 2)
        stage.book.silent = False
        await until(lambda: len(stage.book.wakes) == 1)
        asked.cancel()


async def test_what_is_old_is_read_anew_beside_the_request(play: Play) -> None:
    old, new = await play(name="old"), await play(name="new")
    async with routing(endpoints(old), pace=replace(QUICK, stale=0)) as stage:
        await stage.client.get("/llm/1")
        stage.book.told["llm"] = endpoints(new, version=2)
        await until_served_by(stage, new)

    assert new.seen


async def until_served_by(stage: Stage, workload: Workload) -> None:
    async with asyncio.timeout(10):
        while not workload.seen:
            await stage.client.get("/llm/x")


async def test_a_missing_deployment_is_not_asked_for_with_each_request() -> None:
    async with routing(pace=replace(QUICK, missing=60)) as stage:
        answers = [await stage.client.get("/nobody/x") for _ in range(5)]

    assert {one.status_code for one in answers} == {404}
    assert stage.book.reads == ["nobody"]


async def test_deployments_that_run_are_known_before_their_first_request() -> None:
    async with routing(endpoints(), endpoints(id="Other")) as stage:
        await until(lambda: sorted(stage.book.reads) == ["llm", "other"])
        known = await stage.client.get("/-/endpoints/OTHER")

    assert known.status_code == 200


async def test_a_router_that_stops_turns_away_who_waits_and_ends_what_runs(play: Play) -> None:
    finish = asyncio.Event()

    async def slow(call: Call) -> None:
        await finish.wait()
        await call.answer(b"done")

    async def ask(path: bytes) -> bytes:
        reader, writer = await stage.dial()
        writer.write(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path)
        answer = await reader.read()
        writer.close()
        return answer

    async def ask_in_vain() -> bytes:
        answer = await ask(b"/zero/x")
        finish.set()
        return answer

    async with routing(endpoints(await play(slow)), endpoints(id="zero")) as stage:
        running = asyncio.create_task(ask(b"/llm/x"))
        held = asyncio.create_task(ask_in_vain())
        await until(lambda: stage.counts().running == 1 and stage.counts("zero").queued == 1)
    refused, ended = await held, await running

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in refused
    assert ended.startswith(b"HTTP/1.1 200 ")
    assert ended.endswith(b"done")


async def test_a_router_that_stops_waits_no_longer_than_its_grace(play: Play) -> None:
    async def never(call: Call) -> None:
        await call.reader.read()
        raise ConnectionResetError

    replica = await play(never)
    async with routing(endpoints(replica), grace_seconds=0.05) as stage:
        reader, writer = await stage.dial()
        writer.write(b"GET /llm/x HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: stage.counts().running == 1)
    await asyncio.wait_for(replica.broken.wait(), 10)
    answer = await reader.read()
    writer.close()

    assert b" 200 " not in answer
    assert stage.counts().running == 0
