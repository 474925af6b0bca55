"""Quote, launch and up: what is asked for, what is confirmed, what is bought."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from garrison.errors import ErrorCode
from garrison.models.cluster_state import Phase
from tests.cli.conftest import Cli
from tests.cli.fake_garrison import UID, FakeGarrison, failed, node, quote, status

FILE = """\
cluster:
  name: train-1
  nodes: 2
  accelerator: H100:8
  command: python train.py
  env: {PORT: 8080, EMPTY: }
  recovery: {max_attempts: 5}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return str(path)


def asked(garrison: FakeGarrison) -> dict[str, object]:
    [call] = garrison.clusters.named("quote")
    given: dict[str, object] = call["spec"].model_dump(exclude_unset=True, mode="json")
    return given


# Asking for a price


def test_a_file_is_quoted_as_it_is_written(cli: Cli, garrison: FakeGarrison, file: str) -> None:
    answer = cli("cluster", "quote", "-f", file)

    assert answer.status == 0
    assert asked(garrison) == {
        "name": "train-1",
        "nodes": 2,
        "accelerator": "H100:8",
        "command": ["/bin/sh", "-c", "python train.py"],
        "env": {"PORT": "8080", "EMPTY": ""},
        "recovery": {"max_attempts": 5},
    }


def test_standard_input_is_a_file_too(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("cluster", "quote", "-f", "-", typed=FILE.encode())

    assert answer.status == 0
    assert asked(garrison)["name"] == "train-1"


def test_flags_describe_a_whole_cluster(cli: Cli, garrison: FakeGarrison, tmp_path: Path) -> None:
    key = tmp_path / "id.pub"
    key.write_text("ssh-ed25519 AAAA ada@laptop\n")

    answer = cli(
        "cluster", "quote", "--name", "t", "--nodes", "4", "--gpus-per-node", "8",
        "--accelerator", "H100", "--instance-type", "p5", "--provider", "aws", "--region", "r",
        "--zone", "z", "--capacity-type", "spot", "--root-disk-gb", "200", "--recovery",
        "--failover", "--command", "nvidia-smi", "--env", "A=1=2", "--env", "B=",
        "--port", "22", "--port", "80", "--ssh-key", str(key), "--ssh-key", "ssh-rsa BBBB",
    )  # fmt: skip

    assert answer.status == 0
    assert asked(garrison) == {
        "name": "t",
        "nodes": 4,
        "gpus_per_node": 8,
        "accelerator": "H100",
        "instance_type": "p5",
        "provider": "aws",
        "region": "r",
        "zone": "z",
        "capacity_type": "spot",
        "root_disk_gb": 200,
        "recovery": {"automatic": True},
        "failover": True,
        "command": ["/bin/sh", "-c", "nvidia-smi"],
        "env": {"A": "1=2", "B": ""},
        "ports": [22, 80],
        "ssh_keys": ["ssh-ed25519 AAAA ada@laptop", "ssh-rsa BBBB"],
    }


def test_flags_win_over_the_file_and_say_so(cli: Cli, garrison: FakeGarrison, file: str) -> None:
    answer = cli(
        "cluster", "quote", "-f", file, "--nodes", "3", "--accelerator", "H100:8",
        "--env", "MORE=x", "--recovery",
    )  # fmt: skip

    wanted = asked(garrison)
    assert wanted["nodes"] == 3
    assert wanted["env"] == {"PORT": "8080", "EMPTY": "", "MORE": "x"}
    assert wanted["recovery"] == {"max_attempts": 5, "automatic": True}
    assert f"note: --nodes wins over nodes in {file}\n" in answer.err
    assert "--accelerator" not in answer.err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"\xff\xfe\xfa", "cannot be read", id="binary"),
        pytest.param(b"\x89PNG\r\n\x1a\n\0\0", "UTF-8", id="an image"),
        pytest.param(b"x" * 2_000_000, "larger than", id="huge"),
        pytest.param(b"cluster:\n  nodez: 2\n", "line 2: cluster.nodez", id="unknown key"),
        pytest.param(b"cluster:\n  nodes: 0\n", "must be at least 1", id="bad value"),
        pytest.param(b"nodes: 2\n", "`cluster:` is missing", id="no block"),
    ],
)
def test_a_bad_file_is_an_input_error(
    cli: Cli, garrison: FakeGarrison, content: bytes, told: str
) -> None:
    answer = cli("cluster", "quote", "-f", "-", typed=content)

    assert answer.status == 2
    assert answer.err.startswith("error: invalid_spec: -: ")
    assert told in answer.err
    assert garrison.clusters.calls == []


