"""One observation of all machines of one provider, told to each owner that it concerns.

A pass is one list call. An owner is told when what it owns differs from what it was last told, or
when it asked; a failed or partial pass is never told to anybody.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from garrison.activities.log_keeper import LogKeeper
from garrison.activities.lost_pools import LostPools
from garrison.activities.owners import Life, Owner, Owners
from garrison.activities.reaper import Reaper
from garrison.activities.watch_meter import (
    UnmeteredWatch,
    WatchMeter,
    count_nodes,
    count_phases,
)
from garrison.activities.watch_reports import Reporter
from garrison.activities.watches import Watches
from garrison.domain.health import living_nodes
from garrison.errors import GarrisonError, ProviderUnreachable
from garrison.models.cluster_state import Phase
from garrison.models.group import Group, NodeStatus, WorkloadState, WorkloadStatus
from garrison.models.nodepool import PoolPhase
from garrison.models.observation import (
    Observation,
    WatchAsk,
    WatchInput,
    WatchReport,
    WatchResult,
)
from garrison.providers.base import Provider

TELL_AT_ONCE = 20
MASS_FAILURE_SHARE = 0.2
MASS_FAILURE_NODES = 5
LONGEST_REST = 1.0
"""Seconds; a pass can be slow because the provider is, and that is no reason to look less."""

LOOK_UP_AGAIN = timedelta(minutes=1)
BLIND_FOR = timedelta(minutes=10)
"""How long a list that can tell nothing of any machine counts as no answer."""

IN_TRANSITION = frozenset(
    {Phase.LAUNCHING, Phase.PROVISIONING, Phase.TERMINATING, PoolPhase.DELETING}
)
WHOLE = frozenset({Phase.RUNNING, PoolPhase.ACTIVE})
"""Phases in which every node that an owner has should run."""
ON_THE_WAY = frozenset({NodeStatus.PENDING, NodeStatus.STARTING})

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Orphan:
    """Machines with our installation id whose owner nobody has heard of."""

    owner: str
    uid: str
    groups: tuple[Group, ...]


@dataclass(slots=True)
class Pass:
    """What one pass found and did.

    Attributes:
        busy: An owner is in transition, so the next pass comes soon.
        phases: How many living owners are in each phase.
        nodes: How many nodes are in each state, by the provider's word.
    """

    begun_at: datetime
    told: list[str] = field(default_factory=list)
    reaped: list[str] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    busy: bool = False
    renew: bool = False
    phases: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)


class ProviderWatcher:
    """Watches one provider; its memory is only a memory of what was told."""

    def __init__(
        self,
        provider: Provider,
        owners: Owners,
        watches: Watches,
        *,
        clock: Callable[[], datetime],
        keeper: LogKeeper | None = None,
    ) -> None:
        self._provider = provider
        self._name = provider.facts.name
        self._owners = owners
        self._watches = watches
        self._clock = clock
        self._reaper = Reaper(provider, keeper)
        self._told: dict[Key, str] = {}
        self._pending: dict[str, WatchAsk] = {}
        self._answered: list[WatchAsk] = []
        self._read = 0
        self._suspects: set[Key] = set()
        self._unknown_until: dict[Key, datetime] = {}
        self._blind_since: datetime | None = None
        self._renew = False

    @property
    def renew(self) -> bool:
        """Whether the workflow wanted to be renewed, when it was last asked."""
        return self._renew

    @property
    def next_ask_at(self) -> datetime | None:
        """When the next pass is asked for, None when none is."""
        return min((ask.not_before for ask in self._pending.values()), default=None)

    @property
    def answered(self) -> tuple[WatchAsk, ...]:
        """Asks that were answered since this watcher began."""
        return tuple(self._answered)

    async def observe_once(self) -> Pass:
        """Make one pass and tell the owners that it concerns.

        Raises:
            GarrisonError: The provider did not answer; nobody was told anything.
            RPCError: The service did not answer.
        """
        self._renew = await self._read_asks()
        result = Pass(begun_at=self._clock(), renew=self._renew)
        groups = await self._provider.list_groups()
        self._check_not_blind(groups, result.begun_at)
        running = await self._owners.running(self._name)
        result.phases, result.nodes = count_phases(running), count_nodes(groups, running)
        owners = self._with_asking(running)
        listed = _by_owner(groups)
        seen = {
            key: Observation(
                owner=owner.workflow_id,
                uid=owner.uid,
                provider=self._name,
                begun_at=result.begun_at,
                groups=listed.pop(key, ()),
                gone=owner.gone,
            )
            for key, owner in owners.items()
        }
        seen = self._doubt_mass_failure(seen, owners)
        await self._tell_all(seen, owners, result)
        doomed = [
            group
            for key, left in listed.items()
            for group in await self._settle_leftover(key, left, result)
        ]
        await asyncio.gather(*(self._reap(group, result) for group in doomed))
        result.busy |= bool(self._pending) or any(
            _is_busy(owners[key], seen[key].groups) for key in owners
        )
        self._forget(owners)
        return result

    def _check_not_blind(self, groups: Iterable[Group], now: datetime) -> None:
        """Return unless the list can tell nothing of any machine of several owners.

        That is a provider which does not really answer, so it counts as no answer; but not for
        ever, since it may be true.

        Raises:
            ProviderUnreachable: It is so, and has not been for long.
        """
        if not _is_blind(groups):
            self._blind_since = None
            return
        self._blind_since = self._blind_since or now
        if now - self._blind_since < BLIND_FOR:
            raise ProviderUnreachable(f"{self._name} cannot tell the state of any machine")

    def _with_asking(self, running: Iterable[Owner]) -> dict[Key, Owner]:
        """Add owners that asked but are not (yet) in visibility; telling them shows whether."""
        owners = {(owner.workflow_id, owner.uid): owner for owner in running}
        for ask in self._pending.values():
            key = (ask.owner, ask.uid)
            owners.setdefault(key, Owner(workflow_id=ask.owner, uid=ask.uid, phase=None, nodes=0))
        return owners

    async def _read_asks(self) -> bool:
        answer = await self._watches.asks(self._name, since=self._read)
        self._read = answer.last
        for ask in answer.asks:
            self._pending[ask.owner] = ask
        return answer.renew

    def _doubt_mass_failure(
        self, seen: dict[Key, Observation], owners: dict[Key, Owner]
    ) -> dict[Key, Observation]:
        """Mark the first pass in which suspiciously many nodes went bad at once."""
        bad = {
            key: count
            for key, owner in owners.items()
            if owner.phase in WHOLE
            and (count := owner.nodes - _running(seen[key].groups)) > 0
            and key not in self._suspects
        }
        total = sum(owner.nodes for owner in owners.values() if owner.phase != Phase.QUOTED)
        count = sum(bad.values())
        suspicious = count >= MASS_FAILURE_NODES and count > MASS_FAILURE_SHARE * total
        self._suspects = set(bad) if suspicious else set()
        return {
            key: one.model_copy(update={"confirmed": key not in self._suspects})
            for key, one in seen.items()
        }

    async def _tell_all(
        self, seen: dict[Key, Observation], owners: dict[Key, Owner], result: Pass
    ) -> None:
        limit = asyncio.Semaphore(TELL_AT_ONCE)

        async def tell(one: Observation) -> None:
            async with limit:
                await self._tell(one, result)

        due = [one for key, one in seen.items() if self._is_due(one, owners[key])]
        await asyncio.gather(*map(tell, due))

    def _is_due(self, seen: Observation, owner: Owner) -> bool:
        ask = self._pending.get(seen.owner)
        if ask is not None and ask.uid == seen.uid and _answers(seen, ask):
            return True
        if owner.phase is None:
            return False
        digest = _digest(seen)
        told = self._told.get((seen.owner, seen.uid))
        if told is None and _is_whole(seen, owner) and not seen.gone:
            self._told[seen.owner, seen.uid] = digest
            return False
        return told != digest

    async def _tell(self, seen: Observation, result: Pass) -> None:
        key = (seen.owner, seen.uid)
        try:
            found = await self._owners.tell(seen)
        except RPCError as error:
            # Its digest stays as it was, so that the next pass tells it again.
            activity.logger.warning("owner was not told: %s: %s", seen.owner, error)
            return
        ask = self._pending.get(seen.owner)
        if ask is not None and ask.uid == seen.uid and (not found or _answers(seen, ask)):
            self._answered.append(self._pending.pop(seen.owner))
        if not found:
            self._told.pop(key, None)
            return
        self._told[key] = _digest(seen)
        result.told.append(seen.owner)

    async def _settle_leftover(
        self, key: Key, groups: tuple[Group, ...], result: Pass
    ) -> tuple[Group, ...]:
        """Return those machines to delete whose life is in no list of running owners."""
        owner, uid = key
        if not living_nodes(groups):
            return ()
        if self._unknown_until.get(key, result.begun_at) > result.begun_at:
            result.orphans.append(Orphan(owner, uid, groups))
            return ()
        life = await self._owners.life_of(owner, uid)
        if life is Life.LIVING:
            result.busy = True
            return ()
        if life is Life.UNKNOWN:
            self._unknown_until[key] = result.begun_at + LOOK_UP_AGAIN
            result.orphans.append(Orphan(owner, uid, groups))
            return ()
        return groups

    async def _reap(self, group: Group, result: Pass) -> None:
        if await self._reaper.reap(group):
            result.reaped.append(group.token)

    def _forget(self, owners: dict[Key, Owner]) -> None:
        self._told = {key: digest for key, digest in self._told.items() if key in owners}
        now = self._clock()
        self._unknown_until = {key: t for key, t in self._unknown_until.items() if t > now}


def _answers(seen: Observation, ask: WatchAsk) -> bool:
    return ask.not_before <= seen.begun_at


def _by_owner(groups: Iterable[Group]) -> dict[Key, tuple[Group, ...]]:
    listed: dict[Key, tuple[Group, ...]] = {}
    for group in groups:
        key = (group.owner, group.uid)
        listed[key] = (*listed.get(key, ()), group)
    return listed


def _is_blind(groups: Iterable[Group]) -> bool:
    living = [(group, node) for group in groups for node in living_nodes((group,))]
    several = len({(group.owner, group.uid) for group, _ in living}) > 1
    return several and all(node.status is NodeStatus.UNKNOWN for _, node in living)


def _running(groups: Iterable[Group]) -> int:
    return sum(node.status is NodeStatus.RUNNING for group in groups for node in group.nodes)


def _is_whole(seen: Observation, owner: Owner) -> bool:
    if owner.phase == Phase.QUOTED:
        return not seen.groups
    # What happened while nobody watched was told to nobody: a command that ended, a notice.
    going = all(work.state is WorkloadState.RUNNING for work in _workloads(seen.groups))
    staying = all(node.notice_at is None for group in seen.groups for node in group.nodes)
    return owner.phase in WHOLE and _running(seen.groups) == owner.nodes and going and staying


def _is_busy(owner: Owner, groups: Iterable[Group]) -> bool:
    if owner.phase in IN_TRANSITION:
        return True
    if any(node.status in ON_THE_WAY for group in groups for node in group.nodes):
        return True
    return any(work.state is WorkloadState.PENDING for work in _workloads(groups))


def _workloads(groups: Iterable[Group]) -> Iterable[WorkloadStatus]:
    return (work for group in groups for node in group.nodes for work in node.workloads or ())


def _digest(seen: Observation) -> str:
    text = seen.model_dump_json(exclude={"begun_at"})
    return hashlib.sha256(text.encode()).hexdigest()


class WatchActivities:
    """The long-running activity of `ProviderWatch`, for the providers of this worker."""

    def __init__(
        self,
        providers: dict[str, Provider],
        owners: Owners,
        watches: Watches,
        *,
        interval: timedelta,
        busy_interval: timedelta,
        clock: Callable[[], datetime],
        keeper: LogKeeper | None = None,
        meter: WatchMeter | None = None,
        lost_pools: LostPools | None = None,
    ) -> None:
        self._lost_pools = lost_pools
        self._providers = providers
        self._owners = owners
        self._watches = watches
        self._interval = interval
        self._busy_interval = busy_interval
        self._clock = clock
        self._keeper = keeper
        self._meter = meter or UnmeteredWatch()

    @activity.defn(name="watch_provider")
    async def watch_provider(self, watch: WatchInput) -> WatchResult:
        """Make passes until the workflow wants to be renewed, or the worker stops."""
        watcher = ProviderWatcher(
            self._providers[watch.provider],
            self._owners,
            self._watches,
            clock=self._clock,
            keeper=self._keeper,
        )
        before = activity.info().heartbeat_details

        def send(report: WatchReport) -> None:
            activity.heartbeat(report)
            self._meter.reported(watch.provider, report)

        reporter = Reporter(before, interval=self._interval, clock=self._clock, send=send)
        self._meter.began(watch.provider, reporter.report)
        try:
            async with reporter.beating():
                return await self._watch(watcher, watch.provider, reporter)
        except asyncio.CancelledError:
            if not activity.is_worker_shutdown():
                raise
            # No failure that anybody should read of: the next worker goes on at once.
            raise ApplicationError(
                "the worker stops",
                category=ApplicationErrorCategory.BENIGN,
                next_retry_delay=timedelta(milliseconds=1),
            ) from None
        finally:
            self._meter.ended(watch.provider)

    async def _watch(self, watcher: ProviderWatcher, name: str, reporter: Reporter) -> WatchResult:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            pause, renew = await self._pass(watcher, name, reporter)
            await self._look_for_lost_pools()
            if renew:
                return WatchResult(answered=watcher.answered)
            # However many ask: to look at a large fleet takes no more than half of the worker.
            rest = min(loop.time() - began, LONGEST_REST)
            await asyncio.sleep(rest)
            wait = max(pause.total_seconds() - rest, 0)
            await self._watches.woken(name, timeout_seconds=wait)

    async def _look_for_lost_pools(self) -> None:
        if self._lost_pools is None:
            return
        try:
            await self._lost_pools.look()
        except RPCError as error:  # the next pass looks again
            activity.logger.warning("no look at nodepools", extra={"error": str(error)})

    async def _pass(
        self, watcher: ProviderWatcher, name: str, reporter: Reporter
    ) -> tuple[timedelta, bool]:
        try:
            result = await watcher.observe_once()
        except (GarrisonError, RPCError) as error:
            # No answer is no statement about any machine, so nobody is told anything.
            activity.logger.warning("pass failed", extra={"provider": name, "error": str(error)})
            reporter.failed(error)
            after = getattr(error, "retry_after_seconds", None) or 0
            # Owners go on asking however long the provider is away.
            return max(self._busy_interval, timedelta(seconds=after)), watcher.renew
        except Exception as error:  # a bug: reported, then tried again by a new observer
            reporter.crashed(error)
            raise
        orphans = ((one.owner, one.uid, one.groups) for one in result.orphans)
        reporter.passed(orphans, len(result.reaped))
        self._meter.counted(name, result.phases, result.nodes)
        return self._pause(watcher, busy=result.busy), result.renew

    def _pause(self, watcher: ProviderWatcher, *, busy: bool) -> timedelta:
        pause = self._busy_interval if busy else self._interval
        asked = watcher.next_ask_at
        if asked is None:
            return pause
        soonest = min(self._busy_interval, timedelta(seconds=1))
        return max(min(pause, asked - self._clock()), soonest)
