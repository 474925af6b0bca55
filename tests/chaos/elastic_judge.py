"""Which promises a run of nodepools and deployments broke: a pure function of what is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from garrison.models.deployment import ReplicaState, ReplicaStatus
from garrison.models.nodepool import NodepoolNodeStatus
from garrison.providers.simulated.runs import Run
from tests.chaos.elastic_facts import (
    DeploymentLife,
    DeploymentWish,
    ElasticFacts,
    PoolLife,
    PoolWish,
    command_of,
)
from tests.chaos.judge import Kind, Violation, by_uid, overlap

AT_MAX = "pool at max"
Finding = tuple[Kind, str]


def judge_elastic(facts: ElasticFacts) -> list[Violation]:
    """Return every broken promise, each once."""
    found = [
        *_machines(facts),
        *_processes(facts),
        *((Kind.OTHER, text) for text in facts.complaints),
    ]
    for pool in facts.pools.values():
        name = f"{pool.status.id} {pool.status.uid[:8]}"
        found += [(kind, f"{name}: {text}") for kind, text in _pool(pool, facts)]
    for life in facts.deployments.values():
        name = f"{life.status.id} {life.status.uid[:8]}"
        found += [(kind, f"{name}: {text}") for kind, text in _deployment(life, facts)]
    return [Violation(kind, text) for kind, text in dict.fromkeys(found)]


# Machines, by the cloud's own books


def _machines(facts: ElasticFacts) -> Iterator[Finding]:
    for token, count in Counter(machine.token for machine in facts.machines).items():
        if count > 1:
            yield Kind.DOUBLE_BUY, f"{token} was bought {count} times"
    for uid, machines in by_uid(facts.machines).items():
        pool = facts.pools.get(uid)
        if pool is None:
            living = [machine.provider_id for machine in machines if machine.ended_at is None]
            yield from ((Kind.LEAK, f"{provider_id} is nobody's") for provider_id in living)
            continue
        for machine in machines:
            if not machine.token.startswith(f"{uid}-"):
                text = f"{pool.status.id}: {machine.provider_id} was bought under {machine.token}"
                yield Kind.DOUBLE_BUY, text
        if pool.wish is not None:
            most = max(sum(overlap(one, other) for other in machines) for one in machines)
            if most > pool.wish.highest:
                text = f"{pool.status.id}: {most} machines at once instead of {pool.wish.highest}"
                yield Kind.DOUBLE_BUY, text
        yield from _leaks(pool, facts)


def _leaks(pool: PoolLife, facts: ElasticFacts) -> Iterator[Finding]:
    name, known = pool.status.id, {node.name for node in pool.status.nodes}
    for machine in facts.machines:
        if machine.uid != pool.status.uid:
            continue
        if pool.closed_at is not None:
            if machine.ended_at is None or machine.ended_at > pool.closed_at:
                yield Kind.LEAK, f"{machine.provider_id} outlived {name}"
        elif machine.ended_at is None and machine.token not in known:
            yield Kind.LEAK, f"{name} does not know {machine.provider_id}"


# Processes, by the cloud's own record


def _processes(facts: ElasticFacts) -> Iterator[Finding]:
    by_replica: dict[str, list[Run]] = {}
    for run in facts.runs:
        by_replica.setdefault(run.name, []).append(run)
    lives = {life.wish.key: life for life in facts.deployments.values() if life.wish is not None}
    for replica, runs in by_replica.items():
        yield from _double_runs(replica, runs)
        life = lives.get(replica.rpartition("-")[0])
        yield from _strays(replica, runs, life, facts)
    for key, life in lives.items():
        own = [run for run in facts.runs if run.name.rpartition("-")[0] == key]
        yield from _crowd(life, own)
    for run in facts.runs:
        if run.ended_at and not run.stopped and run.provider_id not in facts.broken:
            yield Kind.LOST_REPLICA, f"{run.provider_id} was deleted while {run.name} ran on it"


def _double_runs(replica: str, runs: Sequence[Run]) -> Iterator[Finding]:
    for one, other in combinations(runs, 2):
        if one.provider_id != other.provider_id and _meet(one, other):
            text = f"{replica} ran on {one.provider_id} and {other.provider_id} at once"
            yield Kind.DOUBLE_RUN, text
    boots = Counter((run.provider_id, run.incarnation) for run in runs)
    for (provider_id, _), count in boots.items():
        if count > 1:
            yield Kind.DOUBLE_RUN, f"{replica} was started {count} times on {provider_id}"


def _meet(one: Run, other: Run) -> bool:
    return _runs_at_start(one, other) or _runs_at_start(other, one)


def _runs_at_start(one: Run, other: Run) -> bool:
    """Whether the one runs when the other begins."""
    return one.begun_at <= other.begun_at and (
        one.ended_at is None or one.ended_at > other.begun_at
    )


def _strays(
    replica: str, runs: Sequence[Run], life: DeploymentLife | None, facts: ElasticFacts
) -> Iterator[Finding]:
    """Find processes that run and that nobody knows, or not there."""
    known = {} if life is None else {one.name: one for one in life.status.replicas}
    tokens = {machine.provider_id: machine.token for machine in facts.machines}
    for run in runs:
        if run.ended_at is not None:
            continue
        if replica not in known:
            yield Kind.LEAK, f"{replica} runs on {run.provider_id}, and no deployment knows it"
        elif known[replica].node != tokens[run.provider_id]:
            text = f"{replica} runs on {run.provider_id}, its deployment says {known[replica].node}"
            yield Kind.LEAK, text


def _crowd(life: DeploymentLife, runs: Sequence[Run]) -> Iterator[Finding]:
    limit = life.status.spec.autoscale.max_replicas + 1  # one more while others are replaced
    most = max((sum(_runs_at_start(other, one) for other in runs) for one in runs), default=0)
    if most > limit:
        yield Kind.DOUBLE_RUN, f"{life.status.id}: {most} replicas ran at once, limit {limit}"


# What nodepools say


def _pool(pool: PoolLife, facts: ElasticFacts) -> Iterator[Finding]:
    yield from ((Kind.OTHER, text) for text in pool.faults)
    wish = pool.wish
    if wish is None:
        yield Kind.OTHER, "lives, though nobody was told of its creation"
        return
    if wish.deleted:
        if pool.closed_at is None:
            yield Kind.STUCK, f"was told to go and is {pool.status.phase}: {_nodes(pool)}"
        return
    if pool.closed_at is not None:
        yield Kind.LOST_ACK, "has ended though nobody deleted it"
        return
    spec = pool.status.spec
    if (spec.min_instances, spec.max_instances) != (wish.least, wish.most):
        text = f"has {spec.min_instances} to {spec.max_instances}"
        yield Kind.LOST_ACK, f"{text} instead of {wish.least} to {wish.most}"
    if pool.status.blocked is not None:
        blocked = pool.status.blocked
        yield Kind.STUCK, f"stays blocked: {blocked.code}: {blocked.message}"
    yield from _node_counts(pool, wish, facts)
    yield from _seats(pool, facts)


def _node_counts(pool: PoolLife, wish: PoolWish, facts: ElasticFacts) -> Iterator[Finding]:
    nodes = pool.status.nodes
    if len(nodes) > wish.most and not _somebody_waits(facts):
        yield Kind.STUCK, f"keeps {len(nodes)} machines, limit {wish.most}: {_nodes(pool)}"
    odd = [node for node in nodes if node.state != "running" and not _may_drain(node, facts)]
    if odd:
        yield Kind.STUCK, f"has machines on the way: {_nodes(pool)}"
    busy = sum(bool(node.replicas) for node in nodes)
    spare = max(pool.status.spec.warm_instances, wish.least - busy)
    wanted = min(wish.most, busy + spare)
    if len(nodes) != wanted and not odd and len(nodes) <= wish.most:
        yield Kind.STUCK, f"has {len(nodes)} machines instead of {wanted}: {_nodes(pool)}"


def _may_drain(node: NodepoolNodeStatus, facts: ElasticFacts) -> bool:
    """Whether a node waits to be left by replicas whose successors find no room."""
    return node.state == "draining" and bool(node.replicas) and _somebody_waits(facts)


def _somebody_waits(facts: ElasticFacts) -> bool:
    return any(_waits_for_room(life, facts) for life in facts.deployments.values())


def _nodes(pool: PoolLife) -> str:
    return ", ".join(
        f"{node.name[-2:]} {node.state} ({len(node.replicas)}) {node.message or ''}".strip()
        for node in pool.status.nodes
    )


def _seats(pool: PoolLife, facts: ElasticFacts) -> Iterator[Finding]:
    """Find places of replicas that their deployments do not know to be there."""
    where = {
        replica.name: replica.node
        for life in facts.deployments.values()
        if life.closed_at is None
        for replica in life.status.replicas
    }
    for node in pool.status.nodes:
        for seat in node.replicas:
            if where.get(seat.replica) != node.name:
                text = f"keeps a place on {node.name} for {seat.replica}"
                yield Kind.OTHER, f"{text}, which is on {where.get(seat.replica)}"


# What deployments say


def _deployment(life: DeploymentLife, facts: ElasticFacts) -> Iterator[Finding]:
    yield from ((Kind.OTHER, text) for text in life.faults)
    wish = life.wish
    if wish is None:
        yield Kind.OTHER, "lives, though nobody was told of its creation"
        return
    if wish.deleted:
        if life.closed_at is None:
            yield Kind.STUCK, f"was told to go and is {life.status.status}: {_replicas(life)}"
        return
    if life.closed_at is not None:
        yield Kind.LOST_ACK, "has ended though nobody deleted it"
        return
    yield from _lost_acks(life, wish)
    if life.status.blocked is not None:
        blocked = life.status.blocked
        yield Kind.STUCK, f"stays blocked: {blocked.code}: {blocked.message}"
    yield from _counts(life, wish, facts)


def _lost_acks(life: DeploymentLife, wish: DeploymentWish) -> Iterator[Finding]:
    status = life.status
    said = (status.fixed, status.status, status.spec.template.command, status.desired)
    enabled = "enabled" if wish.enabled else "disabled"
    told = (wish.fixed, enabled, command_of(wish.revision), wish.desired)
    for what, has, wants in zip(("scale", "status", "command", "desired"), said, told, strict=True):
        if has != wants:
            yield Kind.LOST_ACK, f"{what} is {has} instead of {wants}"


def _counts(life: DeploymentLife, wish: DeploymentWish, facts: ElasticFacts) -> Iterator[Finding]:
    status = life.status
    ready = [one for one in status.replicas if one.state is ReplicaState.READY]
    waits = _waits_for_room(life, facts)
    if not waits:
        counts = (wish.desired, status.ready, len(ready), len(status.replicas))
        if len(set(counts)) > 1:
            yield Kind.STUCK, f"wants {wish.desired} and has {_replicas(life)}"
        elif status.rollout.state != "done":
            yield Kind.STUCK, f"its rollout is {status.rollout.state}: {status.rollout.reason}"
    for replica in ready:
        commands = [r.command for r in facts.runs if r.name == replica.name and not r.ended_at]
        if len(commands) != 1:
            yield Kind.OTHER, f"says that {replica.name} is ready; it runs {len(commands)} times"
        elif not waits and commands != [" ".join(command_of(wish.revision))]:
            yield Kind.OTHER, f"{replica.name} runs {commands[0]}"


def _waits_for_room(life: DeploymentLife, facts: ElasticFacts) -> bool:
    """Whether replicas wait since all pools that are there are full, and so they are."""
    waiting = [one for one in life.status.replicas if one.state is ReplicaState.PENDING]
    pools = [
        pool
        for pool in facts.pools.values()
        if pool.closed_at is None
        and pool.wish is not None
        and pool.status.id in {one.nodepool for one in life.status.spec.nodepools}
    ]
    full = all(len(pool.status.nodes) >= pool.status.spec.max_instances for pool in pools)
    return full and any(one.reason.startswith(AT_MAX) for one in waiting)


def _replicas(life: DeploymentLife) -> str:
    return ", ".join(map(_replica, life.status.replicas)) or "none"


def _replica(one: ReplicaStatus) -> str:
    return f"{one.name.rpartition('-')[2]} r{one.revision} {one.state} {one.reason}".strip()
