"""What a serving process writes to stderr: warnings and worse, expected failures in one line."""

from __future__ import annotations

import asyncio
import logging

from garrison.errors import GarrisonError


def log_to_stderr() -> None:
    """Send warnings and errors of this process to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(in_a_line)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def in_a_line(record: logging.LogRecord) -> bool:
    """Return whether a record is worth a line, and take the stack off an expected failure.

    When workers drain, a watch is cancelled, as it should be; the SDK logs that as a failure.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, GarrisonError):
        first = record.getMessage().split(" (", 1)[0]  # the SDK appends all it knows of the call
        record.msg, record.args = f"{first}: {error.code}: {error}", ()
        record.exc_info = record.exc_text = None
    return not isinstance(error, asyncio.CancelledError)
