"""A compute cluster, a nodepool and a deployment, as the paths of elastic things have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from garrison.models.deployment import (
    DeploymentPool,
    DeploymentSpec,
    DeploymentStatus,
    ReplicaTemplate,
)
from garrison.models.resources import Resources
from garrison.sealing import seal_env
from tests.workflows.conftest import Story
from tests.workflows.pool_story import PoolStory
from tests.workflows.stub_pool import DeploymentStory

Runs = dict[str, Any]

ONE_EACH = Resources(cpu_milli=1000, accelerators=1)
"""So that each replica needs a machine of its own."""

COMPUTE_CLUSTER, NODEPOOL, DEPLOYMENT = "compute-cluster", "nodepool", "deployment"


class Place:
    """One compute cluster, one nodepool in it and one deployment on that."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.pools = PoolStory(story)
        self.deployed = DeploymentStory(story)
        self.handles: Runs = {
            COMPUTE_CLUSTER: self.pools.handle(self.pools.cluster),
            NODEPOOL: self.pools.handle(self.pools.pool),
            DEPLOYMENT: self.deployed.handle,
        }

    @asynccontextmanager
    async def begun(self, **pool: Any) -> AsyncIterator[Place]:
        """Work, with a nodepool that has joined and a deployment at zero."""
        async with self.pools.working():
            await self.pools.begin(**pool)
            await self.deployed.create(self.spec())
            await self.pools.until(lambda one: one.phase == "active")
            yield self

    def spec(self, *more: DeploymentPool, **template: Any) -> DeploymentSpec:
        """Return what the deployment is to be, with a secret in it."""
        given = {"command": ("serve",), "port": 8000, "resources": ONE_EACH, **template}
        env = seal_env(self.story.keys.public_text, {"TOKEN": "hidden"})
        mine = DeploymentPool(compute_cluster=self.pools.place, nodepool="p", priority=1)
        return self.deployed.spec(
            template=ReplicaTemplate(env=env, **given), nodepools=(mine, *more)
        )

    async def change(self, **template: Any) -> None:
        await self.deployed.update(self.spec(**template))

    async def ready(self, count: int) -> DeploymentStatus:
        """Scale, and wait until so many are ready and no other is there."""
        await self.deployed.scale(count)
        return await self.deployed.until(
            lambda one: one.desired == one.ready == len(one.replicas) == count
        )

    async def empty(self) -> None:
        await self.pools.until(lambda one: not one.nodes)

    async def end(self) -> None:
        """Delete what still lives, the deployment first."""
        await self.deployed.delete()
        await self.deployed.handle.result()
        await self.pools.delete(self.pools.cluster, cascade=True)
        for which in (NODEPOOL, COMPUTE_CLUSTER):
            await self.handles[which].result()

    def runs(self, *which: str) -> Runs:
        return {one: self.handles[one] for one in which}

    async def first_run(self, which: str) -> str:
        return str((await self.handles[which].describe()).run_id)
