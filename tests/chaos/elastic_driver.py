"""People who follow the stories of a nodepool and of a deployment, and note what they were told."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from garrison.client.compute_clusters import ComputeClusters
from garrison.client.deployments import Deployments, is_settled
from garrison.client.nodepools import Nodepools
from garrison.client.offers import Offers
from garrison.client.pool_market import PoolMarket
from garrison.client.providers import Providers
from garrison.domain.resource_ids import nodepool_workflow_id
from garrison.errors import (
    ConflictPhase,
    GarrisonError,
    NameInUse,
    NotFound,
    ProviderError,
    ProviderUnreachable,
)
from garrison.models.compute_cluster import ComputeClusterSpec
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentSpec,
    ReplicaTemplate,
)
from garrison.models.nodepool import NodepoolSpec
from garrison.models.resources import Resources
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.faults import Call
from garrison.settings import Settings
from tests.chaos import elastic_plan as steps
from tests.chaos import plan as common
from tests.chaos.asking import ANSWER_WITHIN, AWAY, Asker
from tests.chaos.diary import Diary
from tests.chaos.elastic_facts import DeploymentWish, PoolWish, command_of
from tests.chaos.stage import Stage
from tests.chaos.truth import Truth

TIRED = (*AWAY, ProviderUnreachable, ProviderError)
"""The provider may be away too when it is asked what it sells."""


class Clients:
    """The shipped clients, with little patience."""

    def __init__(self, client: Client, settings: Settings) -> None:
        patience: dict[str, Any] = {"call_timeout": ANSWER_WITHIN}
        providers = Providers(client, **patience)
        market = PoolMarket(client, Offers(client, providers))
        self.compute_clusters = ComputeClusters(client, settings, providers, **patience)
        self.nodepools = Nodepools(client, settings, self.compute_clusters, market, **patience)
        self.deployments = Deployments(client, settings, self.nodepools, **patience)


class ElasticDriver:
    """What both kinds of people do.

    Attributes:
        broken: Machines that it stopped or took away.
    """

    def __init__(
        self,
        plan: steps.PoolPlan | steps.DeploymentPlan,
        clients: Clients,
        console: SimulatedConsole,
        truth: Truth,
        stage: Stage,
        diary: Diary,
    ) -> None:
        self.asker = Asker(plan.name, diary)
        self.broken: set[str] = set()
        self._owners = tuple(
            nodepool_workflow_id(steps.COMPUTE_CLUSTER, name) for name in pools_of(plan)
        )
        self._plan = plan
        self._clients = clients
        self._console = console
        self._truth = truth
        self._stage = stage
        self._diary = diary
        self._counted: dict[Any, int] = {}

    async def follow(self) -> None:
        """Carry out every step of the plan."""
        await asyncio.sleep(self._plan.start)
        for step in self._plan.steps:
            await self.deed(step)

    async def deed(self, step: steps.Step) -> None:
        """Carry out one step."""
        self._diary.note(self._plan.name, step)
        if not isinstance(step, common.Seen):
            self._counted = {
                (call, moment): self._count(call, moment)
                for call in Call
                for moment in common.Moment
            }
        await getattr(self, f"_{type(step).__name__.lower()}")(step)

    def _count(self, call: Call, moment: common.Moment) -> int:
        return sum(self._truth.count(owner, call, moment) for owner in self._owners)

    async def _pause(self, step: common.Pause) -> None:
        await asyncio.sleep(step.seconds)

    async def _rule(self, step: common.Rule) -> None:
        rule = step.rule.model_copy(update={"owner": self._owners[0]})
        await asyncio.to_thread(self._console.add_fault, rule)

    async def _seen(self, step: common.Seen) -> None:
        """Wait for a call that came after the step before this one was begun."""

        async def seen() -> bool:
            return self._count(step.call, step.moment) > self._counted[step.call, step.moment]

        await self.asker.until(seen, every=0.03)

    async def _kill(self, step: common.Kill) -> None:
        await self._stage.kill_workers(all=True, down=step.down)

    async def _told(
        self,
        call: Callable[[], Awaitable[Any]],
        *,
        repeats: int = 0,
        again: tuple[type[GarrisonError], ...] = TIRED,
    ) -> Any:
        """Return the first answer, and complain if a repeated call gets another one, or none."""
        first = await self.asker.asked(call, again)
        if first is None:
            self.asker.complaints.append(f"{self._plan.name}: was refused, see the diary")
            return None
        self._diary.note(self._plan.name, f"is told: {first!r:.300}")
        for _ in range(repeats):
            repeated = await self.asker.asked(call, again)
            if repeated != first:
                text = f"{self._plan.name}: {first!r:.200} became {repeated!r:.200} when repeated"
                self.asker.complaints.append(text)
        return first


def pools_of(plan: steps.PoolPlan | steps.DeploymentPlan) -> Iterable[str]:
    """Return the names of the pools that a plan is about."""
    return plan.pools if isinstance(plan, steps.DeploymentPlan) else (plan.name,)


class PoolDriver(ElasticDriver):
    """Follows one nodepool's plan.

    Attributes:
        wishes: What was acknowledged, by uid.
    """

    def __init__(self, plan: steps.PoolPlan, *world: Any) -> None:
        super().__init__(plan, *world)
        self.plan = plan
        self.wishes: dict[str, PoolWish] = {}
        self._wish: PoolWish | None = None

    def _spec(self, least: int, most: int) -> NodepoolSpec:
        plan = self.plan
        return NodepoolSpec(
            id=plan.name,
            compute_cluster=steps.COMPUTE_CLUSTER,
            instance_types=plan.instance_types,
            capacity_types=plan.capacity_types,
            min_instances=least,
            max_instances=most,
            warm_instances=min(plan.warm, most),
            release_after=timedelta(seconds=steps.RELEASE_AFTER),
        )

    async def _create(self, step: steps.Create) -> None:
        least, most = self.plan.least, self.plan.most
        spec, request_id = self._spec(least, most), uuid.uuid4().hex
        answer = await self._told(
            lambda: self._clients.nodepools.create(spec, request_id=request_id),
            repeats=step.repeats,
            again=(*TIRED, NameInUse, NotFound),
        )
        if answer is not None:
            self._wish = PoolWish(self.plan, answer.uid, least, most, most)
            self.wishes[answer.uid] = self._wish

    async def _resize(self, step: steps.Resize) -> None:
        spec, request_id = self._spec(step.least, step.most), uuid.uuid4().hex
        wish = self._wish
        if wish is None:
            return
        wish.highest = max(wish.highest, step.most)
        answer = await self._told(
            lambda: self._clients.nodepools.update(spec, uid=wish.uid, request_id=request_id)
        )
        if answer is not None:
            wish.least, wish.most = step.least, step.most

    async def _delete(self, step: steps.Delete) -> None:
        wish, request_id = self._wish, uuid.uuid4().hex
        if wish is None:
            return
        answer = await self._told(
            lambda: self._clients.nodepools.delete(
                steps.COMPUTE_CLUSTER, self.plan.name, uid=wish.uid, request_id=request_id
            ),
            repeats=step.repeats,
        )
        if answer is not None:
            wish.deleted = True

    async def _filled(self, step: steps.Filled) -> None:
        async def filled() -> bool:
            own = {machine["provider_id"] for machine in await self._machines()}
            runs = await asyncio.to_thread(self._console.workload_runs)
            busy = {run.provider_id for run in runs if run.ended_at is None}
            return len(own & busy) >= step.machines

        await self.asker.until(filled, every=0.1)

    async def _machines(self) -> list[dict[str, Any]]:
        """Return the machines of this life that are not being deleted, oldest first."""
        found = await asyncio.to_thread(self._console.inventory)
        uid = self._wish.uid if self._wish is not None else ""
        return [one for one in found if one["uid"] == uid and one["status"] != "terminating"]

    async def _powercut(self, step: steps.PowerCut) -> None:
        await self._upon(step.number, self._console.kill)

    async def _remove(self, step: steps.Remove) -> None:
        def remove(node: str) -> None:
            self._console.delete_node(node, vanish=False)

        await self._upon(step.number, remove)

    async def _notice(self, step: steps.Notice) -> None:
        def notice(node: str) -> None:
            self._console.notice(node, step.seconds)

        await self._upon(step.number, notice)

    async def _upon(self, number: int, incident: Callable[[str], None]) -> None:
        machines = await self._machines()
        if not machines:
            return
        node = machines[number % len(machines)]["provider_id"]
        self.broken.add(node)
        self._diary.note(self.plan.name, f"it is {node}")
        try:
            await asyncio.to_thread(incident, node)
        except (ConflictPhase, NotFound):
            return  # it was deleted in this very moment


class DeploymentDriver(ElasticDriver):
    """Follows one deployment's plan.

    Attributes:
        wishes: What was acknowledged, by uid.
    """

    def __init__(self, plan: steps.DeploymentPlan, *world: Any) -> None:
        super().__init__(plan, *world)
        self.plan = plan
        self.wishes: dict[str, DeploymentWish] = {}
        self._wish: DeploymentWish | None = None
        self._generation = 0

    def _spec(self, revision: int) -> DeploymentSpec:
        plan = self.plan
        needs = Resources(cpu_milli=plan.cpu_milli, memory_bytes=steps.MEMORY)
        return DeploymentSpec(
            id=plan.name,
            template=ReplicaTemplate(command=command_of(revision), resources=needs, port=plan.port),
            autoscale=AutoscaleConfig(
                min_replicas=plan.least, max_replicas=plan.most, disable_packing=plan.exclusive
            ),
            scheduling_choice=plan.scheduling,
            nodepools=tuple(
                DeploymentPool(compute_cluster=steps.COMPUTE_CLUSTER, nodepool=name)
                for name in plan.pools
            ),
        )

    async def _create(self, step: steps.Create) -> None:
        spec, request_id = self._spec(1), uuid.uuid4().hex
        answer = await self._told(
            lambda: self._clients.deployments.create(spec, request_id=request_id),
            repeats=step.repeats,
            again=(*TIRED, NameInUse),
        )
        if answer is not None:
            self._wish = DeploymentWish(self.plan, answer.uid)
            self.wishes[answer.uid] = self._wish

    async def _change_it(
        self, call: Callable[[str, str], Awaitable[Any]], repeats: int = 0
    ) -> DeploymentWish | None:
        """Return the wish to be changed once the change was acknowledged."""
        wish, request_id = self._wish, uuid.uuid4().hex
        if wish is None:
            return None
        answer = await self._told(lambda: call(wish.uid, request_id), repeats=repeats)
        self._generation = getattr(answer, "generation", self._generation)
        return None if answer is None else wish

    async def _scale(self, step: steps.Scale) -> None:
        wish = await self._change_it(
            lambda uid, request_id: self._clients.deployments.scale(
                self.plan.name, step.replicas, uid=uid, request_id=request_id
            ),
            step.repeats,
        )
        if wish is not None:
            wish.fixed = step.replicas

    async def _change(self, step: steps.Change) -> None:
        spec = self._spec(step.revision)
        wish = await self._change_it(
            lambda uid, request_id: self._clients.deployments.update(
                spec, uid=uid, request_id=request_id
            )
        )
        if wish is not None:
            wish.revision = step.revision

    async def _switch(self, step: steps.Switch) -> None:
        deployments = self._clients.deployments
        verb = deployments.enable if step.enabled else deployments.disable
        wish = await self._change_it(
            lambda uid, request_id: verb(self.plan.name, uid=uid, request_id=request_id)
        )
        if wish is not None:
            wish.enabled = step.enabled

    async def _delete(self, step: steps.Delete) -> None:
        wish = await self._change_it(
            lambda uid, request_id: self._clients.deployments.delete(
                self.plan.name, uid=uid, request_id=request_id
            ),
            step.repeats,
        )
        if wish is not None:
            wish.deleted = True

    async def _settled(self, step: steps.Settled) -> None:
        async def settled() -> bool:
            try:
                status = await self._clients.deployments.get(self.plan.name)
                return is_settled(status, self._generation)
            except GarrisonError as error:
                if not isinstance(error, (*AWAY, NotFound)):
                    self.asker.look_into(error)
                return False

        await self.asker.until(settled, every=0.3)


class ClusterDriver:
    """Makes the compute cluster, and deletes it at the end."""

    def __init__(self, clients: Clients, diary: Diary) -> None:
        self.asker = Asker(steps.COMPUTE_CLUSTER, diary)
        self._clients = clients

    async def create(self) -> None:
        """Make it."""
        spec = ComputeClusterSpec(
            id=steps.COMPUTE_CLUSTER, provider="simulated", region=steps.REGION
        )
        request_id = uuid.uuid4().hex
        made = await self.asker.asked(
            lambda: self._clients.compute_clusters.create(spec, request_id=request_id), TIRED
        )
        if made is None:
            self.asker.complaints.append("the compute cluster was refused")

    async def delete(self, *, cascade: bool) -> None:
        """Delete it, with its nodepools or once they are gone."""
        request_id = uuid.uuid4().hex
        again = TIRED if cascade else (*TIRED, ConflictPhase)
        gone = await self.asker.asked(
            lambda: self._clients.compute_clusters.delete(
                steps.COMPUTE_CLUSTER, cascade=cascade, request_id=request_id
            ),
            again,
        )
        if gone is None:
            self.asker.complaints.append("the compute cluster is not deleted")
