"""A deployment and two pools that hear of each other what a bad channel lets through."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from garrison.domain.deployments import life as wishes
from garrison.domain.deployments import outcome as outcome
from garrison.domain.deployments import plan as plan
from garrison.domain.deployments import replicas as protocol
from garrison.domain.resource_ids import nodepool_workflow_id
from garrison.errors import ErrorCode
from garrison.models.cluster_state import Failure
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentRequest,
    DeploymentSpec,
    ReplicaTemplate,
    ScaleRequest,
)
from garrison.models.deployment_state import DeploymentState
from garrison.models.group import Node, NodeStatus, WorkloadState, WorkloadStatus
from garrison.models.placement import (
    Demand,
    Placement,
    Placements,
    PlacementState,
    PoolSummary,
)
from garrison.models.replica import AwaitReplicaAnswer

START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
A, B = nodepool_workflow_id("cc", "a"), nodepool_workflow_id("cc", "b")
MAX_REPLICAS = 3


def spec(version: int = 1, **fields: Any) -> DeploymentSpec:
    given: dict[str, Any] = {
        "id": "chat",
        "template": ReplicaTemplate(command=("serve", str(version))),
        "autoscale": AutoscaleConfig(max_replicas=MAX_REPLICAS),
        "nodepools": (
            DeploymentPool(compute_cluster="cc", nodepool="a"),
            DeploymentPool(compute_cluster="cc", nodepool="b"),
        ),
        **fields,
    }
    return DeploymentSpec(**given)


def deployment(**fields: Any) -> DeploymentState:
    state = DeploymentState(id="chat", uid="11112222-uid", created_at=START)
    request = DeploymentRequest(request_id="1", spec=spec(**fields))
    wishes.accept_create(state, request, now=START)
    return state


@dataclass
class Pool:
    """A small pool that follows the pool's half of the protocol: one slot on each machine."""

    name: str
    life: int = 1
    machines: int = 1
    alive: bool = True
    demand: Demand | None = None
    generation: int = 0
    acknowledged: int = 0
    seats: dict[str, str | None] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    draining: set[str] = field(default_factory=set)
    bought: int = 0

    @property
    def uid(self) -> str:
        return f"{self.name}-life-{self.life}"

    @property
    def living(self) -> set[str]:
        return {machine for machine in self.seats.values() if machine is not None}

    @property
    def full(self) -> bool:
        return len(self.living) >= self.machines

    def hear(self, demand: Demand) -> None:
        if demand.pool_uid == self.uid:
            self.acknowledged = max(self.acknowledged, demand.placements_seen)
        if self.demand is not None and demand.generation <= self.demand.generation:
            return
        self.demand = demand
        wanted = [one.replica for one in demand.replicas]
        self.seats = {name: self.seats.get(name) for name in wanted}
        self.lost &= set(wanted)
        self.generation += 1

    def place(self) -> None:
        for name, machine in list(self.seats.items()):
            if machine is None and not self.full:
                self.bought += 1
                self.seats[name] = f"{self.uid}-m{self.bought}"
                self.lost.discard(name)
                self.generation += 1

    def lose(self, machine: str) -> None:
        for name, taken in self.seats.items():
            if taken == machine:
                self.seats[name] = None
                self.lost.add(name)
        self.draining.discard(machine)
        self.generation += 1

    def drain(self, machine: str) -> None:
        self.draining.add(machine)
        self.generation += 1

    def die(self) -> None:
        self.alive = False
        self.seats, self.lost, self.draining = {}, set(), set()
        self.demand = None

    def be_made(self) -> None:
        self.alive, self.life = True, self.life + 1
        self.generation = self.acknowledged = 0

    @property
    def has_news(self) -> bool:
        return self.alive and self.demand is not None and self.acknowledged < self.generation

    def say(self) -> Placements:
        assert self.demand is not None
        return Placements(
            nodepool=self.name,
            uid=self.uid,
            deployment_uid=self.demand.uid,
            generation=self.generation,
            demand_generation=self.demand.generation,
            placements=tuple(self._placement(name) for name in self.seats),
            pool=PoolSummary(provider="sim", full=self.full),
        )

    def _placement(self, name: str) -> Placement:
        machine = self.seats[name]
        if machine is None:
            gone = name in self.lost
            state = PlacementState.LOST if gone else PlacementState.PENDING
            return Placement(replica=name, state=state, reason=f"pool at max ({self.machines})")
        drains = machine in self.draining
        return Placement(
            replica=name,
            state=PlacementState.DRAINING if drains else PlacementState.PLACED,
            machine=machine,
            node=Node(rank=0, provider_id=machine, status=NodeStatus.RUNNING),
        )


