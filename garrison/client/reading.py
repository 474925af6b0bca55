"""Reading one life of a cluster, once or again and again.

A workflow whose history did not grow has nothing new to say, and one that has completed left its
last word as its result: neither is asked. To ask a closed one would make a worker replay all of it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
)

from garrison.client.lives import as_it_is, pinned_life
from garrison.client.retries import with_retries
from garrison.domain.clusters.call import cluster_workflow_id
from garrison.errors import NotFound
from garrison.models.cluster_state import Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.workflows.cluster import ClusterWorkflow

Handle = WorkflowHandle[ClusterWorkflow, ClusterStatus]


async def is_at_rest(handle: WorkflowHandle[Any, Any], timeout: timedelta) -> bool:
    """Return whether a workflow waits for nothing but time and messages.

    What it is asked then is answered from its history. At any other time a query that is late on
    its way can show what the workflow made of an event before it has answered for it in a workflow
    task. An update that is sent upon such an answer goes into the same task, and a replay then
    handles it before the event: the workflow could never be replayed again.

    Raises:
        RPCError: The service did not answer.
    """
    found = (await handle.describe(rpc_timeout=timeout)).raw_description
    return not found.HasField("pending_workflow_task") and not found.pending_activities


class LifeReader:
    """Reads a cluster, and remembers what it read.

    Attributes:
        name: Of the cluster.
    """

    def __init__(self, client: Client, name: str, *, call_timeout: timedelta) -> None:
        """Begin; nothing is asked yet.

        Args:
            client: Connected with `garrison.failures.DATA_CONVERTER`.
            name: Of the cluster.
            call_timeout: How long the service, or a worker, may take to answer.
        """
        self._client = client
        self.name = name
        self._timeout = call_timeout
        self._known: tuple[tuple[object, ...], ClusterStatus] | None = None

    async def read(self, uid: str | None = None) -> ClusterStatus:
        """Return the cluster as it is now.

        Args:
            uid: Pins the life; by default the latest one.

        Raises:
            NotFound: There is none of this name, or no such life.
            RPCError: The service, or the worker, did not answer.
        """
        handle, found = await self._find(uid)
        mark = (found.run_id, found.status, found.history_length)
        if self._known is None or self._known[0] != mark:
            self._known = (mark, await self._last_word(handle, found))
        status = self._known[1]
        if uid is not None and status.uid != uid:
            return await self.read(uid)  # its successor began in between, and is found now
        if status.phase is None:
            raise NotFound(f"there is no cluster {self.name}")
        if status.ended_at is not None:
            return status
        now = datetime.now(UTC)
        return as_it_is(with_retries(status, found, now), found, now)

    async def glance(self, uid: str | None = None) -> tuple[str | None, Phase | None]:
        """Return what the service itself shows of a life, without asking any worker.

        Returns:
            The life's uid, and its phase; None once it is over, whatever its memo says.

        Raises:
            NotFound: There is no such life.
            RPCError: There is none of this name, or the service did not answer.
        """
        _, found = await self._find(uid)
        memo = await found.memo()
        shown = memo.get("phase") if found.status is WorkflowExecutionStatus.RUNNING else None
        return uid or memo.get("uid"), Phase(shown) if shown in set(Phase) else None

    async def _find(self, uid: str | None) -> tuple[Handle, WorkflowExecutionDescription]:
        handle = self._handle(None)
        found = await handle.describe(rpc_timeout=self._timeout)
        if uid is None or (await found.memo()).get("uid") == uid:
            return handle, found
        life = await pinned_life(self._client, self.name, uid)
        handle = self._handle(life.run_id)
        return handle, await handle.describe(rpc_timeout=self._timeout)

    async def _last_word(
        self, handle: Handle, found: WorkflowExecutionDescription
    ) -> ClusterStatus:
        if found.status is WorkflowExecutionStatus.COMPLETED:
            ended = self._handle(found.run_id)
            return await ended.result(follow_runs=False, rpc_timeout=self._timeout)
        return await handle.query(ClusterWorkflow.get, rpc_timeout=self._timeout)

    def _handle(self, run_id: str | None) -> Handle:
        return self._client.get_workflow_handle_for(
            ClusterWorkflow.run, cluster_workflow_id(self.name), run_id=run_id
        )
