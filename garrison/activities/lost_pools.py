"""Deployments whose nodepool was ended behind everybody's back, and who does not know it.

A nodepool that is deleted drains first, and every deployment acknowledges that. One whose workflow
somebody terminated in Temporal says nothing to anybody: its machines are reaped, and its
deployments would believe in their replicas until their next deadman probe. So the lives of pools
that deployments talk to are compared with the pools that run; a deployment whose pool is not among
these is asked to introduce itself: it tells all its pools once more, and finds out by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from garrison.activities.load import INTRODUCE_SIGNAL
from garrison.activities.owners import DEPLOYMENTS, LIST_AGAIN, PAGE
from garrison.activities.watches import is_not_found

NODEPOOLS = "ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH 'nodepool/'"
Lost = tuple[str, str]
"""Workflow id of a deployment, and the life of a pool that it still talks to."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """How many there were when they were last compared, and until when that is believed."""

    nodepools: int
    deployments: int
    good_until: float


class LostPools:
    """Looks for them; what cannot have changed is counted, not listed."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Wrap a client; nothing is remembered yet.

        Args:
            client: Of the service.
            clock: Seconds that never go back.
        """
        self._client = client
        self._clock = clock
        self._counted: _Counted | None = None
        self._told: frozenset[Lost] = frozenset()

    async def look(self) -> None:
        """Compare, and tell the deployments that it concerns, each once.

        Raises:
            RPCError: The service did not answer.
        """
        nodepools, deployments = await self._count(NODEPOOLS), await self._count(DEPLOYMENTS)
        if self._is_known(nodepools, deployments):
            return
        lost = await self._lost() if deployments else frozenset()
        for workflow_id in sorted({deployment for deployment, _ in lost - self._told}):
            await self._introduce(workflow_id)
        self._told = lost
        self._counted = _Counted(nodepools, deployments, self._clock() + LIST_AGAIN)

    def _is_known(self, nodepools: int, deployments: int) -> bool:
        known = self._counted
        if known is None or known.good_until <= self._clock():
            return False
        return (known.nodepools, known.deployments) == (nodepools, deployments)

    async def _lost(self) -> frozenset[Lost]:
        talked = [
            (one.id, pool)
            async for one in self._client.list_workflows(DEPLOYMENTS, page_size=PAGE)
            for pool in await one.memo_value("pools", [])
        ]
        living = {
            await one.memo_value("uid", "")
            async for one in self._client.list_workflows(NODEPOOLS, page_size=PAGE)
        }
        return frozenset((deployment, pool) for deployment, pool in talked if pool not in living)

    async def _introduce(self, workflow_id: str) -> None:
        activity.logger.warning("its nodepool is gone", extra={"deployment": workflow_id})
        try:
            await self._client.get_workflow_handle(workflow_id).signal(INTRODUCE_SIGNAL)
        except RPCError as error:
            if not is_not_found(error):
                raise

    async def _count(self, query: str) -> int:
        return (await self._client.count_workflows(query)).count
