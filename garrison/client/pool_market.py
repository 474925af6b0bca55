"""What a nodepool would buy, asked of its provider before the nodepool is made."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from temporalio.client import Client
from temporalio.common import RetryPolicy

from garrison.client.offers import Offers
from garrison.client.translation import translated
from garrison.domain.apply_plan import machines_held
from garrison.domain.claims import claim_warnings
from garrison.domain.pools.market import rank_offers
from garrison.domain.rates import node_rate
from garrison.errors import InvalidSpec, Problem, Unsupported
from garrison.models.base import Message, Money
from garrison.models.nodepool import (
    NodepoolSpec,
    PoolOffer,
    PoolOffersAnswer,
    PoolOffersRequest,
)
from garrison.models.offer import Offer, OfferQuery
from garrison.models.problems import shown, suggestion
from garrison.models.queues import provider_queue
from garrison.models.resources import Resources

CALL_TIMEOUT = timedelta(seconds=20)


class PoolPreview(Message):
    """What a nodepool would buy, first to last choice.

    Attributes:
        offer: Its first choice now, None when it could buy nothing; `reason` says why not.
        usd_per_hour: Of that one machine, None where it is not known.
        machines: How many it has even while nobody wants anything of it.
        warnings: What is strange, in words.
    """

    provider: str
    region: str
    offer: Offer | None = None
    reason: str = ""
    usd_per_hour: Money | None = None
    machines: int = 0
    warnings: tuple[str, ...] = ()


class PoolMarket:
    """What providers sell to nodepools."""

    def __init__(self, client: Client, offers: Offers) -> None:
        self._client = client
        self._offers = offers

    async def preview(
        self, spec: NodepoolSpec, provider: str, region: str, claims: Mapping[str, Resources]
    ) -> PoolPreview:
        """Return what a nodepool would buy in a region; nothing is bought.

        Raises:
            InvalidSpec: An instance type is not sold there, or the provider is not configured.
            Unsupported: None is sold there in any of the wanted capacity types.
        """
        answer = await self._sold(spec, provider, region)
        if answer.unknown_types:
            raise await self._unknown(spec, provider, region, answer.unknown_types)
        if not answer.offers:
            kinds = " or ".join(str(kind) for kind in spec.capacity_types)
            types = ", ".join(spec.instance_types)
            raise Unsupported(f"{provider} sells no {kinds} {types} in {region}")
        ranking = rank_offers(spec, answer.offers, {}, datetime.now(UTC))
        first = ranking.offers[0].offer if ranking.offers else None
        return PoolPreview(
            provider=provider,
            region=region,
            offer=first,
            reason=ranking.reason,
            usd_per_hour=None if first is None else node_rate(first, 1),
            machines=machines_held(spec),
            warnings=tuple(_warnings(spec, answer.offers, claims, first, ranking.reason)),
        )

    async def _sold(self, spec: NodepoolSpec, provider: str, region: str) -> PoolOffersAnswer:
        request = PoolOffersRequest(
            provider=provider,
            region=region,
            instance_types=spec.instance_types,
            capacity_types=spec.capacity_types,
        )
        with translated(f"offers of {provider}"):
            answer: PoolOffersAnswer = await self._client.execute_activity(
                "pool_offers",
                request,
                id=f"pool-offers/{provider}/{uuid.uuid4()}",
                task_queue=provider_queue(provider),
                result_type=PoolOffersAnswer,
                schedule_to_close_timeout=CALL_TIMEOUT,
                start_to_close_timeout=CALL_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=2),
                summary=f"offers of {provider} for {spec.compute_cluster}/{spec.id}",
            )
        return answer

    async def _unknown(
        self, spec: NodepoolSpec, provider: str, region: str, unknown: Iterable[str]
    ) -> InvalidSpec:
        query = OfferQuery(provider=provider, region=region)
        sold = {offer.instance_type for offer in await self._offers.list(query)}
        problems = [
            Problem(
                f"nodepool.instance_types[{spec.instance_types.index(name)}]",
                f"{provider} sells no {shown(name)} in {region}; {suggestion(name, sold)}",
            )
            for name in unknown
        ]
        what = f"nodepool {spec.compute_cluster}/{spec.id} is not valid"
        return InvalidSpec(what, problems=tuple(problems))


def _warnings(
    spec: NodepoolSpec,
    sold: Iterable[PoolOffer],
    claims: Mapping[str, Resources],
    first: Offer | None,
    reason: str,
) -> Iterable[str]:
    capacities = {one.offer.instance_type.lower(): one.capacity for one in sold}
    for name, claim in claims.items():
        if name.lower() in capacities:
            yield from claim_warnings(name, claim, capacities[name.lower()])
    if first is None and spec.max_instances:
        yield f"nothing can be bought now: {reason}"
