"""A deployment's half of the protocol with its pools: what it demands, and what it is told.

The rules are those of `docs/placement.md`. These functions change the one `DeploymentState` in
place; its workflow is the only writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from garrison.domain.deployments.life import add_event
from garrison.domain.resource_ids import deployment_workflow_id
from garrison.models.deployment_state import DeploymentState, PoolTalk, Replica, Run, RunState
from garrison.models.group import Node, WorkloadState, WorkloadStatus
from garrison.models.placement import Demand, Placement, Placements, PlacementState, ReplicaDemand

TELL_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (5, 10, 20, 40))
MISSING_PAUSES = (*TELL_PAUSES, timedelta(minutes=1))
"""Before a statement is said again; the last one goes on."""

PAST_LIVES = 5

ENDED = frozenset({WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.STOPPED})
ON_NODE = frozenset({PlacementState.PLACED, PlacementState.DRAINING})


def replica_id(state: DeploymentState, number: int) -> str:
    """Return a replica's id: never used again, in no life of the name, at most 63 characters."""
    return f"{state.id[:40].lower()}-{state.uid[:8].lower()}-{number}"


def members_of(state: DeploymentState, pool: str) -> Iterator[Replica]:
    """Return the replicas that belong to a pool, also those that it has yet to let go."""
    return (replica for replica in state.replicas.values() if replica.pool == pool)


def node_of(replica: Replica) -> Node | None:
    """Return the node that a replica is on, None while it is on none."""
    placement = replica.placement
    if placement is None or placement.state not in ON_NODE or placement.machine is None:
        return None
    return placement.node


def has_place(replica: Replica) -> bool:
    """Return whether a replica has a node, or one that is on its way for it."""
    placement = replica.placement
    return node_of(replica) is not None or (placement is not None and placement.coming)


def is_draining(replica: Replica) -> bool:
    """Return whether a replica's node will go."""
    return replica.placement is not None and replica.placement.state is PlacementState.DRAINING


def is_ready(replica: Replica) -> bool:
    """Return whether a replica answers, as far as anybody knows."""
    return replica.run is not None and replica.run.state is RunState.READY


def change(state: DeploymentState, replica_id: str, **changes: object) -> Replica:
    """Change some fields of a replica, and return it."""
    replica = state.replicas[replica_id].model_copy(update=changes)
    state.replicas[replica_id] = replica
    return replica


def _change_talk(state: DeploymentState, pool: str, **changes: object) -> PoolTalk:
    talk = state.pools[pool].model_copy(update=changes)
    state.pools[pool] = talk
    return talk


# What is demanded


def open_talk(state: DeploymentState, pool: str, *, now: datetime) -> None:
    """Begin to talk to a pool, be it with a demand for nothing, so that it says what it is like."""
    if pool not in state.pools:
        state.pools[pool] = PoolTalk(pool=pool, opened_at=now)


def assign(state: DeploymentState, replica_id: str, pool: str) -> None:
    """Give a replica that belongs to no pool to one."""
    assert state.replicas[replica_id].pool is None
    change(state, replica_id, pool=pool, placement=None)


def withdraw(state: DeploymentState, replica_id: str) -> None:
    """Leave a replica out of its pool's demand; no process of it may be left.

    It is forgotten, or free to go elsewhere, once the pool has answered a demand without it.
    """
    replica = state.replicas[replica_id]
    assert replica.run is None
    if replica.withdrawn is not None:
        return
    talk = state.pools.get(replica.pool) if replica.pool is not None else None
    if talk is None or all(listed.replica != replica_id for listed in talk.listed):
        _let_go(state, replica)
    else:
        change(state, replica_id, withdrawn=talk.generation + 1, placement=None)


def settle(state: DeploymentState) -> None:
    """Let go of the withdrawn replicas whose pools have answered, or are gone."""
    for replica in list(state.replicas.values()):
        if replica.withdrawn is not None and replica.pool is not None:
            talk = state.pools[replica.pool]
            if talk.missing or talk.answered >= replica.withdrawn:
                _let_go(state, replica)


def _let_go(state: DeploymentState, replica: Replica) -> None:
    if replica.leaving is not None:
        del state.replicas[replica.id]
    else:
        change(state, replica.id, pool=None, withdrawn=None, placement=None)


