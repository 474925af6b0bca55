"""Saved logs are for the eyes of their owner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.activities.saved_logs import SavedLogs


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_logs_and_the_folders_made_for_them_are_for_their_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "far" / "logs"

    with SavedLogs(root).writer("hello", "u1", 0, base=7) as file:
        file.write(b"secret")

    (log,) = root.glob("*/*")
    assert log.stat().st_mode & 0o777 == 0o600
    for folder in (log.parent, root, root.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_log_written_anew_takes_the_place_of_one_that_others_could_read(tmp_path: Path) -> None:
    folder = tmp_path / "hello-u1"
    folder.mkdir()
    for name in ("node-0@0.log", f"node-0.part-{os.getpid()}"):
        (folder / name).write_bytes(b"old")
        (folder / name).chmod(0o644)

    with SavedLogs(tmp_path).writer("hello", "u1", 0, base=0) as file:
        file.write(b"new")

    (log,) = folder.iterdir()
    assert (log.read_bytes(), log.stat().st_mode & 0o777) == (b"new", 0o600)
