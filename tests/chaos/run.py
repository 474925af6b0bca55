"""One run: the stage, the stories, the incidents, and the verdict once all is quiet."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from garrison.providers.simulated.console import SimulatedConsole
from tests.chaos.diary import Diary
from tests.chaos.driver import Driver, NotingClusters
from tests.chaos.facts import Facts
from tests.chaos.judge import Kind, Violation, judge
from tests.chaos.nursery import Nursery
from tests.chaos.plan import RunPlan, ServerKill, Terminate, Weather, WorkerKill
from tests.chaos.stage import Stage
from tests.chaos.truth import Truth
from tests.chaos.witness import gather_facts, unsound_histories

T = TypeVar("T")

STORIES_WITHIN = 120.0
QUIET_WITHIN = 45.0
LOOK_EVERY = 0.5
LASTING = frozenset({Kind.DOUBLE_BUY, Kind.DOUBLE_RUN, Kind.LOST_ACK, Kind.LOST_REPLICA})
"""What no patience mends."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run.

    Attributes:
        faults: Provider calls that did not simply work.
    """

    seed: int
    clusters: int
    worker_kills: int
    server_kills: int
    faults: int
    seconds: float
    violations: tuple[Violation, ...]

    def count(self, kind: Kind) -> int:
        """Return how many promises of a kind were broken."""
        return sum(violation.kind is kind for violation in self.violations)


async def run_plan(
    plan: RunPlan, folder: Path, nursery: Nursery, *, sabotage: str | None = None
) -> Result:
    """Carry out a plan in an empty folder; no process is left afterwards."""
    begun = time.monotonic()
    diary = Diary(folder / "diary.log")
    stage = Stage(nursery, folder, diary, workers=plan.workers, sabotage=sabotage)
    console = SimulatedConsole(stage.cloud)
    truth = Truth(stage.cloud, console)
    try:
        client = await stage.open()
        clusters = NotingClusters(client, stage.settings)
        drivers = [Driver(one, clusters, console, truth, stage, diary) for one in plan.clusters]
        async with beside(truth.follow()), beside(stage.tend()):
            await perform(plan, stage, console, (driver.follow() for driver in drivers))
            console.clear_faults()
            diary.note("run", "all stories are told")
            await stage.mend()
            violations = await _verdict(client, truth, drivers, diary)
        diary.note("run", violations)
        # A sabotaged worker's workflows differ from those that would replay them here.
        unsound = await unsound_histories(client, folder, replays=sabotage is None)
        violations += [Violation(Kind.OTHER, text) for text in unsound]
        violations += [
            Violation(Kind.OTHER, f"worker {pid} ended by itself") for pid in stage.deaths
        ]
    finally:
        await stage.close()
    return Result(
        seed=plan.seed,
        clusters=len(plan.clusters),
        worker_kills=stage.worker_kills,
        server_kills=stage.server_kills,
        faults=sum(record.result != "ok" for record in console.calls()),
        seconds=time.monotonic() - begun,
        violations=tuple(dict.fromkeys(violations)),
    )


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Have work done until the block is over."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Incidents(Protocol):
    """The part of a plan that hits everybody."""

    @property
    def kills(self) -> tuple[WorkerKill, ...]:
        """Of workers."""
        ...

    @property
    def server_kills(self) -> tuple[ServerKill, ...]:
        """Of the server."""
        ...

    @property
    def weather(self) -> tuple[Weather, ...]:
        """Of the cloud."""
        ...


async def perform(
    plan: Incidents,
    stage: Stage,
    console: SimulatedConsole,
    stories: Iterable[Coroutine[Any, Any, None]],
) -> None:
    """Carry out all stories, with what hits them."""
    async with asyncio.timeout(STORIES_WITHIN), asyncio.TaskGroup() as group:
        deeds = [*stories]
        deeds += [_kill_workers(stage, kill, number) for number, kill in enumerate(plan.kills)]
        deeds += [_kill_server(stage, kill) for kill in plan.server_kills]
        deeds += [_change(console, weather) for weather in plan.weather]
        for deed in deeds:
            group.create_task(deed)


async def _kill_workers(stage: Stage, kill: WorkerKill, number: int) -> None:
    await asyncio.sleep(kill.at)
    await stage.kill_workers(all=kill.all, down=kill.down, first=number)


async def _kill_server(stage: Stage, kill: ServerKill) -> None:
    await asyncio.sleep(kill.at)
    await stage.kill_server(down=kill.down)


async def _change(console: SimulatedConsole, weather: Weather) -> None:
    await asyncio.sleep(weather.at)
    await asyncio.to_thread(console.add_fault, weather.rule)


async def _verdict(
    client: Client, truth: Truth, drivers: Sequence[Driver], diary: Diary
) -> list[Violation]:
    """Judge what is left when all is quiet, and again when all that lived has been ended."""

    async def look() -> tuple[Facts, list[Violation]]:
        facts = await gather_facts(client, truth, drivers)
        return facts, judge(facts)

    facts, found = await when_quiet(look, diary)
    diary.note("run", f"is quiet: {found}")
    if facts is None:
        return found
    left = {life.status.name for life in facts.lives.values() if not life.closed}
    async with asyncio.TaskGroup() as group:
        for driver in drivers:
            if driver.plan.name in left:
                group.create_task(driver.deed(Terminate()))
    _, at_last = await when_quiet(look, diary)
    return [*found, *at_last]


async def when_quiet(
    look: Callable[[], Awaitable[tuple[T, list[Violation]]]],
    diary: Diary,
    within: float = QUIET_WITHIN,
) -> tuple[T | None, list[Violation]]:
    """Return the facts once nothing is wrong, or once patience does not help any more."""
    end = time.monotonic() + within
    while True:
        seen = None
        try:
            seen = await look()
        except (RPCError, WorkflowQueryFailedError) as error:
            # A worker that was just started has yet to answer.
            diary.note("run", f"does not know how things stand: {error}")
        late = time.monotonic() > end
        if seen is not None and (late or all(one.kind in LASTING for one in seen[1])):
            return seen
        if late:
            return None, [Violation(Kind.STUCK, "nobody says how things stand; see the diary")]
        await asyncio.sleep(LOOK_EVERY)
