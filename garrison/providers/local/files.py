"""Small files that are replaced rather than edited, and locks that die with their holder."""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from garrison.errors import ProviderError, ProviderUnreachable


def write_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file; readers see the old or the new content, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a file by a JSON object."""
    write_file(path, json.dumps(value, indent=1).encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file, None if there is no file.

    Raises:
        ProviderError: The file is damaged.
    """
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise ProviderError(f"{path} is damaged: not JSON") from None
    if not isinstance(value, dict):
        raise ProviderError(f"{path} is damaged: not a JSON object")
    return value


@contextmanager
def locked(path: Path, *, seconds: float) -> Iterator[int]:
    """Hold a lock file, created where needed, and give its descriptor.

    Raises:
        ProviderUnreachable: Somebody else held it all the time.
    """
    fd = take_lock(path, seconds=seconds)
    try:
        yield fd
    finally:
        os.close(fd)


def take_lock(path: Path, *, seconds: float) -> int:
    """Return a descriptor that holds the lock until it and all its copies are closed.

    Raises:
        ProviderUnreachable: Somebody else held it all the time.
    """
    deadline = time.monotonic() + seconds
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while not _try_lock(fd, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            os.close(fd)
            raise ProviderUnreachable(f"{path} is held by another call")
        time.sleep(0.01)
    return fd


def is_held(path: Path) -> bool:
    """Return whether a living process holds the lock.

    Looking takes a shared lock for a moment, so whoever takes one has to try more than once.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return not _try_lock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