@pytest.mark.parametrize("name", ["missing.yaml", ".", "a\0b", "x" * 5000])
def test_a_file_that_cannot_be_read_is_an_input_error(cli: Cli, name: str) -> None:
    answer = cli("cluster", "quote", "-f", name)

    assert answer.status == 2
    assert "cannot be read: " in answer.err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--env", "sk-secret"], "KEY=VALUE"),
        (["--env", "A=sk-secret", "--env", "A=2"], "twice"),
        (["--env", "1A=sk-secret"], "'1A'"),
        (["--env", "A=sk-secret\0"], "NUL"),
        (["--ssh-key", "sk-secret"], "--ssh-key"),
        (["--command", "sk-secret\0"], "NUL"),
        (["--port", "70000"], "65535"),
        (["--nodes", "0"], "at least 1"),
        (["--capacity-type", "free"], "--capacity-type"),
    ],
)
def test_a_bad_flag_is_an_input_error_and_shows_no_secret(
    cli: Cli, garrison: FakeGarrison, flags: list[str], told: str
) -> None:
    answer = cli("cluster", "quote", *flags)

    assert answer.status == 2
    assert told in answer.err
    assert "sk-secret" not in answer.err
    assert garrison.clusters.calls == []


def test_a_private_key_is_never_sent(cli: Cli, garrison: FakeGarrison, tmp_path: Path) -> None:
    key = tmp_path / "id"
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n")

    answer = cli("cluster", "quote", "--nodes", "1", "--ssh-key", str(key))

    assert "private key" in answer.err
    assert "secret" not in answer.err
    assert garrison.clusters.calls == []


