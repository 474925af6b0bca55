"""One short run of the harness: a worker is killed -9 between a purchase and its answer.

Another one, of a nodepool and a deployment, is for those who ask for it: GARRISON_CHAOS=1.

`python -m tests.chaos` makes the long ones.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from garrison.providers.simulated.faults import Call
from tests.chaos.elastic_plan import Create, ElasticPlan, Scale, Settled, make_elastic_plan
from tests.chaos.elastic_run import run_elastic_plan
from tests.chaos.nursery import Nursery
from tests.chaos.plan import Kill, Moment, RunPlan, Seen, make_plan
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


def _shortened_elastic(plan: ElasticPlan) -> ElasticPlan:
    """Return a plan in which an answer to a purchase is lost, and a worker while it starts."""
    pool, deployment = plan.pools[0], plan.deployments[0]
    lost_answer = pool.steps[0]
    started = Seen(Call.START_WORKLOAD, Moment.EFFECT)
    steps = (Create(), Scale(2), started, Kill(down=0.2), Settled(), Scale(1))
    return replace(
        plan,
        workers=1,
        pools=(replace(pool, steps=(lost_answer, Create())),),
        deployments=(replace(deployment, steps=steps),),
        kills=(),
        server_kills=(),
        weather=(),
    )


@pytest.mark.skipif("GARRISON_CHAOS" not in os.environ, reason="takes 20 s; GARRISON_CHAOS=1")
async def test_promises_are_kept_while_a_worker_is_killed_that_starts_replicas(
    tmp_path: Path,
) -> None:
    plan = _shortened_elastic(make_elastic_plan(1))

    async with Nursery.open() as nursery:
        result = await run_elastic_plan(plan, tmp_path, nursery)

    assert result.worker_kills == 1
    assert result.violations == ()
