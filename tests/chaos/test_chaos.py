"""One short run of the harness: a worker is killed -9 between a purchase and its answer.

`python -m tests.chaos` makes the long ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.chaos.nursery import Nursery
from tests.chaos.plan import RunPlan, make_plan
from tests.chaos.run import run_plan

SHORT = ("late_list", "lost_answer")


def _shortened(plan: RunPlan) -> RunPlan:
    chosen = {cluster.story: cluster for cluster in plan.clusters if cluster.story in SHORT}
    clusters = tuple(replace(cluster, start=0.0) for cluster in chosen.values())
    return replace(plan, workers=1, clusters=clusters, kills=(), server_kills=(), weather=())


async def test_promises_are_kept_while_a_worker_is_killed_in_the_middle_of_a_purchase(
    tmp_path: Path,
) -> None:
    plan = _shortened(make_plan(1))

    async with Nursery.open() as nursery:
        result = await run_plan(plan, tmp_path, nursery)

    assert result.clusters == len(SHORT)
    assert result.worker_kills == 1
    assert result.violations == ()
