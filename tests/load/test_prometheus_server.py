"""Load as a real Prometheus server has it, which really scrapes replicas.

Each test has targets of its own, since all share one server and a scrape takes a second.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from garrison.load.prometheus import PrometheusSource
from garrison.models.deployment import LoadConfig, LoadKind, LoadPreset, LoadQueries
from garrison.models.load import Followed, LoadCounts
from tests.load.metric_texts import MODELS, OLDER_RAY_SERVE, TEXTS, tgi, triton, vllm
from tests.load.serving import Served, follow

PATIENCE = 10.0
FIXED = {str(preset): [text] for preset, text in TEXTS.items()} | {"older-ray": [OLDER_RAY_SERVE]}
CHANGING = {
    "triton-watched": [triton()],
    "reset": [vllm(done=5000), vllm(done=70)],
    "tgi-reset": [tgi(came=5000, done=4000)],
    "dead": [vllm(), vllm("1.0", "1.0")],
    "nan": [vllm()],
    "own": [vllm(), vllm()],
}


class Scraper:
    """A running server, and the targets that it scrapes every second."""

    def __init__(self, url: str, targets: Mapping[str, list[Served]]) -> None:
        self.url = url
        self.targets = targets

    def ask(self, promql: str) -> list[float]:
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": promql})
        answer.raise_for_status()
        return [float(one["value"][1]) for one in answer.json()["data"]["result"]]


class OwnClock:
    """Real time, put forward or back by a test within what the server's clock may differ."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture(scope="module")
def scraper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraper]:
    binary = shutil.which("prometheus")
    if binary is None:
        if "CI" in os.environ:
            pytest.fail("there is no `prometheus` to test with; install Debian's package")
        pytest.skip("there is no `prometheus` on this machine")
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        targets = {
            job: [stack.enter_context(Served(text=text)) for text in texts]
            for job, texts in {**FIXED, **CHANGING, "stale": [_stale()]}.items()
        }
        url = stack.enter_context(_Running(binary, folder, _config(targets)))
        scraper = Scraper(url, targets)
        count = sum(map(len, targets.values()))
        _wait(lambda: scraper.ask("count(up == 1)") == [count], "targets are not scraped")
        yield scraper


class _Running:
    """The server process, for as long as the context is open."""

    def __init__(self, binary: str, folder: Path, config: str) -> None:
        (folder / "prometheus.yml").write_text(config)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self._url = f"http://{address}"
        self._command = [
            binary,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=error",
        ]

    def __enter__(self) -> str:
        self._process = subprocess.Popen(self._command)
        try:
            _wait(self._is_ready, "the server does not come up")
        except BaseException:
            self.__exit__()
            raise
        return self._url

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "the server has ended"
        try:
            return httpx.get(f"{self._url}/-/ready").status_code == 200
        except httpx.TransportError:
            return False


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _config(targets: Mapping[str, list[Served]]) -> str:
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [one.address for one in ones]}]}
        for job, ones in targets.items()
    ]
    interval = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    return yaml.safe_dump({"global": interval, "scrape_configs": jobs})


def _stale() -> str:
    """Return what an exporter says that sets timestamps itself, and stopped two minutes ago."""
    at = f" {int((time.time() - 120) * 1000)}"
    lines = vllm().splitlines()
    return "\n".join(line if line.startswith("#") else line + at for line in lines) + "\n"


def job(name: str, preset: LoadPreset | None, *, ready: int = 1, **keys: Any) -> Followed:
    load = LoadConfig(source=LoadKind.PROMETHEUS, preset=preset, job=name, **keys)
    return follow(load, id=f"d-{name}", ready=ready)


