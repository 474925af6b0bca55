"""In which order a deployment tries its nodepools for a new replica.

The higher priority goes first, whatever the scheduling choice; the choice decides among pools of
the same priority, and what it leaves equal stays in the order of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from garrison.domain.resource_ids import nodepool_workflow_id
from garrison.models.deployment import DeploymentPool, SchedulingChoice
from garrison.models.offer import CapacityType
from garrison.models.placement import PoolSummary

_Rank: TypeAlias = tuple[bool | Decimal | str, ...]


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """A pool that a replica may go to.

    Attributes:
        nodepool: Its workflow id.
        full: It can take none now.
        known: It has said something of itself; one that has not is not taken to be full.
    """

    nodepool: str
    full: bool = False
    known: bool = True


def order_pools(
    pools: Sequence[DeploymentPool],
    summaries: Mapping[str, PoolSummary],
    choice: SchedulingChoice,
    *,
    seed: str,
) -> tuple[PoolChoice, ...]:
    """Return the pools for a new replica, the one to try first is first.

    Under `FAIL` there is only the first: where it is full, the replica is refused.

    Args:
        pools: In the order of the file.
        summaries: What each pool says of itself, by workflow id; none of a pool that is not
            known yet.
        choice: The deployment's.
        seed: Of `RANDOM`: the deployment's uid and the replica's id. The same seed gives the
            same order, and each pool is as likely to be first.
    """
    prior = sorted(pools, key=lambda pool: -pool.priority)
    names = dict.fromkeys(nodepool_workflow_id(p.compute_cluster, p.nodepool) for p in prior)
    priority = _priorities(prior)
    ordered = sorted(
        names, key=lambda name: (-priority[name], _rank(name, summaries.get(name), choice, seed))
    )
    chosen = ordered[:1] if choice is SchedulingChoice.FAIL else ordered
    return tuple(_choice(name, summaries.get(name)) for name in chosen)


def _priorities(prior: Sequence[DeploymentPool]) -> dict[str, int]:
    """Return each pool's priority; the highest of one that is named twice."""
    found: dict[str, int] = {}
    for pool in prior:
        name = nodepool_workflow_id(pool.compute_cluster, pool.nodepool)
        found.setdefault(name, pool.priority)
    return found


def _choice(name: str, summary: PoolSummary | None) -> PoolChoice:
    if summary is None:
        return PoolChoice(name, known=False)
    return PoolChoice(name, full=summary.full)


def _rank(name: str, summary: PoolSummary | None, choice: SchedulingChoice, seed: str) -> _Rank:
    """Return how a choice ranks a pool among those of its priority; the least goes first."""
    if choice is SchedulingChoice.RANDOM:
        return (hashlib.sha256(f"{seed}/{name}".encode()).hexdigest(),)
    if choice is SchedulingChoice.PRICE:
        return _by_price(summary)
    if choice is SchedulingChoice.UTILIZATION:
        return _by_use(summary)
    if choice is SchedulingChoice.PREFER_SPOT:
        return (not _sells(summary, CapacityType.SPOT), *_by_price(summary))
    if choice is SchedulingChoice.PREFER_ONDEMAND:
        return (not _sells(summary, CapacityType.ON_DEMAND), *_by_price(summary))
    # FAIL, PERFORMANCE and NETWORK trust the order of the file.
    return ()


def _by_price(summary: PoolSummary | None) -> _Rank:
    price = summary.usd_per_hour if summary is not None else None
    full = summary is not None and summary.full
    return full, price is None, price or Decimal(0)


def _by_use(summary: PoolSummary | None) -> _Rank:
    if summary is None:
        return False, Decimal(0)
    return summary.full, -summary.utilization


def _sells(summary: PoolSummary | None, capacity: CapacityType) -> bool:
    return summary is not None and capacity in summary.capacity_types
