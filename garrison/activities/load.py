"""One observer of all deployments whose requests one source counts.

Every few seconds, more often while somebody waits, the traffic of all of them is read at once and
each one's target decided; a deployment is told only when its target changes. What is remembered
between two looks goes along with the heartbeats, so that the next worker goes on from there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from garrison.activities.heartbeat import beat_pause
from garrison.activities.loads import Loads
from garrison.activities.watches import is_not_found
from garrison.domain.autoscaling.look import look, resume
from garrison.load.base import LoadSource
from garrison.models.load import (
    Followed,
    LoadCounts,
    LoadMemory,
    LoadWatchInput,
    LoadWatchReport,
    LoadWatchResult,
    TargetChanged,
)

RARELY = 2
"""All that is remembered goes along, so heartbeats are rarer than others'."""
AUTOSCALE_SIGNAL = "autoscale"
INTRODUCE_SIGNAL = "introduce"
DEPLOYMENTS = "GarrisonKind = 'deployment' AND ExecutionStatus = 'Running'"
TELL_AT_ONCE = 20

logger = logging.getLogger(__name__)
_MEMORIES = TypeAdapter(dict[str, LoadMemory])


class Told(Protocol):
    """The way to deployments."""

    async def tell(self, workflow_id: str, target: TargetChanged) -> bool:
        """Tell a deployment its target; False when there is no such running one.

        Raises:
            RPCError: Not delivered; to be told again.
        """
        ...

    async def call_all(self) -> int:
        """Have every running deployment introduce itself; return how many there are."""
        ...


