"""Looking at clusters, waiting for them, and everything after the purchase."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import yaml

from garrison.errors import ErrorCode
from garrison.models.cluster_state import CLOSED_PHASES, ClusterEvent, Phase
from garrison.models.cluster_status import (
    ClusterStatus,
    ErrorStatus,
    PurchaseStatus,
    RecoveryStatus,
)
from garrison.models.group import WorkloadState
from tests.cli.conftest import Cli
from tests.cli.fake_garrison import NOW, ROW, UID, FakeGarrison, failed, node, status, worked

GOLDEN = {
    "name": "train-1",
    "uid": UID,
    "phase": "running",
    "provider": "simulated",
    "region": "sim-a",
    "zone": None,
    "instance_type": "p5.48xlarge",
    "nodes_wanted": 2,
    "gpus_per_node": 8,
    "hourly_usd": "94.66",
    "provider_hourly_usd": "94.66",
    "cost_usd": "1.577666666666",
    "account": "default",
    "owner": "ada",
    "quoted_at": None,
    "expires_at": None,
    "ready_at": None,
    "billed_until": None,
    "ended_at": None,
    "recovery": {
        "automatic": False,
        "max_attempts": 3,
        "episode": None,
        "attempts": 0,
        "in_progress": False,
        "next_attempt_at": None,
        "reason": None,
        "healthy_since": None,
        "last_error": None,
    },
    "last_error": None,
    "blocked": None,
    "volume": None,
    "phase_transitions": [{"phase": "quoted", "time": "2030-05-17T12:00:00.250000Z"}],
    "events": [
        {
            "time": "2030-05-17T12:00:00.250000Z",
            "node": 1,
            "reason": "NodeReady",
            "message": "node 1 is ready",
            "by": "garrison",
        }
    ],
}
"""What design.md promises of `cluster get -o json`; more may be there."""


def test_the_json_of_a_cluster_is_the_public_contract(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("cluster", "get", "train-1", "-o", "json")

    assert answer.json == garrison.clusters.story[0].model_dump(mode="json")
    assert {key: answer.json[key] for key in GOLDEN} == GOLDEN
    first = answer.json["nodes"][0]
    assert [first[key] for key in ("rank", "status", "provider_id", "private_address", "ssh")] == [
        0,
        "running",
        "sim-0",
        "10.0.0.1",
        None,
    ]
    assert (first["restarts"], first["workload"]) == (0, None)


def test_yaml_says_the_same_as_json(cli: Cli) -> None:
    as_yaml, as_json = (cli("cluster", "get", "train-1", "-o", o) for o in ("yaml", "json"))

    assert yaml.safe_load(as_yaml.out) == as_json.json


def test_the_table_of_a_cluster_has_facts_nodes_and_events(cli: Cli) -> None:
    answer = cli("cluster", "get", "train-1")

    rows = [line.split() for line in answer.out.splitlines()]
    assert ["place", "simulated", "sim-a", "(simulated)"] in rows
    assert ["shape", "2", "x", "8", "H100"] in rows
    assert ["cost", "1.58", "USD"] in rows
    assert ["0", "running", "sim-0", "10.0.0.1", "0", "-"] in rows
    assert "NodeReady" in answer.out
    assert "PROVIDER" not in answer.out
    assert not any(line.endswith(" ") for line in answer.out.splitlines())


def test_every_place_that_was_tried_is_shown_after_a_failover(
    cli: Cli, garrison: FakeGarrison
) -> None:
    tried = PurchaseStatus(
        provider="aws",
        region="us-east-1",
        instance_type="p5",
        answer="no p5 left",
        code=ErrorCode.INSUFFICIENT_CAPACITY,
    )
    got = PurchaseStatus(provider="simulated", region="sim-a", instance_type="p5.48xlarge")
    garrison.clusters.story = [status(purchases=(tried, got), provider_hourly_usd=Decimal("80.5"))]

    answer = cli("cluster", "get", "train-1")

    assert "insufficient_capacity" in answer.out
    assert "94.66 (the provider charges 80.50)" in answer.out


def test_what_others_wrote_cannot_command_the_terminal(cli: Cli, garrison: FakeGarrison) -> None:
    evil = "\x1b[2J[bold]x[/bold]\nsecond \u202eline\r\a"
    event = ClusterEvent(time=NOW, reason="NodeLost", message=evil)
    garrison.clusters.story = [
        status(events=(event,), last_error=ErrorStatus(code=ErrorCode.PROVIDER_ERROR, message=evil))
    ]

    answer = cli("cluster", "get", "train-1")

    assert "\x1b" not in answer.out
    assert "\u202e" not in answer.out
    assert answer.out.count("[bold]x[/bold] second ") == 2


def test_a_list_off_a_terminal_has_one_line_per_cluster(cli: Cli, garrison: FakeGarrison) -> None:
    long = "x" * 300
    garrison.clusters.rows = [[ROW, ROW.model_copy(update={"owner": long})]]

    answer = cli("cluster", "list")

    lines = answer.out.splitlines()
    assert len(lines) == 3
    assert lines[0].split()[:3] == ["NAME", "PHASE", "SHAPE"]
    assert "$ /h" in lines[0]
    assert long in lines[2]
    assert "simulated (simulated)" in lines[1]


def test_a_list_passes_its_filters_on(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli(
        "cluster", "list", "--all", "--phase", "failed", "--owner", "a'b", "--provider", "aws",
        "-o", "json",
    )  # fmt: skip

    assert garrison.clusters.named("list") == [
        {"include_ended": True, "phase": "failed", "owner": "a'b", "provider": "aws"}
    ]
    assert answer.json == [ROW.model_dump(mode="json")]


def test_an_empty_list_is_an_empty_json_list(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.clusters.rows = [[]]

    answer = cli("cluster", "list", "-o", "json")

    assert answer.out == "[]\n"


def test_watching_a_list_prints_it_again_when_it_changes(
    cli: Cli, garrison: FakeGarrison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garrison.cli.cluster.WATCH_SECONDS", 0)
    dearer = ROW.model_copy(update={"cost_usd": Decimal(9)})
    degraded = ROW.model_copy(update={"phase": Phase.DEGRADED})
    garrison.clusters.rows = [[ROW], [dearer], [degraded]]

    answer = cli("cluster", "list", "--watch")

    assert answer.status == 130
    assert answer.out.count("NAME") == 2
    assert "degraded" in answer.out
    assert "Traceback" not in answer.err


# Waiting


def test_wait_is_for_running_unless_told_otherwise(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("cluster", "wait", "train-1", "--timeout", "20m")

    [call] = garrison.clusters.named("wait")
    assert call["phases"] == {Phase.RUNNING}
    assert call["timeout"] == timedelta(minutes=20)
    assert answer.status == 0


@pytest.mark.parametrize(
    ("states", "exits"),
    [
        pytest.param([WorkloadState.SUCCEEDED, WorkloadState.SUCCEEDED], 0, id="all succeeded"),
        pytest.param([WorkloadState.SUCCEEDED, WorkloadState.FAILED], 1, id="one failed"),
        pytest.param([WorkloadState.STOPPED, WorkloadState.STOPPED], 1, id="stopped"),
    ],
)
@pytest.mark.parametrize("output", ["table", "json"])
def test_waiting_for_the_workload_exits_as_it_did(
    cli: Cli, garrison: FakeGarrison, states: list[WorkloadState], exits: int, output: str
) -> None:
    garrison.clusters.story = [
        worked(WorkloadState.RUNNING, WorkloadState.RUNNING),
        worked(*states),
    ]

    answer = cli("cluster", "wait", "train-1", "--for", "workload", "-o", output)

    assert answer.status == exits
    assert "train-1" in answer.out


@pytest.mark.parametrize("story", [[status(Phase.PROVISIONING)]])
def test_a_wait_that_takes_too_long_says_that_the_cluster_goes_on(
    cli: Cli, garrison: FakeGarrison, story: list[ClusterStatus]
) -> None:
    garrison.clusters.story = story

    answer = cli("cluster", "wait", "train-1", "--timeout", "1")

    assert answer.err == "error: wait_timeout: train-1 is not there yet; it goes on\n"
    assert answer.status == 1


def test_a_cluster_that_failed_ends_the_wait_with_its_code(
    cli: Cli, garrison: FakeGarrison
) -> None:
    garrison.clusters.story = [failed(ErrorCode.QUOTA_EXCEEDED)]

    answer = cli("cluster", "wait", "train-1")

    assert answer.err.startswith("error: quota_exceeded: ")
    assert answer.status == 1


def test_each_change_is_one_line_and_json_keeps_silent(cli: Cli, garrison: FakeGarrison) -> None:
    story = [
        status(Phase.PROVISIONING, nodes=(node(0, status="starting"), node(1, status="failed"))),
        status(Phase.DEGRADED, nodes=(node(0), node(1, status="lost"))),
        status(Phase.RUNNING),
    ]
    garrison.clusters.story = story

    table = cli("cluster", "wait", "train-1")
    as_json = cli("cluster", "wait", "train-1", "-o", "json")

    changes = [line.partition("Z ")[2] for line in table.out.splitlines()[:3]]
    assert changes == [
        "train-1: provisioning, 0 of 2 nodes running, node 1 failed",
        "train-1: degraded, 1 of 2 nodes running, node 1 lost",
        "train-1: running, 2 of 2 nodes running, 94.66 USD/h",
    ]
    assert as_json.json == story[-1].model_dump(mode="json")
    assert as_json.err == ""


def test_on_a_terminal_there_is_a_live_view(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.clusters.story = [status(Phase.PROVISIONING), status()]

    answer = cli("cluster", "wait", "train-1", "-o", "json", terminal=True)

    assert answer.json["phase"] == "running"
    assert "waiting for running of train-1" in answer.err


def test_ctrl_c_while_waiting_says_that_the_cluster_goes_on(
    cli: Cli, garrison: FakeGarrison, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(name: str, **_: Any) -> ClusterStatus:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(garrison.clusters, "wait", endless)

    answer = cli("cluster", "wait", "train-1")

    assert answer.status == 130
    assert "cluster train-1 goes on" in answer.err
    assert "Traceback" not in answer.err


# Acting


def test_terminate_does_not_ask_where_nobody_can_answer(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("cluster", "terminate", "train-1", "--uid", UID, "-o", "json")

    assert garrison.clusters.named("terminate") == [{"name": "train-1", "uid": UID}]
    assert answer.json == {
        "name": "train-1",
        "uid": UID,
        "accepted_at": "2030-05-17T12:00:00.250000Z",
    }


@pytest.mark.parametrize(
    ("typed", "flags", "calls"),
    [(b"n\n", [], 0), (b"y\n", [], 1), (b"", ["--yes"], 1)],
    ids=["no", "yes", "not asked"],
)
def test_terminate_asks_on_a_terminal(
    cli: Cli, garrison: FakeGarrison, typed: bytes, flags: list[str], calls: int
) -> None:
    answer = cli("cluster", "terminate", "train-1", *flags, typed=typed, terminal=True)

    assert len(garrison.clusters.named("terminate")) == calls
    assert answer.status == (0 if calls else 1)


def test_terminate_can_wait_for_the_end(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.clusters.story = [status(Phase.TERMINATING), status(Phase.TERMINATED, nodes=())]

    answer = cli("cluster", "terminate", "train-1", "--wait")

    [call] = garrison.clusters.named("wait")
    assert (call["phases"], call["uid"]) == (set(CLOSED_PHASES), UID)
    assert "train-1: terminating, 2 nodes left\n" in answer.out
    assert "train-1: terminated\n" in answer.out
    assert answer.status == 0


def test_recover_can_wait_until_all_nodes_run(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.clusters.story = [
        status(Phase.DEGRADED),
        status(Phase.DEGRADED, recovery=_recovery(attempts=1, in_progress=True)),
        status(Phase.RUNNING),
    ]

    answer = cli("cluster", "recover", "train-1", "--wait")

    assert "recovery attempt 1 of 3" in answer.out
    assert answer.status == 0


def test_an_attempt_that_brought_nothing_back_ends_the_wait(
    cli: Cli, garrison: FakeGarrison
) -> None:
    garrison.clusters.story = [
        status(Phase.DEGRADED),
        status(Phase.DEGRADED, recovery=_recovery(attempts=1, last_error="node 1 is gone")),
        status(Phase.DEGRADED),
    ]

    answer = cli("cluster", "recover", "train-1", "--wait")

    assert answer.err == ("error: provider_error: train-1 is still degraded: node 1 is gone\n")
    assert answer.status == 1


def _recovery(**changes: Any) -> RecoveryStatus:
    return RecoveryStatus(automatic=False, max_attempts=3, episode=1, **changes)


@pytest.mark.parametrize(
    ("argv", "change"),
    [
        (["on"], {"automatic": True, "max_attempts": None}),
        (["off", "--max-attempts", "7"], {"automatic": False, "max_attempts": 7}),
        (["--max-attempts", "7"], {"automatic": None, "max_attempts": 7}),
    ],
)
def test_recovery_changes_only_what_is_said(
    cli: Cli, garrison: FakeGarrison, argv: list[str], change: dict[str, Any]
) -> None:
    answer = cli("cluster", "recovery", "train-1", *argv)

    assert garrison.clusters.named("recovery") == [{"name": "train-1", **change}]
    assert answer.status == 0


def test_connections_are_commands_to_paste(cli: Cli) -> None:
    table, as_json = (
        cli("cluster", "connections", "t"),
        cli("cluster", "connections", "t", "-ojson"),
    )

    assert "ssh -p 2222 root@h" in table.out
    assert as_json.json[0]["command"] == "ssh -p 2222 root@h"


def test_events_are_a_json_list(cli: Cli) -> None:
    answer = cli("cluster", "events", "train-1", "-o", "json")

    assert answer.json == GOLDEN["events"]


@pytest.mark.parametrize("exits", [0, 3, 255])
def test_ssh_runs_the_words_after_two_dashes_and_exits_as_they_do(
    cli: Cli, garrison: FakeGarrison, exits: int
) -> None:
    garrison.clusters.ssh_status = exits

    answer = cli("cluster", "ssh", "t", "--rank", "1", "--", "ls", "-la", "--", "a b")

    [call] = garrison.clusters.named("ssh")
    assert call == {"name": "t", "rank": 1, "command": ("ls", "-la", "--", "a b")}
    assert answer.status == exits


@pytest.mark.parametrize(
    ("words", "command"),
    [([], ()), (["--", "echo a; exit 7"], ("/bin/sh", "-c", "echo a; exit 7"))],
    ids=["a login shell", "one word is a line of shell"],
)
def test_ssh_reads_words_as_openssh_does(
    cli: Cli, garrison: FakeGarrison, words: list[str], command: tuple[str, ...]
) -> None:
    cli("cluster", "ssh", "t", *words)

    [call] = garrison.clusters.named("ssh")
    assert call["command"] == command


LOG = (b"one\ntw", b"o\nthr\xff\x1b[31mee\nunfini", b"shed")


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([], "one\ntwo\nthr\\xff\x1b[31mee\nunfinished"),
        (["--tail", "2"], "thr\\xff\x1b[31mee\nunfinished"),
        (["--tail", "99"], "one\ntwo\nthr\\xff\x1b[31mee\nunfinished"),
        (["--tail", "0"], ""),
    ],
)
def test_logs_are_the_bytes_that_the_command_wrote(
    garrison: FakeGarrison, cli: Cli, tail: list[str], expected: str
) -> None:
    garrison.clusters.log = LOG

    answer = cli("cluster", "logs", "train-1", *tail)

    assert answer.out == expected


def test_following_with_a_tail_begins_at_the_last_lines(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.clusters.log = (b"one\ntwo\nthree\n",)

    cli("cluster", "logs", "train-1", "--follow", "--tail", "2", "--rank", "3")

    assert garrison.clusters.named("logs")[-1] == {
        "name": "train-1",
        "rank": 3,
        "tail_bytes": len(b"two\nthree\n"),
        "follow": True,
    }
