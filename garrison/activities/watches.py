"""Asking the watch of a provider for a look, and starting it where it does not run."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from garrison.activities.wakes import Wakes
from garrison.models.observation import WatchAsk, WatchAsks, WatchInput
from garrison.models.provider import ProviderFacts

WATCH_WORKFLOW = "ProviderWatch"
ASK_SIGNAL = "ask"
ASKS_QUERY = "asks"
QUERY_TIMEOUT = timedelta(seconds=3)
NO_WORKER = frozenset(
    {
        RPCStatusCode.CANCELLED,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.FAILED_PRECONDITION,
    }
)
"""How a query ends for which no worker of the common queue is there, or has the time."""


def watch_id(provider: str) -> str:
    """Return the workflow id of a provider's watch."""
    return f"watch/{provider}"


class Watches(Protocol):
    """The watches of all providers, as owners and the watching activity use them."""

    async def start(self, provider: str) -> None:
        """Start the watch unless it runs."""
        ...

    async def ask(self, provider: str, ask: WatchAsk) -> None:
        """Have the owner told of a pass that begins at or after `ask.not_before`."""
        ...

    async def asks(self, provider: str, *, since: int) -> WatchAsks:
        """Return the asks with a sequence number above `since`."""
        ...

    async def woken(self, provider: str, *, timeout_seconds: float) -> bool:
        """Wait until somebody in this process asks, or the time is over."""
        ...


class TemporalWatches:
    """Watches that are workflows."""

    def __init__(self, client: Client, *, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue
        self._wakes = Wakes()
        self._facts: dict[str, ProviderFacts] = {}
        self._memo: dict[str, object] = {}
        self._heartbeat = WatchInput.model_fields["heartbeat"].default

    def announce(
        self, facts: ProviderFacts, memo: dict[str, object], *, heartbeat: timedelta
    ) -> None:
        """Set what a watch started from this process knows, and shows to clients in its memo."""
        self._facts[facts.name] = facts
        self._memo = memo
        self._heartbeat = heartbeat

    async def start(self, provider: str) -> None:
        """See `Watches.start`."""
        await self._start(provider, None)

    async def ask(self, provider: str, ask: WatchAsk) -> None:
        """See `Watches.ask`."""
        await self._start(provider, ask)
        self._wakes.ring(provider)

    async def asks(self, provider: str, *, since: int) -> WatchAsks:
        """See `Watches.asks`; when no worker answers for the watch, there are no new ones.

        Machines of closed lives are then still reaped, and owners' signals wait for a worker.
        """
        handle: WorkflowHandle[object, object] = self._client.get_workflow_handle(
            watch_id(provider)
        )
        try:
            answer: WatchAsks = await handle.query(
                ASKS_QUERY, since, result_type=WatchAsks, rpc_timeout=QUERY_TIMEOUT
            )
        except RPCError as error:
            if error.status not in NO_WORKER:
                raise
            return WatchAsks(last=since)
        return answer

    async def woken(self, provider: str, *, timeout_seconds: float) -> bool:
        """See `Watches.woken`."""
        return await self._wakes.rung(provider, timeout_seconds=timeout_seconds)

    async def _start(self, provider: str, ask: WatchAsk | None) -> None:
        facts = self._facts.get(provider)
        memo = {**self._memo, "facts": facts} if facts is not None else None
        await self._client.start_workflow(
            WATCH_WORKFLOW,
            WatchInput(provider=provider, facts=facts, heartbeat=self._heartbeat),
            id=watch_id(provider),
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            memo=memo,
            static_summary=f"watches all machines of {provider}",
            start_signal=ASK_SIGNAL if ask else None,
            start_signal_args=[ask] if ask else [],
        )


class ManualWatches:
    """Watches that are only written down, for a worker that was built without a watch.

    Observations are then fed by hand through `ProviderWatcher.observe_once`.
    """

    def __init__(self) -> None:
        self._asks: list[tuple[str, WatchAsk]] = []

    async def start(self, provider: str) -> None:
        """See `Watches.start`; there is none to start."""

    async def ask(self, provider: str, ask: WatchAsk) -> None:
        """See `Watches.ask`."""
        self._asks.append((provider, ask))

    async def asks(self, provider: str, *, since: int) -> WatchAsks:
        """See `Watches.asks`."""
        new = tuple(ask for name, ask in self._asks[since:] if name == provider)
        return WatchAsks(asks=new, last=len(self._asks))

    async def woken(self, provider: str, *, timeout_seconds: float) -> bool:
        """Never wait: time is the test's."""
        return False


def is_not_found(error: RPCError) -> bool:
    """Return whether there is no such running workflow."""
    return error.status is RPCStatusCode.NOT_FOUND
