"""Errors keep what they say on their way through Temporal."""

from __future__ import annotations

import pytest
from temporalio.exceptions import ApplicationError

from garrison.client.translation import _of_failure
from garrison.errors import ErrorCode, GarrisonError, InvalidSpec, NotFound, Problem, Unsupported
from garrison.failures import as_application_error, message_of, problems_of

WRONG = (Problem("deployment.id", "is wrong"), Problem("", "so is this", 3, "a.yaml"))


@pytest.mark.parametrize("cls", [InvalidSpec, Unsupported])
def test_mistakes_arrive_field_by_field(cls: type[InvalidSpec]) -> None:
    error = cls("chat is not valid", problems=WRONG)

    arrived = _of_failure(as_application_error(error), "deployment chat")

    assert isinstance(arrived, cls)
    assert (str(arrived), arrived.problems) == (str(error), WRONG)


def test_an_error_without_mistakes_has_none() -> None:
    failure = as_application_error(NotFound("there is no chat"))

    assert (failure.details, problems_of(failure)) == ((), ())


def test_an_error_of_an_older_worker_keeps_its_whole_text() -> None:
    old = ApplicationError("is not valid\n  a: is wrong", type=ErrorCode.INVALID_SPEC)

    arrived = _of_failure(old, "deployment chat")

    assert isinstance(arrived, GarrisonError)
    assert (str(arrived), message_of(old)) == ("is not valid\n  a: is wrong",) * 2
