"""Orphans on the command line: what is shown, asked, deleted and said."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from garrison.errors import ErrorCode
from garrison.models.group import NodeStatus
from garrison.models.orphan import (
    Orphan,
    OrphanMachine,
    OrphanProblem,
    OrphanReport,
    SweepResult,
    Swept,
)
from tests.cli.conftest import Cli
from tests.cli.fake_garrison import NOW, UID, FakeGarrison

SWEPT = "nothing was deleted"


def orphan(count: int = 2, **overrides: Any) -> Orphan:
    given: dict[str, Any] = {
        "provider": "simulated",
        "installation": "ours",
        "owner": "cluster/train-1",
        "uid": UID,
        "token": f"{UID}-0",
        "machines": tuple(
            OrphanMachine(
                provider_id=f"sim-{rank}",
                rank=rank,
                status=NodeStatus.RUNNING,
                region="sim-a",
                instance_type="p5.48xlarge",
                created_at=NOW,
                usd_per_hour=Decimal("47.28"),
            )
            for rank in range(count)
        ),
        "age_seconds": timedelta(hours=3, minutes=5).total_seconds(),
        "cost_usd": Decimal("291.56"),
        "sweepable": True,
        "reason": "its life is unknown to this Temporal Service",
        "simulated": True,
        "provider_type": "simulated",
        **overrides,
    }
    return Orphan(**given)


YOUNG = orphan(1, uid="young", sweepable=False, reason="too young: left alone until then")


@pytest.fixture
def report(garrison: FakeGarrison) -> OrphanReport:
    garrison.orphans.report = OrphanReport(installations=("ours",), orphans=(orphan(), YOUNG))
    garrison.orphans.swept = [
        Swept.of(orphan(), SweepResult.DELETED),
        Swept.of(YOUNG, SweepResult.LEFT, YOUNG.reason),
    ]
    return garrison.orphans.report


def test_the_list_has_age_rate_cost_and_state(cli: Cli, report: OrphanReport) -> None:
    answer = cli("orphan", "list")

    heading, first, second = answer.out.splitlines()
    assert heading.split()[:4] == ["PROVIDER", "OWNER", "UID", "MACHINES"]
    for text in ("simulated (simulated)", "cluster/train-1", UID, "3h 5m", "94.56", "291.56"):
        assert text in first
    assert "sim-0, sim-1" in first
    assert " orphan " in first
    assert " too young " in second
    assert answer.status == 0


def test_the_json_has_stable_fields(cli: Cli, report: OrphanReport) -> None:
    first, second = cli("orphan", "list", "-o", "json").json

    assert list(first)[:10] == [
        *("provider", "installation", "owner", "uid", "token", "machines"),
        *("age_seconds", "cost_usd", "sweepable", "reason"),
    ]
    assert list(first["machines"][0]) == [
        *("provider_id", "rank", "status", "region", "instance_type"),
        *("created_at", "usd_per_hour"),
    ]
    assert (first["cost_usd"], first["age_seconds"]) == ("291.56", 11_100)
    assert (first["sweepable"], second["sweepable"]) == (True, False)


def test_an_unknown_price_is_said_to_be_unknown(cli: Cli, garrison: FakeGarrison) -> None:
    priceless = orphan(1).machines[0].replace(usd_per_hour=None)
    garrison.orphans.report = OrphanReport(orphans=(orphan(machines=(priceless,), cost_usd=None),))

    table, as_json = cli("orphan", "list"), cli("orphan", "list", "-o", "json")

    assert table.out.splitlines()[1].count(" unknown ") == 3
    assert as_json.json[0]["cost_usd"] is None


def test_text_in_tags_is_shown_and_not_obeyed(cli: Cli, garrison: FakeGarrison) -> None:
    hostile = orphan(owner="\x1b[2J[red]", uid="", reason="a\nb")
    garrison.orphans.report = OrphanReport(orphans=(hostile,))

    answer = cli("orphan", "list")

    assert "\x1b" not in answer.out
    assert "[red]" in answer.out
    assert len(answer.out.splitlines()) == 2


def test_no_orphans_is_an_empty_list(cli: Cli) -> None:
    assert cli("orphan", "list").out == "there are no orphans\n"
    assert cli("orphan", "list", "-o", "json").out == "[]\n"


def test_machines_of_other_installations_are_hinted_at(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.orphans.report = OrphanReport(installations=("ours",), others={"old-id": 2})

    table, as_json = cli("orphan", "list"), cli("orphan", "list", "-o", "json")

    assert "2 machines" in table.err
    assert "`garrison orphan list --installation old-id`" in table.err
    assert as_json.err == ""


def test_provider_and_installation_reach_the_service(cli: Cli, garrison: FakeGarrison) -> None:
    cli("orphan", "list", "--provider", "aws", "--installation", "old")

    assert garrison.orphans.asked == [{"provider": "aws", "installation": "old"}]


@pytest.mark.parametrize("verb", [["list"], ["sweep", "--yes"]])
def test_a_provider_that_does_not_answer_fails_the_command_after_the_rest_was_done(
    cli: Cli, garrison: FakeGarrison, report: OrphanReport, verb: list[str]
) -> None:
    problem = OrphanProblem(provider="aws", code=ErrorCode.PROVIDER_AUTH, message="key revoked")
    garrison.orphans.report = report.replace(problems=(problem,))

    answer = cli("orphan", *verb)

    assert "cluster/train-1" in answer.out
    assert answer.err.startswith("error: provider_auth: not all providers answered: aws: key rev")
    assert answer.status == 1


def test_without_a_terminal_a_sweep_needs_yes(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("orphan", "sweep")

    assert answer.status == 2
    assert SWEPT in answer.err
    assert "--yes" in answer.err
    assert garrison.orphans.asked == []


def test_a_sweep_shows_and_asks_before_it_deletes(
    cli: Cli, garrison: FakeGarrison, report: OrphanReport
) -> None:
    answer = cli("orphan", "sweep", typed=b"y\n", terminal=True)

    assert "Delete 2 machines for good" in answer.err
    assert "291.56" in answer.out
    assert garrison.orphans.sweeps == [report.orphans]
    assert "deleted" in answer.out
    assert answer.status == 0


@pytest.mark.parametrize("typed", [b"n\n", b"\n", b"", b"yes please\n"])
def test_anything_but_yes_deletes_nothing(
    cli: Cli, garrison: FakeGarrison, report: OrphanReport, typed: bytes
) -> None:
    answer = cli("orphan", "sweep", typed=typed, terminal=True)

    assert answer.status == 1
    assert SWEPT in answer.err
    assert garrison.orphans.sweeps == []


def test_another_installation_is_named_plainly_before_its_machines_go(
    cli: Cli, garrison: FakeGarrison, report: OrphanReport
) -> None:
    garrison.orphans.report = report.replace(own=False, installations=("old",))

    answer = cli("orphan", "sweep", "--installation", "old", typed=b"n\n", terminal=True)

    assert "2 machines of ANOTHER installation, old," in answer.err
    assert "alive, on another Temporal Service" in answer.err
    assert garrison.orphans.sweeps == []


def test_where_nothing_is_to_go_nobody_is_asked(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.orphans.report = OrphanReport(orphans=(YOUNG,))
    garrison.orphans.swept = [Swept.of(YOUNG, SweepResult.LEFT, YOUNG.reason)]

    answer = cli("orphan", "sweep", terminal=True)

    assert "[y/N]" not in answer.err
    assert answer.status == 0


def test_a_sweep_as_json_is_what_became_of_each(
    cli: Cli, garrison: FakeGarrison, report: OrphanReport
) -> None:
    answer = cli("orphan", "sweep", "--yes", "-o", "json")

    assert [(one["result"], one["machines"], one["code"]) for one in answer.json] == [
        ("deleted", 2, None),
        ("left", 1, None),
    ]


def test_what_should_go_and_did_not_fails_the_command(
    cli: Cli, garrison: FakeGarrison, report: OrphanReport
) -> None:
    garrison.orphans.swept = [
        Swept.of(orphan(), SweepResult.DELETED),
        Swept.of(
            orphan(owner="cluster/b"),
            SweepResult.FAILED,
            "no answer in time",
            code=ErrorCode.PROVIDER_UNREACHABLE,
        ),
    ]

    table = cli("orphan", "sweep", "--yes")
    as_json = cli("orphan", "sweep", "--yes", "-o", "json")

    assert table.status == as_json.status == 5
    assert "1 of 2 purchases could not be deleted: cluster/b" in table.err
    assert as_json.error["code"] == "provider_unreachable"
    assert [one["result"] for one in as_json.json] == ["deleted", "failed"]


@pytest.mark.parametrize(
    ("argv", "meant"),
    [(["orphan", "delete"], "orphan sweep"), (["orphan", "ls"], "orphan list")],
)
def test_words_of_other_tools_are_corrected(cli: Cli, argv: list[str], meant: str) -> None:
    assert f"did you mean `garrison {meant}`?" in cli(*argv).err
