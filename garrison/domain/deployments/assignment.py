"""Which pool each waiting replica of a deployment belongs to; rule 4 of `docs/placement.md`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from garrison.domain.deployments.pool_choice import PoolChoice, order_pools
from garrison.domain.deployments.replicas import (
    assign,
    change,
    has_place,
    is_draining,
    node_of,
    settle,
    withdraw,
)
from garrison.domain.resource_ids import nodepool_workflow_id
from garrison.models.deployment import DeploymentPool, DeploymentSpec, SchedulingChoice
from garrison.models.deployment_state import DeploymentState, PoolTalk, Replica

FIRST_WORD = timedelta(seconds=5)
"""How long a pool may take to say what it is like before others are chosen without it."""

BACK_AFTER = timedelta(seconds=30)
LONGEST_BACK_AFTER = timedelta(minutes=10)
"""A pool that was left because it was full is not tried again before, though it has room again.

Twice as long with each move, lest two pools that are wrong about themselves play ball.
"""


def pool_ids(spec: DeploymentSpec) -> dict[str, DeploymentPool]:
    """Return a spec's pools by workflow id, in the file's order."""
    return {
        nodepool_workflow_id(pool.compute_cluster, pool.nodepool): pool for pool in spec.nodepools
    }


def place_waiting(state: DeploymentState, *, now: datetime) -> None:
    """Give each replica without a pool to one, and take it back from one that has no room."""
    for replica in list(state.replicas.values()):
        if replica.leaving is None and replica.withdrawn is None and replica.pool is not None:
            _leave_pool(state, replica, now)
    settle(state)
    if words_due_at(state, now=now) is not None:
        return
    for replica in list(state.replicas.values()):
        if replica.leaving is None and replica.pool is None:
            _enter_pool(state, replica, now)


def words_due_at(state: DeploymentState, *, now: datetime) -> datetime | None:
    """Return until when the choice waits for a pool's first word, None when it need not."""
    assert state.spec is not None
    if len(state.spec.nodepools) == 1:
        return None
    talks = [state.pools[pool] for pool in pool_ids(state.spec) if pool in state.pools]
    due = [talk.opened_at + FIRST_WORD for talk in talks if _is_silent(talk)]
    return max((time for time in due if time > now), default=None)


def back_at(state: DeploymentState, *, now: datetime) -> datetime | None:
    """Return when a pool that a waiting replica left may be tried again, None without one."""
    times = (
        back
        for replica in state.replicas.values()
        if replica.leaving is None and replica.withdrawn is None and _is_stranded(state, replica)
        for pool, back in replica.left.items()
        if pool != replica.pool
    )
    return min((time for time in times if time > now), default=None)


def _is_silent(talk: PoolTalk) -> bool:
    return talk.summary is None and not talk.missing


def _enter_pool(state: DeploymentState, replica: Replica, now: datetime) -> None:
    choices = _choices(state, replica)
    if choices:
        fresh = [choice for choice in choices if not _was_left(replica, choice.nodepool, now)]
        roomy = [choice for choice in fresh if not choice.full]
        best = (roomy or fresh or choices)[0]
        assign(state, replica.id, best.nodepool)


def _leave_pool(state: DeploymentState, replica: Replica, now: datetime) -> None:
    if not _is_stranded(state, replica):
        return
    better = _better_pool(state, replica, now)
    if better is None and replica.pool in _pools_of(state):
        return
    assert replica.pool is not None
    if replica.placed:  # it never moves: its successor is another replica
        change(state, replica.id, leaving="its pool has no room for it any more")
    else:
        pause = min(BACK_AFTER * (1 << min(replica.moves, 10)), LONGEST_BACK_AFTER)
        left = {**replica.left, replica.pool: now + pause}
        change(state, replica.id, left=left, moves=replica.moves + 1)
    withdraw(state, replica.id)


def _is_stranded(state: DeploymentState, replica: Replica) -> bool:
    """Return whether a replica waits in a pool that will not place it soon."""
    if replica.pool is None or replica.run is not None or node_of(replica) is not None:
        return False
    if replica.pool not in _pools_of(state):
        return True
    talk = state.pools[replica.pool]
    waits = replica.placement is not None and not is_draining(replica) and not has_place(replica)
    return talk.pool_closing or (waits and talk.summary is not None and talk.summary.full)


def _better_pool(state: DeploymentState, replica: Replica, now: datetime) -> str | None:
    for choice in _choices(state, replica):
        roomy = choice.known and not choice.full and choice.nodepool != replica.pool
        if roomy and not _was_left(replica, choice.nodepool, now):
            return choice.nodepool
    return None


def _was_left(replica: Replica, pool: str, now: datetime) -> bool:
    return pool in replica.left and now < replica.left[pool]


def _pools_of(state: DeploymentState) -> dict[str, DeploymentPool]:
    assert state.spec is not None
    return pool_ids(state.spec)


def _choices(state: DeploymentState, replica: Replica) -> Sequence[PoolChoice]:
    """Return the pools that a replica could be in, best first."""
    assert state.spec is not None
    open_pools = dict(_open_pools(state))
    summaries = {
        pool: summary for pool in open_pools if (summary := state.pools[pool].summary) is not None
    }
    return order_pools(
        tuple(open_pools.values()),
        summaries,
        state.spec.scheduling_choice,
        seed=f"{state.uid}/{replica.id}",
    )


def has_open_pool(state: DeploymentState) -> bool:
    """Return whether a nodepool is there that takes replicas, with room or without."""
    return any(_open_pools(state))


def _open_pools(state: DeploymentState) -> Iterator[tuple[str, DeploymentPool]]:
    assert state.spec is not None
    pools = pool_ids(state.spec)
    if state.spec.scheduling_choice is SchedulingChoice.FAIL:
        pools = dict(sorted(pools.items(), key=lambda item: -item[1].priority)[:1])
    for pool, chosen in pools.items():
        talk = state.pools.get(pool)
        if talk is not None and not talk.missing and not talk.pool_closing:
            yield pool, chosen