class Deployments:
    """Deployments that are workflows."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def tell(self, workflow_id: str, target: TargetChanged) -> bool:
        """See `Told.tell`."""
        return await self._signal(workflow_id, AUTOSCALE_SIGNAL, [target])

    async def call_all(self) -> int:
        """See `Told.call_all`."""
        found = [one.id async for one in self._client.list_workflows(DEPLOYMENTS)]
        for workflow_id in found:
            await self._signal(workflow_id, INTRODUCE_SIGNAL, [])
        return len(found)

    async def _signal(self, workflow_id: str, name: str, args: list[Any]) -> bool:
        try:
            await self._client.get_workflow_handle(workflow_id).signal(name, args=args)
        except RPCError as error:
            if is_not_found(error):
                return False
            raise
        return True


class LoadMeter(Protocol):
    """Is told by the observers of load of this process."""

    def looked(self, source: str, followed: int, missing: int) -> None:
        """Take how many deployments a look was at, and of how many the load is not known."""
        ...

    def told(self, source: str) -> None:
        """Take note that a deployment was told another target."""
        ...


class UnmeteredLoad:
    """Tells nobody."""

    def looked(self, source: str, followed: int, missing: int) -> None:
        """See `LoadMeter.looked`."""

    def told(self, source: str) -> None:
        """See `LoadMeter.told`."""


class LoadWatcher:
    """Looks at one source of load; its memory goes into heartbeats."""

    def __init__(
        self,
        source: str,
        traffic: LoadSource,
        loads: Loads,
        deployments: Told,
        *,
        clock: Callable[[], datetime],
        memories: Mapping[str, LoadMemory] | None = None,
        meter: LoadMeter | None = None,
    ) -> None:
        self._meter = meter or UnmeteredLoad()
        self._source = source
        self._traffic = traffic
        self._loads = loads
        self._deployments = deployments
        self._clock = clock
        self._memories = {key: resume(one) for key, one in (memories or {}).items()}
        self._followed: dict[str, Followed] = {}
        self._read = 0
        self._gone: set[str] = set()
        self.renew = False
        self.queued = False
        self.missing = 0

    @property
    def memories(self) -> dict[str, LoadMemory]:
        """What is to be remembered, by deployment id."""
        return self._memories

    @property
    def followed(self) -> int:
        """How many deployments are looked at."""
        return len(self._followed)

    @property
    def gone(self) -> tuple[str, ...]:
        """Lives that turned out to run no longer."""
        return tuple(sorted(self._gone))

    async def look_once(self) -> None:
        """Look at all deployments, and tell those whose targets change.

        Raises:
            RPCError: The service did not answer.
        """
        await self._read_followed()
        followed = list(self._followed.values())
        counts = await self._traffic.read(followed) if followed else {}
        self.queued = any(counts[one.id].queued > 0 for one in followed if one.id in counts)
        self.missing = sum(one.autoscaled and one.id not in counts for one in followed)
        self._meter.looked(self._source, len(followed), self.missing)
        now = self._clock()
        news = [(one, self._decide(one, counts.get(one.id), now)) for one in followed]
        await self._tell_all([(one, said) for one, said in news if said is not None])

    async def _read_followed(self) -> None:
        answer = await self._loads.followed(self._source, since=self._read)
        self._read, self.renew = answer.last, answer.renew
        for one in answer.changed:
            if one.closed or one.uid in self._gone:
                self._followed.pop(one.id, None)
                self._memories.pop(one.id, None)
            else:
                self._followed[one.id] = one

    def _decide(
        self, one: Followed, counts: LoadCounts | None, now: datetime
    ) -> TargetChanged | None:
        self._memories[one.id], said = look(one, self._memories.get(one.id), counts, now=now)
        return said

    async def _tell_all(self, news: Sequence[tuple[Followed, TargetChanged]]) -> None:
        gate = asyncio.Semaphore(TELL_AT_ONCE)

        async def tell(one: Followed, said: TargetChanged) -> None:
            async with gate:
                await self._tell(one, said)

        await asyncio.gather(*(tell(one, said) for one, said in news))

    async def _tell(self, one: Followed, said: TargetChanged) -> None:
        try:
            lives = await self._deployments.tell(one.workflow_id, said)
        except RPCError as error:
            logger.warning("target not told", extra={"deployment": one.id, "error": str(error)})
            self._memories[one.id] = self._memories[one.id].replace(told=None, told_at=None)
            return
        if lives:
            self._meter.told(self._source)
            return
        self._gone.add(one.uid)
        self._followed.pop(one.id, None)
        self._memories.pop(one.id, None)


class LoadActivities:
    """The long-running activity of `LoadWatch`, for the sources that this worker can read."""

    def __init__(
        self,
        sources: Mapping[str, LoadSource],
        loads: Loads,
        deployments: Told,
        *,
        interval: timedelta,
        busy_interval: timedelta,
        clock: Callable[[], datetime],
        meter: LoadMeter | None = None,
    ) -> None:
        self._meter = meter
        self._interval = interval
        self._busy_interval = busy_interval
        self._sources = sources
        self._loads = loads
        self._deployments = deployments
        self._clock = clock

    @activity.defn(name="watch_load")
    async def watch_load(self, watch: LoadWatchInput) -> LoadWatchResult:
        """Look again and again until the workflow wants to be renewed, or the worker stops."""
        remembered = _remembered(activity.info().heartbeat_details) or watch.memories
        watcher = LoadWatcher(
            watch.source,
            self._sources[watch.source],
            self._loads,
            self._deployments,
            clock=self._clock,
            memories=unpack(remembered),
            meter=self._meter,
        )
        if not watch.followed and not remembered:
            await self._deployments.call_all()
        try:
            async with _Beats(watcher, self._clock):
                await self._watch(watcher, watch.source)
        except asyncio.CancelledError:
            if not activity.is_worker_shutdown():
                raise
            raise _stopping() from None
        return LoadWatchResult(memories=pack(watcher.memories), gone=watcher.gone)

    async def _watch(self, watcher: LoadWatcher, source: str) -> None:
        while not watcher.renew:
            try:
                await watcher.look_once()
            except RPCError as error:
                # Nobody is told anything; what runs goes on.
                logger.warning("look failed", extra={"source": source, "error": str(error)})
            pause = self._busy_interval if watcher.queued else self._interval
            await self._loads.woken(source, timeout_seconds=pause.total_seconds())


def pack(memories: Mapping[str, LoadMemory]) -> str:
    """Return memories as a short text: they go along with each heartbeat."""
    text = _MEMORIES.dump_json(dict(memories))
    return base64.b85encode(zlib.compress(text)).decode()


def unpack(text: str) -> dict[str, LoadMemory]:
    """Return what `pack` was given; nothing if it is of a version that cannot be read."""
    if not text:
        return {}
    try:
        return _MEMORIES.validate_json(zlib.decompress(base64.b85decode(text)))
    except (ValueError, binascii.Error, zlib.error, ValidationError):
        logger.warning("what an earlier observer remembered cannot be read")
        return {}


def _remembered(details: Iterable[Any]) -> str:
    for detail in details:
        if isinstance(detail, dict):
            return str(detail.get("memories", ""))
    return ""


def _stopping() -> ApplicationError:
    """No failure that anybody should read of: the next worker goes on at once."""
    return ApplicationError("the worker stops", category=ApplicationErrorCategory.BENIGN)


class _Beats:
    """Sends what is remembered every few seconds."""

    def __init__(self, watcher: LoadWatcher, clock: Callable[[], datetime]) -> None:
        self._watcher = watcher
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._beat())

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._send()

    async def _beat(self) -> None:
        while True:
            self._send()
            await asyncio.sleep(beat_pause() * RARELY)

    def _send(self) -> None:
        watcher = self._watcher
        activity.heartbeat(
            LoadWatchReport(
                at=self._clock(),
                followed=watcher.followed,
                missing=watcher.missing,
                memories=pack(watcher.memories),
            )
        )
