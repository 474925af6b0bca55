"""What `apply` refuses, leaves out and does in order, against fakes of the other nouns."""

from __future__ import annotations

from typing import Any

import pytest

from garrison.client.apply import Apply
from garrison.errors import ConflictPhase, InvalidSpec, NameInUse
from garrison.models.apply import ApplyAction
from garrison.models.observation import ProviderStatus
from tests.cli.fake_elastic import (
    UID,
    FakeComputeClusters,
    FakeDeployments,
    FakeNodepools,
    compute_cluster,
)

CLUSTER_FILE = b"""compute_cluster:
  id: gpus
  cloud_provider: {id: aws}
  region: us-east-1
  description: for inference
"""
POOL_FILE = b"""nodepool:
  id: a10g
  compute_cluster: {id: gpus}
  instance_types: [{id: g5.2xlarge}]
  min_instances: 2
  max_instances: 3
"""
MACHINES_FILE = b"""cluster:
  name: train-1
  nodes: 2
  accelerator: H100
"""


class Providers:
    """One provider with one region."""

    async def list(self) -> list[ProviderStatus]:
        return [ProviderStatus(name="aws", type="simulated", regions=("us-east-1",))]


class Nodepools(FakeNodepools):
    """Nodepools of which none is there."""

    async def find(self, compute_cluster: str, name: str) -> None:
        return None


class World:
    """The fakes, and an `Apply` over them."""

    def __init__(self) -> None:
        self.clusters = FakeComputeClusters()
        self.pools = Nodepools()
        parts: tuple[Any, ...] = (Providers(), self.clusters, self.pools, FakeDeployments())
        self.apply = Apply(*parts)


async def test_a_compute_cluster_that_differs_is_updated_in_the_life_that_was_seen() -> None:
    world = World()

    plan = await world.apply.plan({"gpus.yaml": CLUSTER_FILE})
    [step] = [step async for step in world.apply.carry_out(plan)]

    assert [one.field for one in step.differences] == ["description"]
    [sent] = world.clusters.named("update")
    assert (sent["uid"], step.done) == (UID, True)


async def test_a_nodepool_is_priced_and_made_after_its_compute_cluster() -> None:
    world = World()
    world.clusters.found = None

    plan = await world.apply.plan({"a.yaml": POOL_FILE, "b.yaml": CLUSTER_FILE})
    steps = [step async for step in world.apply.carry_out(plan)]

    assert [(step.name, step.action) for step in steps] == [
        ("gpus", ApplyAction.CREATE),
        ("gpus/a10g", ApplyAction.CREATE),
    ]
    assert (steps[1].machines, str(steps[1].hourly_usd)) == (2, "2.424")
    [asked] = world.pools.named("preview")
    assert asked["compute_cluster"].region == "us-east-1"


async def test_what_somebody_else_made_meanwhile_is_not_called_created() -> None:
    world = World()
    world.clusters.found = None
    plan = await world.apply.plan({"gpus.yaml": CLUSTER_FILE, "pool.yaml": POOL_FILE})
    world.clusters.began = False

    steps = [step async for step in world.apply.carry_out(plan)]

    assert [(step.action, step.done) for step in steps] == [
        (ApplyAction.UNCHANGED, True),
        (ApplyAction.CREATE, True),
    ]


async def test_what_is_being_deleted_is_neither_changed_nor_called_unchanged() -> None:
    world = World()
    world.clusters.found = compute_cluster(phase="deleting", description="for inference")

    with pytest.raises(ConflictPhase, match="gpus is being deleted; apply again"):
        await world.apply.plan({"gpus.yaml": CLUSTER_FILE})


async def test_a_change_that_cannot_be_made_is_told_with_its_line() -> None:
    world = World()
    world.clusters.found = compute_cluster(region="us-west-2")

    with pytest.raises(InvalidSpec) as refused:
        await world.apply.plan({"gpus.yaml": CLUSTER_FILE})

    [problem] = refused.value.problems
    assert (problem.line, problem.field) == (4, "compute_cluster.region")
    assert refused.value.source == "gpus.yaml"


async def test_a_resource_that_is_given_twice_is_refused() -> None:
    world = World()

    with pytest.raises(InvalidSpec, match=r"gpus is given in a\.yaml too"):
        await world.apply.plan({"a.yaml": CLUSTER_FILE, "b.yaml": CLUSTER_FILE})


async def test_files_of_clusters_are_left_out_with_a_word() -> None:
    plan = await World().apply.plan({"gpus.yaml": CLUSTER_FILE, "train.yaml": MACHINES_FILE})

    assert [one.step.name for one in plan.steps] == ["gpus"]
    assert plan.skipped == (
        "train.yaml is left out, as it is of a cluster: `garrison cluster up -f train.yaml`",
    )


async def test_nothing_but_clusters_is_nothing_to_apply() -> None:
    with pytest.raises(InvalidSpec, match=r"nothing to apply.*garrison cluster up -f train\.yaml"):
        await World().apply.plan({"train.yaml": MACHINES_FILE})


async def test_a_step_that_is_refused_ends_the_rest() -> None:
    world = World()
    world.clusters.found = None
    plan = await world.apply.plan({"gpus.yaml": CLUSTER_FILE, "pool.yaml": POOL_FILE})
    world.clusters.error = NameInUse("compute cluster gpus is being deleted")

    with pytest.raises(NameInUse):
        [step async for step in world.apply.carry_out(plan)]

    assert not world.pools.named("create")
