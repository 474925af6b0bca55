"""What would go with a compute cluster, nodepool or deployment, for who is about to delete it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from garrison.client.compute_clusters import ComputeClusters
from garrison.client.deployments import Deployments
from garrison.client.elastic_kinds import total_usd
from garrison.client.nodepools import Nodepools
from garrison.client.tree import AT_ONCE, nodepool_branch
from garrison.domain.compute_cluster import check_empty
from garrison.errors import ConflictPhase, NotFound
from garrison.models.elastic_rows import DeletePreview, DeploymentLoss, DeploymentRow
from garrison.models.nodepool import NodepoolStatus


class Deletions:
    """Looks before a delete; nothing is changed. Every method raises `GarrisonError`s only.

    Of what is not there any more nothing goes, and its `uid` is None.
    """

    def __init__(
        self, compute_clusters: ComputeClusters, nodepools: Nodepools, deployments: Deployments
    ) -> None:
        self._compute_clusters = compute_clusters
        self._nodepools = nodepools
        self._deployments = deployments

    async def compute_cluster(
        self, name: str, *, cascade: bool, uid: str | None = None
    ) -> DeletePreview:
        """Return what goes with a compute cluster: its nodepools, and what they have.

        Raises:
            ConflictPhase: It has nodepools, and `cascade` is not set; or some that it does not know
                of, as their compute cluster was ended in Temporal itself.
        """
        try:
            found = await self._compute_clusters.get(name, uid=uid)
        except NotFound:
            await self._check_no_strays(name, ())
            return DeletePreview()
        await self._check_no_strays(name, found.nodepools)
        # A delete that was accepted is accepted again, whatever it says.
        check_empty(found.id, found.nodepools, cascade=cascade or found.phase == "deleting")
        turn = asyncio.Semaphore(AT_ONCE)

        async def read(pool: str) -> NodepoolStatus | None:
            async with turn:
                return await self._nodepools.find(found.id, pool)

        pools = await asyncio.gather(*(read(pool) for pool in found.nodepools))
        return await self._with(found.uid, [pool for pool in pools if pool is not None])

    async def _check_no_strays(self, name: str, members: Sequence[str]) -> None:
        known = {member.lower() for member in members}
        strays = [row.id for row in await self._nodepools.list(name) if row.id.lower() not in known]
        if strays:
            raise ConflictPhase(
                f"compute cluster {name} knows nothing of nodepools that run in it: "
                f"{', '.join(strays)}; delete each: garrison nodepool delete {name} {strays[0]}"
            )

    async def nodepool(
        self, compute_cluster: str, name: str, *, uid: str | None = None
    ) -> DeletePreview:
        """Return what goes with a nodepool: its machines, and the replicas on them."""
        try:
            found = await self._nodepools.get(compute_cluster, name, uid=uid)
        except NotFound:
            return DeletePreview()
        return await self._with(found.uid, [found])

    async def deployment(self, name: str, *, uid: str | None = None) -> DeletePreview:
        """Return what goes with a deployment: its replicas."""
        try:
            found = await self._deployments.get(name, uid=uid)
        except NotFound:
            return DeletePreview()
        return DeletePreview(uid=found.uid, replicas=found.replicas, hourly_usd=found.hourly_usd)

    async def _with(self, uid: str, pools: Sequence[NodepoolStatus]) -> DeletePreview:
        rows = await self._deployments.list() if pools else []
        return DeletePreview(
            uid=uid,
            nodepools=tuple(nodepool_branch(pool) for pool in pools),
            deployments=tuple(losses(pools, rows)),
            hourly_usd=total_usd([(pool.hourly_usd, len(pool.nodes)) for pool in pools]),
        )


def losses(pools: Sequence[NodepoolStatus], rows: Iterable[DeploymentRow]) -> list[DeploymentLoss]:
    """Return the deployments that lose nodepools, with the replicas on these, by id.

    Args:
        pools: Those that go.
        rows: All deployments.
    """
    seats = _seats(pools)
    going = {f"{pool.compute_cluster}/{pool.id}".lower() for pool in pools}
    found = []
    for row in rows:
        replicas = seats.pop(row.id.lower(), ())
        left = tuple(pool for pool in row.nodepools if pool.lower() not in going)
        if replicas or len(left) < len(row.nodepools):
            found.append(DeploymentLoss(id=row.id, replicas=tuple(replicas), nodepools=left))
    # A list can be late; the nodes are not.
    found += [DeploymentLoss(id=id, replicas=tuple(names)) for id, names in seats.items()]
    return sorted(found, key=lambda loss: loss.id.lower())


def _seats(pools: Iterable[NodepoolStatus]) -> dict[str, list[str]]:
    """Return the replicas on nodes of some pools, by their deployment's id in lower case."""
    seats: dict[str, list[str]] = {}
    for replica in (seat for pool in pools for node in pool.nodes for seat in node.replicas):
        deployment = replica.deployment.removeprefix("deployment/").lower()
        seats.setdefault(deployment, []).append(replica.replica)
    return seats
