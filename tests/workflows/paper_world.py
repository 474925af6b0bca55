"""Two clouds in plain Python, as far as a cluster can tell: machines, late effects, late lists.

Everything that exists is known here to the microsecond, and a list shows it as it was up to the
declared settle time ago. An effect comes at the latest its declared bound after its call was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from garrison.models.group import Group, GroupRequest, Node, NodeStatus
from garrison.models.observation import Observation
from garrison.models.offer import Offer
from garrison.models.provider import ProviderFacts

BOOT = timedelta(seconds=40)
SHOWN = timedelta(minutes=5)
"""How long a list goes on showing what is terminated."""

FACTS = {
    "east": ProviderFacts(
        name="east", type="paper", regions=("e1", "e2"), effect_bound=timedelta(seconds=30)
    ),
    "west": ProviderFacts(
        name="west",
        type="paper",
        regions=("w1",),
        settle=timedelta(seconds=60),
        effect_bound=timedelta(seconds=45),
        start_timeout=timedelta(minutes=5),
    ),
}
PLACES = {"e1": "east", "e2": "east", "w1": "west"}
PRICE = Decimal(10)

State = tuple[NodeStatus | None, int]
"""Status and boot; no status is not being listed."""


@dataclass(slots=True)
class Machine:
    """A machine and its past and coming states.

    Attributes:
        touched: Something was done to it after its purchase, other than by its owner.
    """

    request: GroupRequest
    provider: str
    rank: int
    number: int
    usd: Decimal
    changes: list[tuple[datetime, State]]
    touched: bool = False
    hidden: bool = False

    @property
    def provider_id(self) -> str:
        return f"m-{self.number}"

    def at(self, time: datetime) -> State:
        """Its state at a time."""
        found: State = (None, 0)
        for when, state in self.changes:
            if when <= time:
                found = state
        return found

    def becomes(self, now: datetime, *states: tuple[timedelta, NodeStatus | None, int]) -> None:
        """Change what it is from now on."""
        self.changes = [change for change in self.changes if change[0] <= now]
        self.changes += [(now + after, (status, boot)) for after, status, boot in states]

    def exists(self, now: datetime) -> bool:
        return self.at(now)[0] not in {None, NodeStatus.TERMINATED}


@dataclass(slots=True)
class World:
    """What there is, and what is still to come.

    Attributes:
        bought: Under each token, all machines ever made; it is known for ever.
        coming: Effects that are on their way.
        first: The region that is offered first among equals.
    """

    now: datetime
    delete_takes: timedelta = timedelta(0)
    machines: list[Machine] = field(default_factory=list)
    bought: dict[str, list[Machine]] = field(default_factory=dict)
    restarted: set[str] = field(default_factory=set)
    coming: list[tuple[datetime, Callable[[], object]]] = field(default_factory=list)
    prices: dict[str, Decimal] = field(default_factory=dict)
    first: str = "e1"
    births: Callable[[Machine], None] = lambda machine: None

    def offers(self, provider: str) -> tuple[Offer, ...]:
        return tuple(
            Offer(
                provider=provider,
                region=region,
                instance_type="box",
                accelerator="H100",
                accelerator_count=Decimal(8),
                memory_gib=Decimal(2048),
                usd_per_hour=self.price(region),
            )
            for region in sorted(PLACES, key=lambda name: (name != self.first, name))
            if PLACES[region] == provider
        )

    def price(self, region: str) -> Decimal:
        return self.prices.get(region, PRICE)

    def living(self, uid: str | None = None) -> list[Machine]:
        return [
            one
            for one in self.machines
            if one.exists(self.now) and (uid is None or one.request.uid == uid)
        ]

    @property
    def next_effect(self) -> datetime | None:
        return min((at for at, _ in self.coming), default=None)

    def pass_time(self, until: datetime) -> None:
        """Let time pass, and everything come that is due."""
        while (due := self.next_effect) is not None and due <= until:
            self.now = max(self.now, due)
            first = min(self.coming, key=lambda one: one[0])
            self.coming.remove(first)
            first[1]()
        self.now = until

    def later(self, seconds: float, effect: Callable[[], object]) -> None:
        self.coming.append((self.now + timedelta(seconds=seconds), effect))

    # Calls

    def launch(self, request: GroupRequest, made: int | None = None) -> list[Machine]:
        """Make the machines of a token, once; only the first `made` of them if so scripted.

        None are made above the price that the request allows.
        """
        if request.token in self.bought:
            return self.bought[request.token]
        if self.price(request.region) > request.max_usd_per_node_hour:
            return []
        group = self.bought[request.token] = []
        for rank in range(request.count if made is None else made):
            machine = Machine(
                request=request,
                provider=PLACES[request.region],
                rank=rank,
                number=len(self.machines),
                usd=self.price(request.region),
                changes=[
                    (self.now, (NodeStatus.PENDING, 1)),
                    (self.now + BOOT / 2, (NodeStatus.STARTING, 1)),
                    (self.now + BOOT, (NodeStatus.RUNNING, 1)),
                ],
            )
            self.machines.append(machine)
            group.append(machine)
            self.births(machine)
        return group

    def terminate(self, token: str) -> None:
        for machine in self.bought.get(token, []):
            status, boot = machine.at(self.now)
            ending = machine.changes[-1][1][0] in {None, NodeStatus.TERMINATED}
            if status in {None, NodeStatus.TERMINATED} or ending:
                continue
            takes = self.delete_takes
            going = [(timedelta(0), NodeStatus.STOPPED, boot)] if takes else []
            machine.becomes(
                self.now,
                *going,
                (takes, NodeStatus.TERMINATED, boot),
                (takes + SHOWN, None, boot),
            )

    def boot_again(self, machine: Machine) -> None:
        _, boot = machine.at(self.now)
        machine.hidden = False
        machine.becomes(
            self.now,
            (timedelta(0), NodeStatus.STARTING, boot + 1),
            (BOOT, NodeStatus.RUNNING, boot + 1),
        )

    # What a list shows

    def look(self, uid: str, owner: str, provider: str, late: float) -> Observation:
        """A complete list of a life's machines, up to `settle` late (a share of it)."""
        settle = FACTS[provider].settle
        seen_at = self.now - settle * late
        groups: dict[str, list[Node]] = {}
        requests: dict[str, GroupRequest] = {}
        for machine, node in self._listed(uid, provider, seen_at):
            groups.setdefault(machine.request.token, []).append(node)
            requests[machine.request.token] = machine.request
        return Observation(
            owner=owner,
            uid=uid,
            provider=provider,
            begun_at=self.now,
            groups=tuple(
                self.group(requests[token], tuple(nodes)) for token, nodes in groups.items()
            ),
        )

    def _listed(self, uid: str, provider: str, time: datetime) -> Iterator[tuple[Machine, Node]]:
        for machine in self.machines:
            status, boot = machine.at(time)
            if machine.request.uid != uid or machine.provider != provider or status is None:
                continue
            yield machine, self.node(machine, (status, boot))

    def node(self, machine: Machine, state: State | None = None) -> Node:
        status, boot = state or machine.at(self.now)
        hidden = machine.hidden and status is not NodeStatus.TERMINATED
        shown = NodeStatus.UNKNOWN if hidden else status
        return Node(
            rank=machine.rank,
            provider_id=machine.provider_id,
            status=shown or NodeStatus.TERMINATED,
            incarnation=boot,
            private_address=f"10.0.0.{machine.number + 1}",
        )

    def group(self, request: GroupRequest, nodes: tuple[Node, ...] | None = None) -> Group:
        """A purchase as the provider shows it."""
        if nodes is None:
            nodes = tuple(self.node(one) for one in self.bought[request.token])
        return Group(
            token=request.token,
            owner=request.owner,
            uid=request.uid,
            region=request.region,
            instance_type=request.instance_type,
            created_at=self.now,
            nodes=nodes,
        )
