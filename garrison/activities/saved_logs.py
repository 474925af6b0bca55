"""Logs that outlive their nodes: `<log dir>/<cluster>-<uid>/node-<rank>@<offset>.log`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from garrison.models.group import LogChunk


class SavedLogs:
    """The log directory of this installation."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def writer(self, cluster: str, uid: str, rank: int, *, base: int) -> Iterator[BinaryIO]:
        """Write a log anew; it appears whole or not at all.

        Args:
            cluster: Name.
            uid: Life.
            rank: Node.
            base: Offset in the node's log at which what is kept begins.
        """
        folder = self._folder(cluster, uid)
        _make_folder(folder)
        part = folder / f"node-{rank}.part-{os.getpid()}"
        part.unlink(missing_ok=True)
        try:
            with _open_new(part) as file:
                yield file
            for old in self._kept(cluster, uid, rank):
                old.unlink()
            part.replace(folder / f"node-{rank}@{base}.log")
        finally:
            part.unlink(missing_ok=True)

    def read(
        self, cluster: str, uid: str, rank: int, *, offset: int, limit: int
    ) -> LogChunk | None:
        """Return part of a saved log, None when there is none.

        Args:
            cluster: Name.
            uid: Life.
            rank: Node.
            offset: Where to begin, as in the node's own log; negative counts from the end.
            limit: Most bytes to return.
        """
        path = next(iter(self._kept(cluster, uid, rank)), None)
        if path is None:
            return None
        base = int(path.stem.rpartition("@")[2])
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = size + offset if offset < 0 else offset - base
            start = min(max(start, 0), size)
            file.seek(start)
            data = file.read(limit)
        return LogChunk(offset=base + start, data=data, ended=start + len(data) >= size)

    def _folder(self, cluster: str, uid: str) -> Path:
        return self._root / f"{cluster.lower()}-{uid}"

    def _kept(self, cluster: str, uid: str, rank: int) -> list[Path]:
        return sorted(self._folder(cluster, uid).glob(f"node-{rank}@*.log"))


def _make_folder(folder: Path) -> None:
    # `parents=True` would make those above with the usual mode, open to others.
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)


def _open_new(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