def test_the_json_of_a_quote_is_the_models_own(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("cluster", "quote", "--nodes", "2", "-o", "json")

    assert answer.json == garrison.clusters.quoted_as.model_dump(mode="json")
    assert list(answer.json)[:7] == [
        "name", "uid", "quote_id", "nodes", "gpus_per_node", "hourly_usd", "at_most",
    ]  # fmt: skip
    assert answer.json["hourly_usd"] == "94.66"
    assert answer.json["expires_at"] == "2030-05-17T12:15:00.250000Z"
    assert answer.json["parts"][2] == {
        "what": "network",
        "quantity": "2",
        "unit": "node",
        "unit_usd_per_hour": None,
        "usd_per_hour": None,
        "included": True,
    }


def test_the_table_of_a_quote_shows_parts_sum_and_what_was_considered(cli: Cli) -> None:
    answer = cli("cluster", "quote", "--nodes", "2")

    rows = [line.split() for line in answer.out.splitlines()]
    assert answer.out.startswith("train-1: 2 x 8 H100, simulated sim-a p5.48xlarge (simulated)\n")
    assert ["p5.48xlarge", "(8", "x", "H100)", "2", "node", "47.28", "94.56"] in rows
    assert ["network", "2", "node", "included"] in rows
    assert ["total", "94.66"] in rows
    assert "high (for one node)" in answer.out
    assert "2030-05-17T12:15:00Z" in answer.out
    assert "and 5 more offers; -v shows all" in answer.out
    assert "\x1b" not in answer.out


def test_verbose_shows_every_offer_that_was_considered(cli: Cli) -> None:
    answer = cli("cluster", "quote", "--nodes", "2", "-v")

    assert answer.out.count("dearer") == 9


# Buying


@pytest.mark.parametrize("verb", [["launch", "train-1"], ["up", "--nodes", "2"]])
@pytest.mark.parametrize("output", ["table", "json"])
def test_without_a_terminal_and_yes_nothing_is_bought(
    cli: Cli, garrison: FakeGarrison, verb: list[str], output: str
) -> None:
    garrison.clusters.story = [status(Phase.QUOTED)]

    answer = cli("cluster", *verb, "-o", output, typed=b"y\n")

    assert answer.status == 2
    assert "invalid_spec" in answer.err
    assert "--yes" in answer.err
    assert garrison.clusters.named("launch") == []


@pytest.mark.parametrize("typed", [b"\n", b"n\n", b"", b"maybe\n", b"yes please\n"])
def test_anything_but_yes_buys_nothing(cli: Cli, garrison: FakeGarrison, typed: bytes) -> None:
    garrison.clusters.story = [status(Phase.QUOTED)]

    answer = cli("cluster", "launch", "train-1", typed=typed, terminal=True)

    assert answer.status == 1
    assert "total" in answer.out
    assert "94.66 USD/h? [y/N]" in answer.err
    assert "nothing was bought" in answer.err
    assert garrison.clusters.named("launch") == []


@pytest.mark.parametrize("typed", [b"y\n", b"YES\n"])
def test_yes_buys_exactly_the_quote_that_was_shown(
    cli: Cli, garrison: FakeGarrison, typed: bytes
) -> None:
    garrison.clusters.story = [status(Phase.QUOTED)]

    answer = cli("cluster", "launch", "train-1", typed=typed, terminal=True)

    [bought] = garrison.clusters.named("launch")
    assert answer.status == 0
    assert garrison.clusters.named("quoted") == [{"name": "train-1", "quote_id": "q-1"}]
    assert (bought["name"], bought["quote_id"], bought["uid"]) == ("train-1", "q-1", UID)
    assert "train-1: accepted at 2030-05-17T12:00:00Z, now launching" in answer.out


def test_launch_passes_its_bounds_and_workload_on(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.clusters.story = [status(Phase.QUOTED)]

    cli(
        "cluster", "launch", "train-1", "--yes", "--quote-id", "q-9", "--uid", "u-9",
        "--max-price", "95", "--max-lifetime", "12h", "--failover", "--env", "A=1",
    )  # fmt: skip

    [bought] = garrison.clusters.named("launch")
    assert bought.pop("spec").model_dump(exclude_unset=True) == {"env": {"A": "1"}}
    assert bought == {
        "name": "train-1",
        "quote_id": "q-9",
        "uid": "u-9",
        "max_hourly_usd": Decimal(95),
        "max_lifetime": timedelta(hours=12),
        "failover": True,
    }


def test_a_file_of_another_cluster_is_not_launched(
    cli: Cli, garrison: FakeGarrison, file: str
) -> None:
    answer = cli("cluster", "launch", "other", "-f", file, "--yes")

    assert answer.status == 2
    assert "'train-1'" in answer.err
    assert garrison.clusters.calls == []


def test_json_of_a_launch_is_its_acknowledgement_alone(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.clusters.story = [status(Phase.QUOTED)]

    answer = cli("cluster", "launch", "train-1", "--yes", "-o", "json")

    assert answer.json["phase"] == "launching"
    assert answer.json["accepted_at"] == "2030-05-17T12:00:00.250000Z"
    assert answer.err == ""


def test_with_json_the_price_is_shown_beside_the_answer(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.clusters.story = [status(Phase.QUOTED)]

    answer = cli("cluster", "launch", "train-1", "-o", "json", typed=b"y\n", terminal=True)

    assert answer.json["name"] == "train-1"
    assert "total" in answer.err


def test_up_quotes_launches_and_waits(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.clusters.story = [
        status(Phase.LAUNCHING, nodes=()),
        status(Phase.PROVISIONING, nodes=(node(0, status="starting"), node(1))),
        status(Phase.PROVISIONING, nodes=(node(0, status="starting"), node(1))),
        status(Phase.RUNNING),
    ]

    answer = cli("cluster", "up", "--nodes", "2", "--yes")

    assert answer.status == 0
    assert [name for name, _ in garrison.clusters.calls] == ["quote", "launch", "wait"]
    changes = [line.partition("Z ")[2] for line in answer.out.splitlines() if ": " in line]
    assert "train-1: launching" in changes
    assert changes.count("train-1: provisioning, 1 of 2 nodes running") == 1
    assert "train-1: running, 2 of 2 nodes running, 94.66 USD/h" in changes


def test_up_buys_nothing_above_the_accepted_price(cli: Cli, garrison: FakeGarrison) -> None:
    answer = cli("cluster", "up", "--nodes", "2", "--yes", "--max-price", "94.65")

    assert answer.status == 4
    assert answer.err.startswith("error: price_changed: 94.66 USD/h exceeds --max-price 94.65")
    assert garrison.clusters.named("launch") == []


def test_a_spot_price_that_is_only_a_bound_says_so(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.clusters.quoted_as = quote(at_most=True)

    answer = cli("cluster", "up", "--nodes", "2", typed=b"n\n", terminal=True)

    assert "at most 94.66 USD/h" in answer.err


@pytest.mark.parametrize(
    ("code", "exits"),
    [(ErrorCode.INSUFFICIENT_CAPACITY, 1), (ErrorCode.PRICE_CHANGED, 4)],
)
def test_a_launch_that_fails_while_waited_for_exits_with_its_code(
    cli: Cli, garrison: FakeGarrison, code: ErrorCode, exits: int
) -> None:
    garrison.clusters.story = [status(Phase.LAUNCHING, nodes=()), failed(code)]

    answer = cli("cluster", "up", "--nodes", "2", "--yes", "-o", "json")

    assert answer.error["code"] == code
    assert answer.status == exits
    assert answer.out == ""
