"""The deployment files: what they name exists, and they keep the rules of docs/operations.md.

No container engine is needed; what only one could find out is not proven here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from garrison.cli.app import run
from garrison.settings import load_settings
from garrison.workers.assemble import queue_names
from garrison.workers.service import DRAIN_DEADLINE

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WORKERS = {n: s for n, s in SERVICES.items() if str(s.get("command", "")).startswith("worker ")}
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
STORIES: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())[
    "tests"
]

FOREIGN_METRICS = {
    # Prometheus's own.
    "up",
    # Of the SDK, as a worker of temporalio 1.35 shows them.
    "temporal_num_pollers",
    "temporal_sticky_cache_size",
    "temporal_long_request_failure",
    "temporal_workflow_task_execution_failed",
}


def _options(command: str, option: str) -> list[str]:
    words = shlex.split(command)
    return [words[at + 1] for at, word in enumerate(words) if word == option]


def _seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)s", text)
    assert found, f"{text} is not in seconds"
    return int(found[1])


def _environment() -> Iterator[tuple[str, str, str]]:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            yield name, variable, value


def _scraped(job: str) -> set[str]:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    (found,) = [entry for entry in config["scrape_configs"] if entry["job_name"] == job]
    return {target for block in found["static_configs"] for target in block["targets"]}


def test_every_image_is_pinned() -> None:
    images = [service["image"] for service in SERVICES.values()]
    images += re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    for image in images:
        assert re.search(r":v?\d[\w.-]*$", image), f"{image} has no version"


def test_our_own_image_has_our_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    own = {service["image"] for service in SERVICES.values() if "build" in service}

    assert own == {f"garrison:{project['version']}"}


def test_the_server_is_the_one_that_the_tests_run_on() -> None:
    program = Path(sys.executable).parent / "temporal"
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Server ([\d.]+), UI ([\d.]+)", told)
    assert found, told

    assert SERVICES["temporal"]["image"] == f"temporalio/server:{found[1]}"
    assert SERVICES["schema"]["image"] == f"temporalio/admin-tools:{found[1]}"
    assert SERVICES["ui"]["image"] == f"temporalio/ui:{found[2]}"


def test_no_secret_is_written_down_and_each_is_asked_for() -> None:
    secrets = [
        (service, variable, value)
        for service, variable, value in _environment()
        if re.search(r"PASSWORD|PWD|SECRET|TOKEN|KEY", variable)
    ]
    asked = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text()))
    example = dict(
        line.split("=", 1)
        for line in (DEPLOY / "env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )

    assert len(secrets) == 7
    for service, variable, value in secrets:
        assert re.fullmatch(r"\$\{\w+:\?.+\}", value), f"{service}: {variable} is written down"
    assert example == dict.fromkeys(asked, "")


def test_what_a_service_waits_for_exists_and_can_happen() -> None:
    waits = [
        (name, target, how["condition"])
        for name, service in SERVICES.items()
        for target, how in service.get("depends_on", {}).items()
    ]

    assert {name for name, _, _ in waits} >= {"schema", "temporal", "register", *WORKERS}
    for name, target, condition in waits:
        awaited = SERVICES[target]
        if condition == "service_healthy":
            assert "healthcheck" in awaited, f"{name} waits for the health of {target}"
        else:
            assert condition == "service_completed_successfully"
            assert "restart" not in awaited, f"{name} waits for the end of {target}"


def test_ports_are_published_on_the_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_what_is_mounted_is_there() -> None:
    volumes = [v.split(":")[0] for s in SERVICES.values() for v in s.get("volumes", [])]

    for source in volumes:
        known = (
            (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]
        )
        assert known, source


def test_the_workers_together_serve_every_queue_of_the_shipped_settings() -> None:
    settings = load_settings({"GARRISON_CONFIG": str(DEPLOY / "garrison.yaml")})

    served = [q for s in WORKERS.values() for q in _options(s["command"], "--queue")]

    assert sorted(served) == sorted(queue_names(settings))


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_is_started_with_options_that_exist(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(WORKERS[name]["command"])

    assert run([*words, "--help"]) == 0
    assert run([*words, "--no-such-option", "--help"]) == 2
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_is_given_the_time_to_drain(name: str) -> None:
    assert _seconds(WORKERS[name]["stop_grace_period"]) > DRAIN_DEADLINE.total_seconds() + 5


def test_what_is_scraped_is_where_it_listens() -> None:
    listening = {
        f"{name}:{port}"
        for name, service in WORKERS.items()
        for port in _options(service["command"], "--metrics-port")
    }
    server = SERVICES["temporal"]["environment"]["PROMETHEUS_ENDPOINT"]

    assert _scraped("garrison") == listening
    assert _scraped("temporal") == {f"temporal:{server.rpartition(':')[2]}"}
    for service in WORKERS.values():
        assert _options(service["command"], "--metrics-host") == ["0.0.0.0"]
        assert f"127.0.0.1:{_options(service['command'], '--metrics-port')[0]}/" in str(
            service["healthcheck"]["test"]
        )


def test_alerts_use_only_metrics_that_exist() -> None:
    documented = set(re.findall(r"^\| `(garrison_\w+)`", _doc("metrics.md"), re.MULTILINE))
    used = {
        name
        for rule in ALERTS
        for name in re.findall(r"\b(?:garrison_|temporal_)\w+|\bup\b", rule["expr"])
    }

    assert used <= documented | FOREIGN_METRICS
    assert used >= FOREIGN_METRICS


def test_each_alert_says_what_it_is_and_the_document_what_to_do() -> None:
    names = [rule["alert"] for rule in ALERTS]
    described = re.findall(r"^\| `(\w+)` \|", _section("operations.md", "Alerts"), re.MULTILINE)

    assert len(set(names)) == len(names)
    assert described == names
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]


def test_each_alert_has_a_story_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    told: dict[str, set[bool]] = {}
    for story in STORIES:
        for step in story.get("alert_rule_test", []):
            told.setdefault(step["alertname"], set()).add(bool(step["exp_alerts"]))

    assert told == {rule["alert"]: {True, False} for rule in ALERTS}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("arguments", ["check config prometheus.yml", "test rules alerts_test.yml"])
def test_prometheus_agrees(arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments.split()], cwd=PROMETHEUS, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("answers", "status", "asked"),
    [
        pytest.param([0], 0, 1, id="set up at once"),
        pytest.param([5, 5, 0], 0, 3, id="a server that is not ready yet is asked again"),
        pytest.param([1, 0], 1, 1, id="a refusal is not asked again"),
        pytest.param([5] * 40, 5, 30, id="a server that never answers is given up"),
    ],
)
def test_registering_waits_for_the_server_and_for_nothing_else(
    answers: list[int], status: int, asked: int, tmp_path: Path
) -> None:
    count = tmp_path / "asked"
    count.touch()
    (tmp_path / "answers").write_text("".join(f"{answer}\n" for answer in answers))
    _program(
        tmp_path / "garrison",
        f'echo "$*" >>{count}\nexit "$(sed -n "$(($(wc -l <{count})))p" {tmp_path / "answers"})"',
    )
    _program(tmp_path / "sleep", "exit 0")
    path = f"{tmp_path}:{os.environ['PATH']}"

    done = subprocess.run(["sh", DEPLOY / "register.sh"], env={"PATH": path}, check=False)

    assert done.returncode == status
    assert count.read_text().splitlines() == ["doctor --register"] * asked


def test_the_schema_of_both_databases_is_made_and_raised(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    _program(tmp_path / "temporal-sql-tool", f'echo "$*" >>{calls}')
    path = f"{tmp_path}:{os.environ['PATH']}"

    subprocess.run(["sh", DEPLOY / "schema.sh"], env={"PATH": path}, check=True)

    folder = "/etc/temporal/schema/postgresql/v12"
    assert calls.read_text().splitlines() == [
        f"--db {database} {step}"
        for database, part in (("temporal", "temporal"), ("temporal_visibility", "visibility"))
        for step in (
            "create",
            "setup-schema -v 0.0",
            f"update-schema -d {folder}/{part}/versioned",
        )
    ]


def test_the_image_holds_what_it_needs_and_runs_as_nobody_in_particular() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = [
        word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in line.split()
    ]
    let_in = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))

    assert set(copied) == let_in
    assert all((ROOT / name).exists() for name in copied)
    assert "--constraint constraints.txt" in text
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["garrison"]
    assert 'ENTRYPOINT ["garrison"]' in text


def _program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def _doc(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def _section(name: str, title: str) -> str:
    _, found, rest = _doc(name).partition(f"\n## {title}\n")
    assert found, f"{name} has no section {title}"
    return rest.partition("\n## ")[0]
