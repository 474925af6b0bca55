"""`garrison doctor` and `garrison version`: what is there, and what is wrong with it."""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
import shutil
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from garrison.cli.output import Output, OutputOption, emit, facts, table_of
from garrison.client.health import check_service, server_version
from garrison.errors import GarrisonError
from garrison.models.service import Check, CheckStatus, fail, note, ok
from garrison.service import find_temporal, read_up_record, running_server
from garrison.settings import Settings, load_settings

UNREACHABLE, INVALID = 5, 2
STYLES = {CheckStatus.OK: "green", CheckStatus.FAIL: "red", CheckStatus.NOTE: "yellow"}

Register = Annotated[
    bool,
    typer.Option(
        "--register",
        help="Set up the service for workers: namespace, retention of 90 days, search attributes.",
    ),
]


def doctor(register: Register = False, output: OutputOption = Output.TABLE) -> None:
    """Check this installation and the Temporal Service; say what to do about what is wrong."""
    settings, checks = _local_checks()
    if settings is not None:
        checks += asyncio.run(check_service(settings, register=register))
    status = _status(checks)
    emit(
        {
            "ok": status == 0,
            "checks": [check.model_dump(mode="json") for check in checks],
        },
        output,
        lambda: [table_of(("CHECK", "", "FOUND"), _rows(checks), wraps="FOUND")],
    )
    raise typer.Exit(status)


def version(output: OutputOption = Output.TABLE) -> None:
    """Print the versions of Garrison, of the SDK and of the service, if one answers."""
    found = {
        "garrison": _installed("garrison"),
        "temporalio": _installed("temporalio"),
        "server": asyncio.run(server_version(load_settings())),
    }
    emit(found, output, lambda: [facts((name, text or "-") for name, text in found.items())])


def _installed(package: str) -> str | None:
    try:
        return package_version(package)
    except PackageNotFoundError:
        return None  # run from a source tree that is not installed


def _local_checks() -> tuple[Settings | None, list[Check]]:
    checks = [ok("python", platform.python_version()), _temporal(), _ssh()]
    try:
        settings = load_settings()
    except GarrisonError as error:
        return None, [*checks, fail("settings", str(error), "correct the settings")]
    source = str(settings.config) if settings.config else "none, the defaults hold"
    checks += [ok("settings", source), _data_dir(settings.data_dir)]
    return settings, [*checks, *_left_behind(settings.data_dir)]


def _temporal() -> Check:
    try:
        return ok("temporal", find_temporal())
    except GarrisonError as error:
        return note("temporal", str(error), "needed for `garrison up` only")


def _ssh() -> Check:
    found = shutil.which("ssh")
    if found is None:
        return note(
            "ssh", "there is no ssh client", "needed for the commands of `cluster connections` only"
        )
    return ok("ssh", found)


def _data_dir(folder: Path) -> Check:
    name, path = "data directory", shlex.quote(str(folder))
    if not folder.exists():
        return note(name, f"{folder} does not exist yet", "`garrison up` makes it")
    if not folder.is_dir():
        return fail(name, f"{folder} is not a directory", "set GARRISON_DATA_DIR")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return fail(name, f"{folder} cannot be written by this user", "set GARRISON_DATA_DIR")
    if folder.stat().st_mode & 0o077:
        return fail(name, f"{folder} is open to other users", f"chmod 700 {path}")
    return ok(name, str(folder))


def _left_behind(folder: Path) -> Iterable[Check]:
    record = read_up_record(folder)
    if record is not None and running_server(folder) is None:
        detail = f"the server of {record.started_at:%Y-%m-%d %H:%M} UTC ended without `up`"
        yield note("garrison up", detail, "run `garrison up`; it takes everything up again")


def _rows(checks: Iterable[Check]) -> Iterable[tuple[str, Text, str]]:
    for check in checks:
        remedy = f" -> {check.remedy}" if check.remedy else ""
        mark = Text(str(check.status), style=STYLES[check.status])
        yield check.name, mark, f"{check.detail}{remedy}"


def _status(checks: Iterable[Check]) -> int:
    failed = [check for check in checks if check.status is CheckStatus.FAIL]
    if any(check.unreachable for check in failed):
        return UNREACHABLE
    if any(check.invalid for check in failed):
        return INVALID
    return 1 if failed else 0
