"""A nodepool's rules against a provider and deployments on paper, in time that passes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from garrison.domain.pools import life as life
from garrison.domain.pools import machines as machines
from garrison.domain.pools import plan as plan
from garrison.domain.pools import seats as seats
from garrison.domain.pools.call import offers_request, purchase_request
from garrison.domain.pools.report import report_pool
from garrison.errors import ErrorCode
from garrison.models.cluster import ShapeLimits
from garrison.models.cluster_messages import PurchaseAnswer, QuoteTerms
from garrison.models.cluster_state import Failure
from garrison.models.compute_cluster import JoinAnswer
from garrison.models.group import Group, Node, NodeStatus, Refusal, WorkloadStatus
from garrison.models.nodepool import (
    NodepoolRequest,
    NodepoolSpec,
    NodepoolStatus,
    PoolOffer,
    PoolOffersAnswer,
)
from garrison.models.nodepool_state import NodepoolState
from garrison.models.observation import Observation
from garrison.models.offer import CapacityType, Offer
from garrison.models.placement import Demand, Placement, Placements, ReplicaDemand
from garrison.models.provider import ProviderFacts
from garrison.models.resources import Resources

START = datetime(2026, 5, 1, tzinfo=UTC)
FACTS = ProviderFacts(name="sim", type="simulated", regions=("sim-a",))
TERMS = QuoteTerms(providers={"sim": FACTS}, limits=ShapeLimits())
NODE = Resources(cpu_milli=8000, memory_bytes=32 * 2**30)

ON_DEMAND, SPOT = CapacityType.ON_DEMAND, CapacityType.SPOT


def offer(
    capacity_type: CapacityType = ON_DEMAND, *, usd: str = "1.00", instance_type: str = "m.large"
) -> PoolOffer:
    sold = Offer(
        provider="sim",
        region="sim-a",
        instance_type=instance_type,
        capacity_type=capacity_type,
        usd_per_hour=Decimal(usd),
    )
    return PoolOffer(offer=sold, capacity=NODE)


Answer = Refusal | None


class PoolWorld:
    """One pool, carried out step by step; each step ends at once.

    Attributes:
        stock: Answers a purchase: None sells, a refusal does not.
        peak: The most machines that the provider ever had at once.
        answers: False loses the answer to each purchase.
        placed: What each deployment was told last.
    """

    def __init__(
        self, *, offers: Iterable[PoolOffer] = (), acknowledge: bool = True, **spec: Any
    ) -> None:
        self.now = START
        self.offers = tuple(offers) or (offer(),)
        self.acknowledges = acknowledge
        self.stock: Callable[[PoolOffer], Answer] = lambda _: None
        self.state = NodepoolState(id="p", compute_cluster="cc", uid="u", created_at=START)
        self.groups: dict[str, Group] = {}
        self.boots = True
        self.answers = True
        self.bought = 0
        self.deleted = 0
        self.peak = 0
        self.placed: dict[str, Placements] = {}
        self.gone: set[str] = set()
        self.demands: dict[str, Demand] = {}
        self.wished: list[datetime] = []
        self.create(**spec)

    def create(self, **spec: Any) -> None:
        given = {"id": "p", "compute_cluster": "cc", "instance_types": ("m.large",), **spec}
        request = NodepoolRequest(request_id="1", spec=NodepoolSpec.model_validate(given))
        life.accept_spec(self.state, request, now=self.now)

    def want(self, deployment: str, *replicas: str, **fields: Any) -> None:
        """A deployment wants these replicas, and no others."""
        before = self.demands.get(deployment)
        generation = before.generation + 1 if before else 1
        self.send(
            Demand(
                deployment=f"deployment/{deployment}",
                uid=deployment,
                generation=generation,
                replicas=tuple(
                    ReplicaDemand(replica=name, **{"resources": NODE, **fields})
                    for name in replicas
                ),
            )
        )

    def send(self, demand: Demand) -> None:
        """A deployment says what it wants."""
        self.demands[demand.uid] = demand
        seats.take_demand(self.state, demand, now=self.now)

    def acknowledge(self, deployment: str) -> None:
        """A deployment takes what it was told last."""
        told = self.placed[deployment]
        changes = {"pool_uid": told.uid, "placements_seen": told.generation}
        self.send(self.demands[deployment].model_copy(update=changes))

    def run(self, time: timedelta = timedelta(0)) -> None:
        """Carry out all that is due until a time has passed."""
        end = self.now + time
        for _ in range(5000):
            plan.settle(self.state, now=self.now)
            self._check_limit()
            steps = plan.plan_steps(self.state, frozenset(), now=self.now)
            for step in steps:
                self._carry_out(step)
            if not steps and not self._look():
                until, _ = plan.next_time(self.state, now=self.now)
                times = [t for t in (until, *self.wished) if t is not None and t > self.now]
                if not times or min(times) > end:
                    self.now = max(self.now, end)
                    return
                self.now = min(times)
        raise AssertionError(f"never at rest: {self.status().model_dump_json(indent=1)}")

    def _check_limit(self) -> None:
        assert self.state.spec is not None
        self.peak = max(self.peak, len(self.living()))

    def living(self) -> list[Group]:
        """What the provider has."""
        return [g for g in self.groups.values() if g.nodes[0].status is not NodeStatus.TERMINATED]

    def _carry_out(self, step: plan.Step) -> None:
        now, state = self.now, self.state
        match step:
            case plan.Join():
                place = JoinAnswer(uid="c", provider="sim", region="sim-a")
                life.note_joined(state, place, TERMS, now=now)
                state.deadman_at = now + TERMS.deadman
            case plan.AskOffers():
                offers_request(state)
                life.note_offers(state, PoolOffersAnswer(offers=self.offers), now=now)
            case plan.BuyMachine():
                self._buy(step.key)
            case plan.PrepareMachine():
                node = self.groups[step.key].nodes[0]
                machines.note_prepared(state, step.key, node, now=now)
            case plan.DeleteMachine():
                self.groups.pop(step.key, None)
                self.deleted += 1
                machines.note_deleted(state, step.key, ended_at=now, asked_for=step.look_at)
                self.wished.append(step.look_at)
            case plan.LookAt():
                state.asked = step.not_before
                if step.deadman:
                    state.deadman_at = now + TERMS.deadman
                    seats.tell_all_again(state, now=now)
                self.wished.append(step.not_before)
            case plan.Tell():
                self._tell(step.uid)
            case plan.Leave():
                state.left = True

    def _buy(self, name: str) -> None:
        machines.note_called(self.state, name)
        machine = self.state.machines[name]
        if not self.answers:
            lost = Failure(code=ErrorCode.PROVIDER_UNREACHABLE, message="no answer")
            machines.note_not_bought(self.state, name, lost, now=self.now)
            return
        request = purchase_request(self.state, name).request
        refusal = self.stock(machine.offer)
        if refusal is not None:
            answer = PurchaseAnswer(refusal=refusal, ended_at=self.now)
        else:
            self.bought += 1
            status = NodeStatus.RUNNING if self.boots else NodeStatus.STARTING
            node = Node(rank=0, provider_id=f"i-{machine.number}", status=status)
            group = Group(
                token=name,
                owner=request.owner,
                uid=request.uid,
                region=request.region,
                instance_type=request.instance_type,
                created_at=self.now,
                nodes=(node,),
            )
            self.groups[name] = group
            answer = PurchaseAnswer(group=group, ended_at=self.now)
        machines.note_bought(self.state, name, answer, now=self.now)
        self.wished.append(self.now)

    def _look(self) -> bool:
        if not any(wish <= self.now for wish in self.wished):
            return False
        self.wished = [wish for wish in self.wished if wish > self.now]
        self.observe()
        return True

    def observe(self) -> None:
        """Let the watch tell what is there."""
        self.now += timedelta(microseconds=1)
        seen = Observation(
            owner="nodepool/cc/p",
            uid="u",
            provider="sim",
            begun_at=self.now,
            groups=tuple(self.groups.values()),
        )
        machines.observe(self.state, seen, now=self.now)

    def break_node(self, name: str, status: NodeStatus = NodeStatus.TERMINATED) -> None:
        """The provider says something of a node."""
        group = self.groups[name]
        node = group.nodes[0].model_copy(update={"status": status})
        self.groups[name] = group.model_copy(update={"nodes": (node,)})
        self.observe()

    def notice(self, name: str, seconds: float = 120) -> None:
        """The provider says that it will take a node."""
        group = self.groups[name]
        end = self.now + timedelta(seconds=seconds)
        told = {"notice_at": self.now, "notice_ends_at": end}
        node = group.nodes[0].model_copy(update=told)
        self.groups[name] = group.model_copy(update={"nodes": (node,)})
        self.observe()

    def work(self, name: str, *works: WorkloadStatus) -> None:
        """The provider's list says what runs on a node."""
        group = self.groups[name]
        node = group.nodes[0].model_copy(update={"workloads": works})
        self.groups[name] = group.model_copy(update={"nodes": (node,)})
        self.observe()

    def _tell(self, uid: str) -> None:
        said = self.state.customers[uid].said
        assert said is not None
        found = uid not in self.gone
        if found:
            self.placed[uid] = said
        seats.note_told(self.state, uid, said.generation, found=found, now=self.now)
        if found and self.acknowledges:
            self.acknowledge(uid)

    def place(self, deployment: str, replica: str) -> Placement:
        """What a deployment was told of a replica."""
        told = self.placed[deployment].placements
        (found,) = (one for one in told if one.replica == replica)
        return found

    def status(self) -> NodepoolStatus:
        return report_pool(self.state, now=self.now)

    def delete(self) -> None:
        life.accept_delete(self.state, now=self.now, by="ada")


def refuse(code: ErrorCode, words: str, *kinds: CapacityType) -> Callable[[PoolOffer], Answer]:
    """A provider that refuses these kinds of capacity, and sells all others."""

    def answer(wanted: PoolOffer) -> Answer:
        if wanted.offer.capacity_type in kinds:
            return Refusal(code=code, message=words)
        return None

    return answer
