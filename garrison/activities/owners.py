"""Who owns machines: the living from visibility, the dead from their memo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from garrison.activities.watches import is_not_found
from garrison.models.cluster_state import Phase
from garrison.models.observation import Observation

OBSERVE_SIGNAL = "observe"
PHASE = SearchAttributeKey.for_keyword("GarrisonPhase")
PAGE = 1000


@dataclass(frozen=True, slots=True)
class Owner:
    """A running workflow that owns, or may own, machines of a provider."""

    workflow_id: str
    uid: str
    phase: Phase | None
    nodes: int


class Life(StrEnum):
    """What is known of the life that a machine's tags name."""

    LIVING = "living"
    CLOSED = "closed"
    UNKNOWN = "unknown"


class Owners(Protocol):
    """The directory of owners, and the way to tell them."""

    async def running(self, provider: str) -> Sequence[Owner]:
        """Return the running owners at a provider."""
        ...

    async def life_of(self, workflow_id: str, uid: str) -> Life:
        """Return whether exactly this life runs, is closed, or was never heard of."""
        ...

    async def tell(self, observation: Observation) -> bool:
        """Deliver an observation; False when there is no such running owner.

        Raises:
            RPCError: Not delivered; to be sent again.
        """
        ...


class TemporalOwners:
    """Owners that are workflows."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def running(self, provider: str) -> Sequence[Owner]:
        """See `Owners.running`."""
        query = f"GarrisonProvider = '{provider}' AND ExecutionStatus = 'Running'"
        found: list[Owner] = []
        async for execution in self._client.list_workflows(query, page_size=PAGE):
            memo = await execution.memo()
            if "uid" in memo:
                owner = Owner(
                    workflow_id=execution.id,
                    uid=memo["uid"],
                    phase=_phase(execution),
                    nodes=int(memo.get("nodes", 0)),
                )
                found.append(owner)
        return found

    async def life_of(self, workflow_id: str, uid: str) -> Life:
        """See `Owners.life_of`; asks the service itself first, as visibility can be late."""
        try:
            latest = await self._client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if not is_not_found(error):
                raise
            return Life.UNKNOWN
        if (await latest.memo()).get("uid") == uid:
            return _life(latest)
        query = f"WorkflowId = '{workflow_id}' AND ExecutionStatus != 'Running'"
        async for execution in self._client.list_workflows(query, page_size=PAGE):
            if (await execution.memo()).get("uid") == uid:
                return Life.CLOSED
        return Life.UNKNOWN

    async def tell(self, observation: Observation) -> bool:
        """See `Owners.tell`."""
        handle = self._client.get_workflow_handle(observation.owner)
        try:
            await handle.signal(OBSERVE_SIGNAL, observation)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True


def _phase(execution: WorkflowExecution) -> Phase | None:
    value = execution.typed_search_attributes.get(PHASE)
    return Phase(value) if value in set(Phase) else None


def _life(execution: WorkflowExecution) -> Life:
    running = execution.status is WorkflowExecutionStatus.RUNNING
    return Life.LIVING if running else Life.CLOSED
