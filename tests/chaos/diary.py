"""What the harness did and saw in a run, line by line, beside the logs of its processes."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path


class Diary:
    """One file; each line says when, by the clock and since the run began."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = time.monotonic()

    def note(self, who: str, what: object) -> None:
        """Write one line."""
        now = datetime.now(UTC).strftime("%H:%M:%S.%f")[:-3]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{now} {time.monotonic() - self._begun:7.2f} {who}: {what}\n")
