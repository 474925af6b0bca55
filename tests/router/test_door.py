"""Who may ask what: the token, the router's own paths, and requests that are no proper HTTP."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from garrison.errors import InvalidSpec, PortTaken
from garrison.router.config import RouterConfig
from garrison.router.router import Router
from tests.router.conftest import Play
from tests.router.stage import BORN, Book, Call, endpoints, routing, until

TOKEN = "of-the-router-0123456789"
CLOSE = b"host: x\r\nconnection: close\r\n"


@pytest.mark.parametrize(
    "path", ["/llm/x", "/metrics", "/-/load", "/-/endpoints/llm", "/", "/no/x"]
)
async def test_with_a_token_every_path_needs_it(path: str, play: Play) -> None:
    replica = await play()
    async with routing(endpoints(replica), token=TOKEN) as stage:
        bare = await stage.client.get(path)
        wrong = await stage.client.get(path, headers={"authorization": f"Bearer {TOKEN}x"})
        basic = await stage.client.get(path, headers={"authorization": TOKEN})
        right = await stage.client.get(path, headers={"authorization": f"bearer {TOKEN}"})

    for answer in (bare, wrong, basic):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "unauthorized"
    assert right.status_code != 401
    assert TOKEN not in bare.text


async def test_health_needs_no_token() -> None:
    async with routing(token=TOKEN) as stage:
        answer = await stage.client.get("/-/healthz")

    assert (answer.status_code, answer.text) == (200, "ok\n")


async def test_the_routers_token_reaches_no_replica_and_the_replicas_own_does(play: Play) -> None:
    replica = await play()
    async with routing(endpoints(replica), token=TOKEN) as stage:
        await stage.client.get("/llm/x", headers={"authorization": f"Bearer {TOKEN}"})
        both = {"garrison-token": TOKEN, "authorization": "Bearer of-the-model"}
        await stage.client.get("/llm/x", headers=both)

    first, second = replica.seen
    assert first.values("authorization") == []
    assert second.values("authorization") == ["Bearer of-the-model"]
    assert TOKEN.encode() not in first.head + second.head


@pytest.mark.parametrize("path", ["/", "//llm/x", "/llm%2Fx", "/%6c%6c%6d/x", "/-", "/.llm/x"])
async def test_what_names_no_deployment_is_404(path: str, play: Play) -> None:
    async with routing(endpoints(await play())) as stage:
        answer = await stage.raw(f"GET {path} HTTP/1.1\r\n".encode() + CLOSE + b"\r\n")

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert b"garrison-router: error" in head
    assert json.loads(body)["error"]["code"] == "not_found"


async def test_a_deployment_may_be_called_metrics(play: Play) -> None:
    async with routing(endpoints(await play(), id="metrics")) as stage:
        answer = await stage.client.get("/metrics/x")

    assert answer.text == "hello"


SMUGGLED = b"GET /llm/smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
SMUGGLING = {
    "both length and chunks": (
        b"POST /llm HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\n" + SMUGGLED
    ),
    "two lengths": (
        b"POST /llm HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: 5\r\n\r\n"
        + SMUGGLED
    ),
    "a length with a sign": (
        b"POST /llm HTTP/1.1\r\nhost: x\r\ncontent-length: +5\r\n\r\n" + SMUGGLED
    ),
    "an unknown coding": (
        b"POST /llm HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED
    ),
    "two codings": (
        b"POST /llm HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        b"transfer-encoding: identity\r\n\r\n0\r\n\r\n" + SMUGGLED
    ),
    "a space before the colon": (
        b"POST /llm HTTP/1.1\r\nhost: x\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED
    ),
    "a line break in the path": b"GET /llm/a\r\nx: y HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED,
    "a space in the path": b"GET /llm/a b HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED,
    "a bare carriage return": b"GET /llm HTTP/1.1\r\nhost: x\r\na: b\rc: d\r\n\r\n" + SMUGGLED,
    "a null": b"GET /llm HTTP/1.1\r\nhost: x\r\na: \x00\r\n\r\n" + SMUGGLED,
    "no host": b"GET /llm HTTP/1.1\r\n\r\n" + SMUGGLED,
    "a fragment": b"GET /llm/a#b HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED,
    "an authority as target": b"CONNECT llm:443 HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED,
    "long headers": b"GET /llm HTTP/1.1\r\nhost: x\r\na: " + b"b" * 200_000,
}


@pytest.mark.parametrize("sent", SMUGGLING.values(), ids=SMUGGLING.keys())
async def test_what_can_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(
    sent: bytes, play: Play
) -> None:
    replica = await play()
    async with routing(endpoints(replica)) as stage:
        answer = await stage.raw(sent)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert replica.seen == []


async def test_a_bad_chunk_ends_the_request_without_a_proper_end(play: Play) -> None:
    async def read(call: Call) -> None:
        await call.read()
        await call.answer()

    replica = await play(read)
    async with routing(endpoints(replica)) as stage:
        reader, writer = await stage.dial()
        writer.write(
            b"POST /llm HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
        )
        await until(lambda: len(replica.seen) == 1)
        writer.write(b"zz\r\n" + SMUGGLED)
        answer = await reader.read()
        await asyncio.wait_for(replica.broken.wait(), 10)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(replica.seen) == 1


async def test_a_websocket_is_refused(play: Play) -> None:
    replica = await play()
    headers = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
    async with routing(endpoints(replica)) as stage:
        answer = await stage.client.get("/llm/ws", headers=headers)

    assert answer.status_code == 501
    assert answer.json()["error"]["code"] == "unsupported"
    assert replica.seen == []


async def test_requests_on_one_connection_are_answered_in_order(play: Play) -> None:
    async def path(call: Call) -> None:
        await call.answer(call.seen.target)

    async with routing(endpoints(await play(path))) as stage:
        one = b"GET /llm/%d HTTP/1.1\r\nhost: x\r\n%b\r\n"
        sent = b"".join(one % (n, b"connection: close\r\n" if n == 2 else b"") for n in range(3))
        answer = await stage.raw(sent)

    bodies = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 ")[1:]]
    assert bodies == [b"/0", b"/1", b"/2"]


async def test_a_client_that_dawdles_with_its_headers_is_hung_up_on() -> None:
    async with routing(header_seconds=0.1) as stage:
        for sent in (b"", b"GET /llm HTTP/1.1\r\nhost"):
            reader, writer = await stage.dial()
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()


async def test_too_many_connections_are_told_so(play: Play) -> None:
    async with routing(max_connections=2) as stage:
        opened = [await stage.dial() for _ in range(2)]
        await asyncio.sleep(0)  # both are accepted in the order in which they came
        reader, last = await stage.dial()
        answer = await asyncio.wait_for(reader.read(), 10)
        for writer in (*(one for _, one in opened), last):
            writer.close()

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"too many connections" in answer


async def test_the_newer_word_about_a_deployment_holds(play: Play) -> None:
    old, new = await play(name="old"), await play(name="new")
    async with routing(endpoints(new, version=5)) as stage:
        await until(lambda: "llm" in stage.book.reads)
        late = endpoints(old, version=4).model_dump_json()
        other_life = endpoints(old, created_at=BORN - timedelta(days=1), version=9)
        said = [
            await stage.client.put("/-/endpoints/llm", content=late),
            await stage.client.put("/-/endpoints/LLM", content=other_life.model_dump_json()),
        ]
        await stage.client.get("/llm/x")

    assert [one.json()["replicas"] for one in said] == [{"new": 0}, {"new": 0}]
    assert (len(old.seen), len(new.seen)) == (0, 1)


async def test_a_deployment_that_is_told_is_known_at_once(play: Play) -> None:
    replica = await play()
    async with routing() as stage:
        assert (await stage.client.get("/llm/x")).status_code == 404
        said = await stage.client.put(
            "/-/endpoints/llm", content=endpoints(replica).model_dump_json()
        )
        answer = await stage.client.get("/llm/x")

    assert said.json() == {"router": said.json()["router"], "queued": 0, "replicas": {"r-1": 0}}
    assert answer.status_code == 200


BAD_TOLD = {
    "no JSON": (b"{", 422, "invalid_spec"),
    "fields are missing": (b'{"id": "llm"}', 422, "invalid_spec"),
    "of another deployment": (endpoints(id="x").model_dump_json().encode(), 422, "invalid_spec"),
    "too long": (b" " * (2**20 + 1), 413, "request_too_large"),
}


@pytest.mark.parametrize(("body", "status", "code"), BAD_TOLD.values(), ids=BAD_TOLD.keys())
async def test_what_cannot_be_told_changes_nothing(body: bytes, status: int, code: str) -> None:
    async with routing(endpoints()) as stage:
        await until(lambda: "llm" in stage.book.reads)
        answer = await stage.client.put("/-/endpoints/llm", content=body)
        known = await stage.client.get("/-/endpoints/llm")

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert known.status_code == 200


async def test_a_bad_body_is_told_with_all_its_mistakes() -> None:
    async with routing() as stage:
        answer = await stage.client.put("/-/endpoints/llm", content=b'{"id": 1, "uid": "u"}')

    message = answer.json()["error"]["message"]
    assert all(f"{name}: " in message for name in ("id", "enabled", "desired", "generation"))


@pytest.mark.parametrize(
    "asked", ["GET /-/endpoints/no", "GET /-/x", "POST /-/load", "PUT /metrics"]
)
async def test_the_router_has_nothing_else(asked: str) -> None:
    method, path = asked.split()
    async with routing() as stage:
        answer = await stage.client.request(method, path)

    assert answer.status_code == 404
    assert answer.headers["garrison-router"] == "error"


MISTAKES = {
    "an open address without a token": ({"host": "0.0.0.0"}, "GARRISON_ROUTER_TOKEN"),
    "an open IPv6 address without a token": ({"host": "::"}, "GARRISON_ROUTER_TOKEN"),
    "a name": ({"host": "example.com"}, "host: must be an IP address or localhost"),
    "an empty token": ({"token": ""}, "token: must be printable ASCII"),
    "a token with a line break": ({"token": "a\nb"}, "token: must be printable ASCII"),
    "a port that does not exist": ({"port": 65536}, "port: must be from 0 to 65535"),
    "no time to hold": ({"hold_seconds": 0}, "hold_seconds: must be above 0"),
    "no number to hold": ({"hold_seconds": float("nan")}, "hold_seconds: must be above 0"),
}


@pytest.mark.parametrize(("config", "message"), MISTAKES.values(), ids=MISTAKES.keys())
async def test_a_router_does_not_start_with(config: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        async with Router.serving(RouterConfig(**config), Book()):  # type: ignore[arg-type]
            pass

    assert message in str(refused.value)


async def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(InvalidSpec) as refused:
        async with Router.serving(RouterConfig(host="0.0.0.0", port=-1, hold_seconds=-1), Book()):
            pass

    assert len(refused.value.problems) == 3


async def test_a_token_is_not_shown_with_the_configuration() -> None:
    assert TOKEN not in repr(RouterConfig(token=TOKEN))


async def test_a_port_that_another_program_has_is_named() -> None:
    async with routing() as stage:
        with pytest.raises(PortTaken, match=f"port {stage.port}; choose another with --port"):
            async with Router.serving(RouterConfig(port=stage.port), Book()):
                pass


async def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"no address 192\.0\.2\.1"):
        async with Router.serving(RouterConfig(host="192.0.2.1", port=0, token=TOKEN), Book()):
            pass


SPOOF = {"id": "llm", "uid": "u", "enabled": True, "desired": 1, "generation": 1}


@pytest.mark.parametrize("secret", [None, "another"])
async def test_who_is_no_worker_can_neither_tell_nor_ask(secret: str | None) -> None:
    headers = {} if secret is None else {"garrison-control": secret}
    async with routing(secret="of the installation") as stage:
        told = await stage.client.put("/-/endpoints/llm", json=SPOOF, headers=headers)
        asked = await stage.client.get("/-/load", headers=headers)
        health = await stage.client.get("/-/healthz")

    assert (told.status_code, asked.status_code, health.status_code) == (401, 401, 200)
    assert told.json()["error"]["code"] == "unauthorized"


async def test_a_worker_brings_the_secret() -> None:
    headers = {"garrison-control": "of the installation"}
    async with routing(secret="of the installation") as stage:
        told = await stage.client.put("/-/endpoints/llm", json=SPOOF, headers=headers)
        asked = await stage.client.get("/-/load", headers=headers)

    assert (told.status_code, asked.status_code) == (200, 200)
