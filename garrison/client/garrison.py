"""The entry to the SDK: `async with Garrison.connect() as garrison: ...`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from temporalio.client import Client

from garrison.client.clusters import Clusters
from garrison.client.offers import Offers
from garrison.client.orphans import Orphans
from garrison.client.providers import Providers
from garrison.service import connect_service
from garrison.settings import Settings, load_settings


class Garrison:
    """All of Garrison that one Temporal namespace has.

    Attributes:
        clusters: Quote, launch, watch over and terminate clusters.
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

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, settings: Settings | None = None) -> AsyncIterator[Garrison]:
        """Connect to the service that the environment, or a running `garrison up`, names.

        Raises:
            ServiceUnreachable: Nothing answers there.
        """
        settings = settings or load_settings()
        yield cls(await connect_service(settings), settings)
