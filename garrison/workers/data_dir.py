"""The data directory: made for its owner alone, and held by one `up` at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from garrison.errors import InvalidSpec, PortTaken
from garrison.private_files import make_folder
from garrison.service import read_up_record

_OWN = (
    "client",
    "cli-errors.log",
    "garrison.yaml",
    "installation",
    "keys",
    "simulated.db",
    "up.lock",
)
"""By any of these a directory is known as one of ours."""


def prepare_data_dir(folder: Path) -> bool:
    """Make the data directory unless it exists, and check that it can be used.

    Afterwards it is for its owner alone.

    Returns:
        Whether it was open to other users before.

    Raises:
        InvalidSpec: It cannot be used, or not be closed to others.
    """
    try:
        make_folder(folder)
        usable = os.access(folder, os.R_OK | os.W_OK | os.X_OK)
        reason = "permission denied"
    except OSError as error:
        usable, reason = False, error.strerror or str(error)
    if not usable:
        raise InvalidSpec(
            f"the data directory {folder} cannot be used: {reason}; "
            "choose another with --data-dir or GARRISON_DATA_DIR"
        )
    return _close_to_others(folder)


def _close_to_others(folder: Path) -> bool:
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & 0o077:
        return False
    # Never a directory that serves for something else, such as /tmp.
    if mode & stat.S_ISVTX or not _is_ours(folder):
        raise InvalidSpec(
            f"the data directory {folder} is open to other users (mode {mode:04o}) and holds "
            f"other things; choose another, or run: chmod 700 {shlex.quote(str(folder))}"
        )
    try:
        folder.chmod(0o700)
    except OSError as error:
        raise InvalidSpec(
            f"the data directory {folder} is open to other users (mode {mode:04o}), "
            f"which cannot be changed: {error.strerror}; choose another"
        ) from None
    return True


def _is_ours(folder: Path) -> bool:
    names = os.listdir(folder)
    return not names or not set(_OWN).isdisjoint(names)


@contextlib.contextmanager
def hold_data_dir(folder: Path) -> Iterator[None]:
    """Be the only `up` of a data directory; the system lets go of it with the process.

    Raises:
        PortTaken: Another `up` has it.
        InvalidSpec: The lock file cannot be opened.
    """
    path = folder / "up.lock"
    try:
        # Not inherited by children: neither the server nor a node may keep the lock alive.
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be opened: {error.strerror}") from None
    try:
        _lock(lock, folder)
        os.truncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(lock)


def _lock(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
        record = read_up_record(folder)
        where = f" and serves {record.address}" if record else ""
        raise PortTaken(
            f"`garrison up` already runs on {folder} (pid {pid}){where}; "
            "stop it with Ctrl-C, or give this one another directory with --data-dir"
        ) from None
    except OSError as error:
        raise InvalidSpec(f"{folder} cannot be locked: {error.strerror}") from None
