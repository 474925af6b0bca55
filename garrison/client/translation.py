"""Temporal's errors in Garrison's words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from temporalio.client import (
    ActivityFailureError,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import TimeoutError
from temporalio.service import RPCError, RPCStatusCode

from garrison.client.updates import is_between_runs
from garrison.errors import (
    ErrorCode,
    GarrisonError,
    NotFound,
    ServiceUnreachable,
    TooManyRequests,
    error_of,
)
from garrison.failures import code_of, message_of, problems_of

NO_WORKER = "no Garrison worker answered in time; is `garrison up` or a `garrison worker` running?"
_MISSING_NAMESPACE = re.compile(r"namespace .*not found", re.IGNORECASE | re.DOTALL)
_SILENT = {RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise what the body meets as `GarrisonError`s.

    Args:
        what: The resource that is asked about, `cluster train-1`.
    """
    try:
        yield
    except RPCError as error:
        raise _of_rpc(error, what) from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise ServiceUnreachable(f"{what}: {NO_WORKER}") from error
    except (
        ActivityFailureError,
        WorkflowFailureError,
        WorkflowQueryFailedError,
        WorkflowUpdateFailedError,
    ) as error:
        raise _of_failure(error, what) from error


def _of_rpc(error: RPCError, what: str) -> GarrisonError:
    if error.status is RPCStatusCode.NOT_FOUND and _MISSING_NAMESPACE.search(error.message):
        return NotFound(
            f"the Temporal Service answered: {error.message}; set GARRISON_NAMESPACE (or"
            " TEMPORAL_NAMESPACE) to one that it has, or create this one there"
        )
    if error.status is RPCStatusCode.NOT_FOUND:
        return NotFound(f"there is no {what}")
    if error.status is RPCStatusCode.RESOURCE_EXHAUSTED or is_between_runs(error):
        return TooManyRequests(f"{what}: too many requests at once; try again in a moment")
    if error.status in _SILENT or "no poller" in error.message:
        return ServiceUnreachable(f"{what}: {NO_WORKER}")
    return ServiceUnreachable(f"{what}: the Temporal Service answered {error.status.name}: {error}")


def _of_failure(error: Exception, what: str) -> GarrisonError:
    cause = getattr(error, "cause", None) or error
    code = code_of(cause)
    if code is None and isinstance(cause, TimeoutError):
        return ServiceUnreachable(f"{what}: {NO_WORKER}")
    if code is None:
        return error_of(ErrorCode.INTERNAL, f"{what}: {message_of(cause)}")
    return error_of(code, message_of(cause), problems=problems_of(cause))
