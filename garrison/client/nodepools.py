"""Nodepools, for programs: elastic sets of like machines."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta

from temporalio.client import Client

from garrison.client.compute_clusters import ComputeClusters
from garrison.client.elastic_kinds import NODEPOOL, nodepool_entity, nodepools_of, row_of
from garrison.client.entities import Entities
from garrison.client.entity import Beginning, Made
from garrison.client.lives import CALL_TIMEOUT
from garrison.client.pool_market import PoolMarket, PoolPreview
from garrison.domain.apply_plan import machines_held
from garrison.domain.pools.life import count_problems
from garrison.errors import InvalidSpec, NotFound
from garrison.models.compute_cluster import ComputeClusterSpec, DeleteAccepted, DeleteRequested
from garrison.models.elastic_rows import NodepoolRow
from garrison.models.nodepool import (
    NodepoolAck,
    NodepoolRequest,
    NodepoolSpec,
    NodepoolStatus,
    PoolPhase,
)
from garrison.models.nodepool_state import NodepoolInput
from garrison.models.resources import Resources
from garrison.settings import Settings

OnChange = Callable[[NodepoolStatus], None]


class Nodepools:
    """All nodepools. Every method raises `GarrisonError`s only."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        compute_clusters: ComputeClusters,
        market: PoolMarket,
        *,
        call_timeout: timedelta = CALL_TIMEOUT,
    ) -> None:
        """Wrap a connected client.

        Args:
            client: Connected with `garrison.failures.DATA_CONVERTER`.
            settings: Of this process.
            compute_clusters: In which the nodepools are.
            market: What providers sell.
            call_timeout: How long a worker may take to answer.
        """
        self._settings = settings
        self._compute_clusters = compute_clusters
        self._market = market
        self._entities = Entities(client, NODEPOOL, call_timeout=call_timeout)

    async def preview(
        self,
        spec: NodepoolSpec,
        *,
        claims: Mapping[str, Resources] | None = None,
        compute_cluster: ComputeClusterSpec | None = None,
        before: NodepoolSpec | None = None,
    ) -> PoolPreview:
        """Return what a nodepool would buy, and what is strange about it; nothing is made.

        Args:
            spec: What is wanted.
            claims: What its file says of its instance types, to be compared with the catalogue.
            compute_cluster: The one that it will be in, where that is not made yet.
            before: What it is now; `machines` are then those that come on top.

        Raises:
            NotFound: There is no such compute cluster.
            InvalidSpec: Its numbers cannot be, or the provider does not sell an instance type.
            Unsupported: Nor in any of the wanted capacity types.
        """
        entity = nodepool_entity(spec.compute_cluster, spec.id)
        if problems := tuple(count_problems(spec)):
            raise InvalidSpec(f"nodepool {entity.name} is not valid", problems=problems)
        place = compute_cluster or await self._place(spec)
        found = await self._market.preview(spec, place.provider, place.region, claims or {})
        held = 0 if before is None else machines_held(before)
        return found.model_copy(update={"machines": max(found.machines - held, 0)})

    async def _place(self, spec: NodepoolSpec) -> ComputeClusterSpec:
        found = await self._compute_clusters.find(spec.compute_cluster)
        if found is None and (pool := await self.find(spec.compute_cluster, spec.id)) is not None:
            # It goes on, whatever became of its compute cluster.
            given = {"id": pool.compute_cluster, "provider": pool.provider}
            return ComputeClusterSpec.model_validate({**given, "region": pool.region})
        if found is None:
            raise NotFound(
                f"there is no compute cluster {spec.compute_cluster}; make it first: `garrison"
                f" computecluster create {spec.compute_cluster} --config FILE`"
            )
        return ComputeClusterSpec(id=found.id, provider=found.provider, region=found.region)

    async def create(self, spec: NodepoolSpec, *, request_id: str | None = None) -> NodepoolAck:
        """Make a nodepool; with `min_instances` above 0 it buys at once, else nothing.

        Raises:
            NotFound: There is no such compute cluster.
            NameInUse: Another nodepool of it has this id.
            InvalidSpec, Unsupported: The provider does not sell what it names.
        """
        return (await self.make(spec, request_id=request_id)).answer

    async def make(self, spec: NodepoolSpec, *, request_id: str | None = None) -> Made[NodepoolAck]:
        """Do as `create` does, and say whether this call made it."""
        await self.preview(spec)
        owner = self._settings.owner
        beginning = Beginning(
            build=lambda uid: NodepoolInput(
                compute_cluster=spec.compute_cluster, id=spec.id, uid=uid, owner=owner
            ),
            memo={"id": spec.id, "compute_cluster": spec.compute_cluster, "owner": owner},
            summary=f"{spec.min_instances} to {spec.max_instances} x {spec.instance_types[0]}",
        )
        entity = nodepool_entity(spec.compute_cluster, spec.id)
        request = self._request(spec, None, request_id)
        return await self._entities.create(entity, request, beginning, NodepoolAck)

    async def update(
        self, spec: NodepoolSpec, *, uid: str | None = None, request_id: str | None = None
    ) -> NodepoolAck:
        """Change a nodepool; machines that it has stay as they are until they are released.

        Raises:
            NotFound: There is none of this id, or `uid` names another life.
            InvalidSpec, Unsupported: The provider does not sell what it names.
        """
        entity = nodepool_entity(spec.compute_cluster, spec.id)
        await self.preview(spec)
        request = self._request(spec, uid, request_id)
        return await self._entities.update(entity, "update", request, NodepoolAck)

    def _request(
        self, spec: NodepoolSpec, uid: str | None, request_id: str | None
    ) -> NodepoolRequest:
        return NodepoolRequest(
            request_id=request_id or uuid.uuid4().hex, spec=spec, uid=uid, by=self._settings.owner
        )

    async def get(
        self, compute_cluster: str, name: str, *, uid: str | None = None
    ) -> NodepoolStatus:
        """Return a nodepool with its machines.

        Raises:
            NotFound: There is none of this id, or no such life.
        """
        return await self._entities.read(nodepool_entity(compute_cluster, name), uid)

    async def find(self, compute_cluster: str, name: str) -> NodepoolStatus | None:
        """Return a nodepool, None when there is none of this id."""
        return await self._entities.find(nodepool_entity(compute_cluster, name))

    async def list(self, compute_cluster: str | None = None) -> list[NodepoolRow]:
        """Return nodepools, newest first.

        Args:
            compute_cluster: Only those in it.
        """
        within = None if compute_cluster is None else nodepools_of(compute_cluster)
        return [row_of(NodepoolRow, memo) async for memo in self._entities.memos(within)]

    async def delete(
        self,
        compute_cluster: str,
        name: str,
        *,
        uid: str | None = None,
        request_id: str | None = None,
    ) -> DeleteAccepted:
        """Delete a nodepool: it gives every machine back; the same answer each time.

        Raises:
            NotFound: There never was one, or `uid` names another life.
        """
        request = DeleteRequested(
            request_id=request_id or uuid.uuid4().hex, uid=uid, by=self._settings.owner
        )
        return await self._entities.delete(nodepool_entity(compute_cluster, name), request)

    async def wait(
        self,
        compute_cluster: str,
        name: str,
        *,
        uid: str | None = None,
        generation: int = 0,
        timeout: timedelta | None = None,
        on_change: OnChange | None = None,
    ) -> NodepoolStatus:
        """Return once a nodepool has the machines that it wants.

        Args:
            compute_cluster: In which it is.
            name: Its id.
            uid: Pins the life.
            generation: The change that must have been acted on.
            timeout: None waits for ever.
            on_change: Called with each status that differs from the last.

        Raises:
            NotFound: It was deleted, or never got into its compute cluster.
            WaitTimeout: The time passed; it goes on.
        """
        return await self._entities.wait(
            nodepool_entity(compute_cluster, name),
            lambda status: is_settled(status, generation),
            uid=uid,
            timeout=timeout,
            on_change=on_change,
        )

    async def wait_deleted(
        self,
        compute_cluster: str,
        name: str,
        *,
        uid: str | None = None,
        timeout: timedelta | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        """Return once a nodepool that is being deleted has given everything back.

        Raises:
            WaitTimeout: The time passed; the deletion goes on.
        """
        entity = nodepool_entity(compute_cluster, name)
        await self._entities.wait_gone(entity, uid=uid, timeout=timeout, on_change=on_change)


def is_settled(status: NodepoolStatus, generation: int = 0) -> bool:
    """Return whether a pool has acted on a change and has just the machines that it wants."""
    acted = status.observed_generation >= max(generation, status.generation)
    calm = status.phase in {PoolPhase.ACTIVE, PoolPhase.DISABLED}
    return calm and acted and status.ready == status.desired == len(status.nodes)
