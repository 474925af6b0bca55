"""One `up` at a time on a data directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from garrison.errors import ErrorCode, PortTaken
from garrison.workers.data_dir import hold_data_dir, prepare_data_dir


def test_a_second_holder_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    second = hold_data_dir(tmp_path)

    with (
        hold_data_dir(tmp_path),
        pytest.raises(PortTaken, match=f"pid {os.getpid()}") as caught,
        second,
    ):
        pass

    assert caught.value.code is ErrorCode.PORT_TAKEN
    assert str(tmp_path) in str(caught.value)


def test_a_directory_is_free_again_after_its_holder(tmp_path: Path) -> None:
    with hold_data_dir(tmp_path):
        pass

    with hold_data_dir(tmp_path):
        pass


def test_a_killed_holder_lets_go_although_its_child_lives(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, os, signal; from pathlib import Path;"
        "from garrison.workers.data_dir import hold_data_dir;"
        "hold = hold_data_dir(Path(sys.argv[1])); hold.__enter__();"
        "child = subprocess.Popen(['sleep', '60'], close_fds=False, stdout=-3);"
        "print(child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    holder = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    child = int(holder.stdout)

    try:
        with hold_data_dir(tmp_path):
            os.kill(child, 0)
    finally:
        os.kill(child, 9)


def test_a_new_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    prepare_data_dir(tmp_path / "a" / "b")

    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0
