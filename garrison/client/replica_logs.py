"""Reading a replica's log through the workers, which can reach its node."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import RetryPolicy

from garrison.client.nodepools import Nodepools
from garrison.client.translation import translated
from garrison.domain.resource_ids import nodepool_workflow_id, replica_prefix
from garrison.errors import ConflictPhase, NotFound, ProviderUnreachable
from garrison.models.deployment import DeploymentStatus, ReplicaStatus
from garrison.models.group import LogChunk, Node
from garrison.models.problems import shown, suggestion
from garrison.models.queues import provider_queue
from garrison.models.replica import ReadReplicaLogRequest

CALL_TIMEOUT = timedelta(seconds=20)
POLL_SECONDS = 0.5

OnSaved = Callable[[str], None]
"""Told the name of a replica whose log is a saved one."""

Refresh = Callable[[], Awaitable[DeploymentStatus]]


class ReplicaLogs:
    """The logs of replicas: on their nodes, and as saved by the workers when they were stopped."""

    def __init__(self, client: Client, nodepools: Nodepools) -> None:
        self._client = client
        self._nodepools = nodepools

    async def source(self, status: DeploymentStatus, name: str | None) -> ReadReplicaLogRequest:
        """Return where the log of a replica is read.

        Args:
            status: Of the deployment.
            name: Which replica; None is the first that has a node.

        Raises:
            NotFound: There is no such replica, or its node is gone.
            ConflictPhase: It has no node.
        """
        replica = _chosen(status, name)
        if replica.provider is None or replica.nodepool is None or replica.node is None:
            why = f": {replica.reason}" if replica.reason else ""
            raise ConflictPhase(f"replica {replica.name} is {replica.state} and has no node{why}")
        pool = await self._nodepools.get(*replica.nodepool.split("/", 1))
        machine = next((node for node in pool.nodes if node.name == replica.node), None)
        if machine is None or machine.provider_id is None:
            raise NotFound(f"the node of replica {replica.name} is gone, and its log with it")
        node = Node(
            rank=0,
            provider_id=machine.provider_id,
            status=machine.status,
            private_address=machine.private_address,
            ssh=replica.ssh,
        )
        return ReadReplicaLogRequest(provider=replica.provider, replica=replica.name, node=node)

    async def saved_source(
        self,
        deployment: str,
        replica: str | None,
        status: DeploymentStatus | None,
        error: NotFound,
    ) -> ReadReplicaLogRequest:
        """Return where the saved log of a replica is read that is gone.

        What can be no replica of that deployment is not looked for.

        Args:
            deployment: Its id.
            replica: Name, if one was given.
            status: Of the deployment, None where that is gone too.
            error: That it is not there.

        Raises:
            NotFound: The error that was given, as no log was kept.
        """
        if replica is None or not replica.lower().startswith(replica_prefix(deployment)):
            raise error
        for provider in await self._providers(status):
            source = ReadReplicaLogRequest(provider=provider, replica=replica)
            with contextlib.suppress(NotFound):
                await self._chunk(source, 0)
                return source
        raise error

    async def _providers(self, status: DeploymentStatus | None) -> list[str]:
        """Return the providers of all nodepools, first of those that the deployment names."""
        named = status.spec.nodepools if status is not None else ()
        first = {nodepool_workflow_id(pool.compute_cluster, pool.nodepool) for pool in named}
        rows = await self._nodepools.list()
        rows.sort(key=lambda row: nodepool_workflow_id(row.compute_cluster, row.id) not in first)
        return list(dict.fromkeys(row.provider for row in rows if row.provider is not None))

    async def read(
        self, source: ReadReplicaLogRequest, on_saved: OnSaved | None = None
    ) -> AsyncIterator[bytes]:
        """Yield a log from its start to its present end.

        Args:
            source: Where it is read.
            on_saved: Called first, if it is a saved one.
        """
        offset = 0
        while True:
            chunk = await self._chunk(source, offset)
            if chunk.saved and on_saved is not None:
                on_saved(source.replica)
                on_saved = None
            if not chunk.data:
                return
            yield chunk.data
            offset = chunk.next_offset

    async def stream(self, source: ReadReplicaLogRequest, refresh: Refresh) -> AsyncIterator[bytes]:
        """Yield a log as it grows, each byte once, until the replica is gone.

        Args:
            source: Where it is read.
            refresh: Reads the deployment, when nothing new came.
        """
        offset, last = 0, False
        while True:
            try:
                chunk = await self._chunk(source, offset)
            except (NotFound, ProviderUnreachable):
                # Not started yet, or gone for good: the deployment tells.
                chunk = LogChunk(offset=offset, data=b"")
            if chunk.data:
                yield chunk.data
                offset = chunk.next_offset
            elif last:
                return
            else:
                last = await _is_gone(source.replica, refresh)
                await asyncio.sleep(0 if last else POLL_SECONDS)

    async def _chunk(self, source: ReadReplicaLogRequest, offset: int) -> LogChunk:
        with translated(f"log of replica {source.replica}"):
            chunk: LogChunk = await self._client.execute_activity(
                "read_replica_log",
                source.model_copy(update={"offset": offset}),
                id=f"read-replica-log/{source.replica}/{uuid.uuid4()}",
                task_queue=provider_queue(source.provider),
                result_type=LogChunk,
                schedule_to_close_timeout=CALL_TIMEOUT,
                start_to_close_timeout=CALL_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=1),
                summary=f"log of replica {source.replica}",
            )
        return chunk


async def _is_gone(replica: str, refresh: Refresh) -> bool:
    try:
        status = await refresh()
    except NotFound:
        return True
    return all(one.name != replica or one.node is None for one in status.replicas)


def _chosen(status: DeploymentStatus, name: str | None) -> ReplicaStatus:
    by_name = {replica.name: replica for replica in status.replicas}
    if name is not None:
        if name not in by_name:
            raise NotFound(
                f"deployment {status.id} has no replica {shown(name)}; {suggestion(name, by_name)}"
            )
        return by_name[name]
    if not by_name:
        raise ConflictPhase(f"deployment {status.id} has no replica now")
    placed = [replica for replica in status.replicas if replica.node is not None]
    return (placed or list(status.replicas))[0]
