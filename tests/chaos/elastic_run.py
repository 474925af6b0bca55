"""One run of nodepools and deployments: stories, incidents, and the verdict once all is quiet."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from temporalio.client import Client

from garrison.providers.simulated.console import SimulatedConsole
from tests.chaos.diary import Diary
from tests.chaos.elastic_driver import Clients, ClusterDriver, DeploymentDriver, PoolDriver
from tests.chaos.elastic_facts import ElasticFacts
from tests.chaos.elastic_judge import judge_elastic
from tests.chaos.elastic_plan import Delete, ElasticPlan
from tests.chaos.elastic_witness import gather_elastic_facts, has_ended
from tests.chaos.judge import Kind, Violation
from tests.chaos.nursery import Nursery
from tests.chaos.run import Result, beside, perform, when_quiet
from tests.chaos.stage import Stage
from tests.chaos.truth import Truth
from tests.chaos.witness import unsound_histories

QUIET_WITHIN = 75.0
"""A pool puts off purchases for up to half a minute after machines that did not live for long."""


class _Cast:
    """Everybody who takes part in one run."""

    def __init__(
        self,
        plan: ElasticPlan,
        client: Client,
        stage: Stage,
        console: SimulatedConsole,
        truth: Truth,
        diary: Diary,
    ) -> None:
        clients = Clients(client, stage.settings)
        world = (clients, console, truth, stage, diary)
        self.plan = plan
        self.cluster = ClusterDriver(clients, diary)
        self.pools = [PoolDriver(one, *world) for one in plan.pools]
        self.deployments = [DeploymentDriver(one, *world) for one in plan.deployments]
        self._client = client
        self._truth = truth
        self._diary = diary

    async def look(self) -> tuple[ElasticFacts, list[Violation]]:
        """Return what is known now, and what is wrong with it."""
        facts = await gather_elastic_facts(
            self._client, self._truth, self.cluster, self.pools, self.deployments
        )
        return facts, judge_elastic(facts)

    async def verdict(self) -> list[Violation]:
        """Judge what is left when all is quiet, and again when everything has been deleted."""
        facts, found = await when_quiet(self.look, self._diary, QUIET_WITHIN)
        self._diary.note("run", f"is quiet: {found}")
        if facts is None:
            return found
        await self._delete_all()
        _, at_last = await when_quiet(self.look, self._diary, QUIET_WITHIN)
        if not await has_ended(self._client):
            at_last.append(Violation(Kind.STUCK, "the compute cluster was told to go, and lives"))
        return [*found, *at_last]

    async def _delete_all(self) -> None:
        """Delete deployments and nodepools at once; the latter with their cluster, or before it."""
        cascade = self.plan.seed % 2 == 0
        doomed = [*self.deployments, *(() if cascade else self.pools)]
        async with asyncio.TaskGroup() as group:
            for driver in doomed:
                if any(not wish.deleted for wish in driver.wishes.values()):
                    group.create_task(driver.deed(Delete(repeats=1)))
            if cascade:
                group.create_task(self.cluster.delete(cascade=True))
        if not cascade:
            await self.cluster.delete(cascade=False)
        for pool in self.pools:
            for wish in pool.wishes.values():
                wish.deleted = True


async def run_elastic_plan(
    plan: ElasticPlan, folder: Path, nursery: Nursery, *, sabotage: str | None = None
) -> Result:
    """Carry out a plan in an empty folder; no process is left afterwards."""
    begun = time.monotonic()
    diary = Diary(folder / "diary.log")
    stage = Stage(nursery, folder, diary, workers=plan.workers, sabotage=sabotage)
    console = SimulatedConsole(stage.cloud)
    truth = Truth(stage.cloud, console)
    try:
        client = await stage.open()
        cast = _Cast(plan, client, stage, console, truth, diary)
        async with beside(truth.follow()), beside(stage.tend()):
            await cast.cluster.create()
            stories = (driver.follow() for driver in (*cast.pools, *cast.deployments))
            await perform(plan, stage, console, stories)
            console.clear_faults()
            diary.note("run", "all stories are told")
            await stage.mend()
            violations = await cast.verdict()
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
        clusters=len(plan.pools) + len(plan.deployments),
        worker_kills=stage.worker_kills,
        server_kills=stage.server_kills,
        faults=sum(record.result != "ok" for record in console.calls()),
        seconds=time.monotonic() - begun,
        violations=tuple(dict.fromkeys(violations)),
    )
