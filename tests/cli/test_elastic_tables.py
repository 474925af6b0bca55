"""How the state of nodepools and deployments reads."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from garrison.cli.elastic_tables import ready_of
from garrison.cli.text import printable, shortened
from garrison.models.deployment import LoadKind
from garrison.models.elastic_rows import NodepoolRow
from garrison.models.nodepool import PoolEvent
from tests.cli.conftest import Cli
from tests.cli.fake_elastic import DEPLOYMENT_ROW, NOW, POOL_ROW, deployment, nodepool
from tests.cli.fake_garrison import FakeGarrison

UP = "3 -> 5 replicas: up: 5 needed for 60 s (demand 4.2)"


def fact(answer_out: str, name: str) -> str | None:
    lines = [line.removeprefix(name).strip() for line in answer_out.splitlines()]
    starts = [line.startswith(f"{name} ") for line in answer_out.splitlines()]
    return next((line for line, starts in zip(lines, starts, strict=True) if starts), None)


@pytest.mark.parametrize(
    ("ready", "desired", "text"),
    [
        pytest.param(1, 3, "1 of 3 machines ready", id="some"),
        pytest.param(1, 1, "1 of 1 machine ready", id="all"),
        pytest.param(1, 0, "1 machine ready, none wanted", id="the last one goes"),
        pytest.param(3, 2, "3 machines ready, 2 wanted", id="one goes"),
    ],
)
def test_more_than_is_wanted_is_not_a_part_of_it(ready: int, desired: int, text: str) -> None:
    assert ready_of(ready, desired, "machine") == text


def test_nothing_shows_one_machine_of_none(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.nodepools.story = [nodepool(desired=0)]
    garrison.deployments.story = [deployment(desired=0)]
    [cluster] = garrison.resources.compute_clusters
    pool = cluster.nodepools[0].replace(desired=0)
    branch = cluster.replace(nodepools=(pool,))
    garrison.resources = garrison.resources.replace(compute_clusters=(branch,))

    shown = [
        cli("tree").out,
        cli("nodepool", "get", "gpus", "a10g").out,
        cli("deployment", "get", "llama").out,
    ]

    assert not [text for text in shown if "1 of 0" in text]
    assert all("none wanted" in text for text in shown)


def test_a_long_command_is_short_in_the_list_and_whole_in_get(
    cli: Cli, garrison: FakeGarrison
) -> None:
    line = "vllm serve meta-llama/Llama-3.2-3B-Instruct --tensor-parallel-size 8"
    garrison.deployments.rows = [[DEPLOYMENT_ROW.replace(what=f"/bin/sh -c {line}")]]
    spec = deployment().spec
    template = spec.template.replace(model=None, command=(line,))
    garrison.deployments.story = [deployment(spec=spec.replace(template=template))]

    listed = cli("deployment", "list").out
    got = cli("deployment", "get", "llama").out

    assert f" {shortened(line, 40)} " in listed
    assert "tensor" not in listed
    assert line in got


def test_a_text_is_shortened_to_just_the_limit() -> None:
    assert shortened("x" * 40, 40) == "x" * 40
    assert shortened("x" * 41, 40) == "x" * 37 + "..."


def test_a_message_of_several_lines_reads_as_one() -> None:
    assert printable("cannot be opened\n  env.A: is missing\n  env.B: too") == (
        "cannot be opened env.A: is missing env.B: too"
    )
    assert printable("  an indented name") == "  an indented name"


@pytest.mark.parametrize(
    ("status", "load"),
    [
        pytest.param(
            {"demand": 4.2, "load_source": LoadKind.ROUTER},
            "4.2 replicas needed when the count last changed, counted by the router",
            id="known",
        ),
        pytest.param(
            {"load_source": LoadKind.PROMETHEUS}, "not known yet, by Prometheus", id="not yet"
        ),
        pytest.param(
            {"demand": 0.0, "load_source": LoadKind.SCRAPE, "autoscaled": False},
            "0 replicas needed when the count last changed, by the replicas' own metrics; "
            "not followed",
            id="held",
        ),
        pytest.param({"autoscaled": False}, None, id="nothing to say"),
    ],
)
def test_the_load_is_told_with_who_counts_it(
    cli: Cli, garrison: FakeGarrison, status: dict[str, Any], load: str | None
) -> None:
    garrison.deployments.story = [deployment(**status)]

    assert fact(cli("deployment", "get", "llama").out, "load") == load


def test_the_boot_time_is_told(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.deployments.story = [deployment(boot_seconds=192.4)]

    assert fact(cli("deployment", "get", "llama").out, "boot") == "3m 12s, as it lately was"


@pytest.mark.parametrize("argv", [("get", "llama"), ("events", "llama")], ids=["get", "events"])
def test_why_the_count_changed_is_told_in_full(
    cli: Cli, garrison: FakeGarrison, argv: tuple[str, ...]
) -> None:
    event = PoolEvent(time=NOW, reason="Scaled", message=UP)
    garrison.deployments.story = [deployment(events=(event,))]

    assert UP in cli("deployment", *argv).out


@pytest.mark.parametrize(
    ("usd", "text"),
    [("0", "0.00"), ("0E-10", "0.00"), ("0.0050", "0.005"), ("1.212", "1.212"), ("3", "3.00")],
)
def test_money_is_written_the_same_everywhere(
    cli: Cli, garrison: FakeGarrison, usd: str, text: str
) -> None:
    price = Decimal(usd)
    garrison.nodepools.rows = [[POOL_ROW.replace(hourly_usd=price)]] * 2
    garrison.nodepools.story = [nodepool(hourly_usd=price)]
    garrison.deployments.story = [deployment(hourly_usd=price)]

    assert cli("nodepool", "list", "-o", "json").json[0]["hourly_usd"] == text
    assert cli("nodepool", "get", "gpus", "a10g", "-o", "json").json["hourly_usd"] == text
    assert cli("deployment", "get", "llama", "-o", "json").json["hourly_usd"] == text
    assert f" {text} " in cli("nodepool", "list").out


def test_money_that_was_written_can_be_read_again() -> None:
    row = POOL_ROW.replace(hourly_usd=Decimal("0.0050"))

    assert NodepoolRow.model_validate_json(row.model_dump_json()) == row
