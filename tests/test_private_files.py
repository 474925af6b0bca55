"""Files that are whole or absent, and their owner's alone."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from garrison.private_files import create_once, replace


def test_the_first_content_stays(tmp_path: Path) -> None:
    create_once(tmp_path / "key", "first")
    create_once(tmp_path / "key", "second")

    assert (tmp_path / "key").read_text() == "first"
    assert os.listdir(tmp_path) == ["key"]


def test_the_last_content_stays_when_replacing(tmp_path: Path) -> None:
    replace(tmp_path / "state", "first")
    replace(tmp_path / "state", "sécond")

    assert (tmp_path / "state").read_text(encoding="utf-8") == "sécond"
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("write", [create_once, replace])
def test_only_the_owner_can_read(write: object, tmp_path: Path) -> None:
    assert callable(write)
    write(tmp_path / "key", "text")

    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    path, texts = tmp_path / "state", {"a" * 100_000, "b" * 100_000}
    replace(path, "a" * 100_000)
    done = threading.Event()

    def rewrite() -> None:
        for _ in range(20):
            for text in texts:
                replace(path, text)
        done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    seen = {path.read_text()}
    while not done.is_set():
        seen.add(path.read_text())
    writer.join()

    assert seen <= texts
