"""Replicas that are asked themselves: all of them answer, or nobody knows the load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from garrison.load.scrape import MAX_BYTES, ScrapeSource
from garrison.models.deployment import LoadConfig, LoadKind, LoadPreset
from garrison.models.load import Followed, LoadCounts
from tests.load.metric_texts import MODELS, OLDER_RAY_SERVE, TEXTS, tgi, triton, vllm
from tests.load.serving import Clock, Response, Served, follow


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def scraped(*replicas: Served, preset: LoadPreset = LoadPreset.VLLM, **keys: Any) -> Followed:
    endpoints = {f"d-{n}": one.url for n, one in enumerate(replicas, 1)}
    load = LoadConfig(source=LoadKind.SCRAPE, preset=preset, **keys)
    return follow(load, ready=len(replicas), endpoints=endpoints)


@pytest.mark.parametrize("preset", [one for one in LoadPreset if one is not LoadPreset.TRITON])
async def test_each_kind_of_server_tells_its_load(servers: ExitStack, preset: LoadPreset) -> None:
    replicas = [servers.enter_context(Served(text=TEXTS[preset])) for _ in range(2)]

    found = await ScrapeSource().read([scraped(*replicas, preset=preset, model=MODELS[preset])])

    assert found == {"d": LoadCounts(running=6, queued=4, arrivals=0, completions=0)}


async def test_older_names_of_metrics_are_known(servers: ExitStack) -> None:
    replica = servers.enter_context(Served(text=OLDER_RAY_SERVE))
    one, source = scraped(replica, preset=LoadPreset.RAY_SERVE), ScrapeSource()
    await source.read([one])
    replica.text = OLDER_RAY_SERVE.replace("} 45.0", "} 50.0").replace("} 40.0", "} 43.0")

    found = await source.read([one])

    assert found == {"d": LoadCounts(running=3, queued=2, arrivals=5, completions=3)}


async def test_triton_tells_what_runs_once_it_was_watched_for_half_a_minute(
    servers: ExitStack,
) -> None:
    clock = Clock()
    replica = servers.enter_context(Served(text=triton()))
    one, source = (
        scraped(replica, preset=LoadPreset.TRITON, model="bert"),
        ScrapeSource(clock=clock),
    )
    early = await source.read([one])
    clock.now += 40
    replica.text = triton(spent_us=100_000_000, waited_us=20_000_000, done=50)

    late = await source.read([one])

    assert early == {}
    assert late == {"d": LoadCounts(running=2, queued=2, arrivals=10, completions=10)}


async def test_metrics_that_are_added_up_are_followed_each_by_itself(servers: ExitStack) -> None:
    clock = Clock()
    reason = ',reason="REJECTED"'  # which older versions do not tell
    replica = servers.enter_context(Served(text=triton().replace(reason, "")))
    one, source = scraped(replica, preset=LoadPreset.TRITON), ScrapeSource(clock=clock)
    await source.read([one])
    clock.now += 40
    replica.text = triton(done=43).replace(reason, "").replace('"1"} 1\n', '"1"} 3\n')

    found = await source.read([one])

    assert found["d"].completions == 3 + 2


async def test_a_replica_that_goes_or_restarts_brings_no_requests(servers: ExitStack) -> None:
    a, b = (servers.enter_context(Served(text=tgi(came=came, done=came))) for came in (100, 5000))
    one, source = scraped(a, b, preset=LoadPreset.TGI), ScrapeSource()
    await source.read([one])

    gone = await source.read([scraped(a, preset=LoadPreset.TGI)])
    b.text = tgi(came=3, done=2)
    anew = await source.read([one])

    assert gone["d"].arrivals == 0
    assert anew["d"].arrivals == 3


async def test_a_model_beside_another_is_told_alone(servers: ExitStack) -> None:
    replica = servers.enter_context(Served(text=vllm("1") + vllm("5", model="lora")))
    whole, some, none = (scraped(replica, model=model) for model in (None, "lora", "other"))

    assert (await ScrapeSource().read([whole]))["d"].running == 6
    assert (await ScrapeSource().read([some]))["d"].running == 5
    assert await ScrapeSource().read([none]) == {}


async def test_it_asks_where_the_file_says(servers: ExitStack) -> None:
    replica = servers.enter_context(Served(text=vllm()))

    await ScrapeSource().read([scraped(replica, path="/prefix/metrics")])

    assert [request.target for request in replica.requests] == ["/prefix/metrics"]


BAD = {
    "an error": Response(vllm().encode(), 500),
    "a redirect": Response(b"", 302, {"location": "/elsewhere"}),
    "nothing": Response(b""),
    "a page": Response(b"<html><body>metrics</body></html>"),
    "no text": Response(b"\xff\xfe\x00"),
    "too much": Response(vllm().encode() + b"# " + b"x" * MAX_BYTES),
    "no number": Response(vllm("many").encode()),
    "NaN": Response(vllm("NaN").encode()),
    "infinity": Response(vllm("+Inf").encode()),
    "a negative number": Response(vllm("-1").encode()),
    "half a line": Response(vllm().encode() + b'vllm:num_requests_running{engine="1'),
    "a stale number": Response(vllm("3 1700000000000").encode()),
    "no gauge": Response(vllm().replace("vllm:num_requests_running", "x").encode()),
    "no counter": Response(vllm().replace("vllm:request_success_total", "x").encode()),
}


@pytest.mark.parametrize("bad", BAD)
async def test_one_replica_without_a_good_answer_makes_the_deployment_missing(
    servers: ExitStack, bad: str
) -> None:
    respond: list[Response] = [BAD[bad]]
    replicas = [Served(lambda request: respond[0]), Served(text=vllm())]
    first, second = (servers.enter_context(one) for one in replicas)
    good = servers.enter_context(Served(text=vllm()))
    one = scraped(first) if bad == "no counter" else scraped(first, second)
    other = scraped(good).replace(id="e", uid="e")
    source = ScrapeSource()

    found = await source.read([one, other])
    respond[0] = Response(vllm().encode())
    well = await source.read([one, other])

    assert set(found) == {"e"}
    assert set(well) == {"d", "e"}


async def test_a_replica_that_is_away_or_slow_makes_the_deployment_missing(
    servers: ExitStack,
) -> None:
    over = threading.Event()
    slow = servers.enter_context(Served(lambda _: Response(vllm().encode(), waits_for=over)))
    good = servers.enter_context(Served(text=vllm()))
    with Served() as away:
        pass
    source = ScrapeSource(timeout=timedelta(seconds=0.3))

    found = await source.read(
        [
            scraped(good, away).replace(id="away", uid="a"),
            scraped(good, slow).replace(id="slow", uid="s"),
            scraped(good).replace(id="good", uid="g"),
        ]
    )
    over.set()

    assert set(found) == {"good"}


async def test_a_ready_replica_whose_address_is_not_known_makes_the_deployment_missing(
    servers: ExitStack,
) -> None:
    replica = servers.enter_context(Served(text=vllm()))

    assert await ScrapeSource().read([scraped(replica).replace(ready=2)]) == {}
    assert await ScrapeSource().read([scraped(replica).replace(endpoints=None)]) == {}
    assert await ScrapeSource().read([scraped(replica).replace(ready=0)]) == {}
    assert await ScrapeSource().read([scraped(replica, preset=None)]) == {}  # type: ignore[arg-type]


async def test_a_deployment_that_stays_missing_is_told_of_once(
    servers: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    replica = servers.enter_context(Served(lambda _: Response(status=404)))
    one, source = scraped(replica), ScrapeSource(clock=clock)

    for _ in range(4):
        await source.read([one])
        clock.now += 40

    assert [record.getMessage() for record in caplog.records if "garrison" in record.name] == [
        "load of deployment d is missing: replica d-1: it answers 404"
    ]
