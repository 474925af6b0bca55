"""Compute clusters, for programs: a provider and a region in which nodepools live."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta

from temporalio.client import Client

from garrison.client.elastic_kinds import (
    COMPUTE_CLUSTER,
    NODEPOOL,
    compute_cluster_entity,
    row_of,
    total_usd,
)
from garrison.client.entities import Entities
from garrison.client.entity import Beginning, Made
from garrison.client.lives import CALL_TIMEOUT
from garrison.client.providers import Providers
from garrison.errors import InvalidSpec, Problem
from garrison.models.compute_cluster import (
    ComputeClusterInput,
    ComputeClusterRequest,
    ComputeClusterSpec,
    ComputeClusterStatus,
    DeleteAccepted,
    DeleteRequested,
)
from garrison.models.elastic_rows import ComputeClusterRow, NodepoolRow
from garrison.models.problems import shown, suggestion
from garrison.models.provider import ProviderFacts
from garrison.settings import Settings


def check_place(spec: ComputeClusterSpec, providers: Mapping[str, ProviderFacts]) -> None:
    """Return if the provider is configured and has the region.

    Args:
        spec: What is wanted.
        providers: Those configured, by name.

    Raises:
        InvalidSpec: Says which was probably meant.
    """
    facts = providers.get(spec.provider)
    if facts is None:
        field, wanted = "cloud_provider.id", f"{shown(spec.provider)} is not configured"
        hint = suggestion(spec.provider, providers)
    elif facts.regions and spec.region not in facts.regions:
        field, wanted = "region", f"{spec.provider} has no region {shown(spec.region)}"
        hint = suggestion(spec.region, facts.regions)
    else:
        return
    what = f"compute cluster {spec.id} cannot be made"
    raise InvalidSpec(what, problems=(Problem(f"compute_cluster.{field}", f"{wanted}; {hint}"),))


class ComputeClusters:
    """All compute clusters. Every method raises `GarrisonError`s only."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        providers: Providers,
        *,
        call_timeout: timedelta = CALL_TIMEOUT,
    ) -> None:
        """Wrap a connected client.

        Args:
            client: Connected with `garrison.failures.DATA_CONVERTER`.
            settings: Of this process.
            providers: The configured ones.
            call_timeout: How long a worker may take to answer.
        """
        self._settings = settings
        self._providers = providers
        self._entities = Entities(client, COMPUTE_CLUSTER, call_timeout=call_timeout)
        self._pools = Entities(client, NODEPOOL, call_timeout=call_timeout)

    async def check(self, spec: ComputeClusterSpec) -> None:
        """Return if a compute cluster can be made so, as far as providers are concerned.

        Raises:
            InvalidSpec: The provider is not configured, or has no such region.
        """
        check_place(spec, {facts.name: facts for facts in await self._providers.list()})

    async def create(
        self, spec: ComputeClusterSpec, *, request_id: str | None = None
    ) -> ComputeClusterStatus:
        """Make a compute cluster; it costs nothing. One that is just so already is returned.

        Raises:
            InvalidSpec: The provider is not configured, or has no such region.
            NameInUse: Another one has this id.
        """
        return (await self.make(spec, request_id=request_id)).answer

    async def make(
        self, spec: ComputeClusterSpec, *, request_id: str | None = None
    ) -> Made[ComputeClusterStatus]:
        """Do as `create` does, and say whether this call made it."""
        entity = compute_cluster_entity(spec.id)
        await self.check(spec)
        owner = self._settings.owner
        beginning = Beginning(
            build=lambda uid: ComputeClusterInput(id=spec.id, uid=uid, owner=owner),
            memo={"id": spec.id, "owner": owner},
            summary=f"{spec.provider}, {spec.region}",
        )
        request = self._request(spec, None, request_id)
        return await self._entities.create(entity, request, beginning, ComputeClusterStatus)

    async def update(
        self, spec: ComputeClusterSpec, *, uid: str | None = None, request_id: str | None = None
    ) -> ComputeClusterStatus:
        """Change description or visibility; provider and region stay as they are.

        Raises:
            NotFound: There is none of this id, or `uid` names another life.
            InvalidSpec, ConflictPhase: What cannot be changed would be.
        """
        request = self._request(spec, uid, request_id)
        entity = compute_cluster_entity(spec.id)
        return await self._entities.update(entity, "update", request, ComputeClusterStatus)

    def _request(
        self, spec: ComputeClusterSpec, uid: str | None, request_id: str | None
    ) -> ComputeClusterRequest:
        return ComputeClusterRequest(
            request_id=request_id or uuid.uuid4().hex, spec=spec, uid=uid, by=self._settings.owner
        )

    async def get(self, name: str, *, uid: str | None = None) -> ComputeClusterStatus:
        """Return a compute cluster.

        Raises:
            NotFound: There is none of this id, or no such life.
        """
        return await self._entities.read(compute_cluster_entity(name), uid)

    async def find(self, name: str) -> ComputeClusterStatus | None:
        """Return a compute cluster, None when there is none of this id."""
        return await self._entities.find(compute_cluster_entity(name))

    async def list(self) -> list[ComputeClusterRow]:
        """Return all compute clusters, newest first, with what their nodepools cost."""
        pools = [row_of(NodepoolRow, memo) async for memo in self._pools.memos()]
        rows = []
        async for memo in self._entities.memos():
            row = row_of(ComputeClusterRow, memo)
            own = [pool for pool in pools if pool.compute_cluster.lower() == row.id.lower()]
            usd = total_usd([(pool.hourly_usd, pool.nodes) for pool in own])
            ids = tuple(sorted(pool.id for pool in own))
            rows.append(row.model_copy(update={"nodepools": ids, "hourly_usd": usd}))
        return rows

    async def delete(
        self,
        name: str,
        *,
        cascade: bool = False,
        uid: str | None = None,
        request_id: str | None = None,
    ) -> DeleteAccepted:
        """Delete a compute cluster; the same answer each time.

        Args:
            name: Its id.
            cascade: Its nodepools too, with all machines of theirs.
            uid: Pins the life.
            request_id: The same id gets the same answer.

        Raises:
            ConflictPhase: It has nodepools, and `cascade` is not set.
            NotFound: There never was one, or `uid` names another life.
        """
        request = DeleteRequested(
            request_id=request_id or uuid.uuid4().hex,
            uid=uid,
            cascade=cascade,
            by=self._settings.owner,
        )
        return await self._entities.delete(compute_cluster_entity(name), request)

    async def wait_deleted(
        self,
        name: str,
        *,
        uid: str | None = None,
        timeout: timedelta | None = None,
        on_change: Callable[[ComputeClusterStatus], None] | None = None,
    ) -> None:
        """Return once a compute cluster that is being deleted is gone.

        Raises:
            WaitTimeout: The time passed; the deletion goes on.
        """
        entity = compute_cluster_entity(name)
        await self._entities.wait_gone(entity, uid=uid, timeout=timeout, on_change=on_change)


def spec_of(status: ComputeClusterStatus) -> ComputeClusterSpec:
    """Return what a compute cluster was asked to be."""
    return ComputeClusterSpec(
        **{name: getattr(status, name) for name in ComputeClusterSpec.model_fields}
    )
