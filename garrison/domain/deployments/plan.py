"""What a deployment's workflow does next.

`advance` applies what is known: how many replicas there should be, which ones go, where each one
belongs, what each pool is to be told. `plan_steps` then names all calls that are due, of which
those for different replicas and pools are made at the same time. The workflow begins them and
comes back whenever one has ended, or something else has happened.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from datetime import datetime

from garrison.domain.deployments.assignment import (
    back_at,
    has_open_pool,
    place_waiting,
    pool_ids,
    words_due_at,
)
from garrison.domain.deployments.desired import Wishes, decide_desired
from garrison.domain.deployments.life import add_event
from garrison.domain.deployments.outcome import judge_rollout, restart
from garrison.domain.deployments.replicas import (
    can_start,
    change,
    has_place,
    is_draining,
    is_ready,
    node_of,
    open_talk,
    replica_id,
    restate,
    say_again,
    settle,
    withdraw,
)
from garrison.domain.deployments.rollout import Changes, Goal, Member, plan_members
from garrison.domain.deployments.view import note_view
from garrison.models.cluster_state import Blocked
from garrison.models.deployment_state import DeploymentState, Replica, RunState


@dataclass(frozen=True, slots=True)
class ReadTerms:
    """Read what the installation configures."""

    key: str = "terms"


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell a pool what is wanted of it."""

    pool: str

    @property
    def key(self) -> str:
        """What it works on."""
        return f"tell/{self.pool}"


@dataclass(frozen=True, slots=True)
class Start:
    """Start a replica's process."""

    replica: str
    generation: int

    @property
    def key(self) -> str:
        """What it works on."""
        return f"start/{self.replica}/{self.generation}"


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until a replica is ready, or look whether it still is."""

    replica: str
    generation: int

    @property
    def key(self) -> str:
        """What it works on."""
        return f"await/{self.replica}/{self.generation}"


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a replica's process."""

    replica: str
    generation: int

    @property
    def key(self) -> str:
        """What it works on."""
        return f"stop/{self.replica}/{self.generation}"


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell routers and the watch of the load how the deployment is now."""

    key: str = "publish"


Step = ReadTerms | Tell | Start | Await | Stop | Publish


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is due now.

    Attributes:
        begin: Steps, for each thing at most one, and none where one is under way.
        pointless: Keys of steps under way that nobody needs any more.
        until: When time alone makes something due, and `why`.
        finished: The life is over.
    """

    begin: tuple[Step, ...] = ()
    pointless: tuple[str, ...] = ()
    until: datetime | None = None
    why: str = "look again"
    finished: bool = False


# What is known


def advance(state: DeploymentState, *, now: datetime) -> None:
    """Bring wishes, replicas and demands up to date; changes only the state."""
    if state.spec is None:
        return
    _decide(state, now)
    settle(state)
    judge_rollout(state, now=now)
    _restart_due(state, now)
    if state.delete_accepted_at is None:
        for pool in pool_ids(state.spec):
            open_talk(state, pool, now=now)
    _change_members(state, now)
    _withdraw_stopped(state)
    if state.delete_accepted_at is None:
        place_waiting(state, now=now)
    if state.deadman_at is not None and now >= state.deadman_at:
        state.deadman_at = None  # the workflow sets the next one
        say_again(state, now=now)
        state.published = 0
    restate(state, now=now, closing=state.delete_accepted_at is not None and not state.replicas)
    _forget_templates(state)
    state.observed_generation = state.generation
    note_view(state)


def _decide(state: DeploymentState, now: datetime) -> None:
    assert state.spec is not None
    wishes = Wishes(
        autoscale=state.spec.autoscale,
        enabled=state.enabled,
        enabled_by=state.enabled_by,
        fixed=state.fixed,
        fixed_by=state.fixed_by,
        target=state.target,
        target_reason=state.target_reason,
        deleting=state.delete_accepted_at is not None,
    )
    desired = decide_desired(wishes)
    if desired.replicas != state.desired:
        text = f"{state.desired} -> {desired.replicas} replicas: {desired.reason}"
        add_event(state, "Scaled", text, now=now)
    state.desired, state.reason = desired.replicas, desired.reason


def _restart_due(state: DeploymentState, now: datetime) -> None:
    for replica in list(state.replicas.values()):
        run = replica.run
        if replica.leaving is not None or run is None or run.state is not RunState.FAILED:
            continue
        if run.retry_at is not None and now >= run.retry_at:
            restart(state, replica.id, now=now)


def member_changes(state: DeploymentState, *, now: datetime) -> Changes:
    """Return which replicas to make and which to take away."""
    assert state.spec is not None
    wanted = [replica for replica in state.replicas.values() if replica.leaving is None]
    leaving = [r for r in state.replicas.values() if r.leaving is not None and r.run is not None]
    pools = pool_ids(state.spec)
    goal = Goal(
        desired=state.desired,
        max_replicas=state.spec.autoscale.max_replicas,
        revision=state.revision,
        stopped=state.rollout.stopped is not None,
        leaving=len(leaving),
        homeless=not has_open_pool(state),
    )
    return plan_members([_member(replica, pools) for replica in wanted], goal, now=now)


def _member(replica: Replica, pools: Container[str]) -> Member:
    elsewhere = replica.pool is not None and replica.pool not in pools
    waits = replica.waiting_since or replica.created_at
    return Member(
        key=replica.id,
        number=int(replica.id.rpartition("-")[2]),
        revision=replica.revision,
        ready=is_ready(replica),
        draining=is_draining(replica) or (elsewhere and node_of(replica) is not None),
        doomed=replica.placement is not None and replica.placement.must_go,
        gone_at=None if replica.placement is None else replica.placement.ends_at,
        waiting_since=None if has_place(replica) else waits,
    )


