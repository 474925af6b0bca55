"""Carry `GarrisonError` across Temporal without try/except at each call.

The code becomes the failure's type; a `Retry-After` becomes the next retry's delay and is kept in
the details, so that a workflow can read it back; so are the mistakes of an input, field by field.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError, FailureError

from garrison.errors import ErrorCode, Faulty, GarrisonError, Problem

_CODES = frozenset(ErrorCode)


class GarrisonFailureConverter(DefaultFailureConverter):
    """Encode an expected error with its code as the failure type."""

    def to_failure(
        self,
        exception: BaseException,
        payload_converter: PayloadConverter,
        failure: Failure,
    ) -> None:
        """Fill `failure`; only `GarrisonError` differs from the default."""
        if isinstance(exception, GarrisonError):
            exception = as_application_error(exception)
        super().to_failure(exception, payload_converter, failure)


def as_application_error(error: GarrisonError) -> ApplicationError:
    """Return the Temporal form of an expected error."""
    after = error.retry_after_seconds
    details = [after, *_as_data(error)]
    wrapped = ApplicationError(
        str(error),
        *(details if details != [None] else []),
        type=error.code,
        non_retryable=not error.retryable,
        next_retry_delay=timedelta(seconds=after) if after is not None else None,
    )
    wrapped.__cause__ = error.__cause__
    return wrapped.with_traceback(error.__traceback__)


def coded_cause(error: BaseException | None) -> ApplicationError | None:
    """Return the first failure with an error code down a Temporal cause chain, if any."""
    while error is not None:
        if isinstance(error, ApplicationError) and error.type in _CODES:
            return error
        error = error.cause if isinstance(error, FailureError) else error.__cause__
    return None


def code_of(error: BaseException | None) -> ErrorCode | None:
    """Return the first error code down a Temporal cause chain, if any."""
    cause = coded_cause(error)
    return None if cause is None or cause.type is None else ErrorCode(cause.type)


def retry_after_of(error: BaseException | None) -> float | None:
    """Return the seconds that a provider asked to wait, if the failure says so."""
    cause = coded_cause(error)
    if cause is None or not cause.details or not isinstance(cause.details[0], (int, float)):
        return None
    return float(cause.details[0])


def problems_of(error: BaseException | None) -> tuple[Problem, ...]:
    """Return the mistakes of an input that a failure tells, field by field."""
    cause = coded_cause(error)
    told = cause.details[1:] if cause is not None else ()
    return tuple(Problem(**one) for one in told if isinstance(one, dict))


def _as_data(error: GarrisonError) -> list[dict[str, Any]]:
    return [asdict(one) for one in error.problems] if isinstance(error, Faulty) else []


def message_of(error: BaseException) -> str:
    """Return the text of the deepest failure, which is what a person needs."""
    cause = coded_cause(error)
    if cause is not None:
        return cause.message
    while isinstance(error, FailureError) and error.cause is not None:
        error = error.cause
    return str(error) or type(error).__name__


DATA_CONVERTER = replace(pydantic_data_converter, failure_converter_class=GarrisonFailureConverter)