class World:
    """A deployment, its pools, what is on its way between them, and what really runs."""

    def __init__(self, **fields: Any) -> None:
        self.now = START
        self.state = deployment(**fields)
        self.state.deadman = timedelta(hours=6)
        self.pools = {A: Pool(A), B: Pool(B, machines=3)}
        self.demands: list[tuple[str, Demand]] = []
        self.placements: list[Placements] = []
        self.running: dict[str, str] = {}
        self.started: list[tuple[str, str, int]] = []
        self.telling: dict[str, tuple[Demand, bool]] = {}

    def think(self) -> plan.Plan:
        plan.advance(self.state, now=self.now)
        busy = frozenset(f"tell/{pool}" for pool in self.telling)
        return plan.plan_steps(self.state, now=self.now, busy=busy)

    def act(self, step: plan.Step) -> None:
        """Carry out one step at once; what is told is on its way."""
        if isinstance(step, plan.Tell):
            told = protocol.demand_to(self.state, step.pool)
            found = self.pools[step.pool].alive
            if found:
                self.demands.append((step.pool, told))
            self.telling[step.pool] = told, found
        elif isinstance(step, plan.Start):
            self._start(step.replica)
        elif isinstance(step, plan.Await):
            ready = AwaitReplicaAnswer(ready=True)
            outcome.note_awaited(self.state, step.replica, step.generation, ready, now=self.now)
        elif isinstance(step, plan.Stop):
            self.running.pop(step.replica, None)
            protocol.note_stopped(self.state, step.replica, step.generation)

    def _start(self, name: str) -> None:
        run = protocol.begin_start(self.state, name, now=self.now)
        assert run.machine not in self.running.values(), "two replicas in one place"
        self.started.append((name, run.machine, run.incarnation))
        if any(run.machine in pool.living for pool in self.pools.values()):
            assert name not in self.running, f"{name} runs twice"
            self.running[name] = run.machine
        outcome.note_started(self.state, name, run.generation, None, now=self.now)

    def end_tells(self) -> None:
        for pool, (told, found) in self.telling.items():
            protocol.note_told(self.state, told, pool, found=found, now=self.now)
        self.telling = {}

    def deliver_demand(self, index: int, *, keep: bool = False) -> None:
        name, demand = self.demands[index]
        if not keep:
            del self.demands[index]
        pool = self.pools[name]
        if pool.alive:
            before = dict(pool.seats)
            pool.hear(demand)
            for replica in before.keys() - pool.seats.keys():
                assert self.running.get(replica) is None or self.running[replica] != before[replica]

    def deliver_placements(self, index: int, *, keep: bool = False) -> None:
        said = self.placements[index]
        if not keep:
            del self.placements[index]
        protocol.take(self.state, said, now=self.now)

    def lose(self, name: str, machine: str) -> None:
        self.pools[name].lose(machine)
        self.running = {one: on for one, on in self.running.items() if on != machine}

    def settle(self) -> None:
        """Let everything through, in order, until nothing happens any more."""
        for _ in range(300):
            before = self._picture()
            for step in self.think().begin:
                self.act(step)
            self.end_tells()
            while self.demands:
                self.deliver_demand(0)
            for pool in self.pools.values():
                if pool.alive:
                    pool.place()
                if pool.has_news:
                    self.placements.append(pool.say())
            while self.placements:
                self.deliver_placements(0)
            due = self.think()
            if not due.begin and self._picture() == before:
                if due.until is None or due.until > self.now + timedelta(minutes=15):
                    return
                self.now = due.until
        raise AssertionError("it does not settle")

    def _picture(self) -> object:
        pools = [(p.generation, p.acknowledged, dict(p.seats)) for p in self.pools.values()]
        return dict(self.state.replicas), pools, dict(self.running)


