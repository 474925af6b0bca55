"""What a Prometheus server is asked, and what its answers mean."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from garrison.domain.autoscaling.series import Role
from garrison.load.presets import PRESETS
from garrison.load.promql import (
    MAX_DEPLOYMENTS,
    METRIC,
    Answer,
    Asked,
    ask_for,
    plan_questions,
    quote,
    read_answer,
    read_load,
)
from garrison.models.deployment import LoadConfig, LoadKind, LoadPreset, LoadQueries
from garrison.models.load import Followed
from tests.load.serving import follow

NOW = 1_800_000_000.0
OWN = LoadQueries(running="r", queued="q", arrivals="a")


def prometheus(id: str = "d", ready: int = 1, **keys: Any) -> Followed:
    return follow(LoadConfig(source=LoadKind.PROMETHEUS, **keys), id=id, ready=ready)


def answer(*series: tuple[dict[str, str], str], at: float = NOW) -> bytes:
    result = [{"metric": labels, "value": [at, value]} for labels, value in series]
    return vector(result)


def vector(result: Any, kind: str = "vector", **more: Any) -> bytes:
    data = {"resultType": kind, "result": result}
    return json.dumps({"status": "success", "data": data, **more}).encode()


def test_a_question_asks_for_each_number_and_the_age_of_its_sample() -> None:
    question = ask_for(PRESETS[LoadPreset.SGLANG], ["m"], [])

    assert question.split(" or ")[0] == (
        'label_replace((sglang:num_running_reqs{model_name="m"} and '
        '(timestamp(sglang:num_running_reqs{model_name="m"}) > time() - 60)), '
        '"garrison_metric", "sglang:num_running_reqs", "", "")'
    )
    assert len(question.split(" or ")) == 3


@pytest.mark.parametrize(
    ("models", "jobs", "selector"),
    [
        ([], [], "{}"),
        (["a"], [], '{model_name="a"}'),
        (["a"], ["j"], '{job="j",model_name="a"}'),
        (["a", "b.c"], [], r'{model_name=~"a|b\\.c"}'),
        (['x"} or vector(1) #'], [], r'{model_name="x\"} or vector(1) #"}'),
        (["back\\slash", "new\nline"], [], r'{model_name=~"back\\\\slash|new\nline"}'),
        (["a|b", "(.*)"], [], r'{model_name=~"a\\|b|\\(\\.\\*\\)"}'),
    ],
)
def test_values_of_labels_stay_values(models: list[str], jobs: list[str], selector: str) -> None:
    question = ask_for(PRESETS[LoadPreset.VLLM], models, jobs)

    assert question.startswith(f"label_replace((vllm:num_requests_running{selector} and ")


@pytest.mark.parametrize("text", ['"', "\\", "\n", '\\"', "ä", "\x00", "}"])
def test_a_text_stays_within_its_quotes(text: str) -> None:
    quoted = quote(f"a{text}b")

    assert re.fullmatch(r'"([^"\\\n]|\\.)*"', quoted)
    assert json.loads(quoted) == f"a{text}b"


def test_deployments_of_one_kind_share_a_question() -> None:
    some = [prometheus(f"d{n}", preset=LoadPreset.VLLM, model=f"m{n}") for n in range(3)]
    others = [
        prometheus("job", preset=LoadPreset.VLLM, model="m", job="j"),
        prometheus("all", preset=LoadPreset.VLLM),
        prometheus("ray", preset=LoadPreset.RAY_SERVE, model="m"),
        prometheus("own", queries=OWN),
        prometheus("own2", queries=OWN),
    ]

    asked = plan_questions([*some, *others])

    assert asked["d0"].preset == asked["d2"].preset
    assert "m0|m1|m2" in (asked["d0"].preset or "")
    assert len({asked[one].preset for one in ("d0", "job", "all", "ray")}) == 4
    assert asked["own"] == asked["own2"]
    assert asked["own"] == Asked(own={"running": "r", "queued": "q", "arrivals": "a"})


def test_500_deployments_are_asked_for_by_few_and_short_questions() -> None:
    many = [
        prometheus(f"d{n}", preset=LoadPreset.VLLM, model=f"organisation/model-{n}-instruct")
        for n in range(500)
    ]

    questions = {question for one in plan_questions(many).values() for question in one.all()}

    assert len(questions) == 500 / MAX_DEPLOYMENTS
    assert max(map(len, questions)) < 16_000


def test_a_job_asks_how_many_targets_it_has_unless_a_query_says_it() -> None:
    asked = plan_questions(
        [
            prometheus("a", preset=LoadPreset.TGI, job="x"),
            prometheus("b", preset=LoadPreset.TGI, job="y"),
            prometheus("c", queries=OWN.replace(up="count(u)"), job="z"),
        ]
    )

    up = '(up{job=~"x|y"} and (timestamp(up{job=~"x|y"}) > time() - 60)) == 1'
    assert (asked["a"].up, asked["b"].up, asked["c"].up) == (up, up, None)


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (b"<html>", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "not a Prometheus server's"),
        (b'{"status": "error", "error": "x"}', "not a Prometheus server's"),
        (b'{"status": "success"}', "a None, not a vector"),
        (vector([], "matrix"), "a matrix, not a vector"),
        (vector([NOW, "x"], "string"), "a string, not a vector"),
        (vector({}), "no list of series"),
        (vector([[]]), "without labels"),
        (vector([{"metric": {"a": 1}, "value": [NOW, "1"]}]), "without labels"),
        (vector([{"metric": {}, "histogram": [NOW, {}]}]), "a histogram"),
        (vector([{"metric": {}, "value": ["now", "1"]}]), "a value that is none"),
        (vector([{"metric": {}, "value": [NOW]}]), "a value that is none"),
        (vector([{"metric": {}, "value": [NOW, 1]}]), "no number"),
        (vector([{"metric": {}, "value": [NOW, "1_000"]}]), "no number"),
        (vector([{"metric": {}, "value": [NOW, "one"]}]), "no number"),
        (vector([{"metric": {}, "value": [NOW, "1.2.3"]}]), "no JSON"),
        (answer(({}, "1"), at=NOW - 60.1), "60 s old by our clock"),
        (answer(({}, "1"), at=NOW + 61), "-61 s old by our clock"),
        (b'{"status":"success","data":{"resultType":"scalar","result":[NaN,"1"]}}', "by our clock"),
        (vector([], warnings=["store gateway is down"]), "store gateway is down"),
    ],
)
def test_what_is_no_vector_of_numbers_of_now_is_no_answer(body: bytes, failure: str) -> None:
    said = read_answer(body, NOW)

    assert said.rows == ()
    assert failure in (said.failure or "")


def test_a_vector_and_a_scalar_are_answers() -> None:
    rows = read_answer(answer(({"a": "b"}, "1.5"), ({}, "+Inf")), NOW).rows

    assert [(dict(row.labels), row.value) for row in rows] == [
        ({"a": "b"}, 1.5),
        ({}, float("inf")),
    ]
    assert read_answer(vector([NOW, "2"], "scalar"), NOW).rows[0].value == 2
    assert read_answer(vector([]), NOW) == Answer()


def rows(*series: tuple[dict[str, str], str]) -> Answer:
    said = read_answer(answer(*series), NOW)
    assert said.failure is None
    return said


def test_numbers_of_others_are_left_out() -> None:
    one = prometheus(preset=LoadPreset.VLLM, model="m", job="j")
    labels = {METRIC: "vllm:num_requests_running", "model_name": "m", "job": "j", "instance": "i"}
    preset = rows(
        (labels, "1"), ({**labels, "model_name": "n"}, "2"), ({**labels, "job": "k"}, "4")
    )
    up = rows(({"job": "j", "instance": "i"}, "1"), ({"job": "k", "instance": "i"}, "1"))

    reading = read_load(one, Asked(preset="p", up="u"), {"p": preset, "u": up})

    assert [sample.value for sample in reading.look[Role.RUNNING]] == [1]
    assert reading.look[Role.QUEUED] == []
    assert reading.up == 1


def test_own_queries_go_over_the_presets() -> None:
    one = prometheus(preset=LoadPreset.TRITON, queries=LoadQueries(running="r", up="u"))
    preset = rows(({METRIC: "nv_inference_pending_request_count", "instance": "i"}, "7"))
    answers = {"p": preset, "r": rows(({}, "3")), "u": rows(({}, "2"))}

    reading = read_load(one, Asked(preset="p", own={"running": "r", "up": "u"}), answers)

    assert [sample.value for sample in reading.look[Role.RUNNING]] == [3]
    assert [sample.value for sample in reading.look[Role.QUEUED]] == [7]
    assert Role.BUSY_US not in reading.look
    assert reading.up == 2


@pytest.mark.parametrize("query", ["arrivals", "up"])
def test_an_own_query_that_finds_nothing_is_missing(query: str) -> None:
    own = {"running": "r", "queued": "q", "arrivals": "a", "up": "u"}
    answers = {text: rows(({}, "1")) for text in own.values()} | {own[query]: Answer()}

    reading = read_load(prometheus(queries=OWN), Asked(own=own), answers)

    assert reading.missing == f"queries.{query} has an empty answer"


def test_an_own_query_for_completions_may_find_nothing() -> None:
    own = {"running": "r", "queued": "q", "arrivals": "a", "completions": "c"}
    answers = {text: rows(({}, "1")) for text in own.values()} | {"c": Answer()}

    reading = read_load(prometheus(queries=OWN), Asked(own=own), answers)

    assert (set(reading.look), reading.missing) == ({"running", "queued", "arrivals"}, None)


def test_replicas_that_two_jobs_scrape_are_not_counted_twice() -> None:
    labels = {METRIC: "vllm:num_requests_running", "instance": "i"}
    preset = rows(({**labels, "job": "a"}, "1"), ({**labels, "job": "b"}, "1"))

    reading = read_load(prometheus(preset=LoadPreset.VLLM), Asked(preset="p"), {"p": preset})

    assert reading.missing == "replicas are scraped by several jobs; name one in `load.job`"


@pytest.mark.parametrize(
    ("instances", "missing"),
    [
        (["10.0.0.1:8000", "10.0.0.2:8000"], None),
        (["10.0.0.1:8000", "10.0.0.9:8000"], "ready replica b is not scraped"),
        (["pod-1", "pod-2"], None),
        ([], None),
    ],
)
def test_a_replica_that_ends_its_work_does_not_stand_for_a_ready_one(
    instances: list[str], missing: str | None
) -> None:
    load = LoadConfig(source=LoadKind.PROMETHEUS, preset=LoadPreset.VLLM)
    endpoints = {"a": "http://10.0.0.1:8000", "b": "http://10.0.0.2:8000"}
    one = follow(load, ready=2, endpoints=endpoints)
    preset = rows(*(({"instance": instance}, "1") for instance in instances))

    reading = read_load(one, Asked(preset="p"), {"p": preset})

    assert reading.missing == missing


def test_the_documented_metrics_are_those_that_are_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "autoscaling.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r"^\| `(vllm|sglang|tgi|triton|ray_serve)` \| (.+)$", page, re.MULTILINE)
    )

    for preset in LoadPreset:
        metrics, named = PRESETS[preset], set(re.findall(r"`(.+?)`", rows[preset]))
        firsts = {names[0] for groups in metrics.names.values() for names in groups}
        derived = {name for name in firsts if name.endswith("_us")}
        assert firsts - derived <= named
        assert named <= {*metrics.all_names(), metrics.label}
