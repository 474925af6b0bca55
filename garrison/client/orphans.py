"""Machines that nobody answers for: finding them, and having them deleted."""

from __future__ import annotations

import asyncio
import builtins
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import groupby

from temporalio.client import Client
from temporalio.common import RetryPolicy

from garrison.client.providers import Providers
from garrison.client.translation import translated
from garrison.errors import GarrisonError, InvalidSpec, Problem
from garrison.models.orphan import (
    Orphan,
    OrphanPage,
    OrphanProblem,
    OrphanQuery,
    OrphanReport,
    SweepAnswer,
    SweepRequest,
    SweepResult,
    Swept,
)
from garrison.models.problems import shown, suggestion
from garrison.models.queues import provider_queue
from garrison.settings import INSTALLATION_PATTERN

LIST_TIMEOUT = timedelta(seconds=60)
SWEEP_TIMEOUT = timedelta(minutes=10)
HEARTBEAT = timedelta(seconds=30)
PICKED_UP_WITHIN = timedelta(seconds=20)
SWEPT_AT_ONCE = 20
"""Purchases in one call; each may take a while to save its logs."""


def installations_in(page: OrphanPage) -> dict[str, int]:
    """Return how many machines each other installation has.

    A tag that cannot be an installation's id is anybody's text: nothing of ours made it.
    """
    found = page.others or {}
    return {name: n for name, n in found.items() if re.fullmatch(INSTALLATION_PATTERN, name)}


class Orphans:
    """Machines tagged with an installation's id, of lives that the service does not know."""

    def __init__(self, client: Client, providers: Providers) -> None:
        self._client = client
        self._providers = providers

    async def list(
        self, *, provider: str | None = None, installation: str | None = None
    ) -> OrphanReport:
        """Return the orphans at one provider or at all; those that do not answer are named.

        Args:
            provider: Only at this one.
            installation: Whose machines; None for the installation of the workers.

        Raises:
            InvalidSpec: The provider is not configured, or the id is none.
            ServiceUnreachable: No worker runs.
        """
        _check_installation(installation)
        names = await self._asked(provider)
        answers = await asyncio.gather(*(self._at(name, installation) for name in names))
        pages = [page for found, _ in answers for page in found]
        others: Counter[str] = Counter()
        for page in pages:
            others.update(installations_in(page))
        return OrphanReport(
            installations=tuple(sorted({page.installation for page in pages})),
            own=all(page.own for page in pages),
            orphans=tuple(orphan for page in pages for orphan in page.orphans),
            claimed_machines=sum(page.claimed_machines for page in pages),
            others=dict(sorted(others.items())),
            problems=tuple(problem for _, problem in answers if problem is not None),
        )

    async def sweep(self, orphans: Iterable[Orphan]) -> builtins.list[Swept]:
        """Delete orphans that were listed, each only if it still is one.

        Those that were listed as not to be swept are left. Asking again is harmless.

        Returns:
            What became of each, in the order given.
        """
        asked = tuple(orphans)
        by_place = sorted(asked, key=_place)
        parts = await asyncio.gather(
            *(self._sweep_at(*place, tuple(some)) for place, some in groupby(by_place, _place))
        )
        swept = {(one.provider, one.token): one for part in parts for one in part}
        return [swept[one.provider, one.token] for one in asked]

    async def _asked(self, provider: str | None) -> Sequence[str]:
        known = [facts.name for facts in await self._providers.list()]
        if provider is None:
            return known
        if provider not in known:
            problem = Problem(
                "provider", f"{shown(provider)} is not configured; {suggestion(provider, known)}"
            )
            raise InvalidSpec("no such provider", problems=(problem,))
        return [provider]

    async def _at(
        self, provider: str, installation: str | None
    ) -> tuple[Sequence[OrphanPage], OrphanProblem | None]:
        """Return all pages of a provider, or none and why: half a list is not an answer."""
        pages: builtins.list[OrphanPage] = []
        after: str | None = None
        try:
            while not pages or after is not None:
                pages.append(
                    await self._page(provider, OrphanQuery(installation=installation, after=after))
                )
                after = pages[-1].next_after
        except InvalidSpec:
            raise
        except GarrisonError as error:
            return (), OrphanProblem(provider=provider, code=error.code, message=str(error))
        return pages, None

    async def _page(self, provider: str, query: OrphanQuery) -> OrphanPage:
        with translated(f"orphans of {provider}"):
            answer: OrphanPage = await self._client.execute_activity(
                "list_orphans",
                query,
                id=f"list-orphans/{provider}/{uuid.uuid4()}",
                task_queue=provider_queue(provider),
                result_type=OrphanPage,
                schedule_to_start_timeout=PICKED_UP_WITHIN,
                start_to_close_timeout=LIST_TIMEOUT,
                heartbeat_timeout=HEARTBEAT,
                retry_policy=RetryPolicy(maximum_attempts=2),
                summary=f"orphans of {provider}",
            )
        return answer

    async def _sweep_at(
        self, provider: str, installation: str, orphans: Sequence[Orphan]
    ) -> builtins.list[Swept]:
        swept = [
            Swept.of(one, SweepResult.LEFT, one.reason) for one in orphans if not one.sweepable
        ]
        asked = [one for one in orphans if one.sweepable]
        for begin in range(0, len(asked), SWEPT_AT_ONCE):
            some = asked[begin : begin + SWEPT_AT_ONCE]
            swept += await self._sweep_some(provider, installation, some)
        return swept

    async def _sweep_some(
        self, provider: str, installation: str, orphans: Sequence[Orphan]
    ) -> Sequence[Swept]:
        tokens = tuple(one.token for one in orphans)
        request = SweepRequest(installation=installation, tokens=tokens)
        try:
            answer = await self._call_sweep(provider, request)
        except GarrisonError as error:
            # What it did before it failed shows in the next list.
            return [
                Swept.of(one, SweepResult.FAILED, str(error), code=error.code) for one in orphans
            ]
        known = {one.token: one for one in orphans}
        return [
            one.replace(owner=known[one.token].owner, uid=known[one.token].uid)
            for one in answer.swept
        ]

    async def _call_sweep(self, provider: str, request: SweepRequest) -> SweepAnswer:
        with translated(f"sweep of {provider}"):
            answer: SweepAnswer = await self._client.execute_activity(
                "sweep_orphans",
                request,
                id=f"sweep-orphans/{provider}/{uuid.uuid4()}",
                task_queue=provider_queue(provider),
                result_type=SweepAnswer,
                schedule_to_start_timeout=PICKED_UP_WITHIN,
                start_to_close_timeout=SWEEP_TIMEOUT,
                heartbeat_timeout=HEARTBEAT,
                retry_policy=RetryPolicy(maximum_attempts=3),
                summary=f"sweep {len(request.tokens)} purchases at {provider}",
            )
        return answer


def _place(orphan: Orphan) -> tuple[str, str]:
    return orphan.provider, orphan.installation


def _check_installation(installation: str | None) -> None:
    if installation is not None and not re.fullmatch(INSTALLATION_PATTERN, installation):
        message = f"{shown(installation)} is no id: 1 to 32 letters, digits or '-', first no '-'"
        raise InvalidSpec("no such installation", problems=(Problem("installation", message),))
