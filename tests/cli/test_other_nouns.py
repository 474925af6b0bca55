"""Offers, providers, and the simulated cloud's console."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from garrison.models.group import Group, GroupRequest
from garrison.models.observation import WatchReport, WatchTrouble
from garrison.models.offer import CapacityType, Offer, OfferQuery
from garrison.providers.simulated.provider import SimulatedProvider
from tests.cli.conftest import Cli
from tests.cli.fake_garrison import OFFER, FakeGarrison


def priced(name: str, price: str | None) -> Offer:
    usd = None if price is None else Decimal(price)
    return OFFER.model_copy(update={"instance_type": name, "usd_per_hour": usd})


# offer, provider


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        pytest.param([], ["cheap", "dear", "secret"], id="cheapest first by default"),
        pytest.param(["--sort", "-price"], ["dear", "cheap", "secret"], id="dearest first"),
        pytest.param(["--sort=-price"], ["dear", "cheap", "secret"], id="the same, joined"),
        pytest.param(["--sort", "instance_type"], ["cheap", "dear", "secret"], id="by name"),
    ],
)
def test_offers_of_unknown_price_come_last_in_either_direction(
    cli: Cli, garrison: FakeGarrison, sort: list[str], order: list[str]
) -> None:
    garrison.offers.offers = [priced("secret", None), priced("dear", "9"), priced("cheap", "0.5")]

    table = cli("offer", "list", *sort)
    as_json = cli("offer", "list", *sort, "-o", "json")

    assert [offer["instance_type"] for offer in as_json.json] == order
    assert [line.split()[3] for line in table.out.splitlines()[1:]] == order


def test_the_table_of_offers_shows_price_source_and_age(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.offers.offers = [priced("a", "47.28"), priced("b", None)]

    answer = cli("offer", "list")

    heading, first, second = answer.out.splitlines()
    assert "$ /h" in heading
    assert first.split()[-4:] == ["-", "high", "catalogue", "2030-01-01"]
    assert "47.28" in first
    assert "simulated (simulated)" in first
    assert "unknown" in second


def test_an_unknown_column_is_an_input_error(cli: Cli) -> None:
    answer = cli("offer", "list", "--sort", "-prize")

    assert answer.status == 2
    assert "did you mean 'price'?" in answer.err


def test_every_filter_reaches_the_query(cli: Cli, garrison: FakeGarrison) -> None:
    cli(
        "offer", "list", "--search", "p5", "--provider", "aws", "--region", "r",
        "--instance-type", "t", "--accelerator", "H100", "--min-gpus", "8",
        "--min-memory", "1.5", "--capacity-type", "spot", "--max-price", "99.5",
    )  # fmt: skip
    cli("offer", "list", "--cpu-only")

    assert garrison.offers.queries == [
        OfferQuery(
            search="p5",
            provider="aws",
            region="r",
            instance_type="t",
            accelerator="H100",
            min_gpus=Decimal(8),
            min_memory_gib=Decimal("1.5"),
            capacity_type=CapacityType.SPOT,
            max_usd_per_hour=Decimal("99.5"),
        ),
        OfferQuery(cpu_only=True),
    ]


@pytest.mark.parametrize("flag", ["--min-gpus", "--min-memory", "--max-price"])
@pytest.mark.parametrize("value", ["-1", "NaN", "Infinity", "many", "", "1e999999999"])
def test_a_number_that_is_none_names_its_option(cli: Cli, flag: str, value: str) -> None:
    answer = cli("offer", "list", flag, value)

    assert answer.status == 2
    assert flag in answer.err


def test_no_offer_is_an_empty_list(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.offers.offers = []

    assert cli("offer", "list", "-o", "json").out == "[]\n"
    assert cli("offer", "list").out == "no offer matches\n"


def test_providers_say_what_they_can(cli: Cli) -> None:
    table, as_json = cli("provider", "list"), cli("provider", "list", "-o", "json")

    assert "simulated (simulated)" in table.out
    assert as_json.json[0]["capabilities"]["gang"] is True


def test_providers_say_how_their_watch_fares(cli: Cli, garrison: FakeGarrison) -> None:
    now = datetime.now(UTC)
    garrison.providers.watch = WatchReport(
        passed_at=now - timedelta(minutes=5),
        error=WatchTrouble(code="provider_auth", message="key is\x1b[2J revoked", since=now),
        orphan_machines=3,
    )

    table, as_json = cli("provider", "list"), cli("provider", "list", "-o", "json")

    shown = " ".join(table.out.split())
    assert "5m" in shown
    assert "provider_auth" in shown
    assert "\x1b" not in table.out
    assert as_json.json[0]["name"] == "simulated"
    assert as_json.json[0]["watch"]["orphan_machines"] == 3
    assert as_json.json[0]["watch"]["error"]["code"] == "provider_auth"


# simulated


@pytest.fixture
def machines(data_dir: Path) -> list[str]:
    """Two machines of cluster train-1 in the file of the simulated cloud."""
    data_dir.mkdir()
    cloud = SimulatedProvider(data_dir / "simulated.db", installation="test", offers=[OFFER])
    request = GroupRequest(
        token="t-1",
        owner="cluster/train-1",
        uid="u-1",
        name="train-1",
        region="sim-a",
        instance_type=OFFER.instance_type,
        count=2,
        max_usd_per_node_hour=Decimal(1000),
    )
    group = asyncio.run(cloud.launch_group(request))
    assert isinstance(group, Group)
    return [node.provider_id for node in group.nodes]


def test_the_inventory_of_a_cloud_that_nobody_used_is_empty_and_stays_unmade(
    cli: Cli, data_dir: Path
) -> None:
    answer = cli("simulated", "inventory")

    assert answer.out == "[]\n"
    assert not data_dir.exists()


def test_the_inventory_is_json_unless_told_otherwise(cli: Cli, machines: list[str]) -> None:
    answer = cli("simulated", "inventory")
    table = cli("simulated", "inventory", "-o", "table")

    assert [machine["provider_id"] for machine in answer.json] == machines
    assert [machine["owner"] for machine in answer.json] == ["cluster/train-1"] * 2
    assert len(table.out.splitlines()) == 3


@pytest.mark.parametrize("by", ["id", "train-1/1", "cluster/train-1/1", "TRAIN-1/1"])
def test_a_machine_is_killed_and_revived_by_id_or_by_place(
    cli: Cli, machines: list[str], by: str
) -> None:
    node = machines[1] if by == "id" else by

    killed = cli("simulated", "kill", node)
    revived = cli("simulated", "revive", node, "-o", "json")

    assert killed.out == f"{machines[1]} (cluster/train-1 rank 1) is stopped\n"
    assert revived.json["provider_id"] == machines[1]
    assert revived.json["status"] != "stopped"


def test_a_machine_is_given_notice(cli: Cli, machines: list[str]) -> None:
    given = cli("simulated", "notice", "train-1/1", "--seconds", "2h")
    inventory = cli("simulated", "inventory")
    again = cli("simulated", "notice", machines[1])

    (end,) = (one["notice_ends_at"] for one in inventory.json if one["notice_ends_at"])
    assert given.out.endswith(f" and will be taken at {end}\n")
    assert again.err.startswith(f"error: conflict_phase: {machines[1]} is under notice already")
    assert again.status == 4


@pytest.mark.parametrize("seconds", ["-1", "soon", "nan", "1e9", "", "\u0663", "99999999d"])
def test_a_notice_that_is_no_time_is_refused_and_not_given(
    cli: Cli, machines: list[str], seconds: str
) -> None:
    answer = cli("simulated", "notice", machines[0], f"--seconds={seconds}")
    inventory = cli("simulated", "inventory")

    assert (answer.status, answer.out) == (2, "")
    assert [one["notice_at"] for one in inventory.json] == [None, None]


def test_a_reclaim_is_scripted_with_its_notice(cli: Cli) -> None:
    added = cli(
        "simulated", "faults", "add", "launch", "reclaim", "--seconds", "10m", "--notice", "30s",
        "--times", "always", "-o", "json",
    )  # fmt: skip
    wrong = cli("simulated", "faults", "add", "launch", "refusal", "--notice", "30s")

    assert (added.json["seconds"], added.json["notice_seconds"]) == (600, 30)
    assert wrong.status == 2
    assert "notice_seconds is of reclaim only, not of refusal" in wrong.err


@pytest.mark.parametrize("node", ["train-1/2", "train-1/-1", "train-1/", "/", "x", "", "a/٣"])
def test_a_machine_that_is_not_there_is_not_found(cli: Cli, machines: list[str], node: str) -> None:
    answer = cli("simulated", "kill", node)

    assert answer.err.startswith("error: not_found: ")
    assert answer.status == 3


def test_reviving_a_machine_that_has_power_is_a_conflict(cli: Cli, machines: list[str]) -> None:
    answer = cli("simulated", "revive", "train-1/0")

    assert answer.status == 4


def test_faults_are_added_listed_and_cleared(cli: Cli) -> None:
    added = cli(
        "simulated", "faults", "add", "launch", "lost_response", "--cluster", "train-1",
        "--times", "always", "--skip", "2", "-o", "json",
    )  # fmt: skip
    listed = cli("simulated", "faults", "list", "-o", "json")
    cleared = cli("simulated", "faults", "clear", "-o", "json")
    after = cli("simulated", "faults", "list", "-o", "json")

    rule = added.json
    assert (rule["call"], rule["what"], rule["owner"]) == ("launch", "lost_response", "train-1")
    assert (rule["times"], rule["skip"]) == (None, 2)
    assert listed.json == [rule]
    assert cleared.json == {"cleared": 1}
    assert after.json == []


def test_a_fault_can_be_aimed_at_a_node_that_is_not_bought_yet(cli: Cli) -> None:
    answer = cli(
        "simulated", "faults", "add", "restart", "refusal", "--node", "train-1/1", "-o", "json"
    )

    assert (answer.json["owner"], answer.json["rank"], answer.json["node"]) == ("train-1", 1, None)


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(["launch"], id="an error without its code"),
        pytest.param(["launch", "latency"], id="latency without a time"),
        pytest.param(["list", "refusal"], id="a fault that the call cannot have"),
        pytest.param(["buy", "refusal"], id="no call"),
        pytest.param(["launch", "refusal", "--times", "0"], id="never"),
        pytest.param(["launch", "refusal", "--times", "often"], id="no number"),
        pytest.param(["launch", "latency", "--seconds", "soon"], id="no duration"),
        pytest.param(["launch", "refusal", "--node", "a/1", "--rank", "2"], id="two ranks"),
    ],
)
def test_a_fault_that_cannot_be_is_an_input_error(
    cli: Cli, data_dir: Path, argv: list[str]
) -> None:
    answer = cli("simulated", "faults", "add", *argv)

    assert answer.status == 2
    assert answer.err.startswith("error: invalid_spec: ")
    assert not data_dir.exists()


@pytest.mark.parametrize("existing", [False, True])
def test_clearing_a_fault_that_is_not_there_is_not_found(cli: Cli, existing: bool) -> None:
    if existing:
        cli("simulated", "faults", "add", "launch", "refusal")

    assert cli("simulated", "faults", "clear", "999").status == 3


def test_times_are_utc(cli: Cli, machines: list[str]) -> None:
    [first, _] = cli("simulated", "inventory").json

    assert datetime.fromisoformat(first["created_at"]).tzinfo == UTC
    assert first["created_at"].endswith("Z")


@pytest.mark.parametrize("flags", [(), ("--register",)], ids=["look", "set up"])
def test_a_namespace_that_cannot_be_is_an_input_error_of_doctor(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.setenv("GARRISON_NAMESPACE", "f\u00fcr-alle")

    answer = cli("doctor", *flags)

    assert answer.status == 2
    assert "is no name of a namespace: 1 to 255" in " ".join(answer.out.split())
