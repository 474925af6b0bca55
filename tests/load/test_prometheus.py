"""A Prometheus server that is slow, wrong, huge or away makes no load, and is told of once."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from garrison.load.prometheus import LONGEST_GET, PrometheusSource
from garrison.load.promql import METRIC
from garrison.models.deployment import LoadConfig, LoadKind, LoadPreset, LoadQueries
from garrison.models.load import Followed, LoadCounts
from tests.load.serving import Clock, Request, Response, Served, follow

OWN = LoadQueries(running="r", queued="q", arrivals="a")
ONE_REQUEST = LoadCounts(running=1, queued=1, arrivals=0)
TOKEN = "hunter2-hunter2"


def own(id: str = "d", **keys: Any) -> Followed:
    return follow(LoadConfig(source=LoadKind.PROMETHEUS, queries=OWN), id=id, **keys)


def numbers(clock: Clock, value: str = "1", **labels: str) -> Response:
    result = [{"metric": labels, "value": [clock(), value]}]
    said = {"status": "success", "data": {"resultType": "vector", "result": result}}
    return Response(json.dumps(said).encode())


def query_of(request: Request) -> str:
    form = request.body.decode() if request.body else urlsplit(request.target).query
    return parse_qs(form)["query"][0]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "garrison" in record.name]


async def test_the_load_is_what_the_queries_answer() -> None:
    clock = Clock()
    answers = {"r": "3", "q": "2", "a": "100"}
    with Served(lambda request: numbers(clock, answers[query_of(request)])) as server:
        source = PrometheusSource(f"{server.url}/prom/", clock=clock)

        first = await source.read([own("D"), own("none", ready=0)])
        answers["a"] = "104"
        second = await source.read([own("D")])

    assert first == {"d": LoadCounts(running=3, queued=2, arrivals=0)}
    assert second == {"d": LoadCounts(running=3, queued=2, arrivals=4)}
    assert {urlsplit(one.target).path for one in server.requests} == {"/prom/api/v1/query"}
    assert len(server.requests) == 6


async def test_long_questions_are_posted_and_short_ones_are_not() -> None:
    clock = Clock()
    long = own("long")
    queries = OWN.replace(up=f"vector(1) # {'x' * LONGEST_GET}")
    long = follow(LoadConfig(source=LoadKind.PROMETHEUS, queries=queries), id="long")
    with Served(lambda request: numbers(clock)) as server:
        found = await PrometheusSource(server.url, clock=clock).read([long])

    assert found == {"long": ONE_REQUEST}
    assert sorted((one.method, query_of(one)[:6]) for one in server.requests) == [
        ("GET", "a"),
        ("GET", "q"),
        ("GET", "r"),
        ("POST", "vector"),
    ]


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (Response(b'{"status":"error","error":"overload"}', 503), "answers 503: overload"),
        (Response(b"<html>who are you?", 401), "the server answers 401"),
        (Response(b"", 302, {"location": "http://127.0.0.1:1/"}), "the server answers 302"),
        (Response(b"x" * (8 * 2**20 + 1)), "larger than 8 MiB"),
        (Response(b"x" * 99, 200, {"content-encoding": "gzip"}), "no answer (DecodingError)"),
    ],
)
async def test_a_server_that_does_not_answer_makes_all_missing_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture, response: Response, said: str
) -> None:
    clock = Clock()
    answers: list[Callable[[], Response]] = [lambda: response]
    with Served(lambda request: answers[0]()) as server:
        source = PrometheusSource(server.url, clock=clock)

        found = [await source.read([own("a"), own("b")]) for _ in range(2)]
        clock.now += 100
        found.append(await source.read([own("a"), own("b")]))
        answers[0] = lambda: numbers(clock)
        well = await source.read([own("a"), own("b")])

    assert found == [{}, {}, {}]
    assert set(well) == {"a", "b"}
    first, last = messages(caplog)
    assert first.startswith("load cannot be read from Prometheus: ")
    assert said in first
    assert last == "load is read from Prometheus again"


async def test_an_answer_that_comes_too_late_is_none() -> None:
    clock, over = Clock(), threading.Event()
    slow = Response(b"{}", waits_for=over)
    with Served(lambda request: slow if query_of(request) == "r" else numbers(clock)) as server:
        source = PrometheusSource(server.url, timeout=timedelta(seconds=0.2), clock=clock)

        found = await source.read([own()])
        over.set()

    assert found == {}


async def test_a_server_that_is_away_is_no_load(caplog: pytest.LogCaptureFixture) -> None:
    with Served() as server:
        pass
    source = PrometheusSource(server.url, clock=Clock())

    found = await source.read([own()])

    assert found == {}
    assert messages(caplog) == [
        "load cannot be read from Prometheus: no answer (ConnectError)",
    ]


async def test_without_a_server_set_all_are_missing_which_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = PrometheusSource(None, clock=Clock())

    found = [await source.read([own("a"), own("b")]) for _ in range(3)]

    assert found == [{}, {}, {}]
    (message,) = messages(caplog)
    assert "no Prometheus server is set; give `load: {prometheus: {url: ...}}`" in message


async def test_a_query_that_the_server_refuses_is_told_with_its_words_after_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    refused = Response(b'{"status":"error","error":"parse error: \\u001b[31m}"}', 400)
    good = follow(LoadConfig(source=LoadKind.PROMETHEUS, queries=OWN.replace(running="q")), id="g")
    with Served(lambda r: refused if query_of(r) == "r" else numbers(clock)) as server:
        source = PrometheusSource(server.url, clock=clock)

        found = [await source.read([own(), good])]
        early = messages(caplog)
        for _ in range(3):
            clock.now += 60
            found.append(await source.read([own(), good]))

    assert [set(one) for one in found] == [{"g"}] * 4
    assert early == []
    assert messages(caplog) == [
        "load of deployment d is missing: the server answers 400: parse error:  [31m}"
    ]


async def test_a_number_that_is_none_is_missing_and_told_again_when_it_is_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    answers = {"r": "NaN", "q": "1", "a": "1"}
    with Served(lambda request: numbers(clock, answers[query_of(request)])) as server:
        source = PrometheusSource(server.url, clock=clock)
        assert await source.read([own()]) == {}
        clock.now += 61
        assert await source.read([own()]) == {}
        answers["r"] = "1"
        assert await source.read([own()]) == {"d": ONE_REQUEST}

    assert messages(caplog) == [
        "load of deployment d is missing: running is nan",
        "load of deployment d is told again",
    ]


async def test_a_token_is_sent_as_it_is_now_and_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, file = Clock(), tmp_path / "token"
    file.write_text(f"{TOKEN}-old\n")
    echo = f'{{"status":"error","error":"no entry for Bearer {TOKEN}"}}'.encode()
    with Served(lambda request: Response(echo, 403)) as server:
        source = PrometheusSource(server.url, token_file=file, clock=clock)
        await source.read([own()])
        file.write_text(f"{TOKEN}\n")
        await PrometheusSource(server.url, token_file=file, clock=clock).read([own()])

    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == [f"Bearer {TOKEN}-old"] * 3 + [f"Bearer {TOKEN}"] * 3
    assert "no entry for Bearer ***" in messages(caplog)[1]
    assert not any(f"{TOKEN}'" in line or TOKEN in line[-20:] for line in messages(caplog)[1:])


@pytest.mark.parametrize("content", [None, b"", b"two words", "ключ".encode(), b"a\nb"])
async def test_a_token_file_without_a_token_asks_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with Served() as server:
        found = await PrometheusSource(server.url, token_file=file, clock=Clock()).read([own()])

    assert found == {}
    assert server.requests == []
    (message,) = messages(caplog)
    assert "the token file" in message


async def test_a_life_after_another_begins_to_count_anew() -> None:
    clock = Clock()
    answers = {"r": "0", "q": "0", "a": "100"}
    with Served(lambda request: numbers(clock, answers[query_of(request)])) as server:
        source = PrometheusSource(server.url, clock=clock)
        await source.read([own()])
        answers["a"] = "105"
        before = await source.read([own()])

        after = await source.read([own().replace(uid="another")])

    assert before["d"].arrivals == 5
    assert after["d"].arrivals == 0


async def test_other_queries_begin_a_first_look_and_keep_the_total() -> None:
    clock = Clock()
    answers = {"r": "0", "q": "0", "a": "100", "b": "7000"}
    other = follow(LoadConfig(source=LoadKind.PROMETHEUS, queries=OWN.replace(arrivals="b")))
    respond = lambda request: numbers(clock, answers[query_of(request)], instance="i")  # noqa: E731
    with Served(respond) as server:
        source = PrometheusSource(server.url, clock=clock)
        await source.read([own()])
        answers["a"] = "105"
        await source.read([own()])

        found = await source.read([other])

    assert found["d"].arrivals == 5


async def test_a_replica_not_scraped_yet_makes_the_deployment_missing() -> None:
    clock = Clock()
    load = LoadConfig(source=LoadKind.PROMETHEUS, preset=LoadPreset.VLLM)
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:request_success_total")
    result = [
        {"metric": {METRIC: name, "instance": "a"}, "value": [clock(), "0"]} for name in names
    ]
    said = {"status": "success", "data": {"resultType": "vector", "result": result}}
    with Served(lambda request: Response(json.dumps(said).encode())) as server:
        source = PrometheusSource(server.url, clock=clock)

        one = await source.read([follow(load, ready=1)])
        two = await source.read([follow(load, ready=2)])

    assert set(one) == {"d"}
    assert two == {}