async def until(
    source: PrometheusSource, one: Followed, wanted: Callable[[LoadCounts | None], bool]
) -> LoadCounts | None:
    """Look until the load is as wanted, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not wanted(counts := (await source.read([one])).get(one.id)):
        assert time.monotonic() < deadline, f"still {counts}"
        await asyncio.sleep(0.05)
    return counts


@pytest.mark.parametrize("preset", [one for one in LoadPreset if one is not LoadPreset.TRITON])
async def test_each_kind_of_server_tells_its_load(scraper: Scraper, preset: LoadPreset) -> None:
    source = PrometheusSource(scraper.url)

    found = await source.read([job(preset, preset, model=MODELS[preset])])

    counts = LoadCounts(running=3, queued=2, arrivals=0, completions=0)
    assert found == {f"d-{preset}": counts}


async def test_older_names_of_metrics_are_known(scraper: Scraper) -> None:
    source = PrometheusSource(scraper.url)

    found = await source.read([job("older-ray", LoadPreset.RAY_SERVE, model="chat")])

    assert found == {"d-older-ray": LoadCounts(running=3, queued=2, arrivals=0, completions=0)}


async def test_triton_tells_what_runs_by_how_long_it_took(scraper: Scraper) -> None:
    clock = OwnClock()
    one, source = (
        job("triton-watched", LoadPreset.TRITON),
        PrometheusSource(scraper.url, clock=clock),
    )
    clock.ahead = -25
    assert await source.read([one]) == {}
    (replica,) = scraper.targets["triton-watched"]
    replica.text = triton(spent_us=150_000_000, waited_us=50_000_000, pending="7", done=60)
    _wait(lambda: scraper.ask("nv_inference_pending_request_count == 7") == [7], "not scraped")
    clock.ahead = 24

    counts = (await source.read([one]))[one.id]

    # 100 request-seconds in 49 s and what the scrape took.
    assert 100 / (49 + PATIENCE) < counts.running < 100 / 49
    assert (counts.queued, counts.arrivals, counts.completions) == (7, 25, 20)


async def test_a_counter_that_begins_anew_brings_no_requests_that_never_came(
    scraper: Scraper,
) -> None:
    source = PrometheusSource(scraper.url)
    one, other = job("reset", LoadPreset.VLLM, ready=2), job("tgi-reset", LoadPreset.TGI)
    first, second = scraper.targets["reset"]
    assert set(await source.read([one, other])) == {one.id, other.id}
    first.text = vllm("1.0", "0.0", done=4)
    second.text = vllm("3.0", "2.0", done=73)
    scraper.targets["tgi-reset"][0].text = tgi("1", "0", came=3, done=2)

    counts = await until(
        source, one, lambda seen: seen is not None and (seen.running, seen.completions) == (4, 9)
    )
    others = await until(source, other, lambda seen: seen is not None and seen.running == 1)

    # Of the first replica 4 stops, 2 that were too long and 1 that runs; of the second 3.
    assert counts == LoadCounts(running=4, queued=2, arrivals=10, completions=9)
    assert others == LoadCounts(running=1, queued=0, arrivals=3, completions=3)


async def test_a_target_that_died_is_missing_and_leaves_no_last_number(scraper: Scraper) -> None:
    source = PrometheusSource(scraper.url)
    both = job("dead", LoadPreset.VLLM, ready=2)
    assert (await source.read([both]))[both.id].running == 4
    scraper.targets["dead"][0].close()

    assert await until(source, both, lambda seen: seen is None) is None

    left = (await source.read([both.replace(ready=1)]))[both.id]
    assert left == LoadCounts(running=1, queued=1, arrivals=0, completions=0)


async def test_a_number_that_is_none_makes_the_deployment_missing(scraper: Scraper) -> None:
    source = PrometheusSource(scraper.url)
    one = job("nan", LoadPreset.VLLM)
    assert set(await source.read([one])) == {one.id}
    (replica,) = scraper.targets["nan"]

    replica.text = vllm("NaN")
    assert await until(source, one, lambda seen: seen is None) is None

    replica.text = vllm()
    assert await until(source, one, lambda seen: seen is not None)


async def test_a_number_of_two_minutes_ago_is_missing_though_the_server_still_finds_it(
    scraper: Scraper,
) -> None:
    assert scraper.ask('vllm:num_requests_running{job="stale"}') == [3]

    assert await PrometheusSource(scraper.url).read([job("stale", LoadPreset.VLLM)]) == {}


async def test_a_value_of_a_label_cannot_change_the_question(
    scraper: Scraper, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = ['"} or vector(1) #', ".*", "llama|x", "a\\", "new\nline", "(", "ä\x01{}$^"]
    names = ["llama", *hostile, *(f"some/model-{n}" for n in range(60))]
    load = LoadConfig(source=LoadKind.PROMETHEUS, preset=LoadPreset.VLLM, job="vllm")
    some = [follow(load.replace(model=name), id=f"d{n}") for n, name in enumerate(names)]
    whole = follow(load.replace(job='vllm"} or up{job="vllm'), id="job")

    found = await PrometheusSource(scraper.url).read([*some, whole])

    assert set(found) == {"d0"}
    assert caplog.records == []


async def test_own_queries_tell_the_load(scraper: Scraper) -> None:
    queries = LoadQueries(
        running='sum(vllm:num_requests_running{job="own"})',
        queued='sum(vllm:num_requests_waiting{job="own"}) or vector(0)',
        arrivals='vllm:request_success_total{job="own"}',
        up='count(up{job="own"} == 1)',
    )
    one = follow(LoadConfig(source=LoadKind.PROMETHEUS, queries=queries), ready=2)
    source = PrometheusSource(scraper.url)
    assert await source.read([one]) == {"d": LoadCounts(running=6, queued=4, arrivals=0)}
    scraper.targets["own"][0].text = vllm(done=44)

    counts = await until(source, one, lambda seen: seen is not None and seen.arrivals > 0)

    assert counts == LoadCounts(running=6, queued=4, arrivals=4)
    assert await source.read([one.replace(ready=3)]) == {}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sum(up", "the server answers 400: invalid parameter"),
        ("up[1m]", "the answer is a matrix, not a vector of numbers"),
        ('"text"', "the answer is a string, not a vector of numbers"),
        ("nothing_of_that_name", "running is told by no replica"),
    ],
)
async def test_an_own_query_that_is_no_number_is_missing_and_told_with_the_servers_words(
    scraper: Scraper, caplog: pytest.LogCaptureFixture, query: str, said: str
) -> None:
    clock = OwnClock()
    queries = LoadQueries(running=query, queued="vector(0)", arrivals="vector(0)")
    one = follow(LoadConfig(source=LoadKind.PROMETHEUS, queries=queries))
    source = PrometheusSource(scraper.url, clock=clock)

    clock.ahead = -31
    assert await source.read([one]) == {}
    clock.ahead = 31
    assert await source.read([one]) == {}

    (record,) = caplog.records
    assert f"load of deployment d is missing: {said}" in record.getMessage()