def _change_members(state: DeploymentState, now: datetime) -> None:
    changes = member_changes(state, now=now)
    for key, why in changes.remove:
        change(state, key, leaving=why)
        add_event(state, "ReplicaRemoved", why, now=now, about=key)
    for _ in range(changes.create):
        made = replica_id(state, state.next_replica)
        state.next_replica += 1
        state.replicas[made] = Replica(id=made, revision=_revision_to_make(state), created_at=now)
        add_event(state, "ReplicaMade", f"revision {state.revision}", now=now, about=made)


def _revision_to_make(state: DeploymentState) -> int:
    """While a rollout is stopped, the newest revision that is known to work is made."""
    if state.rollout.stopped is None:
        return state.revision
    working = [r.revision for r in state.replicas.values() if r.leaving is None and is_ready(r)]
    return max(working, default=state.revision)


def _withdraw_stopped(state: DeploymentState) -> None:
    for replica in list(state.replicas.values()):
        if replica.leaving is not None and replica.run is None:
            withdraw(state, replica.id)


def _forget_templates(state: DeploymentState) -> None:
    used = {replica.revision for replica in state.replicas.values()} | {state.revision}
    state.templates = {number: text for number, text in state.templates.items() if number in used}


# What is due


def plan_steps(state: DeploymentState, *, now: datetime, busy: frozenset[str]) -> Plan:
    """Return all that is due for a life that `advance` has brought up to date.

    Args:
        state: Not changed.
        now: Current time.
        busy: Keys of the steps under way.
    """
    if state.spec is None:
        return Plan(finished=state.delete_accepted_at is not None)
    working = {key.split("/")[1] for key in busy if not key.startswith("tell/") and "/" in key}
    steps = [step for step in _steps(state, now) if step.key not in busy]
    begin: list[Step] = [step for step in steps if isinstance(step, (ReadTerms, Tell, Publish))]
    begin += [
        step
        for step in steps
        if isinstance(step, (Start, Await, Stop)) and step.replica not in working
    ]
    until, why = _next_time(state, now)
    return Plan(
        begin=tuple(begin),
        pointless=tuple(sorted(key for key in busy if _is_pointless(state, key))),
        until=until,
        why=why,
        finished=not busy and not begin and _is_over(state),
    )


def _steps(state: DeploymentState, now: datetime) -> Iterator[Step]:
    if state.deadman is None and not _is_paused(state.trouble, now):
        yield ReadTerms()
    for pool, talk in state.pools.items():
        if talk.tell_due is not None and now >= talk.tell_due:
            yield Tell(pool)
    if state.published < state.version and not _is_paused(state.trouble, now):
        yield Publish()
    for replica in state.replicas.values():
        step = _step_for(state, replica)
        if step is not None and not _is_paused(replica.trouble, now):
            yield step


def _is_paused(trouble: Blocked | None, now: datetime) -> bool:
    return trouble is not None and now < trouble.retry_at


def _step_for(state: DeploymentState, replica: Replica) -> Start | Await | Stop | None:
    run = replica.run
    if replica.leaving is not None:
        return Stop(replica.id, run.generation) if run is not None else None
    if run is None:
        starts = replica.withdrawn is None and can_start(state, replica)
        return Start(replica.id, replica.starts + 1) if starts else None
    if run.state is RunState.CALLED:
        return Start(replica.id, run.generation)
    if run.state is RunState.STARTING or (run.state is RunState.READY and run.doubted):
        return Await(replica.id, run.generation)
    return None


def _is_pointless(state: DeploymentState, key: str) -> bool:
    verb, _, rest = key.partition("/")
    if verb not in {"start", "await", "stop"}:
        return False
    name, _, generation = rest.partition("/")
    replica = state.replicas.get(name)
    if replica is None or replica.run is None or replica.run.generation != int(generation):
        return True  # the process is gone with its node
    return verb != "stop" and replica.leaving is not None


def _is_over(state: DeploymentState) -> bool:
    if state.delete_accepted_at is None or state.replicas:
        return False
    return all(
        talk.generation == 0 or talk.missing or (talk.closing and talk.answered >= talk.generation)
        for talk in state.pools.values()
    )


def _next_time(state: DeploymentState, now: datetime) -> tuple[datetime | None, str]:
    known = [(time, why) for time, why in _times(state, now) if time is not None and time > now]
    return min(known, default=(None, "look again"))


def _times(state: DeploymentState, now: datetime) -> Iterator[tuple[datetime | None, str]]:
    yield state.deadman_at, "deadman probe"
    if state.trouble is not None:
        yield state.trouble.retry_at, f"try again after {state.trouble.code}"
    yield from ((talk.tell_due, f"tell {pool} again") for pool, talk in state.pools.items())
    for replica in state.replicas.values():
        yield _restart_at(replica), f"restart {replica.id}"
        if replica.trouble is not None and _step_for(state, replica) is not None:
            yield replica.trouble.retry_at, f"try {replica.id} again"
    if state.delete_accepted_at is None:
        yield words_due_at(state, now=now), "a nodepool's first word"
        yield back_at(state, now=now), "a full nodepool may be tried again"
        yield member_changes(state, now=now).again_at, "a replica may have to go without"


def _restart_at(replica: Replica) -> datetime | None:
    if replica.leaving is not None or replica.run is None:
        return None
    return replica.run.retry_at if replica.run.state is RunState.FAILED else None
