"""Saved logs are for the eyes of their owner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.activities.saved_logs import SavedLogs
from garrison.errors import NotFound


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


@pytest.mark.usefixtures("umask")
def test_logs_of_replicas_are_for_their_owner_alone_too(tmp_path: Path) -> None:
    root = tmp_path / "logs"

    with SavedLogs(root).replica_writer("chat-1a2b3c4d-7", base=0) as file:
        file.write(b"secret")

    (log,) = root.glob("replicas/*")
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o700


def test_a_replicas_log_that_is_saved_again_takes_the_place_of_the_last_one(
    tmp_path: Path,
) -> None:
    saved = SavedLogs(tmp_path)
    for base, text in ((0, b"old"), (9, b"new")):
        with saved.replica_writer("r-1", base=base) as file:
            file.write(text)

    chunk = saved.read_replica("R-1", offset=0, limit=99)

    assert chunk is not None
    assert (chunk.offset, chunk.data, chunk.saved) == (9, b"new", True)
    assert saved.read_replica("r-11", offset=0, limit=99) is None


def test_the_oldest_logs_of_replicas_make_room_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garrison.activities.saved_logs.REPLICA_LOGS_BYTES", 10)
    saved = SavedLogs(tmp_path)

    for number in range(4):
        with saved.replica_writer(f"r-{number}", base=0) as file:
            file.write(b"4444")
        (log,) = tmp_path.glob(f"replicas/r-{number}@*")
        os.utime(log, ns=(number, number))

    assert {log.name for log in tmp_path.glob("replicas/*")} == {"r-2@0.log", "r-3@0.log"}


@pytest.mark.parametrize("name", ["", "../secret", "*", "a/b", "x" * 64])
def test_a_name_that_no_replica_can_have_finds_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound):
        SavedLogs(tmp_path).read_replica(name, offset=0, limit=1)