def restate(state: DeploymentState, *, now: datetime, closing: bool = False) -> None:
    """Bring the demands up to date; each that differs gets a new number and is told.

    Args:
        state: Changed in place.
        now: Current time.
        closing: The deployment goes away, and has no replicas left.
    """
    for pool, talk in list(state.pools.items()):
        listed = _wanted(state, pool)
        is_new = talk.generation == 0 or (listed, closing) != (talk.listed, talk.closing)
        if is_new and not (closing and talk.generation == 0):
            _change_talk(
                state,
                pool,
                generation=talk.generation + 1,
                listed=listed,
                closing=closing,
                tells=talk.tells if talk.missing else 0,
                tell_due=_say_at(talk, now),
            )
        elif talk.tell_due is None and _is_asked_again(talk) and _somebody_waits(state):
            pause = timedelta(0) if talk.missing else MISSING_PAUSES[0]
            _change_talk(state, pool, tell_due=now + pause)


def _say_at(talk: PoolTalk, now: datetime) -> datetime:
    """A pool that is not there is asked again with pauses, whatever is new to say."""
    return talk.tell_due if talk.missing and talk.tell_due is not None else now


def _is_asked_again(talk: PoolTalk) -> bool:
    """A pool that is not there may come, and one that is being deleted may have a successor."""
    return talk.missing or talk.pool_closing


def _somebody_waits(state: DeploymentState) -> bool:
    return any(r.leaving is None and node_of(r) is None for r in state.replicas.values())


def _wanted(state: DeploymentState, pool: str) -> tuple[ReplicaDemand, ...]:
    exclusive = state.spec is not None and state.spec.autoscale.disable_packing
    return tuple(
        _demand_of(state, replica, exclusive)
        for replica in members_of(state, pool)
        if replica.withdrawn is None
    )


def _demand_of(state: DeploymentState, replica: Replica, exclusive: bool) -> ReplicaDemand:
    template = state.templates[replica.revision]
    return ReplicaDemand(
        replica=replica.id,
        resources=template.resources,
        exclusive=exclusive,
        port=template.port,
    )


def demand_to(state: DeploymentState, pool: str) -> Demand:
    """Return the newest statement to a pool."""
    talk = state.pools[pool]
    return Demand(
        deployment=deployment_workflow_id(state.id),
        uid=state.uid,
        generation=talk.generation,
        replicas=talk.listed,
        pool_uid=talk.uid,
        placements_seen=talk.seen,
        closing=talk.closing,
    )


def say_again(state: DeploymentState, *, now: datetime) -> None:
    """Have every pool told once more, as with each deadman probe."""
    for pool, talk in list(state.pools.items()):
        if talk.generation:
            _change_talk(state, pool, tell_due=now)


def note_told(
    state: DeploymentState, told: Demand, pool: str, *, found: bool, now: datetime
) -> None:
    """A pool was told something, or nobody lives under its id.

    Args:
        state: Changed in place.
        told: What was said; by now there may be something newer to say.
        pool: To whom.
        found: Whether somebody lives there.
        now: Current time.
    """
    talk = state.pools[pool]
    as_before = found is not talk.missing
    tells = talk.tells + 1 if as_before else 1
    if not found:
        _lose_life(state, talk)
        again = MISSING_PAUSES[min(tells - 1, 4)] if _somebody_waits(state) else None
        due = None if again is None else now + again
        _change_talk(state, pool, missing=True, tells=tells, tell_due=due, trouble=None)
        return
    due = _say_again_at(state, talk, tells, now) if told == demand_to(state, pool) else now
    _change_talk(state, pool, missing=False, tells=tells, tell_due=due, trouble=None)


def _say_again_at(
    state: DeploymentState, talk: PoolTalk, tells: int, now: datetime
) -> datetime | None:
    if talk.answered < talk.generation:
        return now + TELL_PAUSES[min(tells - 1, 3)]
    if talk.pool_closing and _somebody_waits(state):
        return now + MISSING_PAUSES[min(tells - 1, 4)]
    return None


def _lose_life(state: DeploymentState, talk: PoolTalk) -> None:
    """A pool's workflow has ended, and so owns nothing: whatever it had is gone."""
    past = (*talk.past, talk.uid)[-PAST_LIVES:] if talk.uid is not None else talk.past
    _change_talk(
        state,
        talk.pool,
        uid=None,
        past=past,
        seen=0,
        answered=0,
        summary=None,
        pool_closing=False,
    )
    for replica in list(members_of(state, talk.pool)):
        _void(state, replica)
        if replica.withdrawn is not None or replica.leaving is not None:
            _let_go(state, replica)
        elif replica.placed:
            change(state, replica.id, leaving="its nodepool is gone")
            _let_go(state, state.replicas[replica.id])
        else:
            change(state, replica.id, pool=None)


# What is heard


