"""Logs that outlive their nodes.

Those of clusters are `<log dir>/<cluster>-<uid>/node-<rank>@<offset>.log`, those of deployments
`<log dir>/replicas/<replica>@<offset>.log`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from garrison.errors import NotFound
from garrison.models.base import NAME_PATTERN
from garrison.models.group import LogChunk
from garrison.models.problems import shown

REPLICA_LOGS_BYTES = 1024**3
"""What the logs of all replicas may take: they come and go by themselves, for years."""


class SavedLogs:
    """The log directory of this installation."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def writer(self, cluster: str, uid: str, rank: int, *, base: int) -> Iterator[BinaryIO]:
        """Write the log of a cluster's node anew; it appears whole or not at all.

        Args:
            cluster: Name.
            uid: Life.
            rank: Node.
            base: Offset in the node's log at which what is kept begins.
        """
        with _written(self._folder(cluster, uid), f"node-{rank}", base) as file:
            yield file

    def read(
        self, cluster: str, uid: str, rank: int, *, offset: int, limit: int
    ) -> LogChunk | None:
        """Return part of the saved log of a cluster's node, None when there is none.

        Args:
            cluster: Name.
            uid: Life.
            rank: Node.
            offset: Where to begin, as in the node's own log; negative counts from the end.
            limit: Most bytes to return.
        """
        return _read(self._folder(cluster, uid), f"node-{rank}", offset, limit)

    @contextlib.contextmanager
    def replica_writer(self, replica: str, *, base: int) -> Iterator[BinaryIO]:
        """Write the log of a deployment's replica anew, and make room for it.

        Raises:
            NotFound: No replica can have that name.
        """
        with _written(self._replicas(), _stem(replica), base) as file:
            yield file
        self._make_room()

    def read_replica(self, replica: str, *, offset: int, limit: int) -> LogChunk | None:
        """Return part of a replica's saved log, None when there is none.

        Raises:
            NotFound: No replica can have that name.
        """
        return _read(self._replicas(), _stem(replica), offset, limit)

    def _make_room(self) -> None:
        """Delete the oldest logs of replicas beyond what they may take together."""
        left = REPLICA_LOGS_BYTES
        for _, size, path in sorted(_sizes(self._replicas()), reverse=True):
            left -= size
            if left < 0:
                path.unlink(missing_ok=True)

    def _folder(self, cluster: str, uid: str) -> Path:
        return self._root / f"{cluster.lower()}-{uid}"

    def _replicas(self) -> Path:
        return self._root / "replicas"


def _stem(replica: str) -> str:
    if not re.fullmatch(NAME_PATTERN, replica):
        raise NotFound(f"no replica is called {shown(replica)}")
    return replica.lower()


def _sizes(folder: Path) -> Iterator[tuple[int, int, Path]]:
    for path in folder.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # another worker makes room as well
            known = path.stat()
            yield known.st_mtime_ns, known.st_size, path


@contextlib.contextmanager
def _written(folder: Path, stem: str, base: int) -> Iterator[BinaryIO]:
    _make_folder(folder)
    part = folder / f"{stem}.part-{os.getpid()}"
    part.unlink(missing_ok=True)
    try:
        with _open_new(part) as file:
            yield file
        for old in _kept(folder, stem):
            old.unlink(missing_ok=True)
        part.replace(folder / f"{stem}@{base}.log")
    finally:
        part.unlink(missing_ok=True)


def _read(folder: Path, stem: str, offset: int, limit: int) -> LogChunk | None:
    path = next(iter(_kept(folder, stem)), None)
    if path is None:
        return None
    base = int(path.stem.rpartition("@")[2])
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = size + offset if offset < 0 else offset - base
        start = min(max(start, 0), size)
        file.seek(start)
        data = file.read(limit)
    ended = start + len(data) >= size
    return LogChunk(offset=base + start, data=data, ended=ended, saved=True)


def _kept(folder: Path, stem: str) -> list[Path]:
    return sorted(folder.glob(f"{stem}@*.log"))


def _make_folder(folder: Path) -> None:
    # `parents=True` would make those above with the usual mode, open to others.
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)


def _open_new(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
