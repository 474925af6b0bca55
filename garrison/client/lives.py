"""Lives of a cluster's name, the closed ones too: read from describe and memo."""

from __future__ import annotations

from datetime import datetime, timedelta

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from garrison.client.cluster_rows import KILLED
from garrison.domain.clusters.call import cluster_workflow_id
from garrison.domain.clusters.report import charge_until
from garrison.errors import ErrorCode, GarrisonError, NotFound, QuoteExpired
from garrison.models.cluster_state import CLOSED_PHASES, Phase
from garrison.models.cluster_status import ClusterStatus, ErrorStatus
from garrison.models.group import NodeStatus

KILLED_TEXT = "was terminated in Temporal; the watch of its provider deletes its machines"
CALL_TIMEOUT = timedelta(seconds=10)


async def latest_life(client: Client, name: str, uid: str | None) -> WorkflowExecution:
    """Return the latest life of a name, or the one that `uid` pins.

    Raises:
        NotFound: There is no such life.
        RPCError: The name was never used, or the service did not answer.
    """
    handle = client.get_workflow_handle(cluster_workflow_id(name))
    described = await handle.describe(rpc_timeout=CALL_TIMEOUT)
    if uid is None or (await described.memo()).get("uid") == uid:
        return described
    return await pinned_life(client, name, uid)


async def pinned_life(client: Client, name: str, uid: str) -> WorkflowExecution:
    """Return one life of a name.

    Raises:
        NotFound: There is no such life.
    """
    query = f"WorkflowId = '{cluster_workflow_id(name)}'"
    async for execution in client.list_workflows(query):
        again = execution.status is WorkflowExecutionStatus.CONTINUED_AS_NEW
        if not again and (await execution.memo()).get("uid") == uid:
            return execution
    raise NotFound(f"there is no life {uid} of a cluster {name}")


def as_it_is(status: ClusterStatus, execution: WorkflowExecution, now: datetime) -> ClusterStatus:
    """Return a status with the cost as of now; a life that Temporal ended is over.

    Such a workflow could not say so itself: its last word is of before it was terminated.
    """
    if execution.status not in KILLED or status.phase in CLOSED_PHASES:
        return charge_until(status, now)
    end = execution.close_time or now
    ended = {
        "phase": Phase.TERMINATED,
        "ended_at": end,
        "billed_until": end if status.ready_at else None,
        "charging_since": None,
        "last_error": ErrorStatus(code=ErrorCode.CONFLICT_PHASE, message=KILLED_TEXT),
        "nodes": tuple(
            node.model_copy(update={"status": NodeStatus.TERMINATED}) for node in status.nodes
        ),
    }
    return charge_until(status, end).model_copy(update=ended)


async def ended_error(name: str, ended: WorkflowExecution) -> GarrisonError:
    """Return why a closed life takes no change."""
    memo = await ended.memo()
    phase = memo.get("phase")
    if ended.status in KILLED:
        return NotFound(f"cluster {name} {KILLED_TEXT}")
    if phase is None:
        return NotFound(f"there is no cluster {name}")
    if phase == Phase.EXPIRED:
        when = memo.get("expires_at")
        return QuoteExpired(f"quote {memo.get('quote_id')} expired at {when}; quote again")
    return NotFound(f"cluster {name} has ended ({phase})")
