"""Files of the data directory that only their owner may read, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


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
