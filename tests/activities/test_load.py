"""The watch of a load: deployments follow what a source counts, over hours of a clock by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from garrison.activities.load import LoadWatcher, pack, unpack
from garrison.activities.loads import ManualLoads
from garrison.domain.deployments import life as life
from garrison.domain.deployments.load import take_target, take_wake
from garrison.domain.deployments.plan import advance
from garrison.domain.deployments.view import view
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentRequest,
    DeploymentSpec,
    LoadConfig,
    LoadKind,
    LoadPreset,
    ReplicaTemplate,
    ScaleRequest,
)
from garrison.models.deployment_state import DeploymentState
from garrison.models.load import Followed, LoadCounts, LoadMemory, TargetChanged, WakeRequest

BEGIN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
LOOK_EVERY = 10.0
TICK = timedelta(seconds=LOOK_EVERY)
QUIET = LoadCounts(running=0, queued=0, arrivals=0, completions=0)


@dataclass
class World:
    """A deployment whose replicas are ready at once, its traffic, and a watch that looks at both.

    Attributes:
        rate: Requests a second, each answered within the tick.
        targets: Counts that were wanted, with when.
    """

    autoscale: AutoscaleConfig
    now: datetime = BEGIN
    rate: float = 0
    total: float = 0
    missing: bool = False
    partial: bool = False
    silent: bool = False
    ready: bool = True
    targets: list[tuple[timedelta, int]] = field(default_factory=list)
    told: list[TargetChanged] = field(default_factory=list)
    lives: bool = True

    def __post_init__(self) -> None:
        self.state = DeploymentState(id="chat", uid="u1", created_at=self.now)
        self._update("1", self.autoscale)
        self.loads = ManualLoads()
        self.watcher = self.watch()

    def watch(self, memories: Mapping[str, LoadMemory] | None = None) -> LoadWatcher:
        source = self.state.spec.autoscale.load.source if self.state.spec else LoadKind.ROUTER
        clock = self._clock
        return LoadWatcher(source, self, self.loads, self, clock=clock, memories=memories)

    def _clock(self) -> datetime:
        return self.now

    def _update(self, request_id: str, autoscale: AutoscaleConfig) -> None:
        pools = (DeploymentPool(compute_cluster="cc", nodepool="a"),)
        template = ReplicaTemplate(command=("serve",), port=8000)
        wanted = DeploymentSpec(id="chat", template=template, nodepools=pools, autoscale=autoscale)
        request = DeploymentRequest(request_id=request_id, spec=wanted)
        accept = life.accept_update if self.state.spec else life.accept_create
        accept(self.state, request, now=self.now)

    def update(self, **knobs: Any) -> None:
        assert self.state.spec is not None
        self._update("2", self.state.spec.autoscale.replace(**knobs))

    def scale(self, count: int | None) -> None:
        life.accept_scale(self.state, ScaleRequest(request_id="3", replicas=count), now=self.now)

    def request(self) -> None:
        """Let one request come to a router, as it does where nothing answers."""
        self.total += 1
        take_wake(self.state, WakeRequest(asked_at=self.now))

    @property
    def desired(self) -> int:
        return self.state.desired

    async def read(self, followed: Sequence[Followed]) -> Mapping[str, LoadCounts]:
        if self.missing:
            return {}
        counts = QUIET.replace(
            running=self.rate,
            arrivals=self.total,
            completions=self.total - self.rate,
            partial=self.partial,
        )
        return {one.id: counts for one in followed}

    async def tell(self, workflow_id: str, target: TargetChanged) -> bool:
        if self.silent:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        self.told.append(target)
        take_target(self.state, target)
        return self.lives

    async def call_all(self) -> int:
        raise AssertionError("only the activity does this")

    async def tick(self) -> None:
        self.total += self.rate * TICK.total_seconds()
        before = self.desired
        self._settle()
        await self.watcher.look_once()
        self._settle()
        if self.desired != before:
            self.targets.append((self.now - BEGIN, self.desired))
        self.now += TICK

    def _settle(self) -> None:
        """Bring the deployment up to date, and tell the watch what changed."""
        advance(self.state, now=self.now)
        said = view(self.state)
        if self.ready:
            said = said.replace(ready=said.desired, starting=0)
        if not self.loads.said or self.loads.said[-1] != said:
            self.loads.said.append(said)

    async def run(self, until: timedelta) -> None:
        while self.now - BEGIN < until:
            await self.tick()


def knobs(**fields: Any) -> AutoscaleConfig:
    given = {
        "max_replicas": 3,
        "traffic_history": timedelta(seconds=60),
        "scale_up_delay": timedelta(0),
        "scale_down_delay": timedelta(seconds=60),
        "scale_to_zero_delay": timedelta(seconds=600),
        **fields,
    }
    return AutoscaleConfig(**given)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


async def test_a13_traffic_keeps_a_replica_whose_minimum_is_lowered_and_silence_ends_it() -> None:
    world = World(knobs(min_replicas=1, max_replicas=1))
    world.rate = 2
    await world.run(minutes(10))
    world.update(min_replicas=0)
    await world.run(minutes(40))
    steady = world.desired
    world.rate = 0
    await world.run(minutes(49))
    before_delay = world.desired
    await world.run(minutes(52))
    asleep = world.desired
    world.request()
    await world.tick()

    assert (steady, before_delay, asleep) == (1, 1, 0)
    assert world.desired == 1


async def test_a14_after_one_burst_there_is_one_way_down_to_zero_in_24_hours() -> None:
    world = World(knobs())
    world.request()
    world.rate = 5
    await world.run(minutes(5))
    world.rate = 0
    await world.run(timedelta(hours=24))

    assert world.desired == 0
    assert [count for _, count in world.targets].count(0) == 1
    assert world.targets[-1][1] == 0
    assert world.targets[-1][0] < minutes(5 + 10 + 1)


@pytest.mark.parametrize(
    ("before", "after", "changed_at", "gone_at"),
    [
        pytest.param(1800, 480, 600, 600 + 480, id="shorter: counts from the change"),
        pytest.param(480, 1800, 470, 470 + 1800, id="longer: counts from the change"),
    ],
)
async def test_a21_a_changed_delay_restarts_its_own_timer(
    before: int, after: int, changed_at: int, gone_at: int
) -> None:
    world = World(knobs(scale_to_zero_delay=timedelta(seconds=before)))
    world.request()
    await world.tick()
    idle_from = world.now - BEGIN
    await world.run(idle_from + timedelta(seconds=changed_at))
    world.update(scale_to_zero_delay=timedelta(seconds=after))
    await world.run(timedelta(hours=2))

    zero = [at for at, count in world.targets if count == 0]
    assert len(zero) == 1
    late = (zero[0] - idle_from).total_seconds() - gone_at
    assert 0 <= late <= 3 * LOOK_EVERY


async def test_a21_an_unrelated_change_restarts_no_timer() -> None:
    world = World(knobs(scale_to_zero_delay=timedelta(seconds=480)))
    world.request()
    await world.tick()
    await world.run(timedelta(seconds=470))
    world.update(max_replicas=4)
    await world.run(timedelta(hours=1))

    zero = [at for at, count in world.targets if count == 0]
    assert len(zero) == 1
    assert zero[0] <= timedelta(seconds=480 + 3 * LOOK_EVERY)


async def test_a_deployment_at_rest_is_told_nothing() -> None:
    world = World(knobs(min_replicas=1))

    await world.run(timedelta(hours=6))

    assert world.told == []


async def test_what_is_missing_holds() -> None:
    world = World(knobs())
    world.request()
    world.rate = 3
    await world.run(minutes(3))
    world.missing = True
    held = world.desired
    await world.run(minutes(120))

    assert world.desired == held >= 1
    assert world.watcher.missing == 1


async def test_another_worker_goes_on_from_what_the_first_remembered() -> None:
    world = World(knobs())
    world.request()
    await world.tick()
    await world.run(minutes(8))
    remembered = pack(world.watcher.memories)
    world.watcher = world.watch(unpack(remembered))
    await world.run(timedelta(hours=1))

    zero = [at for at, count in world.targets if count == 0]
    assert len(zero) == 1
    assert zero[0] < minutes(11)  # a clock begun anew would have gone on to minute 18


async def test_memories_of_another_version_are_passed_over() -> None:
    assert unpack("not what was packed") == {}
    assert unpack("") == {}


async def test_a_target_that_could_not_be_told_is_told_later() -> None:
    world = World(knobs())
    world.request()
    await world.run(minutes(5))
    world.silent = True
    await world.run(minutes(20))
    unheard = world.desired
    world.silent = False
    await world.tick()

    assert unheard == 1
    assert world.desired == 0


async def test_a_life_that_runs_no_longer_is_forgotten() -> None:
    world = World(knobs())
    world.request()
    await world.tick()
    world.lives = False
    await world.run(minutes(30))

    assert world.watcher.gone == ("u1",)
    assert world.watcher.followed == 0
    assert len(world.told) == 1


async def test_a_held_count_is_left_alone_and_the_load_goes_on_from_it() -> None:
    world = World(knobs())
    world.scale(3)
    await world.run(minutes(30))
    held = list(world.told)
    world.scale(None)
    await world.tick()
    at_once = world.desired
    await world.run(minutes(60))

    assert held == []
    assert at_once == 3
    assert world.desired == 0


async def test_replicas_that_are_starting_are_not_idle() -> None:
    world = World(knobs(scale_to_zero_delay=timedelta(seconds=120)), ready=False)
    world.request()
    await world.run(minutes(15))
    while_starting = world.desired
    world.ready = True
    await world.run(minutes(25))

    assert while_starting == 1
    assert world.desired == 0


async def test_at_zero_a_server_that_is_not_there_decides_nothing() -> None:
    scraped = LoadConfig(source=LoadKind.SCRAPE, preset=LoadPreset.VLLM)
    world = World(knobs(load=scraped))
    world.rate = 5

    await world.run(minutes(30))

    assert world.told == []
    assert world.desired == 0


async def test_a_thousand_memories_go_along_with_a_heartbeat() -> None:
    world = World(knobs(max_replicas=20))
    world.request()
    world.rate = 7
    await world.run(minutes(20))
    [memory] = world.watcher.memories.values()
    busy = memory.state.replace(arrivals=123456.0)
    many = {
        f"chat-{number}": memory.replace(
            uid=f"{number:032x}",
            state=busy.replace(window=tuple((a, b + number) for a, b in busy.window)),
        )
        for number in range(1_000)
    }

    assert len(pack(many)) < 512 * 1024
    assert unpack(pack(many)) == many


async def test_a_target_that_was_told_and_not_remembered_is_not_taken_back() -> None:
    world = World(knobs())
    world.request()
    await world.tick()
    early = pack(world.watcher.memories)
    world.rate = 40
    await world.run(minutes(5))
    many = world.desired
    world.watcher = world.watch(unpack(early))
    world.missing = True
    await world.run(minutes(8))

    assert many > 1
    assert world.desired == many


async def test_a_count_that_was_held_ends_without_a_wake_by_requests_of_that_time() -> None:
    world = World(knobs())
    world.request()
    world.rate = 3
    await world.run(minutes(5))
    world.scale(0)
    await world.run(minutes(10))
    world.rate = 0
    await world.run(minutes(20))
    world.scale(None)
    await world.run(minutes(40))

    assert world.desired == 0
    assert world.targets[-1][1] == 0
    assert world.targets[-1][0] < minutes(6)


async def test_while_a_router_is_silent_there_may_be_more_and_never_fewer() -> None:
    world = World(knobs())
    world.request()
    await world.tick()
    world.partial = True
    world.rate = 40
    await world.run(minutes(3))
    more = world.desired
    world.rate = 0
    await world.run(minutes(60))
    held = world.desired
    world.partial = False
    await world.run(minutes(90))

    assert more > 1
    assert held == more
    assert world.desired == 0
