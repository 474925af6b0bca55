"""Telling the watch of a load whom to follow, and starting it where it does not run."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from garrison.activities.wakes import Wakes
from garrison.activities.watches import NO_WORKER, is_not_found
from garrison.models.load import Followed, FollowedChanges, LoadWatchInput

LOAD_WORKFLOW = "LoadWatch"
FOLLOW_SIGNAL = "follow"
FOLLOWED_QUERY = "followed"
QUERY_TIMEOUT = timedelta(seconds=3)


def load_watch_id(source: str) -> str:
    """Return the workflow id of the watch of a source of load."""
    return f"load/{source}"


class Loads(Protocol):
    """The watches of all sources of load, as deployments and the watching activity use them."""

    async def start(self, source: str) -> None:
        """Start the watch unless it runs."""
        ...

    async def follow(self, said: Followed) -> None:
        """Have a deployment followed as it is now by the source that it names, and no other."""
        ...

    async def followed(self, source: str, *, since: int) -> FollowedChanges:
        """Return who is followed, as far as that changed after a number."""
        ...

    async def woken(self, source: str, *, timeout_seconds: float) -> bool:
        """Wait until something changes in this process, or the time is over."""
        ...


class TemporalLoads:
    """Watches that are workflows.

    Args:
        client: Of the service.
        task_queue: Of the workflows.
        heartbeat: How long after a worker died its watch is given to another.
    """

    def __init__(self, client: Client, *, task_queue: str, heartbeat: timedelta) -> None:
        self._client = client
        self._task_queue = task_queue
        self._heartbeat = heartbeat
        self._wakes = Wakes()

    async def start(self, source: str) -> None:
        """See `Loads.start`."""
        await self._start(source, None)

    async def follow(self, said: Followed) -> None:
        """See `Loads.follow`."""
        source = said.autoscale.load.source
        await self._start(source, said)
        self._wakes.ring(source)
        for former in said.former_sources:
            await self._leave(former, said)

    async def followed(self, source: str, *, since: int) -> FollowedChanges:
        """See `Loads.followed`; when no worker answers for the watch, nothing has changed."""
        handle: WorkflowHandle[object, object] = self._client.get_workflow_handle(
            load_watch_id(source)
        )
        try:
            answer: FollowedChanges = await handle.query(
                FOLLOWED_QUERY, since, result_type=FollowedChanges, rpc_timeout=QUERY_TIMEOUT
            )
        except RPCError as error:
            if error.status not in NO_WORKER:
                raise
            return FollowedChanges(last=since)
        return answer

    async def woken(self, source: str, *, timeout_seconds: float) -> bool:
        """See `Loads.woken`."""
        return await self._wakes.rung(source, timeout_seconds=timeout_seconds)

    async def _leave(self, source: str, said: Followed) -> None:
        handle = self._client.get_workflow_handle(load_watch_id(source))
        try:
            await handle.signal(FOLLOW_SIGNAL, said.replace(closed=True))
        except RPCError as error:
            if not is_not_found(error):
                raise

    async def _start(self, source: str, said: Followed | None) -> None:
        await self._client.start_workflow(
            LOAD_WORKFLOW,
            LoadWatchInput(source=source, heartbeat=self._heartbeat),
            id=load_watch_id(source),
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"watches the load that {source} counts",
            start_signal=FOLLOW_SIGNAL if said else None,
            start_signal_args=[said] if said else [],
        )


class ManualLoads:
    """Watches that are only written down, for a worker that was built without a watch."""

    def __init__(self) -> None:
        self.said: list[Followed] = []

    async def start(self, source: str) -> None:
        """See `Loads.start`; there is none to start."""

    async def follow(self, said: Followed) -> None:
        """See `Loads.follow`."""
        self.said.append(said)

    async def followed(self, source: str, *, since: int) -> FollowedChanges:
        """See `Loads.followed`."""
        new = tuple(one for one in self.said[since:] if one.autoscale.load.source == source)
        return FollowedChanges(changed=new, last=len(self.said))

    async def woken(self, source: str, *, timeout_seconds: float) -> bool:
        """Never wait: time is the test's."""
        return False
