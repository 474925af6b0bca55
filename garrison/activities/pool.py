"""What a nodepool asks of its provider beyond what a cluster does: prices, and single machines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta

from temporalio import activity

from garrison.activities.heartbeat import beating
from garrison.activities.log_keeper import LogKeeper
from garrison.activities.provider import ProviderActivities
from garrison.domain.pools.offers import nominal_resources
from garrison.errors import GarrisonError, ProviderError
from garrison.models.cluster_messages import DeleteAnswer, PurchaseAnswer, PurchaseRequest
from garrison.models.group import Refusal
from garrison.models.nodepool import (
    MachineDeletion,
    PoolOffer,
    PoolOffersAnswer,
    PoolOffersRequest,
)
from garrison.models.offer import Offer, OfferQuery
from garrison.models.resources import Resources
from garrison.providers.base import Workloads


class PoolActivities:
    """Bound to the calls of one provider by the worker that hosts its queue."""

    def __init__(
        self,
        calls: ProviderActivities,
        *,
        effect_bound: timedelta,
        clock: Callable[[], datetime],
        capacity_of: Callable[[Offer], Resources] = nominal_resources,
        workloads: Workloads | None = None,
        keeper: LogKeeper | None = None,
    ) -> None:
        """Bind to a provider's calls.

        Args:
            calls: To the provider, with the operator's prices.
            effect_bound: Of the provider's facts.
            clock: The time of this host.
            capacity_of: What replicas can really use of a machine.
            workloads: The provider's way to what runs on its nodes.
            keeper: Saves the logs of what nobody stopped.
        """
        self._workloads = workloads
        self._keeper = keeper
        self._calls = calls
        self._effect_bound = effect_bound
        self._clock = clock
        self._capacity_of = capacity_of

    @activity.defn(name="pool_offers")
    async def pool_offers(self, request: PoolOffersRequest) -> PoolOffersAnswer:
        """Return what a pool may buy in its region, and which types are not sold there."""
        offers: list[PoolOffer] = []
        unknown: list[str] = []
        for name in dict.fromkeys(request.instance_types):
            sold = [
                offer
                async for offer in self._offers(name)
                if offer.region in (None, request.region) and offer.whole_machine
            ]
            if not sold:
                unknown.append(name)
            offers += [
                PoolOffer(offer=offer, capacity=self._capacity_of(offer))
                for offer in sold
                if offer.capacity_type in request.capacity_types
            ]
        return PoolOffersAnswer(offers=tuple(offers), unknown_types=tuple(unknown))

    async def _offers(self, instance_type: str) -> AsyncIterator[Offer]:
        offset: int | None = 0
        while offset is not None:
            page = await self._calls.list_offers(
                OfferQuery(instance_type=instance_type, offset=offset)
            )
            for offer in page.offers:
                if offer.instance_type.lower() == instance_type.lower():
                    yield offer
            offset = page.next_offset

    @activity.defn(name="buy_machine")
    async def buy_machine(self, purchase: PurchaseRequest) -> PurchaseAnswer:
        """Buy one machine; a refusal for good is an answer, whatever its reason.

        So a pool can tell a first try that was refused, which leaves nothing, from one before
        which others were lost.
        """
        try:
            return await self._calls.purchase_group(purchase)
        except GarrisonError as error:
            if error.retryable:
                raise
            ended_at = self._clock()
            certain = activity.info().attempt == 1 and not isinstance(error, ProviderError)
            return PurchaseAnswer(
                refusal=Refusal(code=error.code, message=str(error)),
                ended_at=ended_at,
                effects_until=None if certain else ended_at + self._effect_bound,
            )

    @activity.defn(name="delete_machine")
    async def delete_machine(self, deletion: MachineDeletion) -> DeleteAnswer:
        """Delete one machine by its token, known or not, then ask for a look.

        Before that the logs of replicas are saved that still run there, as far as that is quick.
        """
        async with beating():
            await self._save_logs(deletion)
        return await self._calls.delete_groups(deletion.request)

    async def _save_logs(self, deletion: MachineDeletion) -> None:
        node, workloads, keeper = deletion.node, self._workloads, self._keeper
        if node is None or workloads is None or keeper is None:
            return
        kept = await asyncio.gather(
            *(keeper.stop_and_keep_replica(workloads, node, name) for name in deletion.replicas)
        )
        pairs = zip(deletion.replicas, kept, strict=True)
        if failed := {name: why for name, why in pairs if isinstance(why, str)}:
            extra = {"token": deletion.request.tokens[0], "failed": failed}
            activity.logger.warning("logs were not saved", extra=extra)
