"""Who owns machines: the living from visibility, the dead from their memo."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from garrison.activities.watches import is_not_found
from garrison.models.cluster_state import Phase
from garrison.models.nodepool import PoolPhase
from garrison.models.observation import Observation

OBSERVE_SIGNAL = "observe"
PHASE = SearchAttributeKey.for_keyword("GarrisonPhase")
PAGE = 1000
_NOBODY = frozenset({RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT})
"""What says that no workflow runs, or can ever run, under an id."""
OWNER_ID = re.compile(r"[A-Za-z0-9_/-]{1,255}")


LIST_AGAIN = 120.0
"""Seconds; a beginning and an end between two counts hide each other for no longer."""

STEADY = frozenset(
    {Phase.QUOTED, Phase.RUNNING, Phase.DEGRADED, PoolPhase.ACTIVE, PoolPhase.DISABLED}
)
OWNING_KINDS = ("cluster", "nodepool")
DEPLOYMENTS = "ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH 'deployment/'"
"""By their ids, so that one whose attributes are not to be seen yet is not taken to be gone."""
_PHASES = frozenset((*Phase, *PoolPhase))


@dataclass(frozen=True, slots=True)
class Owner:
    """A running workflow that owns, or may own, machines of a provider.

    Attributes:
        phase: A cluster's or a nodepool's; None of one that only asked.
        nodes: Machines that it has.
        customers: Deployments that a nodepool has seats for, by uid.
        gone: Those of them that are not among the running ones.
    """

    workflow_id: str
    uid: str
    phase: str | None
    nodes: int
    customers: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class _Known:
    """Owners as they were listed, and until when that is believed."""

    owners: Sequence[Owner]
    good_until: float


@dataclass(frozen=True, slots=True)
class _Deployments:
    """Running deployments as they were listed, and until when that is believed."""

    uids: frozenset[str]
    count: int
    good_until: float


class TemporalOwners:
    """Owners that are workflows."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Wrap a client; nothing is remembered yet.

        Args:
            client: Of the service.
            clock: Seconds that never go back.
        """
        self._client = client
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._deployments: _Deployments | None = None

    async def running(self, provider: str) -> Sequence[Owner]:
        """See `Owners.running`.

        The customers of nodepools are compared with the deployments that run: one that somebody
        terminated tells nobody, and what it had costs money.
        """
        owners = await self._running(provider)
        if not any(owner.customers for owner in owners):
            return owners
        living = await self._living_deployments()
        return [
            replace(owner, gone=tuple(uid for uid in owner.customers if uid not in living))
            for owner in owners
        ]

    async def _living_deployments(self) -> frozenset[str]:
        """Return the uids of running deployments, listed only where their count has changed."""
        known = self._deployments
        recent = known is not None and known.good_until > self._clock()
        if known is not None and recent and await self._count(DEPLOYMENTS) == known.count:
            return known.uids
        found = [
            await execution.memo_value("uid", None)
            async for execution in self._client.list_workflows(DEPLOYMENTS, page_size=PAGE)
        ]
        uids = frozenset(uid for uid in found if uid is not None)
        self._deployments = _Deployments(uids, len(found), self._clock() + LIST_AGAIN)
        return uids

    async def _running(self, provider: str) -> Sequence[Owner]:
        """Return the running owners; what cannot have changed is counted, not listed.

        A list of a thousand costs the service most of a second, a count of them next to nothing.
        An owner that begins or ends changes the count; one whose phase changes is told something,
        or is in transition already.
        """
        kinds = ", ".join(f"'{kind}'" for kind in OWNING_KINDS)
        query = (
            f"GarrisonProvider = '{provider}' AND ExecutionStatus = 'Running' "
            f"AND GarrisonKind IN ({kinds})"
        )
        known = self._known.get(provider)
        recent = known is not None and known.good_until > self._clock()
        if known is not None and recent and await self._count(query) == len(known.owners):
            return known.owners
        found = await self._list(query)
        self._known.pop(provider, None)
        if all(owner.phase in STEADY for owner in found):
            self._known[provider] = _Known(found, self._clock() + LIST_AGAIN)
        return found

    async def _count(self, query: str) -> int:
        return (await self._client.count_workflows(query)).count

    async def _list(self, query: str) -> list[Owner]:
        found: list[Owner] = []
        async for execution in self._client.list_workflows(query, page_size=PAGE):
            # Three of some twenty values: all of them would cost most of a pass over a large fleet.
            uid = await execution.memo_value("uid", None)
            if uid is not None:
                owner = Owner(
                    workflow_id=execution.id,
                    uid=uid,
                    phase=_phase(execution),
                    nodes=int(await execution.memo_value("nodes", 0)),
                    customers=tuple(await execution.memo_value("deployments", ())),
                )
                found.append(owner)
        return found

    async def life_of(self, workflow_id: str, uid: str) -> Life:
        """See `Owners.life_of`; asks the service itself first, as visibility can be late."""
        if not OWNER_ID.fullmatch(workflow_id):
            # Anybody with the account can change a tag; what is damaged names no workflow of ours.
            return Life.UNKNOWN
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
        self._known.pop(observation.provider, None)
        handle = self._client.get_workflow_handle(observation.owner)
        try:
            await handle.signal(OBSERVE_SIGNAL, observation)
        except RPCError as error:
            if error.status in _NOBODY:
                return False
            raise
        return True


def _phase(execution: WorkflowExecution) -> str | None:
    value = execution.typed_search_attributes.get(PHASE)
    return value if value in _PHASES else None


def _life(execution: WorkflowExecution) -> Life:
    running = execution.status is WorkflowExecutionStatus.RUNNING
    return Life.LIVING if running else Life.CLOSED
