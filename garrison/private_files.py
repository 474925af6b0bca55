"""Files of the data directory that only their owner may read, written whole or not at all.

And reading: only what is a file, since a pipe or a device would hold its reader.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def make_folder(folder: Path) -> None:
    """Make a folder and all that is missing above it, for their owner alone."""
    if not folder.is_dir():
        # `parents=True` would make those above with the usual mode, open to others.
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def create_once(path: Path, text: str) -> None:
    """Write a new file; leave one that this or another process made first."""
    with _draft(path, text) as draft, contextlib.suppress(FileExistsError):
        # A link, unlike a rename, fails when another process was first.
        os.link(draft, path)


def replace(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file over the one that is there; a reader sees the old one or the new one."""
    with _draft(path, text, mode) as draft:
        draft.replace(path)


def open_regular(path: Path) -> BinaryIO:
    """Return a file, open to be read.

    Raises:
        OSError: It cannot be opened, or is no regular file; nothing is waited for.
        ValueError: The path can be none.
    """
    # Without O_NONBLOCK opening a pipe waits until somebody writes into it.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Is no regular file", str(path))
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


@contextlib.contextmanager
def _draft(path: Path, text: str, mode: int = 0o600) -> Iterator[Path]:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)