def take(state: DeploymentState, said: Placements, *, now: datetime) -> bool:
    """Take a pool's statement; return False if it is of another life, or an old one."""
    talk = state.pools.get(said.nodepool)
    if talk is None or said.deployment_uid != state.uid or said.uid in talk.past:
        return False
    if said.uid == talk.uid and said.generation <= talk.seen:
        if said.generation == talk.seen:
            _change_talk(state, talk.pool, tell_due=now)  # our acknowledgement was lost
        return said.generation == talk.seen
    if talk.uid is not None and said.uid != talk.uid:
        _replace_life(state, talk)
    talk = state.pools[said.nodepool]
    _change_talk(
        state,
        talk.pool,
        uid=said.uid,
        seen=said.generation,
        answered=max(said.demand_generation, talk.answered),
        summary=said.pool or talk.summary,
        pool_closing=said.closing,
        missing=False,
        tell_due=now,
    )
    for placement in said.placements:
        _take_placement(state, said.nodepool, placement, now)
    settle(state)
    return True


def _replace_life(state: DeploymentState, talk: PoolTalk) -> None:
    assert talk.uid is not None
    past = (*talk.past, talk.uid)[-PAST_LIVES:]
    _change_talk(state, talk.pool, past=past, answered=0, summary=None)
    for replica in list(members_of(state, talk.pool)):
        _void(state, replica)


def _void(state: DeploymentState, replica: Replica) -> None:
    change(state, replica.id, placement=None, run=None, trouble=None)


def _take_placement(state: DeploymentState, pool: str, placement: Placement, now: datetime) -> None:
    replica = state.replicas.get(placement.replica)
    if replica is None or replica.pool != pool or replica.withdrawn is not None:
        return
    if placement.node is not None:
        bare = placement.node.model_copy(update={"workloads": None})
        placement = placement.model_copy(update={"node": bare})
    replica = change(state, replica.id, placement=placement)
    node = node_of(replica)
    restarts = _restarts_by_nodes(replica, placement.workload)
    if restarts["node_restarts"] > replica.node_restarts:
        text = "its process had ended, and was started again on its node"
        add_event(state, "ReplicaRestarted", text, now=now, about=replica.id)
    run = _surviving(replica.run, placement, node)
    change(
        state,
        replica.id,
        run=run,
        placed=replica.placed or node is not None,
        **restarts,
        waiting_since=None if has_place(replica) else replica.waiting_since or now,
        trouble=replica.trouble if run is not None or node is None else None,
    )


def _restarts_by_nodes(replica: Replica, work: WorkloadStatus | None) -> dict[str, int]:
    """Return a replica's count after what its node says; another process counts from 0 again."""
    told = replica.node_restarts_seen if work is None else work.restarts
    more = told if told < replica.node_restarts_seen else told - replica.node_restarts_seen
    return {"node_restarts": replica.node_restarts + more, "node_restarts_seen": told}


def _surviving(run: Run | None, placement: Placement, node: Node | None) -> Run | None:
    """Return the process as it can still be there: in the same boot of the same machine."""
    if run is None or node is None:
        return None
    if (placement.machine, node.incarnation) != (run.machine, run.incarnation):
        return None
    ended = placement.workload is not None and placement.workload.state in ENDED
    if run.state is RunState.READY and ended:
        return run.model_copy(update={"doubted": True})
    return run


# A replica's process


def begin_start(state: DeploymentState, replica_id: str, *, now: datetime) -> Run:
    """Note that a replica's process is about to be started, and return which one it is.

    From now on it may run, whatever becomes of the call; a start whose outcome is not known is
    the same start when it is made again.
    """
    replica = state.replicas[replica_id]
    if replica.run is not None and replica.run.state is RunState.CALLED:
        return replica.run
    placement = replica.placement
    node = node_of(replica)
    assert placement is not None
    assert placement.machine is not None
    assert node is not None
    assert replica.pool is not None
    summary = state.pools[replica.pool].summary
    assert summary is not None
    run = Run(
        provider=summary.provider,
        machine=placement.machine,
        incarnation=node.incarnation,
        generation=replica.starts + 1,
        started_at=now,
    )
    change(state, replica_id, run=run, starts=replica.starts + 1, trouble=None)
    return run


def can_start(state: DeploymentState, replica: Replica) -> bool:
    """Return whether a replica has a place where its process was not started yet."""
    placed = replica.placement is not None and replica.placement.state is PlacementState.PLACED
    if not placed or node_of(replica) is None or replica.run is not None:
        return False
    talk = state.pools.get(replica.pool or "")
    return talk is not None and talk.summary is not None


def current_run(state: DeploymentState, replica_id: str, generation: int) -> Run | None:
    """Return a process by its generation, None when it is gone or was started anew."""
    replica = state.replicas.get(replica_id)
    if replica is None or replica.run is None or replica.run.generation != generation:
        return None
    return replica.run


def note_stopped(state: DeploymentState, replica_id: str, generation: int) -> None:
    """A replica's process has ended, as was asked."""
    if current_run(state, replica_id, generation) is not None:
        change(state, replica_id, run=None, trouble=None)
