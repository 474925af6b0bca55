"""The SDK of deployments and compute clusters, on a real server."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from garrison.client.garrison import Garrison
from garrison.errors import InvalidSpec
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentSpec,
    ReplicaTemplate,
)
from tests.workflows.conftest import SOON, Story


def spec(**fields: object) -> DeploymentSpec:
    given = {
        "id": f"d{uuid.uuid4().hex[:8]}",
        "template": ReplicaTemplate(command=("serve",), env={"TOKEN": "secret:hf"}),
        "nodepools": (DeploymentPool(compute_cluster="gpus", nodepool="none"),),
        **fields,
    }
    return DeploymentSpec.model_validate(given)


async def test_a_secret_that_is_not_there_is_refused_and_one_of_two_creates_made_it(
    story: Story,
) -> None:
    deployments, wanted = Garrison(story.client, story.settings).deployments, spec()
    async with story.worker():
        with pytest.raises(InvalidSpec) as refused:
            await deployments.create(wanted)
        begun = await deployments.find(wanted.id)
        (story.folder / "secrets").mkdir()
        (story.folder / "secrets" / "hf").write_text("s3cret")

        made = await asyncio.gather(*(deployments.make(wanted) for _ in range(2)))
        await deployments.delete(wanted.id)
        await deployments.wait_deleted(wanted.id, timeout=SOON)

    [problem] = refused.value.problems
    assert problem.field == "deployment.worker.env.TOKEN"
    assert "the worker has no secret hf" in problem.message
    assert begun is None
    assert sorted(one.began for one in made) == [False, True]
    assert len({one.answer.uid for one in made}) == 1


async def test_a_life_whose_create_was_refused_is_none(story: Story) -> None:
    deployments = Garrison(story.client, story.settings).deployments
    wanted = spec(
        template=ReplicaTemplate(command=("serve",)),
        autoscale=AutoscaleConfig(min_replicas=2, max_replicas=1),
    )
    async with story.worker():
        with pytest.raises(InvalidSpec) as refused:
            await deployments.create(wanted)
        found = await deployments.find(wanted.id)
        await story.client.get_workflow_handle(f"deployment/{wanted.id}").terminate()

    [problem] = refused.value.problems
    assert problem.field == "deployment.autoscale_config.min_replicas"
    assert found is None
