"""Finding and deleting machines that nobody answers for, at one provider.

A life is looked up again right before each deletion, and a lookup without an answer deletes
nothing. Only the purchases that a person has seen are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio import activity
from temporalio.service import RPCError

from garrison.activities.heartbeat import beating
from garrison.activities.log_keeper import LogKeeper
from garrison.activities.owners import Life, Owners
from garrison.activities.reaper import Reaper
from garrison.activities.watches import Watches
from garrison.domain.health import living_nodes
from garrison.domain.orphans import describe_orphan, is_orphaned
from garrison.errors import ErrorCode, GarrisonError
from garrison.models.group import Group
from garrison.models.observation import WatchAsk
from garrison.models.orphan import (
    Orphan,
    OrphanPage,
    OrphanQuery,
    SweepAnswer,
    SweepRequest,
    SweepResult,
    Swept,
)
from garrison.providers.base import Provider, SeesInstallations

MACHINES_A_PAGE = 1_000
"""Keeps a page well below the size that the service warns of."""

LOOKUPS_AT_ONCE = 10
DELETES_AT_ONCE = 5
TRIES = 3
LONGEST_PAUSE_SECONDS = 10.0
LOOK_AGAIN_FOR = timedelta(seconds=15)
"""How long a sweep waits for the provider's word that machines are gone."""
LOOK_AGAIN_SECONDS = 0.5

ProviderFor = Callable[[str], AbstractAsyncContextManager[Provider]]
"""The same account as another installation sees it, by that one's id."""


