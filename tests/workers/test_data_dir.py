"""One `up` at a time on a data directory."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from garrison.cli.app import run
from garrison.errors import ErrorCode, InvalidSpec, PortTaken
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


@pytest.mark.parametrize("kept", [(), ("garrison.yaml",), ("installation", "notes.txt")])
def test_an_open_directory_of_ours_is_closed_once(tmp_path: Path, kept: tuple[str, ...]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    for name in kept:
        (folder / name).touch()

    told = prepare_data_dir(folder), prepare_data_dir(folder)

    assert told == (True, False)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("mode", "name"), [(0o755, "notes.txt"), (0o1777, "installation")])
def test_an_open_directory_that_serves_for_something_else_is_refused(
    tmp_path: Path, mode: int, name: str
) -> None:
    folder = tmp_path / "it's shared"
    folder.mkdir()
    (folder / name).touch()
    folder.chmod(mode)

    with pytest.raises(InvalidSpec, match="open to other users") as caught:
        prepare_data_dir(folder)

    assert f"chmod 700 {shlex.quote(str(folder))}" in str(caught.value)
    assert folder.stat().st_mode & 0o7777 == mode


def test_every_folder_that_was_missing_is_for_its_owner_alone(tmp_path: Path) -> None:
    prepare_data_dir(tmp_path / "a" / "b")

    assert (tmp_path / "a").stat().st_mode & 0o077 == 0


def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidSpec, match="--data-dir"):
            prepare_data_dir(folder)


@pytest.mark.parametrize("given", ["", "  "])
def test_an_empty_data_dir_option_is_refused_and_installs_nowhere(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    status = run(["up", "--data-dir", given])

    assert status == 2
    assert capsys.readouterr().err.startswith("error: invalid_spec: --data-dir is empty")
    assert not list(tmp_path.iterdir())
