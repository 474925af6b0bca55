"""What the configured providers sell, asked through their workers."""

from __future__ import annotations

import asyncio
import builtins
import uuid
from collections.abc import Sequence
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import RetryPolicy

from garrison.client.providers import Providers
from garrison.client.translation import translated
from garrison.domain.pricing import sort_offers
from garrison.errors import InvalidSpec, Problem
from garrison.models.offer import Offer, OfferList, OfferQuery
from garrison.models.problems import shown, suggestion
from garrison.models.queues import provider_queue

CALL_TIMEOUT = timedelta(seconds=20)


class Offers:
    """Offers of all configured providers."""

    def __init__(self, client: Client, providers: Providers) -> None:
        self._client = client
        self._providers = providers

    async def list(
        self, query: OfferQuery | None = None, *, sort: str = "price", descending: bool = False
    ) -> list[Offer]:
        """Return matching offers; unknown prices come last in either direction.

        Args:
            query: Filters.
            sort: Column; see `garrison.domain.pricing.sort_offers`.
            descending: The dearest, largest or last first.

        Raises:
            InvalidSpec: The provider is not configured.
            ServiceUnreachable: No worker runs.
        """
        query = query or OfferQuery()
        names = await self._asked(query.provider)
        lists = await asyncio.gather(*(self._of(name, query) for name in names))
        found = [offer for offers in lists for offer in offers]
        return sort_offers(found, sort, descending=descending)

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

    async def _of(self, provider: str, query: OfferQuery) -> Sequence[Offer]:
        found: builtins.list[Offer] = []
        offset: int | None = 0
        while offset is not None:
            page = await self._page(provider, query.model_copy(update={"offset": offset}))
            found += page.offers
            offset = page.next_offset
        return found

    async def _page(self, provider: str, query: OfferQuery) -> OfferList:
        with translated(f"offers of {provider}"):
            answer: OfferList = await self._client.execute_activity(
                "list_offers",
                query,
                id=f"list-offers/{provider}/{uuid.uuid4()}",
                task_queue=provider_queue(provider),
                result_type=OfferList,
                schedule_to_close_timeout=CALL_TIMEOUT,
                start_to_close_timeout=CALL_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=2),
                summary=f"offers of {provider}",
            )
        return answer