class BadChannel(RuleBasedStateMachine):
    """Statements are lost, repeated, late and out of order; nodes and pools come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.version = 1
        self.requests = 1

    def _request_id(self) -> str:
        self.requests += 1
        return str(self.requests)

    @initialize(replicas=st.integers(0, MAX_REPLICAS))
    def begin(self, replicas: int) -> None:
        self.scale(replicas)

    @rule(seconds=st.sampled_from([0, 1, 5, 40, 400]))
    def pass_time(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @rule(pick=st.integers(0, 99))
    def one_step(self, pick: int) -> None:
        due = self.world.think().begin
        if due:
            self.world.act(due[pick % len(due)])

    @rule()
    def all_steps(self) -> None:
        for step in self.world.think().begin:
            self.world.act(step)

    @precondition(lambda self: self.world.telling)
    @rule()
    def tells_end(self) -> None:
        self.world.end_tells()

    @rule(name=st.sampled_from([A, B]), machines=st.integers(0, 3))
    def pool_may_buy_more_or_less(self, name: str, machines: int) -> None:
        pool = self.world.pools[name]
        pool.machines = machines
        pool.generation += 1

    @precondition(lambda self: self.world.demands)
    @rule(pick=st.integers(0, 99), keep=st.booleans())
    def deliver_demand(self, pick: int, keep: bool) -> None:
        self.world.deliver_demand(pick % len(self.world.demands), keep=keep)

    @precondition(lambda self: self.world.demands)
    @rule(pick=st.integers(0, 99))
    def lose_demand(self, pick: int) -> None:
        del self.world.demands[pick % len(self.world.demands)]

    @precondition(lambda self: self.world.placements)
    @rule(pick=st.integers(0, 99), keep=st.booleans())
    def deliver_placements(self, pick: int, keep: bool) -> None:
        self.world.deliver_placements(pick % len(self.world.placements), keep=keep)

    @precondition(lambda self: self.world.placements)
    @rule(pick=st.integers(0, 99))
    def lose_placements(self, pick: int) -> None:
        del self.world.placements[pick % len(self.world.placements)]

    @rule(name=st.sampled_from([A, B]))
    def pool_works(self, name: str) -> None:
        pool = self.world.pools[name]
        if pool.alive:
            pool.place()
        if pool.alive and pool.demand is not None:
            self.world.placements.append(pool.say())

    @rule(name=st.sampled_from([A, B]), drains=st.booleans(), pick=st.integers(0, 9))
    def node_goes(self, name: str, drains: bool, pick: int) -> None:
        pool = self.world.pools[name]
        machines = sorted(pool.living)
        if not machines:
            return
        machine = machines[pick % len(machines)]
        if drains:
            pool.drain(machine)
        else:
            self.world.lose(name, machine)

    @rule(name=st.sampled_from([A, B]))
    def pool_comes_or_goes(self, name: str) -> None:
        pool = self.world.pools[name]
        if not pool.alive:
            pool.be_made()
            return
        for machine in sorted(pool.living):
            self.world.lose(name, machine)
        pool.die()

    @rule(replicas=st.integers(0, MAX_REPLICAS + 1))
    def scale(self, replicas: int) -> None:
        request = ScaleRequest(request_id=self._request_id(), replicas=replicas)
        wishes.accept_scale(self.world.state, request, now=self.world.now)

    @rule()
    def update(self) -> None:
        self.version += 1
        request = DeploymentRequest(request_id=self._request_id(), spec=spec(self.version))
        wishes.accept_update(self.world.state, request, now=self.world.now)

    @invariant()
    def no_replica_is_in_two_demands(self) -> None:
        listed = [one.replica for talk in self.world.state.pools.values() for one in talk.listed]
        held = [name for pool in self.world.pools.values() for name in pool.seats]
        assert len(listed) == len(set(listed))
        assert len(held) == len(set(held))

    @invariant()
    def none_is_started_twice_in_one_boot(self) -> None:
        started = self.world.started
        assert len(started) == len(set(started))

    @invariant()
    def no_more_run_than_may(self) -> None:
        assert len(self.world.running) <= MAX_REPLICAS + 1

    @invariant()
    def what_runs_is_known(self) -> None:
        for name, machine in self.world.running.items():
            run = self.world.state.replicas[name].run
            assert run is not None
            assert run.machine == machine

    def teardown(self) -> None:
        world = self.world
        world.pools[B].machines = 9
        for pool in world.pools.values():
            if not pool.alive:
                pool.be_made()

        world.settle()

        ready = {r.id for r in world.state.replicas.values() if protocol.is_ready(r)}
        assert ready == set(world.running)
        assert len(ready) == world.state.desired
        assert len(world.state.replicas) == world.state.desired
        newest = {r.revision for r in world.state.replicas.values()}
        assert newest <= {world.state.revision}
        for name, talk in world.state.pools.items():
            assert set(world.pools[name].seats) == {one.replica for one in talk.listed}


BadChannel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_everything_settles_whatever_the_channel_does = BadChannel.TestCase


def settled(replicas: int, **fields: Any) -> World:
    world = World(**fields)
    request = ScaleRequest(request_id="scale", replicas=replicas, by="ada")
    wishes.accept_scale(world.state, request, now=world.now)
    world.settle()
    return world


def test_a_replica_runs_where_its_pool_placed_it() -> None:
    world = settled(1)

    (replica,) = world.state.replicas.values()
    assert protocol.is_ready(replica)
    assert world.running == {replica.id: world.pools[A].seats[replica.id]}
    assert len(replica.id) <= 63


def placed_on(world: World, **fields: Any) -> Placements:
    """What pool A says next, with some fields of the placement of the one replica changed."""
    pool = world.pools[A]
    pool.generation += 1
    said = pool.say()
    changed = [one.model_copy(update=fields) for one in said.placements]
    return said.model_copy(update={"placements": tuple(changed)})


def test_a_process_that_is_said_to_have_ended_is_looked_at_before_it_counts_as_failed() -> None:
    world = settled(1)
    ended = WorkloadStatus(name="x", state=WorkloadState.FAILED, exit_code=1)

    protocol.take(world.state, placed_on(world, workload=ended), now=world.now)
    due = world.think().begin

    (replica,) = world.state.replicas.values()
    assert replica.run is not None
    assert plan.Await(replica.id, replica.run.generation) in due
    assert protocol.is_ready(replica), "until somebody has looked"


def test_a_start_whose_outcome_is_not_known_is_the_same_start_when_it_is_made_again() -> None:
    world = settled(1)
    protocol.take(world.state, placed_on(world, machine="m9"), now=world.now)
    (start,) = (step for step in world.think().begin if isinstance(step, plan.Start))
    first = protocol.begin_start(world.state, start.replica, now=world.now)

    failure = Failure(code=ErrorCode.PROVIDER_UNREACHABLE, message="no answer")
    outcome.note_replica_trouble(world.state, start.replica, failure, now=world.now)
    early = world.think()
    world.now += timedelta(seconds=2)
    again = world.think().begin

    assert early.until == world.now
    assert start not in early.begin
    assert start in again
    assert protocol.begin_start(world.state, start.replica, now=world.now) == first


def test_a_replica_that_is_to_go_is_not_waited_for_any_more() -> None:
    world = settled(1)
    (replica,) = world.state.replicas.values()
    assert replica.run is not None
    waiting = plan.Await(replica.id, replica.run.generation)
    wishes.accept_delete(world.state, now=world.now, by="ada")
    plan.advance(world.state, now=world.now)

    busy = plan.plan_steps(world.state, now=world.now, busy=frozenset({waiting.key}))
    free = plan.plan_steps(world.state, now=world.now, busy=frozenset())

    stop = plan.Stop(replica.id, replica.run.generation)
    assert (busy.pointless, stop in busy.begin) == ((waiting.key,), False)
    assert stop in free.begin


def test_another_boot_of_the_same_machine_is_another_start() -> None:
    world = settled(1)
    (replica,) = world.state.replicas.values()
    assert replica.placement is not None
    assert replica.placement.node is not None
    booted = replica.placement.node.model_copy(update={"incarnation": 2})

    protocol.take(world.state, placed_on(world, node=booted), now=world.now)
    due = world.think().begin

    assert plan.Start(replica.id, 2) in due


def test_placements_of_another_life_of_the_deployment_are_dropped() -> None:
    world = settled(1)
    said = placed_on(world).model_copy(update={"deployment_uid": "another", "placements": ()})

    assert not protocol.take(world.state, said, now=world.now)


def test_a_statement_is_said_again_until_it_is_answered_with_growing_pauses() -> None:
    state = deployment()
    plan.advance(state, now=START)
    now, pauses = START, []
    for _ in range(6):
        protocol.note_told(state, protocol.demand_to(state, A), A, found=True, now=now)
        due = state.pools[A].tell_due
        assert due is not None
        pauses.append((due - now).total_seconds())
        now = due

    assert pauses == [5, 10, 20, 40, 40, 40]


def test_a_repeated_statement_is_acknowledged_again_and_an_older_one_is_not() -> None:
    world = settled(1)
    said = world.pools[A].say()
    older = said.model_copy(update={"generation": said.generation - 1, "placements": ()})

    protocol.take(world.state, older, now=world.now)
    after_older = world.state.pools[A].tell_due
    protocol.take(world.state, said, now=world.now)

    assert after_older is None
    assert world.state.pools[A].tell_due == world.now
    assert len(world.running) == 1


def test_a_settled_deployment_has_nothing_to_do_before_its_deadman_probe() -> None:
    world = settled(2)
    world.state.deadman_at = world.now + timedelta(hours=6)

    quiet = world.think()
    world.now += timedelta(hours=6)
    probe = world.think()

    assert (quiet.begin, quiet.until, quiet.why) == ((), world.now, "deadman probe")
    assert probe.begin == (plan.Tell(A), plan.Tell(B))


def test_a_deleted_deployment_ends_once_each_pool_has_answered_its_farewell() -> None:
    world = settled(2)
    wishes.accept_delete(world.state, now=world.now, by="ada")

    before = world.think().finished
    world.settle()
    after = world.think().finished

    assert (before, after) == (False, True)
    assert (world.running, world.state.replicas) == ({}, {})
    assert all(pool.demand is not None and pool.demand.closing for pool in world.pools.values())


def test_what_changes_while_a_pool_is_being_told_is_told_at_once() -> None:
    world = settled(1)
    told = protocol.demand_to(world.state, A)
    protocol.take(world.state, placed_on(world), now=world.now)

    protocol.note_told(world.state, told, A, found=True, now=world.now)

    assert world.state.pools[A].tell_due == world.now


def test_a_nodepool_that_is_being_deleted_is_asked_again_until_it_is_gone_or_has_a_successor() -> (
    None
):
    state = deployment()
    wishes.accept_scale(state, ScaleRequest(request_id="scale", replicas=1), now=START)
    plan.advance(state, now=START)
    for pool in (A, B):
        demand = protocol.demand_to(state, pool)
        closing = Placements(
            nodepool=pool,
            uid=f"{pool}-1",
            deployment_uid=state.uid,
            generation=1,
            demand_generation=demand.generation,
            closing=True,
        )
        protocol.take(state, closing, now=START)
    plan.advance(state, now=START)
    now, pauses = START, []
    for _ in range(6):
        protocol.note_told(state, protocol.demand_to(state, A), A, found=True, now=now)
        plan.advance(state, now=now)
        due = state.pools[A].tell_due
        assert due is not None
        pauses.append((due - now).total_seconds())
        now = due

    assert pauses == [5, 10, 20, 40, 60, 60]
