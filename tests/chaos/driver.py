"""A person who follows a cluster's story, asks again when nobody answers, and notes it all."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from decimal import Decimal

from temporalio.client import Client

from garrison.client.clusters import Clusters
from garrison.domain.clusters.call import cluster_workflow_id
from garrison.errors import (
    ConflictPhase,
    GarrisonError,
    NotFound,
)
from garrison.models.cluster import ClusterSpec
from garrison.models.cluster_messages import TerminateAck, TerminateRequest
from garrison.models.cluster_state import Phase
from garrison.models.cluster_status import ClusterStatus, QuoteStatus
from garrison.providers.simulated.console import SimulatedConsole
from garrison.settings import Settings
from tests.chaos import plan as steps
from tests.chaos.asking import ANSWER_WITHIN, AWAY, Asker
from tests.chaos.diary import Diary
from tests.chaos.facts import Ack
from tests.chaos.stage import Stage
from tests.chaos.truth import Truth


class NotingClusters(Clusters):
    """The shipped client, which tells whether a terminate went by signal."""

    def __init__(self, client: Client, settings: Settings) -> None:
        super().__init__(client, settings, call_timeout=ANSWER_WITHIN)
        self.signalled: set[str] = set()

    async def _terminate_by_signal(self, name: str, request: TerminateRequest) -> TerminateAck:
        self.signalled.add(request.request_id)
        return await super()._terminate_by_signal(name, request)


class Driver:
    """Follows one cluster's plan."""

    def __init__(
        self,
        plan: steps.ClusterPlan,
        clusters: NotingClusters,
        console: SimulatedConsole,
        truth: Truth,
        stage: Stage,
        diary: Diary,
    ) -> None:
        self.plan = plan
        self.acks: list[Ack] = []
        self.asker = Asker(plan.name, diary)
        self._clusters = clusters
        self._console = console
        self._truth = truth
        self._stage = stage
        self._diary = diary
        self._quote: QuoteStatus | None = None
        self._owner = cluster_workflow_id(plan.name)

    @property
    def uid(self) -> str:
        """Of the life that the story is about now."""
        return self._quote.uid if self._quote else ""

    async def follow(self) -> None:
        """Carry out every step of the plan."""
        await asyncio.sleep(self.plan.start)
        for step in self.plan.steps:
            await self.deed(step)

    async def deed(self, step: steps.Step) -> None:
        """Carry out one step."""
        self._diary.note(self.plan.name, step)
        await _DEEDS[type(step)](self, step)

    async def _pause(self, step: steps.Pause) -> None:
        await asyncio.sleep(step.seconds)

    async def _quote_it(self, step: steps.Quote) -> None:
        spec = ClusterSpec(
            name=self.plan.name,
            nodes=self.plan.nodes,
            gpus_per_node=0,
            instance_type=self.plan.instance_type,
            provider="simulated",
            failover=self.plan.failover,
            recovery={"automatic": self.plan.recovery},
            command=("sleep", "600") if self.plan.command else None,
        )
        request_id = uuid.uuid4().hex
        answer = await self.asker.asked(lambda: self._clusters.quote(spec, request_id=request_id))
        if answer is not None:
            self._quote = answer

    async def _launch(self, step: steps.Launch) -> None:
        if self._quote is None:
            return
        name, quote_id, uid = self.plan.name, self._quote.quote_id, self._quote.uid
        request_id = uuid.uuid4().hex

        def call() -> Awaitable[object]:
            return self._clusters.launch(name, quote_id=quote_id, uid=uid, request_id=request_id)

        await self._acknowledged("launch", call, step.repeats)

    async def _terminate(self, step: steps.Terminate) -> None:
        request_id = uuid.uuid4().hex

        def call() -> Awaitable[object]:
            return self._clusters.terminate(
                self.plan.name, uid=self.uid or None, request_id=request_id
            )

        await self._acknowledged("terminate", call, step.repeats, request_id)

    async def _recover(self, step: steps.Recover) -> None:
        request_id = uuid.uuid4().hex
        await self._acknowledged(
            "recover", lambda: self._clusters.recover(self.plan.name, request_id=request_id)
        )

    async def _switch(self, step: steps.Switch) -> None:
        request_id = uuid.uuid4().hex
        await self._acknowledged(
            "recovery",
            lambda: self._clusters.recovery(
                self.plan.name,
                automatic=step.automatic,
                max_attempts=step.max_attempts,
                request_id=request_id,
            ),
            automatic=step.automatic,
        )

    async def _acknowledged(
        self,
        verb: str,
        call: Callable[[], Awaitable[object]],
        repeats: int = 0,
        request_id: str = "",
        automatic: bool | None = None,
    ) -> None:
        first = await self.asker.asked(call)
        if first is None:
            return
        signalled = request_id in self._clusters.signalled
        uid, at = first.uid, first.accepted_at  # type: ignore[attr-defined]
        self._diary.note(self.plan.name, f"{verb} of {uid} is acknowledged, signalled={signalled}")
        self.acks.append(Ack(verb, uid, at, by_signal=signalled, automatic=automatic))
        for _ in range(repeats):
            again = await self.asker.asked(call)
            signalled |= request_id in self._clusters.signalled
            if again is not None and again != first and not signalled:
                self.asker.complaints.append(
                    f"{self.plan.name}: {first} became {again} when repeated"
                )

    async def _await(self, step: steps.Await) -> None:
        async def reached() -> bool:
            status = await self.status()
            return status is not None and status.phase in step.phases

        await self.asker.until(reached, every=0.3)

    async def _seen(self, step: steps.Seen) -> None:
        async def seen() -> bool:
            return self._truth.count(self._owner, step.call, step.moment) > 0

        await self.asker.until(seen, every=0.03)

    async def status(self) -> ClusterStatus | None:
        """Return the cluster of now, None while nobody answers or there is none."""
        try:
            return await self._clusters.get(self.plan.name, uid=self.uid or None)
        except GarrisonError as error:
            if not isinstance(error, (*AWAY, NotFound)):
                self.asker.look_into(error)
            return None

    async def _rule(self, step: steps.Rule) -> None:
        rule = step.rule.model_copy(update={"owner": self._owner})
        await asyncio.to_thread(self._console.add_fault, rule)

    async def _price(self, step: steps.Price) -> None:
        now = self._quote.hourly_usd / self._quote.nodes if self._quote else Decimal(1)
        raised = (now * step.factor).quantize(Decimal("0.000001"))
        await asyncio.to_thread(self._console.set_price, self.plan.instance_type, raised)

    async def _power_cut(self, step: steps.PowerCut) -> None:
        await self._upon(step.rank, self._console.kill)

    async def _remove(self, step: steps.Remove) -> None:
        def remove(node: str) -> None:
            self._console.delete_node(node, vanish=False)

        await self._upon(step.rank, remove)

    async def _upon(self, rank: int, deed: Callable[[str], None]) -> None:
        status = await self.status()
        if status is None or status.phase is not Phase.RUNNING:
            return  # before that, it would be a reason for the launch to fail
        living = await asyncio.to_thread(self._truth.living, self.uid)
        if rank in living:
            try:
                await asyncio.to_thread(deed, living[rank])
            except (ConflictPhase, NotFound):
                return  # it was deleted in this very moment

    async def _kill(self, step: steps.Kill) -> None:
        await self._stage.kill_workers(all=True, down=step.down)


_DEEDS: dict[type, Callable[..., Awaitable[None]]] = {
    steps.Pause: Driver._pause,
    steps.Quote: Driver._quote_it,
    steps.Launch: Driver._launch,
    steps.Terminate: Driver._terminate,
    steps.Recover: Driver._recover,
    steps.Switch: Driver._switch,
    steps.Await: Driver._await,
    steps.Seen: Driver._seen,
    steps.Rule: Driver._rule,
    steps.Price: Driver._price,
    steps.PowerCut: Driver._power_cut,
    steps.Remove: Driver._remove,
    steps.Kill: Driver._kill,
}
