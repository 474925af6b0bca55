"""The three files of the documentation, from nothing to a replica and back, through the SDK."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from temporalio.client import Client

from garrison.client.garrison import Garrison
from garrison.errors import InvalidSpec, NameInUse, NotFound
from garrison.models.apply import ApplyAction
from garrison.models.compute_cluster import ComputeClusterSpec
from garrison.models.deployment import DeploymentStatus, ReplicaState
from garrison.models.worker_file import ModelSettings, ResourcesFile
from tests.workflows.conftest import SOON, Story

FILES = sorted((Path(__file__).parents[1] / "data" / "clarifai").glob("*.yaml"))
MODEL = ModelSettings(
    command=("serve",),
    port=8000,
    resources=ResourcesFile(cpu="2", memory="8Gi", accelerators=1),
)


@pytest.fixture
async def world(client: Client, tmp_path: Path) -> AsyncIterator[tuple[Story, Garrison]]:
    """A simulated cloud with the name of a real one, and settings that know the model."""
    story = Story(client, tmp_path, name="aws")
    story.settings = story.settings.model_copy(update={"models": {"meta/Llama-3/*": MODEL}})
    story.use(regions=("us-east-1",))
    yield story, Garrison(client, story.settings)
    await story.end()


async def _deleted(garrison: Garrison) -> None:
    await garrison.deployments.delete("test-deployment")
    await garrison.deployments.wait_deleted("test-deployment", timeout=SOON)
    await garrison.compute_clusters.delete("test-compute-cluster", cascade=True)
    await garrison.compute_clusters.wait_deleted("test-compute-cluster", timeout=SOON)


async def test_documented_files_cost_nothing_until_a_replica_is_wanted_and_nothing_after_it(
    world: tuple[Story, Garrison],
) -> None:
    story, garrison = world
    files = {path.name: path.read_bytes() for path in FILES}

    async with story.worker():
        plan = await garrison.apply.plan(files)
        made = [step async for step in garrison.apply.carry_out(plan)]
        again = await garrison.apply.plan(files)
        await garrison.nodepools.wait("test-compute-cluster", "test-nodepool", timeout=SOON)
        idle = story.machines()
        one = await _scaled(garrison, 1)
        busy = story.machines()
        log = b"".join([data async for data in garrison.deployments.logs("test-deployment")])
        pools = await garrison.nodepools.list("Test-Compute-Cluster")
        others = await garrison.nodepools.list("test")
        [listed] = await garrison.deployments.list()
        tree = await garrison.tree()
        zero = await _scaled(garrison, 0)
        await _released(garrison)
        left = story.machines()
        await _deleted(garrison)

    assert [step.action for step in made] == [ApplyAction.CREATE] * 3
    assert not again.changes
    assert (idle, len(busy), left) == ([], 1, [])
    assert [replica.state for replica in one.replicas] == [ReplicaState.READY]
    assert not zero.replicas
    assert b"serve" in log
    assert [(row.id, row.ready, row.provider) for row in pools] == [("test-nodepool", 1, "aws")]
    assert not others
    assert (listed.what, listed.ready) == ("meta/Llama-3/Llama-3_2-3B-Instruct", 1)
    [node] = tree.compute_clusters[0].nodepools[0].nodes
    assert (node.instance_type, tree.hourly_usd) == ("g5.2xlarge", node.usd_per_hour)
    assert tree.hourly_usd is not None
    assert tree.hourly_usd > Decimal(0)


async def _scaled(garrison: Garrison, count: int) -> DeploymentStatus:
    ack = await garrison.deployments.scale("test-deployment", count)
    return await garrison.deployments.wait(
        ack.id, uid=ack.uid, generation=ack.generation, timeout=SOON
    )


async def _released(garrison: Garrison) -> None:
    """Have the pool give back what is empty at once."""
    name = ("test-compute-cluster", "test-nodepool")
    spec = (await garrison.nodepools.get(*name)).spec
    ack = await garrison.nodepools.update(spec.replace(release_after=timedelta(0)))
    await garrison.nodepools.wait(*name, generation=ack.generation, timeout=SOON)


async def test_a_compute_cluster_lives_once_under_its_id(world: tuple[Story, Garrison]) -> None:
    story, garrison = world
    clusters = garrison.compute_clusters
    spec = ComputeClusterSpec(id="Twice", provider="aws", region="us-east-1")

    async with story.worker():
        first = await clusters.create(spec)
        again = await clusters.create(spec)
        with pytest.raises(NameInUse):
            await clusters.create(spec.replace(description="another one"))
        with pytest.raises(NotFound, match="uid"):
            await clusters.delete("twice", uid=str(uuid.uuid4()))
        gone = await clusters.delete("twice", uid=first.uid)
        await clusters.wait_deleted("twice", uid=first.uid, timeout=SOON)
        late = await clusters.delete("twice")
        with pytest.raises(NotFound, match="was deleted"):
            await clusters.update(spec)
        second = await clusters.create(spec)
        with pytest.raises(NotFound, match="there is no life"):
            await clusters.get("twice", uid=first.uid)
        await clusters.delete("twice", uid=second.uid)

    assert again == first
    assert (late.uid, late.accepted_at) == (gone.uid, gone.accepted_at)
    assert second.uid != first.uid


async def test_every_mistake_of_every_file_is_told_before_anything_is_made(
    world: tuple[Story, Garrison],
) -> None:
    story, garrison = world
    files = {path.name: path.read_bytes() for path in FILES}
    cluster, deployment, pool = (path.name for path in FILES)
    files[cluster] = files[cluster].replace(b'"us-east-1"', b'"us-east-9"')
    files[deployment] = files[deployment].replace(b'"Llama-3"', b'"Llama-4"')
    other = files[pool].replace(b'"test-compute-cluster"', b'"nowhere"')
    files["other.yaml"] = other
    files["broken.yaml"] = files[pool].replace(b"max_instances: 1", b"max_instance: 1")

    async with story.worker():
        with pytest.raises(InvalidSpec) as refused:
            await garrison.apply.plan(files)
        made = await garrison.compute_clusters.list()

    told = [(one.file, one.field, one.line) for one in refused.value.problems]
    assert told == [
        (cluster, "compute_cluster.region", 6),
        (deployment, "deployment.worker.model", 13),
        ("other.yaml", "nodepool.compute_cluster", 3),
        ("broken.yaml", "nodepool.max_instance", 19),
    ]
    assert not made
