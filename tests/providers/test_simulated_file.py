"""The simulated cloud's file is for its owner alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from garrison.providers.simulated.store import Store, _keep_private


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_new_cloud_and_the_files_beside_it_are_for_their_owner_alone(
    tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        store = Store(tmp_path / "data" / "simulated.db")
        with store.transaction() as tx:
            tx.execute("INSERT INTO stock VALUES ('r', 't', 1)")
    finally:
        os.umask(before)

    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "data").iterdir()}
    names = ("simulated.db", "simulated.db-shm", "simulated.db-wal")
    assert modes == dict.fromkeys(names, 0o600)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_a_cloud_that_others_could_read_is_taken_from_them(tmp_path: Path) -> None:
    path = tmp_path / "simulated.db"
    first = Store(path)
    with first.transaction() as tx:
        tx.execute("INSERT INTO stock VALUES ('r', 't', 1)")
    for file in tmp_path.iterdir():
        file.chmod(0o644)

    second = Store(path)

    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    with second.transaction() as tx:
        assert tx.execute("SELECT total FROM stock").fetchall() == [(1,)]


def test_opening_it_again_drops_no_lock_of_this_process(tmp_path: Path) -> None:
    path = tmp_path / "simulated.db"
    first = Store(path)
    probe = (
        "import sqlite3, sys;"
        "sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute('BEGIN IMMEDIATE')"
    )

    with first.transaction():
        _keep_private(path)
        line = [sys.executable, "-c", probe, str(path)]
        other = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)

    assert "database is locked" in other.stderr
