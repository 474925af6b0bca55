"""Calls to one provider: quote, buy, prepare, restart, give back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

from temporalio import activity

from garrison.activities.heartbeat import beating
from garrison.activities.watches import Watches
from garrison.domain.placement import choose_offers
from garrison.errors import Faulty, GarrisonError, ProviderError
from garrison.models.cluster_messages import (
    DeleteAnswer,
    DeleteRequest,
    PlaceAnswer,
    PlaceRequest,
    PrepareAnswer,
    PrepareRequest,
    PurchaseAnswer,
    PurchaseRequest,
    RestartAnswer,
    RestartRequest,
)
from garrison.models.group import Group, Node, Refusal
from garrison.models.observation import WatchAsk
from garrison.models.offer import Offer, OfferList, OfferQuery
from garrison.models.quote import QuoteRefusal
from garrison.providers.base import NodeSetup, Provider, Workloads

OFFERS_A_PAGE = 300
"""Keeps a page well below the size that the service warns of."""

UNKNOWN_ERROR_TRIES = 5
"""How often a call is tried whose error nobody mapped."""

T = TypeVar("T")


class ProviderActivities:
    """Bound to one provider account by the worker that hosts its queue."""

    def __init__(
        self,
        provider: Provider,
        watches: Watches,
        *,
        authorized_keys: tuple[str, ...],
        own_price: Callable[[Offer], Offer] | None = None,
        clock: Callable[[], datetime],
    ) -> None:
        """Bind to a provider.

        Args:
            provider: The account, behind its gate (`PacedProvider`), to which it is left to see
                a launch that was sent through to its outcome.
            watches: Asked for a look after each call that changes machines.
            authorized_keys: The installation's own SSH public keys, for every node.
            own_price: Applies the operator's prices to an offer.
            clock: The time of this host.
        """
        self._provider = provider
        self._watches = watches
        self._authorized_keys = authorized_keys
        self._own_price = own_price
        self._clock = clock

    @activity.defn(name="list_offers")
    async def list_offers(self, query: OfferQuery) -> OfferList:
        """Return a page of what the provider sells, at the operator's prices where set."""
        offers = await self._offers(query)
        end = query.offset + OFFERS_A_PAGE
        more = end if end < len(offers) else None
        return OfferList(offers=offers[query.offset : end], next_offset=more)

    async def _offers(self, query: OfferQuery) -> tuple[Offer, ...]:
        offers = await self._provider.list_offers(query)
        if self._own_price is None:
            return tuple(offers)
        return tuple(map(self._own_price, offers))

    @activity.defn(name="place_cluster")
    async def place_cluster(self, request: PlaceRequest) -> PlaceAnswer:
        """Return this provider's offers for a shape; that there are none is a value."""
        offers = await self._offers(OfferQuery())
        facts = {request.provider: self._provider.facts}
        try:
            found = choose_offers(request.shape, offers, facts, request.limits)
        except GarrisonError as error:
            problems = error.problems if isinstance(error, Faulty) else ()
            refusal = QuoteRefusal(code=error.code, message=str(error), problems=problems)
            return PlaceAnswer(provider=request.provider, refusal=refusal)
        return PlaceAnswer(
            provider=request.provider,
            offers=(found.chosen, *found.alternatives),
            gpus_per_node=found.gpus_per_node,
            considered=found.considered,
        )

    @activity.defn(name="purchase_group")
    async def purchase_group(self, purchase: PurchaseRequest) -> PurchaseAnswer:
        """Buy a group, or find what an earlier try under the same token bought.

        The watch runs before anything is bought. A cancel waits for the outcome of a call that
        was sent, since an abandoned purchase is a machine nobody knows.
        """
        request = purchase.request
        async with beating(request.token):
            await self._watches.start(self._provider.facts.name)
            outcome = await self._bounded(self._find_or_buy(request.token, purchase))
            ended_at = self._clock()
            await self._look(request.owner, request.uid)
        until = self._earlier_effects_until(ended_at)
        if isinstance(outcome, Refusal):
            return PurchaseAnswer(refusal=outcome, ended_at=ended_at, effects_until=until)
        activity.logger.info("group bought", extra={"token": request.token})
        return PurchaseAnswer(group=outcome, ended_at=ended_at, effects_until=until)

    def _earlier_effects_until(self, ended_at: datetime) -> datetime | None:
        """Return when an earlier try, which may still be under way, is without effect for good."""
        if activity.info().attempt == 1:
            return None
        return ended_at + self._provider.facts.effect_bound

    async def _find_or_buy(self, token: str, purchase: PurchaseRequest) -> Group | Refusal:
        if activity.info().attempt > 1:
            # A price that rose since the lost answer must not hide what was bought below it.
            for group in await self._provider.list_groups():
                if group.token == token and len(group.nodes) == purchase.request.count:
                    return group
        return await self._provider.launch_group(purchase.request)

    @activity.defn(name="prepare_nodes")
    async def prepare_nodes(self, request: PrepareRequest) -> PrepareAnswer:
        """Reach every node and let the installation's and the user's keys in.

        Raises:
            ProviderUnreachable: A node does not answer yet.
        """
        workloads = self._provider.workloads
        if workloads is None:
            return PrepareAnswer(nodes=request.nodes)
        async with beating():
            nodes = await self._bounded(self._prepare_all(workloads, request))
        return PrepareAnswer(nodes=nodes)

    async def _prepare_all(self, workloads: Workloads, request: PrepareRequest) -> tuple[Node, ...]:
        keys = (*self._authorized_keys, *request.authorized_keys)
        calls = (
            workloads.prepare_node(
                node,
                NodeSetup(
                    authorized_keys=keys,
                    env=request.envs.get(node.rank, {}),
                    hostfile=request.hostfile,
                ),
            )
            for node in request.nodes
        )
        return tuple(await asyncio.gather(*calls))

    @activity.defn(name="restart_node")
    async def restart_node(self, request: RestartRequest) -> RestartAnswer:
        """Bring one node back in place; its token keeps a retry from doing it twice."""
        async with beating(request.token):
            call = self._provider.restart_node(request.provider_id, request.token)
            result = await self._bounded(call)
            ended_at = self._clock()
            await self._look(request.owner, request.uid)
        return RestartAnswer(result=result, ended_at=ended_at)

    @activity.defn(name="delete_groups")
    async def delete_groups(self, request: DeleteRequest) -> DeleteAnswer:
        """Delete all machines under some tokens, known or not, then ask for a look."""
        async with beating():
            for token in request.tokens:
                await self._provider.terminate_group(token)
            ended_at = self._clock()
            await self._look(request.owner, request.uid, not_before=request.look_at)
        return DeleteAnswer(ended_at=ended_at)

    async def _look(self, owner: str, uid: str, not_before: datetime | None = None) -> None:
        now = self._clock()
        when = now if not_before is None else max(now, not_before)
        ask = WatchAsk(owner=owner, uid=uid, not_before=when)
        await self._watches.ask(self._provider.facts.name, ask)

    async def _bounded(self, call: Awaitable[T]) -> T:
        """Await a provider call; an error that nobody mapped is final after some tries."""
        try:
            return await call
        except ProviderError as error:
            if activity.info().attempt >= UNKNOWN_ERROR_TRIES:
                error.retryable = False
            raise
