"""The same calls to a simulated cloud as Garrison's activities make, for an arm that buys too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from garrison.catalog.loader import load_offers
from garrison.models.cluster_messages import PrepareRequest, PurchaseRequest
from garrison.models.group import Group
from garrison.models.offer import OfferQuery
from garrison.providers.base import NodeSetup
from garrison.providers.simulated.provider import SimulatedProvider


class RawCloud:
    """A simulated cloud of the raw arm's own; each workflow is one purchase in it."""

    def __init__(self, path: Path) -> None:
        """Open the cloud in a file."""
        self._provider = SimulatedProvider(
            path, installation="raw", name="raw", offers=load_offers(), boot=timedelta(0)
        )
        self._bought: dict[str, Group] = {}

    async def call(self, activity: str, life: str, request: Any) -> None:
        """Make the provider calls of an activity; those that need none make none."""
        match activity:
            case "place_cluster":
                await self._provider.list_offers(OfferQuery())
            case "purchase_group":
                await self._buy(life, request)
            case "prepare_nodes":
                await self._prepare(life, request)
            case "delete_groups":
                await self._provider.terminate_group(_token(life))
                self._bought.pop(life, None)

    async def _buy(self, life: str, purchase: PurchaseRequest) -> None:
        order = purchase.request.model_copy(
            update={"token": _token(life), "owner": life, "uid": life}
        )
        group = await self._provider.launch_group(order)
        if isinstance(group, Group):
            self._bought[life] = group

    async def _prepare(self, life: str, request: PrepareRequest) -> None:
        setup = NodeSetup(
            authorized_keys=request.authorized_keys, env={}, hostfile=request.hostfile
        )
        for node in self._bought[life].nodes:
            await self._provider.workloads.prepare_node(node, setup)


def _token(life: str) -> str:
    return life[-64:]
