"""Compute clusters, nodepools and deployments on the command line."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from garrison.cli import listing
from garrison.errors import ConflictPhase
from garrison.models.deployment import ReplicaState
from garrison.models.elastic_rows import ResourceTree
from garrison.models.offer import CapacityType
from tests.cli.conftest import Cli
from tests.cli.fake_elastic import (
    DEPLOYMENT_ROW,
    POOL_ROW,
    POOL_SPEC,
    UID,
    deployment,
    nodepool,
)
from tests.cli.fake_garrison import FakeGarrison

CLARIFAI = Path(__file__).parents[1] / "data" / "clarifai"
CLUSTER_FILE = str(CLARIFAI / "compute_cluster_config.yaml")
POOL_FILE = str(CLARIFAI / "nodepool_config.yaml")
DEPLOYMENT_FILE = str(CLARIFAI / "deployment_config.yaml")
POOL_FLAGS = ("nodepool", "create", "gpus", "a10g", "--instance-type", "g5.2xlarge")


def test_a_compute_cluster_is_made_from_a_documented_file(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("computecluster", "create", "test-compute-cluster", "--config", CLUSTER_FILE)

    assert (answer.status, answer.err) == (0, "")
    assert "test-compute-cluster: there, aws us-east-1" in answer.out
    [made] = garrison.compute_clusters.named("create")
    assert (made["spec"].provider, made["spec"].region) == ("aws", "us-east-1")


def test_a_compute_cluster_needs_a_file_or_a_place(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("computecluster", "create", "gpus", "--provider", "aws")

    assert answer.status == 2
    assert "--config FILE, or --provider NAME and --region REGION" in answer.err
    assert not garrison.compute_clusters.calls


def test_only_what_flags_name_changes_in_a_compute_cluster(
    cli: Cli, garrison: FakeGarrison
) -> None:
    answer = cli("computecluster", "update", "gpus", "--description", "for inference")

    assert answer.status == 0
    [sent] = garrison.compute_clusters.named("update")
    spec = sent["spec"]
    assert (spec.description, spec.provider, spec.region) == ("for inference", "aws", "us-east-1")


def test_a_refused_delete_is_told_with_its_exit_status(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.compute_clusters.error = ConflictPhase("compute cluster gpus has nodepools: a10g")

    answer = cli("computecluster", "delete", "gpus")

    assert answer.status == 4
    assert answer.err == "error: conflict_phase: compute cluster gpus has nodepools: a10g\n"


def test_a_delete_is_confirmed_on_a_terminal(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("computecluster", "delete", "gpus", "--cascade", typed=b"n\n", terminal=True)

    assert answer.status == 1
    assert "with all nodepools and machines in it? [y/N]" in answer.err
    assert not garrison.compute_clusters.named("delete")


def test_a_nodepool_file_is_read_with_its_warnings(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.nodepools.warnings = ("g5.2xlarge: the file says 40Gi, the catalogue 22.49Gi",)

    answer = cli("nodepool", "create", "gpus", "a10g", "--config", POOL_FILE, "--max", "4")

    assert answer.status == 0
    assert "note: g5.2xlarge: the file says 40Gi, the catalogue 22.49Gi" in answer.err
    assert "the flag for max_instances wins over the file" in answer.err
    [asked] = garrison.nodepools.named("preview")
    assert asked["claims"]["g5.2xlarge"].accelerator_memory_bytes == 40 * 2**30
    [made] = garrison.nodepools.named("create")
    spec = made["spec"]
    assert (spec.compute_cluster, spec.id, spec.max_instances) == ("gpus", "a10g", 4)


def test_a_nodepool_from_flags_makes_its_missing_compute_cluster(
    cli: Cli, garrison: FakeGarrison
) -> None:
    garrison.compute_clusters.found = None

    answer = cli(*POOL_FLAGS, "--provider", "aws", "--region", "us-east-1", "--spot")

    assert answer.status == 0
    order = [name for name, _ in garrison.compute_clusters.calls]
    assert order == ["find", "check", "create"]
    [made] = garrison.nodepools.named("create")
    assert set(made["spec"].capacity_types) == {CapacityType.SPOT, CapacityType.ON_DEMAND}


@pytest.mark.parametrize("verb", ["create", "update"])
@pytest.mark.parametrize("other", ["--spot", "--no-spot"])
def test_two_ways_of_buying_are_not_taken_for_one(
    cli: Cli, garrison: FakeGarrison, verb: str, other: str
) -> None:
    answer = cli("nodepool", verb, *POOL_FLAGS[2:], other, "--spot-only")

    assert answer.status == 2
    assert f"{other} and --spot-only do not go together" in answer.err
    assert not garrison.nodepools.calls


def test_spot_only_is_spot_alone(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli(*POOL_FLAGS, "--spot-only")

    [made] = garrison.nodepools.named("create")
    assert (answer.status, made["spec"].capacity_types) == (0, (CapacityType.SPOT,))


def test_a_nodepool_goes_into_no_compute_cluster_of_another_place(
    cli: Cli, garrison: FakeGarrison
) -> None:
    answer = cli(*POOL_FLAGS, "--provider", "aws", "--region", "eu-west-1")

    assert answer.status == 2
    assert "gpus is at aws us-east-1, not at aws eu-west-1" in answer.err
    assert not garrison.nodepools.calls


@pytest.mark.parametrize(
    ("flags", "status", "bought"),
    [
        pytest.param(("--min", "2", "--max", "3"), 2, False, id="nobody can be asked"),
        pytest.param(("--min", "2", "--max", "3", "--yes"), 0, True, id="it is confirmed"),
        pytest.param(("--min", "0", "--max", "3"), 0, True, id="it buys nothing at once"),
    ],
)
def test_machines_that_are_bought_at_once_must_be_confirmed(
    cli: Cli, garrison: FakeGarrison, flags: tuple[str, ...], status: int, bought: bool
) -> None:
    answer = cli(*POOL_FLAGS, *flags)

    assert answer.status == status
    assert bool(garrison.nodepools.named("create")) is bought


def test_the_price_of_machines_that_are_held_is_shown_before_it_is_asked(
    cli: Cli, garrison: FakeGarrison
) -> None:
    answer = cli(*POOL_FLAGS, "--min", "2", "--max", "3", typed=b"\n", terminal=True)

    assert answer.status == 1
    assert "Buy 2 machines (g5.2xlarge) for 2.424 USD/h? [y/N]" in answer.err
    assert "nothing was bought" in answer.err
    assert not garrison.nodepools.named("create")


def test_only_machines_that_come_on_top_are_confirmed_in_an_update(
    cli: Cli, garrison: FakeGarrison
) -> None:
    held = POOL_SPEC.replace(min_instances=1)
    garrison.nodepools.story = [nodepool(spec=held)]

    answer = cli("nodepool", "update", "gpus", "a10g", "--min", "3", "--yes")

    assert answer.status == 0
    assert "this buys 2 machines (g5.2xlarge) for 2.424 USD/h at once" in answer.err
    [sent] = garrison.nodepools.named("update")
    assert (sent["spec"], sent["uid"]) == (held.replace(min_instances=3), UID)


def test_the_list_of_nodepools_has_all_that_matters_in_a_line(
    cli: Cli, garrison: FakeGarrison
) -> None:
    reason = "no spot capacity (InsufficientInstanceCapacity), again at 12:30 UTC"
    garrison.nodepools.rows = [[POOL_ROW.replace(reason=reason, pending=1)]]

    answer = cli("nodepool", "list", "gpus")

    head, row = answer.out.splitlines()
    assert head.split() == [
        *("ID", "COMPUTE_CLUSTER", "PHASE", "PLACE", "INSTANCE_TYPES", "CAPACITY", "MIN/MAX"),
        *("READY/DESIRED", "PENDING", "$", "/h", "REASON"),
    ]
    assert "aws us-east-1 (simulated)  g5.2xlarge      spot, on-demand  0/3" in row
    assert row.endswith(reason)
    assert garrison.nodepools.named("list") == [{"compute_cluster": "gpus"}]


def test_a_watched_list_writes_one_line_per_change(
    cli: Cli, garrison: FakeGarrison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "WATCH_SECONDS", 0.0)
    busy = POOL_ROW.replace(desired=2)
    garrison.nodepools.rows = [[POOL_ROW], [POOL_ROW], [busy], []]

    answer = cli("nodepool", "list", "--watch")

    changes = [line.split(" ", 1)[1] for line in answer.out.splitlines()[2:]]
    assert changes == [
        "nodepool gpus/a10g: active, 1 of 2 machines ready, 1.212 USD/h",
        "nodepool gpus/a10g: gone",
    ]
    assert answer.status == 130


def test_a_nodepool_is_shown_with_machines_replicas_and_events(cli: Cli) -> None:
    answer = cli("nodepool", "get", "gpus", "a10g")

    rows = [line.split() for line in answer.out.splitlines()]
    assert ["machines", "0", "to", "3"] in rows
    assert any(row[:3] == ["token-0", "running", "running"] and "llama-1" in row for row in rows)
    assert "NodeBought" in answer.out


def test_waiting_for_a_nodepool_shows_each_change_once(cli: Cli, garrison: FakeGarrison) -> None:
    starting = nodepool(ready=0, nodes=())
    garrison.nodepools.story = [starting, starting, nodepool()]

    answer = cli("nodepool", "update", "gpus", "a10g", "--max", "5", "--wait")

    assert answer.out.count("0 of 1 machine ready") == 1
    assert "1 of 1 machine ready" in answer.out
    assert garrison.nodepools.named("wait") == [{"name": "a10g", "generation": 2}]


def test_a_deployment_is_made_before_its_nodepool_with_a_word_about_it(
    cli: Cli, garrison: FakeGarrison
) -> None:
    garrison.deployments.missing = ("test-compute-cluster/test-nodepool",)

    answer = cli("deployment", "create", "llama", "--config", DEPLOYMENT_FILE)

    assert answer.status == 0
    assert "there is no nodepool test-compute-cluster/test-nodepool yet" in answer.err
    assert "'test-deployment'" in answer.err
    [made] = garrison.deployments.named("create")
    assert (made["wanted"].id, made["wanted"].model) == (
        "llama",
        "meta/Llama-3/Llama-3_2-3B-Instruct",
    )


@pytest.mark.parametrize(
    ("words", "replicas"),
    [
        pytest.param(("3",), 3, id="a count"),
        pytest.param(("0",), 0, id="zero"),
        pytest.param(("--auto",), None, id="autoscaling"),
    ],
)
def test_a_deployment_is_scaled(
    cli: Cli, garrison: FakeGarrison, words: tuple[str, ...], replicas: int | None
) -> None:
    answer = cli("deployment", "scale", "llama", *words)

    assert answer.status == 0
    assert f"scaled to {replicas} by ada" in answer.out
    assert garrison.deployments.named("scale") == [
        {"name": "llama", "replicas": replicas, "uid": None}
    ]


@pytest.mark.parametrize("words", [(), ("2", "--auto"), ("-1",), ("many",)])
def test_a_scale_that_says_no_one_thing_changes_nothing(
    cli: Cli, garrison: FakeGarrison, words: tuple[str, ...]
) -> None:
    answer = cli("deployment", "scale", "llama", *words)

    assert answer.status == 2
    assert not garrison.deployments.calls


def test_a_scale_that_waits_answers_with_the_deployment(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("deployment", "scale", "llama", "1", "--timeout", "20m", "--wait", "-o", "json")

    assert answer.json["replicas"][0]["endpoint"] == "http://10.0.0.1:8000"
    [waited] = garrison.deployments.named("wait")
    assert waited == {"name": "llama", "generation": 2, "timeout": timedelta(minutes=20)}


def test_a_wait_that_takes_too_long_says_so(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.deployments.story = []

    answer = cli("deployment", "scale", "llama", "1", "--wait")

    assert answer.status == 1
    assert answer.err.startswith("error: wait_timeout: deployment llama")


def test_bounds_of_a_deployment_change_without_a_file(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("deployment", "update", "llama", "--max", "7")

    assert answer.status == 0
    [sent] = garrison.deployments.named("update")
    before = deployment().spec
    assert sent["uid"] == UID
    assert sent["wanted"] == before.replace(autoscale=before.autoscale.replace(max_replicas=7))


def test_the_list_of_deployments_has_all_that_matters_in_a_line(cli: Cli) -> None:
    answer = cli("deployment", "list")

    head, row = answer.out.splitlines()
    assert head.split() == [
        *("ID", "MODEL", "STATUS", "READY/DESIRED", "MIN/MAX", "NODEPOOLS", "REVISION"),
        *("$", "/h", "REASON"),
    ]
    assert row.split() == [
        *("llama", "meta/Llama-3/Llama", "enabled", "1/1", "0/5", "gpus/a10g", "2", "(rolling)"),
        *("1.212", "scaled", "to", "1", "by", "ada"),
    ]


def test_why_a_replica_waits_is_in_the_picture(cli: Cli, garrison: FakeGarrison) -> None:
    waiting = (
        deployment()
        .replicas[0]
        .replace(state=ReplicaState.PENDING, reason="pool at max (3)", node=None, endpoint=None)
    )
    garrison.deployments.story = [deployment(ready=0, replicas=(waiting,)), deployment()]

    answer = cli("deployment", "enable", "llama", "--wait")

    assert "0 of 1 replica ready, pending: pool at max (3)" in answer.out


def test_a_log_arrives_as_it_was_written(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.deployments.log = (b"one\n", b"tw", b"o\n")

    answer = cli("deployment", "logs", "llama", "--replica", "llama-1")

    assert answer.out == "one\ntwo\n"
    assert garrison.deployments.named("logs") == [
        {"name": "llama", "replica": "llama-1", "follow": False}
    ]


def test_of_a_saved_log_it_is_said_beside_it_that_it_is_one(
    cli: Cli, garrison: FakeGarrison
) -> None:
    garrison.deployments.log = (b"one\n", b"two\n")
    garrison.deployments.log_is_saved = True

    answer = cli("deployment", "logs", "llama", "--replica", "llama-1")

    assert answer.out == "one\ntwo\n"
    assert answer.err.startswith("note: replica llama-1 was stopped")


def test_events_of_a_deployment_are_data_too(cli: Cli) -> None:
    answer = cli("deployment", "events", "llama", "-o", "json")

    assert [event["reason"] for event in answer.json] == ["NodeBought"]


@pytest.mark.parametrize(
    ("argv", "right"),
    [
        pytest.param(("nodepool", "scale"), "garrison nodepool update", id="scale a nodepool"),
        pytest.param(("deployment", "stop"), "garrison deployment disable", id="stop"),
        pytest.param(("deployment", "rm"), "garrison deployment delete", id="rm"),
        pytest.param(("computecluster", "ls"), "garrison computecluster list", id="ls"),
        pytest.param(("cc", "list"), "garrison computecluster", id="an alias"),
        pytest.param(("scale",), "garrison deployment scale", id="a verb without its noun"),
    ],
)
def test_a_foreign_word_names_the_right_one(cli: Cli, argv: tuple[str, ...], right: str) -> None:
    answer = cli(*argv)

    assert answer.status == 2
    assert f"did you mean `{right}`?" in answer.err


def test_the_tree_goes_from_compute_clusters_to_replicas_with_prices(cli: Cli) -> None:
    answer = cli("tree")

    lines = answer.out.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "WHAT", "$", "/h"]
    names = [line[: len(line) - len(line.lstrip())] + line.split()[0] for line in lines[1:]]
    assert names == ["gpus", "  a10g", "    token-0", "      llama-1", "total"]
    assert all("1.212" in line for line in lines[1:] if "llama-1" not in line)


def test_the_tree_is_data_too(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("tree", "-o", "json")

    assert answer.json == garrison.resources.model_dump(mode="json")
    assert answer.json["hourly_usd"] == "1.212"


def test_an_empty_tree_says_how_to_begin(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.resources = ResourceTree(hourly_usd=Decimal(0))

    answer = cli("tree")

    assert answer.out == "no compute clusters; `garrison computecluster create ID --config FILE`\n"


def test_apply_shows_what_differs_and_does_it(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("apply", "-f", str(CLARIFAI), "--yes")

    assert answer.status == 0
    assert answer.out.splitlines() == [
        "= compute cluster gpus: unchanged",
        "+ nodepool gpus/a10g",
        "    buys 2 machines at once, for 2.424 USD/h",
        "~ deployment llama: max_replicas 5 -> 7",
        "nodepool gpus/a10g: created",
        "deployment llama: updated",
    ]
    assert answer.err.startswith("note: pool.yaml: g5.2xlarge: the file says 40Gi")
    [files] = garrison.apply.files
    assert list(files) == [CLUSTER_FILE, DEPLOYMENT_FILE, POOL_FILE]


def test_apply_changes_nothing_that_nobody_confirmed(cli: Cli, garrison: FakeGarrison) -> None:
    answers = [
        cli("apply", "-f", POOL_FILE),
        cli("apply", "-f", POOL_FILE, typed=b"n\n", terminal=True),
    ]

    assert [answer.status for answer in answers] == [2, 1]
    assert all("nothing was changed" in answer.err for answer in answers)
    assert not garrison.apply.done


def test_apply_asks_nothing_where_nothing_changes(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.apply.steps = garrison.apply.steps[:1]

    answer = cli("apply", "-f", CLUSTER_FILE, "-o", "json")

    assert answer.status == 0
    assert [step["action"] for step in answer.json["steps"]] == ["unchanged"]


def test_apply_needs_files(cli: Cli, tmp_path: Path) -> None:
    answers = [
        cli("apply", "-f", str(tmp_path)),
        cli("apply", "-f", str(tmp_path / "none.yaml")),
        cli("apply"),
    ]

    assert [answer.status for answer in answers] == [2, 2, 2]


def test_what_is_no_file_is_refused_and_not_waited_for(cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    pipe = str(tmp_path / "pipe.yaml")

    answers = [
        cli("apply", "-f", str(tmp_path)),
        cli("apply", "-f", pipe),
        cli("nodepool", "create", "gpus", "a10g", "--config", pipe),
        cli("cluster", "quote", "-f", pipe),
    ]

    assert [answer.status for answer in answers] == [2, 2, 2, 2]
    assert all("pipe.yaml: cannot be read: Is no regular file" in one.err for one in answers)
    assert all("give -" in answer.err for answer in answers)


def test_apply_says_what_others_were_first_to_make(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.apply.beaten = True

    answer = cli("apply", "-f", POOL_FILE, "--yes")

    assert "nodepool gpus/a10g: unchanged" in answer.out.splitlines()


def test_watched_data_stays_data(
    cli: Cli, garrison: FakeGarrison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "WATCH_SECONDS", 0.0)
    garrison.deployments.rows = [[DEPLOYMENT_ROW], [DEPLOYMENT_ROW.replace(ready=0)]]

    answer = cli("deployment", "list", "--watch", "-o", "json")

    decoder = json.JSONDecoder()
    first, end = decoder.raw_decode(answer.out)
    second, _ = decoder.raw_decode(answer.out[end:].lstrip())
    assert [first[0]["ready"], second[0]["ready"]] == [1, 0]
