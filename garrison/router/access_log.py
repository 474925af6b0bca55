"""One line a request, without anything that could be a secret: no query, header or body."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from time import monotonic

access = logging.getLogger("garrison.router.access")
MOST_PATH = 512


@dataclass(slots=True)
class Entry:
    """What the line says.

    Attributes:
        began: On the monotonic clock.
        waited: Seconds without a replica.
        replica: The last one that had the request; `tries` is how often it was sent.
        outcome: The class of the status, or how it ended without a whole answer.
    """

    method: str
    path: str
    deployment: str = "-"
    status: int | None = None
    size: int = 0
    waited: float = 0.0
    replica: str = "-"
    tries: int = 0
    outcome: str = ""
    began: float = field(default_factory=monotonic)

    @property
    def seconds(self) -> float:
        """Since it arrived."""
        return monotonic() - self.began

    def write(self) -> None:
        """Write the line, if anybody reads it."""
        if not access.isEnabledFor(logging.INFO):
            return
        access.info(
            "%s %s path=%s status=%s outcome=%s bytes=%d seconds=%.3f waited=%.3f replica=%s"
            " tries=%d",
            _plain(self.method),
            _plain(self.deployment),
            _plain(self.path),
            self.status or "-",
            self.outcome,
            self.size,
            self.seconds,
            self.waited,
            _plain(self.replica),
            self.tries,
        )


def _plain(text: str) -> str:
    shown = "".join(c if "!" <= c <= "~" else f"\\x{ord(c):02x}" for c in text[:MOST_PATH])
    return shown + "..." if len(text) > MOST_PATH else shown
