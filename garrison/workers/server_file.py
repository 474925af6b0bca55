"""The SQLite file of an embedded server, and whether its first start came to its end.

The server makes its tables one by one: killed in the midst of that, it leaves a file on which no
server ever starts again. So a file counts as unfinished until a server has answered on it.
"""

from __future__ import annotations

from pathlib import Path

DATABASE = "temporal.db"
_SIDE_FILES = ("", "-wal", "-shm", "-journal")


class ServerFile:
    """The database of one data directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = folder / f"{DATABASE}.unfinished"

    def prepare(self) -> None:
        """Put an unfinished file aside; mark one that is about to be made.

        Nothing that anybody was told is in an unfinished file: no server ever answered on it.
        """
        if self._mark.exists():
            for side in _SIDE_FILES:
                found = self._folder / f"{DATABASE}{side}"
                if found.exists():
                    found.replace(self._folder / f"unfinished-{found.name}")
        elif not (self._folder / DATABASE).exists():
            self._mark.touch(mode=0o600)

    def finished(self) -> None:
        """Say that a server has answered on the file."""
        self._mark.unlink(missing_ok=True)
