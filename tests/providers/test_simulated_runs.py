"""The simulated cloud remembers which process ran where, and until when."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from garrison.models.group import Group, GroupRequest, Node
from garrison.models.offer import Offer
from garrison.providers.base import WorkloadRequest
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.provider import SimulatedProvider
from garrison.providers.simulated.runs import Run

OFFER = Offer(provider="x", instance_type="m1", usd_per_hour=Decimal("1.50"))
BEGUN = datetime(2026, 1, 1, 12, 10, tzinfo=UTC)


class Clock:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class World:
    """One machine that is up, on which `web` was begun at `BEGUN`."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.path = path
        self.provider = SimulatedProvider(
            path, installation="i", offers=[OFFER], clock=self.clock, delete_takes=timedelta(0)
        )
        self.console = SimulatedConsole(path, clock=self.clock)
        self.node: Node

    async def open(self) -> None:
        request = GroupRequest(
            token="t",
            owner="nodepool/c/p",
            uid="u",
            name="n",
            region=self.provider.facts.regions[0],
            instance_type="m1",
            count=1,
            gpus_per_node=0,
            max_usd_per_node_hour=Decimal(9),
        )
        group = await self.provider.launch_group(request)
        assert isinstance(group, Group)
        (self.node,) = group.nodes
        self.clock.now = BEGUN
        await self.start(1)
        self.clock.wait(10)

    async def start(self, generation: int) -> None:
        work = WorkloadRequest(name="web", generation=generation, command=("serve", "it"))
        await self.provider.workloads.start_workload(self.node, work)

    def runs(self) -> list[tuple[int, int | None, bool]]:
        """Return generation, seconds and whether it was stopped, of each process."""
        return [(run.generation, _length(run), run.stopped) for run in self.console.workload_runs()]


def _length(run: Run) -> int | None:
    return None if run.ended_at is None else round((run.ended_at - run.begun_at).total_seconds())


@pytest.fixture
async def world(tmp_path: Path) -> World:
    made = World(tmp_path / "cloud")
    await made.open()
    return made


async def test_a_running_process_has_no_end(world: World) -> None:
    (run,) = world.console.workload_runs()

    assert (run.provider_id, run.name, run.command) == (world.node.provider_id, "web", "serve it")
    assert (run.begun_at, run.ended_at, run.incarnation) == (BEGUN, None, 1)


async def test_the_same_start_again_is_the_same_process(world: World) -> None:
    await world.start(1)

    assert world.runs() == [(1, None, False)]


async def test_a_stop_ends_a_process_once(world: World) -> None:
    await world.provider.workloads.stop_workload(world.node, "web")
    world.clock.wait(5)
    await world.provider.workloads.stop_workload(world.node, "web")

    assert world.runs() == [(1, 10, True)]


async def test_another_generation_ends_the_one_before(world: World) -> None:
    await world.start(2)

    assert world.runs() == [(1, 10, True), (2, None, False)]


async def test_a_process_that_is_not_started_again_ends_with_its_exit(world: World) -> None:
    world.console.exit_workload(world.node.provider_id, 0)

    assert world.runs() == [(1, 10, True)]


async def test_a_machine_ends_its_processes_with_its_deletion(world: World) -> None:
    await world.provider.terminate_group("t")
    world.clock.wait(3600)

    assert world.runs() == [(1, 10, False)]


async def test_a_power_cut_ends_a_process_though_the_machine_comes_back(world: World) -> None:
    world.console.kill(world.node.provider_id)
    world.clock.wait(30)
    before = world.runs()
    world.console.revive(world.node.provider_id)
    world.clock.wait(600)
    await world.start(1)

    assert before == [(1, 10, False)]
    assert world.runs() == [(1, 10, False), (1, None, False)]
    assert [run.incarnation for run in world.console.workload_runs()] == [1, 2]


async def test_a_cloud_of_before_gets_its_record_and_keeps_what_it_has(world: World) -> None:
    with closing(sqlite3.connect(world.path, isolation_level=None)) as file:
        file.execute("DROP TABLE runs")
        file.execute("ALTER TABLE machines DROP COLUMN notice_at")
        file.execute("ALTER TABLE machines DROP COLUMN taken_at")
        file.execute("PRAGMA user_version = 1")

    world.console = SimulatedConsole(world.path, clock=world.clock)
    await world.start(2)

    assert world.runs() == [(2, None, False)]
    assert len(world.console.inventory()) == 1
