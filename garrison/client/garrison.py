"""The entry to the SDK: `async with Garrison.connect() as garrison: ...`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from temporalio.client import Client

from garrison.client.apply import Apply
from garrison.client.clusters import Clusters
from garrison.client.compute_clusters import ComputeClusters
from garrison.client.deletions import Deletions
from garrison.client.deployments import Deployments
from garrison.client.nodepools import Nodepools
from garrison.client.offers import Offers
from garrison.client.orphans import Orphans
from garrison.client.pool_market import PoolMarket
from garrison.client.providers import Providers
from garrison.client.tree import read_tree
from garrison.models.elastic_rows import ResourceTree
from garrison.service import connect_service
from garrison.settings import Settings, load_settings


class Garrison:
    """All of Garrison that one Temporal namespace has.

    Attributes:
        clusters: Quote, launch, watch over and terminate clusters.
        compute_clusters: Providers and regions in which nodepools live.
        nodepools: Elastic sets of like machines.
        deployments: Replicas of workloads over nodepools.
        deletions: What would go with one of these.
        apply: Make all of these so as some files say.
        offers: What providers sell.
        providers: Which providers are configured.
        orphans: Machines that nobody answers for.
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        """Wrap a connected client.

        Args:
            client: Connected with `garrison.failures.DATA_CONVERTER`.
            settings: Of this process.
        """
        self.clusters = Clusters(client, settings)
        self.providers = Providers(client)
        self.offers = Offers(client, self.providers)
        self.orphans = Orphans(client, self.providers)
        self.compute_clusters = ComputeClusters(client, settings, self.providers)
        market = PoolMarket(client, self.offers)
        self.nodepools = Nodepools(client, settings, self.compute_clusters, market)
        self.deployments = Deployments(client, settings, self.nodepools)
        self.deletions = Deletions(self.compute_clusters, self.nodepools, self.deployments)
        self.apply = Apply(self.providers, self.compute_clusters, self.nodepools, self.deployments)

    async def tree(self) -> ResourceTree:
        """Return all compute clusters with what is in them, down to replicas, and what it costs."""
        return await read_tree(self.compute_clusters, self.nodepools)

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, settings: Settings | None = None) -> AsyncIterator[Garrison]:
        """Connect to the service that the environment, or a running `garrison up`, names.

        Raises:
            ServiceUnreachable: Nothing answers there.
        """
        settings = settings or load_settings()
        yield cls(await connect_service(settings), settings)
