"""Everything that deployments run on: compute clusters, nodepools, nodes, replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from garrison.client.compute_clusters import ComputeClusters
from garrison.client.elastic_kinds import total_usd
from garrison.client.nodepools import Nodepools
from garrison.errors import NotFound
from garrison.models.elastic_rows import (
    ComputeClusterBranch,
    ComputeClusterRow,
    NodepoolBranch,
    NodepoolRow,
    ResourceTree,
)
from garrison.models.nodepool import NodepoolStatus

AT_ONCE = 20


async def read_tree(compute_clusters: ComputeClusters, nodepools: Nodepools) -> ResourceTree:
    """Return all compute clusters by id, with what is in them.

    Raises:
        GarrisonError: The service, or a worker, does not answer.
    """
    rows = await nodepools.list()
    turn = asyncio.Semaphore(AT_ONCE)

    async def branch(row: NodepoolRow) -> NodepoolBranch | None:
        async with turn:
            return await _read_branch(nodepools, row)

    found = await asyncio.gather(*(branch(row) for row in rows))
    pools = [(row, one) for row, one in zip(rows, found, strict=True) if one is not None]
    parents = _parents(await compute_clusters.list(), rows)
    branches = tuple(_compute_cluster_branch(parent, pools) for parent in parents)
    costs = [(one.hourly_usd, 1) for one in branches]
    return ResourceTree(compute_clusters=branches, hourly_usd=total_usd(costs))


async def _read_branch(nodepools: Nodepools, row: NodepoolRow) -> NodepoolBranch | None:
    """Return a nodepool with its nodes, None when it was deleted in this moment."""
    try:
        status = await nodepools.get(row.compute_cluster, row.id, uid=row.uid)
    except NotFound:
        return None
    return nodepool_branch(status)


def nodepool_branch(status: NodepoolStatus) -> NodepoolBranch:
    """Return a nodepool as it stands in a tree."""
    return NodepoolBranch(
        id=status.id,
        phase=status.phase,
        desired=status.desired,
        ready=status.ready,
        pending=status.pending,
        hourly_usd=status.hourly_usd,
        nodes=status.nodes,
    )


def _parents(
    known: Sequence[ComputeClusterRow], pools: Sequence[NodepoolRow]
) -> list[ComputeClusterRow]:
    """Return compute clusters by id, with those that only nodepools still name."""
    ids = {row.id.lower() for row in known}
    named = {pool.compute_cluster.lower(): pool.compute_cluster for pool in pools}
    missing = [ComputeClusterRow(id=name, uid="") for key, name in named.items() if key not in ids]
    return sorted([*known, *missing], key=lambda row: row.id.lower())


def _compute_cluster_branch(
    row: ComputeClusterRow, pools: Sequence[tuple[NodepoolRow, NodepoolBranch]]
) -> ComputeClusterBranch:
    own = [one for pool, one in pools if pool.compute_cluster.lower() == row.id.lower()]
    return ComputeClusterBranch(
        id=row.id,
        phase=row.phase,
        provider=row.provider,
        region=row.region,
        hourly_usd=total_usd([(pool.hourly_usd, len(pool.nodes)) for pool in own]),
        nodepools=tuple(sorted(own, key=lambda pool: pool.id.lower())),
    )
