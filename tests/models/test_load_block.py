"""Who counts a deployment's requests, as its file says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from garrison.errors import InvalidSpec
from garrison.load.presets import PRESETS
from garrison.models.deployment import LoadConfig, LoadKind, LoadPreset, LoadQueries
from garrison.models.elastic_file import DeploymentFile, read_deployment_file, resolve
from garrison.models.worker_file import ModelSettings

OWN = {"running": "sum(r)", "queued": "sum(q)", "arrivals": "a_total"}


def read(
    load: Mapping[str, Any], *, worker: Mapping[str, Any] | None = None, least: int = 1
) -> tuple[DeploymentFile, tuple[str, ...]]:
    block = {
        "id": "d",
        "worker": worker or {"command": ["serve"], "port": 8000},
        "scheduling_choice": "4",
        "nodepools": [{"id": "p", "compute_cluster": {"id": "c"}}],
        "autoscale_config": {"min_replicas": least, "load": load},
    }
    return read_deployment_file(json.dumps({"deployment": block}))


def refused(load: Mapping[str, Any], **kwargs: Any) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        read(load, **kwargs)
    begin = "deployment.autoscale_config"
    return [
        f"{problem.field.removeprefix(begin).removeprefix('.')}: {problem.message}"
        for problem in caught.value.problems
    ]


@pytest.mark.parametrize(
    ("load", "meant"),
    [
        ({}, LoadConfig()),
        ({"source": "Router"}, LoadConfig()),
        (
            {"source": "prometheus", "preset": "vLLM", "model": "llama", "job": "vllm"},
            LoadConfig(
                source=LoadKind.PROMETHEUS, preset=LoadPreset.VLLM, model="llama", job="vllm"
            ),
        ),
        (
            {"source": "prometheus", "queries": {**OWN, "up": "count(up)"}},
            LoadConfig(
                source=LoadKind.PROMETHEUS,
                queries=LoadQueries(
                    running="sum(r)", queued="sum(q)", arrivals="a_total", up="count(up)"
                ),
            ),
        ),
        (
            {"source": "scrape", "preset": "ray-serve", "path": "/m"},
            LoadConfig(source=LoadKind.SCRAPE, preset=LoadPreset.RAY_SERVE, path="/m"),
        ),
    ],
)
def test_each_source_means_what_its_keys_say(load: Mapping[str, Any], meant: LoadConfig) -> None:
    file, warnings = read(load)

    assert file.autoscale.load == meant
    assert warnings == ()


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({"source": "prometeus"}, "load.source: must be one of: router, prometheus, scrape"),
        (
            {"source": "prometheus"},
            "load: needs a `preset` (vllm, sglang, tgi, triton, ray_serve), "
            "or own `queries`: running, queued, arrivals",
        ),
        (
            {"source": "prometheus", "queries": {"running": "r", "completions": "c"}},
            "load: needs a `preset` (vllm, sglang, tgi, triton, ray_serve), "
            "or own `queries`: queued, arrivals",
        ),
        (
            {"source": "scrape"},
            "load: needs a `preset` to be scraped: vllm, sglang, tgi, triton, ray_serve",
        ),
        (
            {"source": "prometheus", "preset": "vlm"},
            "load.preset: 'vlm' is not known; did you mean 'vllm'?",
        ),
        ({"preset": "vllm"}, "load.preset: is for source prometheus or scrape, not router"),
        (
            {"source": "scrape", "preset": "vllm", "job": "j"},
            "load.job: is for source prometheus, not scrape",
        ),
        (
            {"source": "scrape", "preset": "vllm", "queries": OWN},
            "load.queries: is for source prometheus, not scrape",
        ),
        (
            {"source": "prometheus", "preset": "vllm", "path": "/m"},
            "load.path: is for source scrape, not prometheus",
        ),
        (
            {"source": "scrape", "preset": "vllm", "path": "metrics"},
            "load.path: must be a path such as /health, not 'metrics'",
        ),
        (
            {"source": "prometheus", "preset": "tgi", "model": "m"},
            "load.model: means nothing to tgi, whose metrics name no model; give a `job`",
        ),
        (
            {"source": "prometheus", "queries": OWN, "model": "m"},
            "load.model: needs a `preset`, which says what its label is called",
        ),
        (
            {"source": "prometheus", "preset": "vllm", "querys": {}},
            "load.querys: is not a known key; did you mean 'queries'?",
        ),
        (
            {"source": "prometheus", "queries": {**OWN, "runing": "x"}},
            "load.queries.runing: is not a known key; did you mean 'running'?",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(load: Mapping[str, Any], said: str) -> None:
    (found,) = refused(load)

    assert found.startswith(said)


def test_all_mistakes_are_told_at_once() -> None:
    found = refused(
        {"source": "scrape", "preset": "nim", "job": "j", "path": "x", "queries": {"up": ""}}
    )

    assert [line.split(":")[0] for line in found] == [
        "load.preset",
        "load.job",
        "load.path",
        "load.queries.up",
    ]


def test_a_scrape_needs_a_port_to_ask_at() -> None:
    (found,) = refused({"source": "scrape", "preset": "vllm"}, worker={"command": ["serve"]})

    assert found == ": load.source scrape needs the `port` of the worker, to ask at"


@pytest.mark.parametrize("port", [None, 8000])
def test_a_scraped_model_needs_a_port_in_the_settings(port: int | None) -> None:
    file, _ = read({"source": "scrape", "preset": "vllm"}, worker={"model": {"id": "m"}})
    models = {"m": ModelSettings(command=("serve",), port=port)}

    if port is None:
        with pytest.raises(InvalidSpec, match="add `port` to 'm' of `models:`"):
            resolve(file, models)
    else:
        assert resolve(file, models).template.port == port


def test_one_is_warned_that_nobody_but_the_router_wakes_at_zero() -> None:
    _, warnings = read({"source": "prometheus", "preset": "vllm"}, least=0)

    (warning,) = warnings
    assert "autoscale_config.load.source: nobody counts at zero replicas" in warning


@pytest.mark.parametrize(
    ("more", "count"), [({}, 1), ({"job": "j"}, 0), ({"queries": {**OWN, "up": "u"}}, 0)]
)
def test_one_is_warned_of_queries_that_hide_a_partial_scrape(
    more: Mapping[str, Any], count: int
) -> None:
    _, warnings = read({"source": "prometheus", "queries": OWN, **more})

    assert len(warnings) == count


@pytest.mark.parametrize("preset", LoadPreset)
def test_a_model_is_accepted_where_the_servers_metrics_name_one(preset: LoadPreset) -> None:
    load = {"source": "prometheus", "preset": preset, "model": "m"}

    if PRESETS[preset].label is None:
        assert len(refused(load)) == 1
    else:
        assert read(load)[0].autoscale.load.model == "m"
