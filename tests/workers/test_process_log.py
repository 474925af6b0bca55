"""What a serving process writes to stderr."""

from __future__ import annotations

import asyncio
import logging
import sys

from garrison.errors import ProviderUnreachable
from garrison.workers.process_log import in_a_line


def record_of(error: BaseException) -> logging.LogRecord:
    try:
        raise error
    except BaseException:
        text = "Completing activity as failed ({'attempt': 3, 'activity_type': 'purchase_group'})"
        return logging.LogRecord(
            "temporalio.activity", logging.WARNING, __file__, 1, text, (), sys.exc_info()
        )


def test_an_expected_failure_is_one_line_with_its_code() -> None:
    record = record_of(ProviderUnreachable("no answer"))

    assert in_a_line(record)
    line = logging.Formatter("%(message)s").format(record)
    assert line == "Completing activity as failed: provider_unreachable: no answer"


def test_a_bug_keeps_its_stack() -> None:
    record = record_of(KeyError("x"))

    assert in_a_line(record)
    assert "Traceback" in logging.Formatter("%(message)s").format(record)


def test_a_cancellation_is_no_failure() -> None:
    assert not in_a_line(record_of(asyncio.CancelledError()))
