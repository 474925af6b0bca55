"""What a workflow cannot see itself: calls that fail now and are tried again by the service."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowExecutionDescription

from garrison.errors import ErrorCode
from garrison.models.cluster_status import BlockedStatus, ClusterStatus


def with_retries(
    status: ClusterStatus, described: WorkflowExecutionDescription, now: datetime
) -> ClusterStatus:
    """Return a status that says which call keeps failing, unless the workflow says so itself."""
    failing = failing_call(described, now)
    if status.blocked is not None or failing is None:
        return status
    return status.model_copy(update={"blocked": failing})


def failing_call(described: WorkflowExecutionDescription, now: datetime) -> BlockedStatus | None:
    """Return the call that has failed most often and is tried again, None when there is none."""
    failing = [
        call
        for call in described.raw_description.pending_activities
        if call.attempt > 1 and call.HasField("last_failure")
    ]
    if not failing:
        return None
    return _blocked(max(failing, key=lambda call: call.attempt), now)


def _blocked(call: PendingActivityInfo, now: datetime) -> BlockedStatus:
    code, message = _deepest(call.last_failure)
    next_try = call.next_attempt_schedule_time
    return BlockedStatus(
        code=code,
        message=f"{call.activity_type.name}: {message}",
        since=_time(call.scheduled_time),
        tries=call.attempt - 1,
        retry_at=_time(next_try) if next_try.seconds else now,
    )


def _deepest(failure: Failure) -> tuple[ErrorCode, str]:
    while failure.HasField("cause") and not failure.application_failure_info.type:
        failure = failure.cause
    kind = failure.application_failure_info.type
    code = ErrorCode(kind) if kind in set(ErrorCode) else ErrorCode.INTERNAL
    return code, failure.message


def _time(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
