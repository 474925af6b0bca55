"""`garrison router`: what it refuses to start with, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest
import typer
from temporalio.client import Client
from typer.testing import CliRunner

from garrison.cli import router as command
from garrison.errors import ErrorCode, GarrisonError, exit_status
from garrison.router.config import RouterConfig
from garrison.settings import Settings, load_settings

TOKEN = "of-the-router-0123456789"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The command, in an installation of its own."""
    monkeypatch.setenv("GARRISON_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("GARRISON_ROUTER_TOKEN", raising=False)
    made = typer.Typer()
    made.command()(command.router)
    return made


def kept(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return str(path)


REFUSED = {
    "an address that others reach without a token": (
        ["--host", "0.0.0.0"],
        "GARRISON_ROUTER_TOKEN",
    ),
    "no time to hold": (["--hold-seconds", "0"], "--hold-seconds must be above 0"),
    "no number to hold": (["--hold-seconds", "nan"], "--hold-seconds must be above 0"),
    "a token file that is missing": (["--token-file", "/no/such"], "/no/such cannot be read"),
    "a folder for a token file": (["--token-file", "/"], "cannot be read: Is a directory"),
    "no name of a token file": (["--token-file", ""], "cannot be read: Is a directory"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_the_router_does_not_start_with(options: list[str], message: str, app: typer.Typer) -> None:
    result = CliRunner().invoke(app, options)

    assert isinstance(result.exception, GarrisonError)
    assert exit_status(result.exception.code) == 2
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        pytest.param("", 0o600, "must hold a token", id="empty"),
        pytest.param(TOKEN, 0o644, "chmod 600", id="others can read it"),
        pytest.param("a b", 0o600, "printable ASCII without spaces", id="two words"),
        pytest.param("x" * 5000, 0o600, "of 1 to 4096 letters", id="too long"),
        pytest.param("é", 0o600, "no plain text", id="not ASCII"),
    ],
)
def test_a_token_file_must_hold_a_token_that_only_its_owner_reads(
    text: str, mode: int, message: str, app: typer.Typer, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["--token-file", kept(tmp_path, text, mode)])

    assert isinstance(result.exception, GarrisonError)
    assert result.exception.code is ErrorCode.INVALID_SPEC
    assert message in str(result.exception)
    assert TOKEN not in str(result.exception)


def test_options_win_over_settings(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "garrison.yaml").write_text("router: {port: 8111, hold_seconds: 60}\n")
    monkeypatch.setenv("GARRISON_ROUTER_TOKEN", "of-the-environment")
    served: list[RouterConfig] = []

    async def serve(settings: Settings, config: RouterConfig, tell: object) -> None:
        served.append(config)

    monkeypatch.setattr(command, "_serve", serve)
    monkeypatch.setattr(command, "log_to_stderr", lambda: None)
    runner = CliRunner()
    runner.invoke(app, [], catch_exceptions=False)
    options = ["--host", "0.0.0.0", "--port", "8112", "--hold-seconds", "7.5"]
    options += ["--token-file", kept(tmp_path, f"{TOKEN}\n")]
    runner.invoke(app, options, catch_exceptions=False)

    found = [(one.host, one.port, one.hold_seconds, one.token) for one in served]
    assert found == [
        ("127.0.0.1", 8111, 60.0, "of-the-environment"),
        ("0.0.0.0", 8112, 7.5, TOKEN),
    ]


async def test_the_router_serves_until_it_is_asked_to_stop(
    client: Client, app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", client.service_client.config.target_host)
    told = asyncio.Queue[str]()
    config = RouterConfig(port=0, grace_seconds=1)
    serving = asyncio.create_task(command._serve(load_settings(), config, told.put_nowait))

    async with asyncio.timeout(10):
        line = await told.get()
        address = line.split()[2].removesuffix("/<deployment>/;")
        async with httpx.AsyncClient(trust_env=False) as asking:
            health = await asking.get(f"{address}/-/healthz")
            unknown = await asking.get(f"{address}/nobody/x")
        os.kill(os.getpid(), signal.SIGTERM)
        await serving

    assert health.status_code == 200
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