class OrphanActivities:
    """Bound to one provider account by the worker that hosts its queue."""

    def __init__(
        self,
        provider: Provider,
        owners: Owners,
        watches: Watches,
        *,
        installation: str,
        provider_for: ProviderFor,
        clock: Callable[[], datetime],
        keeper: LogKeeper | None = None,
    ) -> None:
        """Bind to a provider.

        Args:
            provider: The account.
            owners: Tells lives.
            watches: Asked for a look after machines were deleted.
            installation: The id of this installation.
            provider_for: Opens the account for another one.
            clock: The time of this host.
            keeper: Saves what ran on machines before they are deleted.
        """
        self._provider = provider
        self._owners = owners
        self._watches = watches
        self._installation = installation
        self._provider_for = provider_for
        self._clock = clock
        self._keeper = keeper

    @activity.defn(name="list_orphans")
    async def list_orphans(self, query: OrphanQuery) -> OrphanPage:
        """Return a page of machines whose life is unknown, or known to nobody who would delete.

        Raises:
            InvalidSpec: The installation's id is none.
            ProviderUnreachable, TooManyRequests, ProviderAuth, ProviderError: No answer.
        """
        async with self._seen_by(query.installation) as sight, beating():
            groups = _living(await sight.provider.list_groups())
            return await self._page(sight, groups, after=query.after)

    @activity.defn(name="sweep_orphans")
    async def sweep_orphans(self, request: SweepRequest) -> SweepAnswer:
        """Delete each purchase that is still an orphan and old enough, and say what became of it.

        One that the provider does not delete keeps no other from it. Idempotent.

        Raises:
            InvalidSpec: The installation's id is none.
            ProviderUnreachable, TooManyRequests, ProviderAuth, ProviderError: The provider was
                not listed, so nothing was deleted.
        """
        async with self._seen_by(request.installation) as sight, beating():
            listed = {group.token: group for group in _living(await sight.provider.list_groups())}
            limit = asyncio.Semaphore(DELETES_AT_ONCE)

            async def sweep(token: str) -> Swept:
                async with limit:
                    return await self._sweep(sight, token, listed.get(token))

            ordered = await asyncio.gather(*map(sweep, request.tokens))
            swept = await self._confirmed(sight.provider, ordered)
            await self._look(sight, swept)
            return SweepAnswer(swept=tuple(swept))

    @contextlib.asynccontextmanager
    async def _seen_by(self, installation: str | None) -> AsyncIterator[_Sight]:
        if installation is None or installation == self._installation:
            yield _Sight(self._provider, self._installation, own=True)
            return
        async with self._provider_for(installation) as provider:
            yield _Sight(provider, installation, own=False)

    async def _page(self, sight: _Sight, groups: Sequence[Group], after: str | None) -> OrphanPage:
        rest = sorted(groups, key=lambda group: group.token)
        if after is not None:
            rest = [group for group in rest if group.token > after]
        page = _first_machines(rest, MACHINES_A_PAGE)
        lives = await self._lives(page, sight.provider.facts.name)
        now = self._clock()
        orphans = [
            describe_orphan(
                group,
                facts=sight.provider.facts,
                installation=sight.installation,
                known=life is not Life.UNKNOWN,
                now=now,
            )
            for group, life in zip(page, lives, strict=True)
            if _is_orphaned(life, sight)
        ]
        machines = len(living_nodes(page))
        return OrphanPage(
            installation=sight.installation,
            own=sight.own,
            orphans=tuple(orphans),
            claimed_machines=machines - sum(len(orphan.machines) for orphan in orphans),
            others=await _others(sight.provider) if sight.own and after is None else None,
            next_after=page[-1].token if len(page) < len(rest) else None,
        )

    async def _lives(self, groups: Sequence[Group], provider: str) -> Sequence[Life]:
        """Return the life of each group; the living in one query, the others one by one."""
        running = {(one.workflow_id, one.uid) for one in await self._owners.running(provider)}
        limit = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def look_up(group: Group) -> Life:
            if (group.owner, group.uid) in running:
                return Life.LIVING
            async with limit:
                return await self._owners.life_of(group.owner, group.uid)

        return await asyncio.gather(*map(look_up, groups))

    async def _sweep(self, sight: _Sight, token: str, group: Group | None) -> Swept:
        if group is None:
            return Swept(
                provider=sight.provider.facts.name,
                installation=sight.installation,
                token=token,
                result=SweepResult.GONE,
                message="not listed any more",
            )
        orphan = describe_orphan(
            group,
            facts=sight.provider.facts,
            installation=sight.installation,
            known=False,
            now=self._clock(),
        )
        if not orphan.sweepable:
            return Swept.of(orphan, SweepResult.LEFT, orphan.reason)
        # Twice, since saving logs stops what runs, takes a while, and is a change by itself.
        claim = await self._claim(sight, orphan)
        if claim is None:
            await Reaper(sight.provider, self._keeper).keep_logs(group)
            claim = await self._claim(sight, orphan)
        return claim or await self._delete(sight.provider, orphan)

    async def _claim(self, sight: _Sight, orphan: Orphan) -> Swept | None:
        """Return why the machines must stay, None when nobody answers for them."""
        try:
            life = await self._owners.life_of(orphan.owner, orphan.uid)
        except RPCError as error:
            code, words = ErrorCode.SERVICE_UNREACHABLE, f"its life was not told: {error.message}"
            return Swept.of(orphan, SweepResult.FAILED, words, code=code)
        if _is_orphaned(life, sight):
            return None
        return Swept.of(orphan, SweepResult.LEFT, _CLAIMED[life])

    async def _delete(self, provider: Provider, orphan: Orphan) -> Swept:
        extra = {"owner": orphan.owner, "uid": orphan.uid, "token": orphan.token}
        try:
            await _terminate(provider, orphan.token)
        except GarrisonError as error:
            activity.logger.warning("orphan not deleted", extra={**extra, "error": str(error)})
            return Swept.of(orphan, SweepResult.FAILED, str(error), code=error.code)
        activity.logger.warning("orphan deleted", extra=extra)
        return Swept.of(orphan, SweepResult.DELETING)

    async def _look(self, sight: _Sight, swept: Sequence[Swept]) -> None:
        """Have the watch look again, so that it does not go on reporting what was deleted."""
        changed = [one for one in swept if one.result in _CHANGED]
        if not changed or not sight.own:
            return
        # Nobody of that name lives, so that the ask is answered by the pass itself, whatever text
        # the machines have for an owner.
        sweep = f"orphan-sweep/{activity.info().activity_id}"
        ask = WatchAsk(owner=sweep, uid=sweep, not_before=self._clock())
        try:
            await self._watches.ask(sight.provider.facts.name, ask)
        except RPCError as error:
            activity.logger.warning("watch not asked", extra={"error": str(error)})

    async def _confirmed(self, provider: Provider, swept: Sequence[Swept]) -> Sequence[Swept]:
        """Return what is known of the deletions after looking at the provider's list again."""
        waiting = left = {one.token for one in swept if one.result is SweepResult.DELETING}
        time = asyncio.get_running_loop().time
        end = time() + LOOK_AGAIN_FOR.total_seconds()
        # A list that began before that may show another time than after the deletion.
        believed_from = time() + provider.facts.settle.total_seconds()
        if believed_from > end:
            return swept
        await asyncio.sleep(believed_from - time())
        while left and time() <= end:
            try:
                left = left & {group.token for group in _living(await provider.list_groups())}
            except GarrisonError:
                break  # accepted is all that is known
            if left:
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
        gone = waiting - left
        return [
            one.replace(result=SweepResult.DELETED) if one.token in gone else one for one in swept
        ]


@dataclass(frozen=True, slots=True)
class _Sight:
    """An account as one installation sees it."""

    provider: Provider
    installation: str
    own: bool


_CHANGED = {SweepResult.DELETED, SweepResult.DELETING}
_CLAIMED = {
    Life.LIVING: "its life runs",
    Life.CLOSED: "its life has ended, so the watch deletes it",
}


def _is_orphaned(life: Life, sight: _Sight) -> bool:
    known, running = life is not Life.UNKNOWN, life is Life.LIVING
    return is_orphaned(known=known, running=running, own=sight.own)


def _living(groups: Iterable[Group]) -> list[Group]:
    return [group for group in groups if living_nodes((group,))]


def _first_machines(groups: Sequence[Group], limit: int) -> Sequence[Group]:
    """Return the first groups that have no more machines than that, one at least."""
    count = 0
    for number, group in enumerate(groups):
        count += len(living_nodes((group,)))
        if count > limit and number:
            return groups[:number]
    return groups


async def _others(provider: Provider) -> dict[str, int] | None:
    if not isinstance(provider, SeesInstallations):
        return None
    return dict(await provider.other_installations())


async def _terminate(provider: Provider, token: str) -> None:
    """Delete a purchase, trying again what can succeed later."""
    for last in (*[False] * (TRIES - 1), True):
        try:
            return await provider.terminate_group(token)
        except GarrisonError as error:
            if last or not error.retryable:
                raise
            pause = min(error.retry_after_seconds or 1.0, LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause)
