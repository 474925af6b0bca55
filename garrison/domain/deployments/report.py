"""What people and programs see of a deployment's state."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from garrison.domain.deployments.assignment import pool_ids
from garrison.domain.deployments.life import status_of
from garrison.domain.deployments.replica_call import endpoint_of
from garrison.domain.deployments.replicas import is_draining, is_ready, node_of
from garrison.errors import NotFound
from garrison.models.cluster_state import Blocked
from garrison.models.cluster_status import BlockedStatus, ErrorStatus
from garrison.models.deployment import (
    DeploymentStatus,
    ReplicaState,
    ReplicaStatus,
    ReplicaTemplate,
    RolloutStatus,
    SchedulingChoice,
)
from garrison.models.deployment_state import (
    DeploymentEndpoints,
    DeploymentState,
    Replica,
    ReplicaEndpoint,
    RunState,
)

_STATES = {
    RunState.CALLED: ReplicaState.STARTING,
    RunState.STARTING: ReplicaState.STARTING,
    RunState.READY: ReplicaState.READY,
    RunState.FAILED: ReplicaState.FAILED,
}


def report_deployment(state: DeploymentState) -> DeploymentStatus:
    """Return a deployment as readers see it.

    Raises:
        NotFound: It was never created.
    """
    if state.spec is None:
        raise NotFound(f"there is no deployment {state.id}")
    error, blocked = state.last_error, next(_troubles(state), None)
    return DeploymentStatus(
        id=state.id,
        uid=state.uid,
        status=status_of(state),
        spec=state.spec,
        generation=state.generation,
        observed_generation=state.observed_generation,
        owner=state.owner,
        created_at=state.created_at,
        desired=state.desired,
        ready=count_ready(state),
        fixed=state.fixed,
        reason=state.reason,
        autoscaled=state.enabled and state.fixed is None,
        demand=state.demand,
        load_source=state.spec.autoscale.load.source,
        boot_seconds=None if state.boot is None else state.boot.total_seconds(),
        hourly_usd=hourly_usd(state),
        rollout=report_rollout(state),
        blocked=_blocked(blocked) if blocked else None,
        last_error=ErrorStatus(code=error.code, message=error.message) if error else None,
        replicas=tuple(report_replica(state, one) for one in state.replicas.values()),
        events=tuple(state.events),
    )


def report_endpoints(state: DeploymentState) -> DeploymentEndpoints:
    """Return what the router needs to know: where replicas answer."""
    return DeploymentEndpoints(
        id=state.id,
        uid=state.uid,
        created_at=state.created_at,
        version=state.version,
        enabled=status_of(state) == "enabled",
        desired=state.desired,
        generation=state.generation,
        wakeable=_is_wakeable(state),
        reason=state.reason,
        replicas=tuple(
            ReplicaEndpoint(
                name=one.id,
                state=state_of(one),
                endpoint=endpoint_of(one) if is_ready(one) else None,
                revision=one.revision,
            )
            for one in state.replicas.values()
        ),
    )


def _is_wakeable(state: DeploymentState) -> bool:
    if state.spec is None or status_of(state) != "enabled":
        return False
    return state.desired > 0 or (state.fixed is None and state.spec.autoscale.max_replicas > 0)


def count_ready(state: DeploymentState) -> int:
    """Return how many replicas answer and are to go on; of those whose node will go, none."""
    return sum(map(_goes_on, state.replicas.values()))


def _goes_on(replica: Replica) -> bool:
    return is_ready(replica) and replica.leaving is None and not is_draining(replica)


def hourly_usd(state: DeploymentState) -> Decimal | None:
    """Return what the replicas of a deployment cost an hour: their shares of their nodes' prices.

    None where the price of a node is unknown. What is left of a node is its pool's.
    """
    placed = [one.placement for one in state.replicas.values() if one.placement and node_of(one)]
    shares = [one.usd_per_hour for one in placed if one.usd_per_hour is not None]
    return sum(shares, Decimal(0)) if len(shares) == len(placed) else None


def reason_in_short(state: DeploymentState) -> str:
    """Return the one reason that a list shows: of what is not as it should be, if anything."""
    if state.rollout.stopped:
        return state.rollout.stopped
    late = [one for one in state.replicas.values() if one.leaving is None and not _goes_on(one)]
    why = next(filter(None, (reason_of(state, one) for one in late)), "")
    return f"{state_of(late[0])}: {why}" if why else report_rollout(state).reason or state.reason


def report_rollout(state: DeploymentState) -> RolloutStatus:
    """Return how far the newest revision has come."""
    rollout = state.rollout
    wanted = [one for one in state.replicas.values() if one.leaving is None]
    updated = sum(is_ready(one) for one in wanted if one.revision == state.revision)
    name = "stopped" if rollout.stopped else "rolling" if rollout.rolling else "done"
    waits = f"{updated} of {state.desired} replicas are updated" if name == "rolling" else ""
    return RolloutStatus(
        state=name,
        revision=max(state.revision, 1),
        updated=updated,
        reason=rollout.stopped or waits,
    )


def report_replica(state: DeploymentState, replica: Replica) -> ReplicaStatus:
    """Return one replica as readers see it."""
    node, placement, run = node_of(replica), replica.placement, replica.run
    talk = state.pools.get(replica.pool) if replica.pool else None
    provider = talk.summary.provider if talk and talk.summary and node else None
    return ReplicaStatus(
        name=replica.id,
        revision=replica.revision,
        state=state_of(replica),
        reason=reason_of(state, replica),
        nodepool=replica.pool.removeprefix("nodepool/") if replica.pool else None,
        node=placement.machine if placement else None,
        provider=provider,
        ssh=node.ssh if node else None,
        endpoint=endpoint_of(replica) if is_ready(replica) else None,
        restarts=replica.restarts + replica.node_restarts,
        created_at=replica.created_at,
        ready_at=run.ready_at if run else None,
    )


def state_of(replica: Replica) -> ReplicaState:
    """Return where a replica is in its life."""
    if replica.leaving is not None:
        return ReplicaState.DRAINING
    return ReplicaState.PENDING if replica.run is None else _STATES[replica.run.state]


def reason_of(state: DeploymentState, replica: Replica) -> str:
    """Return why a replica is where it is, in words."""
    placement, run = replica.placement, replica.run
    if replica.trouble is not None:
        return f"{replica.trouble.code}: {replica.trouble.message}"
    if replica.leaving is not None:
        return replica.leaving
    if run is not None:
        if run.reason:
            return run.reason
        return f"its node will go: {placement.reason}" if is_draining(replica) and placement else ""
    if replica.pool is None:
        return _why_in_no_pool(state)
    return _why_waiting(state, replica)


def _why_in_no_pool(state: DeploymentState) -> str:
    pools = pool_ids(state.spec) if state.spec is not None else {}
    talks = [state.pools[pool] for pool in pools if pool in state.pools]
    missing = [talk.pool.removeprefix("nodepool/") for talk in talks if talk.missing]
    if missing:
        return f"nodepool_not_found: there is no nodepool {', '.join(missing)}"
    if any(talk.pool_closing for talk in talks):
        return "its nodepools are being deleted"
    return "a nodepool is being chosen"


def _why_waiting(state: DeploymentState, replica: Replica) -> str:
    pool, placement = (replica.pool or "").removeprefix("nodepool/"), replica.placement
    if replica.withdrawn is not None:
        return f"{pool} is full; moving to another nodepool"
    if placement is None:
        return f"waits for {pool}"
    talk = state.pools.get(replica.pool or "")
    full = talk is not None and talk.summary is not None and talk.summary.full
    fails = state.spec is not None and state.spec.scheduling_choice is SchedulingChoice.FAIL
    return (
        f"{placement.reason}; FAIL takes no other nodepool" if full and fails else placement.reason
    )


def describe_template(template: ReplicaTemplate) -> str:
    """Return what a replica is, in a few words: its model, command or image."""
    if template.model is not None:
        return template.model
    return " ".join(template.command or ()) or template.image or ""


def details_markdown(state: DeploymentState) -> str:
    """Return the table that the Temporal UI shows."""
    rows = [
        f"**{status_of(state)}**, {count_ready(state)} of {state.desired} ready: {state.reason}",
        "",
        "| replica | revision | state | nodepool | reason |",
        "| --- | --- | --- | --- | --- |",
    ]
    for replica in state.replicas.values():
        one = report_replica(state, replica)
        rows.append(
            f"| {one.name} | {one.revision} | {one.state} | {one.nodepool or ''} | {one.reason} |"
        )
    return "\n".join(rows)


def _troubles(state: DeploymentState) -> Iterator[Blocked]:
    found = [one.trouble for one in state.replicas.values() if one.trouble is not None]
    found += [state.trouble] if state.trouble is not None else []
    found += [talk.trouble for talk in state.pools.values() if talk.trouble is not None]
    yield from sorted(found, key=lambda trouble: trouble.since)


def _blocked(trouble: Blocked) -> BlockedStatus:
    return BlockedStatus(
        code=trouble.code,
        message=trouble.message,
        since=trouble.since,
        tries=trouble.tries,
        retry_at=trouble.retry_at,
    )
