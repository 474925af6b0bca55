"""The error boundary, wrong words and exit statuses."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from garrison.cli import verbs
from garrison.cli.app import COMMANDS
from garrison.cli.cluster import app as cluster_app
from garrison.errors import ERROR_CLASSES, ErrorCode, InvalidSpec, Problem, exit_status
from tests.cli.conftest import Cli
from tests.cli.fake_garrison import FakeGarrison

HOSTILE_NAMES = [
    pytest.param("", id="empty"),
    pytest.param("a" * 64, id="a letter too long"),
    pytest.param("a" * 1_000_000, id="huge"),
    pytest.param("训练", id="Chinese"),
    pytest.param("тренировка", id="Cyrillic"),
    pytest.param("🚂", id="emoji"),
    pytest.param("a\0b", id="NUL"),
    pytest.param("a\n", id="a line break at the end"),
    pytest.param("../../etc/passwd", id="path-like"),
    pytest.param("cluster/a", id="a workflow id"),
    pytest.param("a b", id="a space"),
    pytest.param("\x1b[31mred", id="terminal commands"),
    pytest.param("\udcff", id="bytes that are no UTF-8"),
    pytest.param("a'; DROP TABLE clusters; --", id="a query"),
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("verb", ["get", "terminate", "logs", "ssh", "recover", "connections"])
def test_a_name_that_can_be_none_is_refused_before_anyone_is_asked(
    cli: Cli, garrison: FakeGarrison, verb: str, name: str
) -> None:
    answer = cli("cluster", verb, name)

    assert answer.status == 2
    assert answer.err.startswith("error: invalid_spec: ")
    assert len(answer.err) < 500
    assert "\x1b" not in answer.err
    assert garrison.clusters.calls == []


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_quote_for_such_a_name_is_refused_too(
    cli: Cli, garrison: FakeGarrison, name: str
) -> None:
    answer = cli("cluster", "quote", "--name", name, "--accelerator", "H100")

    assert answer.status == 2
    assert "name: " in answer.err
    assert "\x1b" not in answer.err
    assert garrison.clusters.calls == []


@pytest.mark.parametrize("code", list(ERROR_CLASSES))
def test_each_code_is_printed_and_exits_with_its_status(
    cli: Cli, garrison: FakeGarrison, code: ErrorCode
) -> None:
    garrison.clusters.error = ERROR_CLASSES[code]("this is why")

    answer = cli("cluster", "get", "train-1")

    assert answer.err == f"error: {code}: this is why\n"
    assert answer.out == ""
    assert answer.status == exit_status(code)


def test_with_json_an_error_is_an_object_with_every_problem(
    cli: Cli, garrison: FakeGarrison
) -> None:
    problem = Problem("cluster.nodes", "must be at least 1, not 0", 3)
    garrison.clusters.error = InvalidSpec("is not valid", problems=(problem,), source="c.yaml")

    answer = cli("cluster", "get", "train-1", "-o", "json")

    assert answer.error == {
        "code": "invalid_spec",
        "message": "c.yaml: is not valid",
        "problems": [{"field": "cluster.nodes", "message": problem.message, "line": 3}],
    }
    assert answer.status == 2


@pytest.mark.parametrize("flag", [["-o", "json"], ["--output", "json"], ["-ojson"]])
def test_a_mistake_in_the_arguments_is_json_too_when_json_is_asked_for(
    cli: Cli, flag: list[str]
) -> None:
    answer = cli("cluster", "get", *flag)

    assert answer.error["code"] == "invalid_spec"
    assert "NAME" in answer.error["message"]


def test_what_stands_after_two_dashes_asks_for_nothing_of_us(
    cli: Cli, garrison: FakeGarrison
) -> None:
    garrison.clusters.error = ERROR_CLASSES[ErrorCode.NOT_FOUND]("no")

    answer = cli("cluster", "ssh", "a", "--", "kubectl", "-o", "json")

    assert answer.err == "error: not_found: no\n"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        pytest.param(["cluster", "get"], "Missing argument 'NAME'", id="missing argument"),
        pytest.param(["cluster", "get", "a", "--nope"], "--nope", id="unknown option"),
        pytest.param(["cluster", "get", "a", "b"], "b", id="one argument too many"),
        pytest.param(["cluster", "get", "a", "-o", "xml"], "--output", id="unknown format"),
        pytest.param(["cluster", "wait", "a", "--timeout", "5x"], "--timeout", id="bad duration"),
        pytest.param(["cluster", "wait", "a", "--timeout", "5x"], "'5x'", id="its value"),
        pytest.param(["cluster", "wait", "a", "--timeout", "-1"], "--timeout", id="negative"),
        pytest.param(["cluster", "wait", "a", "--timeout", "999999999d"], "3650d", id="too long"),
        pytest.param(["cluster", "wait", "a", "--timeout", "٣m"], "--timeout", id="other digits"),
        pytest.param(["cluster", "launch", "a", "--max-lifetime", "0"], "1s", id="no life"),
        pytest.param(["cluster", "launch", "a", "--max-price", "NaN"], "'NaN'", id="no price"),
        pytest.param(["cluster", "launch", "a", "--max-price", "1e99"], "1e99", id="huge price"),
        pytest.param(["cluster", "wait", "a", "--for", "runing"], "'running'", id="no phase"),
        pytest.param(["cluster", "list", "--phase", "up"], "--phase", id="no phase to list"),
        pytest.param(["cluster", "launch", "a", "--timeout", "5"], "--wait", id="nothing waits"),
        pytest.param(["cluster", "recovery", "a", "maybe"], "on or off", id="neither on nor off"),
        pytest.param(["cluster", "recovery", "a"], "on or off", id="no change"),
        pytest.param(["cluster", "logs", "a", "--rank", "-1"], "--rank", id="negative rank"),
        pytest.param(["cluster", "quote"], "-f FILE", id="nothing wanted"),
    ],
)
def test_a_usage_error_names_what_is_wrong(cli: Cli, argv: list[str], told: str) -> None:
    answer = cli(*argv)

    assert answer.err.startswith("error: invalid_spec: ")
    assert told in answer.err
    assert answer.status == 2
    assert answer.out == ""


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("cluster stop", "garrison cluster terminate"),
        ("cluster down", "garrison cluster terminate"),
        ("cluster delete", "garrison cluster terminate"),
        ("cluster destroy", "garrison cluster terminate"),
        ("cluster rm", "garrison cluster terminate"),
        ("cluster create", "garrison cluster up"),
        ("cluster start", "garrison cluster up"),
        ("cluster status", "garrison cluster get"),
        ("cluster describe", "garrison cluster get"),
        ("cluster ls", "garrison cluster list"),
        ("cluster ps", "garrison cluster list"),
        ("cluster termnate", "terminate"),
        ("stop", "garrison cluster terminate"),
        ("launch", "garrison cluster launch"),
        ("clsuter", "cluster"),
        ("clusters", "cluster"),
        ("offers", "offer"),
        ("offer get", "garrison offer list"),
        ("simulated terminate", "garrison simulated kill"),
        ("simulated faults create", "garrison simulated faults add"),
    ],
)
def test_a_wrong_word_names_the_right_one(cli: Cli, words: str, right: str) -> None:
    answer = cli(*words.split(), "train-1")

    assert answer.status == 2
    assert answer.err.startswith("error: invalid_spec: ")
    assert right in answer.err


def test_a_word_like_nothing_gets_the_list_of_words(cli: Cli) -> None:
    answer = cli("cluster", "zzzz\x1b[2J")

    assert "known: connections, events, get" in answer.err
    assert "\x1b" not in answer.err


def test_every_word_that_is_named_exists() -> None:
    ours = set(get_command(cluster_app).commands)  # type: ignore[attr-defined]

    assert set(verbs.FOREIGN["garrison cluster"].values()) <= ours
    assert set(verbs.FOREIGN["garrison cluster"]).isdisjoint(ours)
    roots = {word.split()[0] for word in verbs.FOREIGN["garrison"].values()}
    assert roots <= set(COMMANDS)
    assert set(verbs.FOREIGN["garrison"]).isdisjoint(COMMANDS)


def test_a_bug_prints_no_traceback_and_keeps_its_details_in_a_private_file(
    cli: Cli, garrison: FakeGarrison, data_dir: Path
) -> None:
    garrison.clusters.error = ZeroDivisionError("a bug")

    answer = cli("cluster", "get", "train-1")

    log = data_dir / "cli-errors.log"
    assert answer.err == f"error: internal: ZeroDivisionError; the details are in {log}\n"
    assert answer.status == 1
    assert "ZeroDivisionError: a bug" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_bug_that_cannot_be_kept_is_still_one_line(
    cli: Cli, garrison: FakeGarrison, data_dir: Path
) -> None:
    (data_dir / "cli-errors.log").mkdir(parents=True)
    garrison.clusters.error = ZeroDivisionError("a bug")

    answer = cli("cluster", "get", "train-1", "-o", "json")

    assert answer.error["code"] == "internal"
    assert "could not be kept" in answer.error["message"]


def test_an_unreachable_service_is_said_once(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.connect_error = ERROR_CLASSES[ErrorCode.SERVICE_UNREACHABLE]("nobody at home")

    answer = cli("cluster", "list")

    assert answer.err == "error: service_unreachable: nobody at home\n"
    assert answer.status == 5


@pytest.mark.parametrize("argv", [[], ["cluster"], ["offer"], ["simulated", "faults"], ["--help"]])
def test_a_noun_alone_prints_its_help(cli: Cli, argv: list[str]) -> None:
    answer = cli(*argv)

    assert "Commands" in answer.out
    assert answer.status == 0


def test_the_top_level_help_knows_all_commands(cli: Cli) -> None:
    answer = cli("--help")

    assert all(name in answer.out for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_of_the_help_exists(cli: Cli, name: str) -> None:
    answer = cli(name, "--help")

    assert f"garrison {name}" in answer.out
    assert answer.status == 0


# As a process of its own


def garrison_process(*argv: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "garrison.cli.app", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **env},
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "garrison.cli.app", "simulated", "inventory"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "GARRISON_DATA_DIR": str(tmp_path)},
        )

    said = b"error: invalid_spec: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert not (tmp_path / "cli-errors.log").exists()


def test_help_does_not_load_what_only_commands_need(tmp_path: Path) -> None:
    code = (
        "import sys; from garrison.cli.app import run; run(['--help'])\n"
        "print([m for m in ('pydantic', 'temporalio', 'asyncssh') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.endswith("[]\n")


def test_a_service_that_is_not_there_ends_the_process_cleanly(tmp_path: Path) -> None:
    process = garrison_process(
        "cluster", "list", "-o", "json",
        GARRISON_DATA_DIR=str(tmp_path), TEMPORAL_ADDRESS="127.0.0.1:1",
    )  # fmt: skip

    _, err = process.communicate(timeout=60)

    assert json.loads(err)["error"]["code"] == "service_unreachable"
    assert process.returncode == 5


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    process = garrison_process("--help", GARRISON_DATA_DIR=str(tmp_path))
    assert process.stdout is not None
    process.stdout.close()

    assert process.wait(timeout=60) in {0, 1}
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_text_in_any_script_can_be_written_to_an_ascii_terminal(tmp_path: Path) -> None:
    process = garrison_process(
        "simulated", "faults", "add", "launch", "refusal", "--message", "нет мест",
        "-o", "yaml", GARRISON_DATA_DIR=str(tmp_path), PYTHONIOENCODING="ascii",
    )  # fmt: skip

    out, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (0, b"")
    assert b"message: \\u043d" in out


def test_completion_knows_nouns_and_verbs(tmp_path: Path) -> None:
    process = garrison_process(
        GARRISON_DATA_DIR=str(tmp_path),
        _GARRISON_COMPLETE="complete_bash",
        COMP_WORDS="garrison cluster te",
        COMP_CWORD="2",
    )

    out, _ = process.communicate(timeout=60)

    assert b"terminate" in out


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("cluster", "list", "--owner", "a\udc80"), "--owner"),
        (("offer", "list", "--search=\udc80"), "--search"),
        (("cluster", "quote", "--command", "run \udc80"), "--command"),
        (("simulated", "kill", "\udc80"), "argument 3"),
    ],
)
def test_bytes_that_are_no_text_are_refused_with_their_place(
    cli: Cli, garrison: FakeGarrison, argv: tuple[str, ...], named: str
) -> None:
    answer = cli(*argv)

    assert answer.status == 2
    assert answer.err == f"error: invalid_spec: {named}: has bytes that are no valid UTF-8\n"
    assert garrison.clusters.calls == []


@pytest.mark.parametrize("option", ["--skip", "--rank"])
def test_a_number_that_the_cloud_cannot_hold_is_refused(cli: Cli, option: str) -> None:
    answer = cli("simulated", "faults", "add", "launch", "refusal", option, "9" * 20)

    assert answer.status == 2
    assert "must be at most 1000000000" in answer.err


def test_a_word_that_is_no_choice_is_told_in_plain_words(cli: Cli) -> None:
    answer = cli("offer", "list", "--capacity-type", "nosuch")

    assert "Invalid value for '--capacity-type': 'nosuch' is not one of" in answer.err


def test_what_the_service_refuses_of_a_file_is_told_with_its_lines(
    cli: Cli, garrison: FakeGarrison, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("cluster:\n  region: mars\n  nodes: 9\n")
    problems = (Problem("cluster.region", "no"), Problem("cluster.nodes", "too many"))
    garrison.clusters.error = InvalidSpec("the cluster cannot be placed", problems=problems)

    answer = cli("cluster", "quote", "-f", str(file), "--nodes", "12")

    assert answer.status == 2
    assert answer.err.splitlines()[-3:] == [
        f"error: invalid_spec: {file}: the cluster cannot be placed",
        "  line 2: cluster.region: no",
        "  cluster.nodes: too many",
    ]


@pytest.mark.parametrize(
    ("ports", "said"),
    [
        (["--port", "7300", "--metrics-port", "7300"], "--metrics-port 7300 is that of --port"),
        (["--ui-port", "7300", "--port", "7300"], "--ui-port 7300 is that of --port"),
        (["--metrics-port", "8233"], "--metrics-port 8233 is that of --ui-port"),
    ],
)
def test_one_port_for_two_things_is_refused_before_anything_starts(
    cli: Cli, tmp_path: Path, ports: list[str], said: str
) -> None:
    answer = cli("up", "--data-dir", str(tmp_path / "data"), *ports)

    assert answer.status == 2
    assert answer.err.startswith(f"error: invalid_spec: {said}")
    assert not (tmp_path / "data").exists()
