"""What happens in a run of nodepools and deployments, as data made from a seed.

One compute cluster, one or two nodepools, a few deployments on them, each with a story; kills and
weather hit all of them. The steps that clusters have too are those of `plan.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from garrison.models.deployment import SchedulingChoice
from garrison.models.offer import CapacityType
from garrison.providers.simulated.faults import Call, Fault, FaultRule
from tests.chaos.plan import (
    HELD,
    LATE,
    REGIONS,
    Kill,
    Moment,
    Pause,
    Rule,
    Seen,
    ServerKill,
    Weather,
    WorkerKill,
    _tenth,
)

COMPUTE_CLUSTER = "chaos"
REGION = REGIONS[0]
TYPES = (("c5.xlarge", "c6i.xlarge"), ("m5.xlarge", "r5.xlarge"))
"""For each pool; one that is refused is not asked for again in a run, so there is another."""

SMALL = 1_300
LARGE = 2_500
"""Thousandths of a core: of four, three small ones fit on a machine, or a large and a small."""

MEMORY = 1 << 30
RELEASE_AFTER = 0.5
LOSSES = 2
"""How many machines of a pool are lost; each puts off its next purchase, for longer each time."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make it, and ask so many times more with the same request id."""

    repeats: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete it, and ask so many times more with the same request id."""

    repeats: int = 0


@dataclass(frozen=True, slots=True)
class Scale:
    """Hold a count of replicas; None gives it back to autoscaling."""

    replicas: int | None
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """Give replicas another command, which is rolled out."""

    revision: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Enable or disable the deployment."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class Resize:
    """Change a pool's limits."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Wait until it has acted on what was asked."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Wait until something runs on so many machines of the pool."""

    machines: int


@dataclass(frozen=True, slots=True)
class PowerCut:
    """Stop a machine of the pool; nobody brings it back."""

    number: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Take a machine away, with the provider's word; without it, it would be missed for minutes."""

    number: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Have the provider say that it will take a machine of the pool in so many seconds."""

    number: int
    seconds: float


Step = (
    Pause
    | Create
    | Delete
    | Scale
    | Change
    | Switch
    | Resize
    | Settled
    | Filled
    | PowerCut
    | Remove
    | Notice
    | Rule
    | Seen
    | Kill
)


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One nodepool's story, which begins with its creation."""

    name: str
    instance_types: tuple[str, ...]
    capacity_types: tuple[CapacityType, ...]
    least: int
    most: int
    warm: int
    start: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """One deployment's story.

    Attributes:
        pools: In which its replicas may be.
        least: Its `min_replicas`.
        exclusive: Each replica has a node of its own.
        port: Where replicas listen, so that routers and the watch of the load are told of them.
    """

    name: str
    story: str
    pools: tuple[str, ...]
    cpu_milli: int
    least: int
    most: int
    exclusive: bool
    port: int | None
    scheduling: SchedulingChoice
    start: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """Everything that happens in one run."""

    seed: int
    workers: int
    pools: tuple[PoolPlan, ...]
    deployments: tuple[DeploymentPlan, ...]
    kills: tuple[WorkerKill, ...] = ()
    server_kills: tuple[ServerKill, ...] = ()
    weather: tuple[Weather, ...] = ()


@dataclass
class _Draft:
    """A story while it is told; `late` as in `plan.py`."""

    rng: random.Random
    late: bool
    steps: list[Step] = field(default_factory=list)

    def add(self, *steps: Step) -> None:
        self.steps += steps

    def flip(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    def pause(self, low: float, high: float) -> None:
        self.add(Pause(_tenth(self.rng, low, high)))

    def kill(self) -> None:
        self.add(Kill(down=_tenth(self.rng, 0.1, 1.0)))

    def fault(self, call: Call, what: Fault = Fault.ERROR, **fields: Any) -> None:
        if what is Fault.LATE_LIST and not self.late:
            return
        self.add(Rule(FaultRule.model_validate({"call": call, "what": what, **fields})))

    def held(self, call: Call, moment: Moment) -> None:
        when = "before" if moment is Moment.RECEIVED else "after"
        self.fault(call, Fault.LATENCY, when=when, seconds=HELD)

    def spoil(self, call: Call) -> None:
        """Script a fault for some call of the pool's, soon or later."""
        some = _tenth(self.rng, 0.3, 1.5)
        choices: list[dict[str, Any]] = [
            {"what": Fault.LOST_RESPONSE, "when": "before"},
            {"what": Fault.LOST_RESPONSE, "when": "after", "times": 2},
            {"what": Fault.LATENCY, "when": "before", "seconds": some},
            {"what": Fault.LATENCY, "when": "after", "seconds": some},
            {"code": "Throttling", "retry_after_seconds": 1},
            {"code": "InternalError", "when": "after"},
        ]
        if call in {Call.LAUNCH, Call.TERMINATE}:
            choices.append({"what": Fault.LATE_LIST, "seconds": LATE})
            choices.append({"what": Fault.DELAYED_EFFECT, "seconds": some})
        chosen = {"skip": self.rng.randrange(4), **self.rng.choice(choices)}
        self.fault(call, **chosen)


# Nodepools


def _directed_pool(draft: _Draft, most: int) -> None:
    """Lose the answer to the first purchase; later lower the limit under what runs."""
    draft.fault(Call.LAUNCH, Fault.LOST_RESPONSE, when="after")
    words = "try again in 60 seconds"
    draft.fault(Call.TERMINATE, code="IncorrectState", message=words, times=2)
    draft.add(Create(), Filled(2), Resize(0, most - 1))
    draft.pause(2.0, 3.0)
    draft.add(Resize(0, most))


def _other_pool(draft: _Draft, least: int, most: int) -> None:
    draft.spoil(Call.LAUNCH)
    draft.add(Create(repeats=1))
    if draft.flip(0.3):
        draft.pause(1.0, 4.0)
        draft.add(Resize(0, most), Resize(least, max(1, most - 1)), Resize(least, most))


def _incidents(draft: _Draft) -> None:
    """What is broken in the pool from some seconds on."""
    for call in draft.rng.sample([Call.LAUNCH, Call.TERMINATE, Call.PREPARE], 2):
        draft.spoil(call)
    for call in (Call.START_WORKLOAD, Call.STOP_WORKLOAD):
        if draft.flip(0.7):
            _spoil_workload(draft, call)
    if draft.flip(0.4):
        draft.fault(Call.LAUNCH, Fault.REFUSAL, skip=draft.rng.randrange(3))
    for _ in range(draft.rng.randint(0, LOSSES)):
        draft.pause(0.5, 3.0)
        number = draft.rng.randrange(4)
        notice = Notice(number, _tenth(draft.rng, 0.5, 6.0))
        losses: tuple[Step, ...] = (PowerCut(number), Remove(number), notice)
        draft.add(draft.rng.choice(losses))
    if draft.flip(0.4):
        call, moment = draft.rng.choice([Call.LAUNCH, Call.TERMINATE]), draft.rng.choice([*Moment])
        draft.held(call, moment)
        draft.add(Seen(call, moment))
        draft.kill()


def _spoil_workload(draft: _Draft, call: Call) -> None:
    choices: list[dict[str, Any]] = [
        {"what": Fault.LOST_RESPONSE, "when": "before", "times": 2},
        {"what": Fault.LOST_RESPONSE, "when": "after", "times": 2},
        {"what": Fault.LATENCY, "when": "before", "seconds": 1.0},
        {"what": Fault.LATENCY, "when": "after", "seconds": 1.0},
    ]
    draft.fault(call, skip=draft.rng.randrange(5), **draft.rng.choice(choices))


# Deployments


def _flutter(draft: _Draft, most: int) -> None:
    """Fill the pool, and want it full again while what was let go is not yet gone."""
    draft.add(Create(), Scale(most), Settled(), Pause(1.5), Scale(1))
    draft.add(Seen(Call.TERMINATE, Moment.RECEIVED), Scale(most, repeats=1))
    draft.pause(3.0, 6.0)
    draft.add(Scale(draft.rng.randint(0, most - 1)))


def _up_and_down(draft: _Draft, most: int) -> None:
    draft.add(Create(repeats=1))
    for _ in range(draft.rng.randint(3, 5)):
        draft.add(Scale(draft.rng.randint(0, most), repeats=draft.rng.randrange(2)))
        draft.pause(0.2, 4.0)


def _rolled_out(draft: _Draft, most: int) -> None:
    draft.add(Create(), Scale(draft.rng.randint(1, most)))
    for revision in range(2, draft.rng.randint(3, 4)):
        draft.add(Settled() if draft.flip() else Pause(_tenth(draft.rng, 0.2, 2.0)))
        draft.add(Change(revision))
    if draft.flip():
        draft.pause(0.5, 3.0)
        draft.add(Scale(draft.rng.randint(0, most)))


def _switched(draft: _Draft, most: int) -> None:
    draft.add(Create(), Scale(draft.rng.randint(1, most)))
    draft.pause(1.0, 6.0)
    draft.add(Switch(enabled=False))
    draft.pause(0.2, 3.0)
    if draft.flip():
        draft.add(Change(2))
    if draft.flip(0.8):
        draft.add(Switch(enabled=True))


def _deleted(draft: _Draft, most: int) -> None:
    draft.add(Create(), Scale(draft.rng.randint(1, most)))
    draft.pause(0.5, 7.0)
    draft.add(Delete(repeats=draft.rng.randrange(3)))
    if draft.flip(0.6):  # the name is free again only when all of it is gone
        draft.add(Create(), Scale(1))


def _killed_start(draft: _Draft, most: int) -> None:
    call = draft.rng.choice([Call.START_WORKLOAD, Call.STOP_WORKLOAD])
    moment = draft.rng.choice([*Moment])
    draft.add(Create(), Scale(draft.rng.randint(1, most)))
    if call is Call.STOP_WORKLOAD:
        draft.add(Settled())
    draft.held(call, moment)
    draft.add(Scale(0) if call is Call.STOP_WORKLOAD else Change(2), Seen(call, moment))
    draft.kill()
    draft.add(Scale(draft.rng.randint(0, most)))


Tell = Callable[[_Draft, int], None]
OTHERS: tuple[Tell, ...] = (_up_and_down, _rolled_out, _switched, _deleted, _killed_start)


def make_elastic_plan(seed: int) -> ElasticPlan:
    """Return the plan of a seed."""
    rng = random.Random(f"elastic {seed}")
    late = rng.random() < 0.7
    pools = _pools(rng, late=late)
    return ElasticPlan(
        seed=seed,
        workers=rng.choice([1, 2]),
        pools=pools,
        deployments=_deployments(rng, pools, late=late),
        kills=tuple(
            WorkerKill(_tenth(rng, 4, 14), _tenth(rng, 0.1, 1.0), rng.random() < 0.5)
            for _ in range(rng.randint(0, 3))
        ),
        server_kills=tuple(
            ServerKill(_tenth(rng, 4, 10), _tenth(rng, 0.1, 1.5))
            for _ in range(rng.choice([0, 0, 0, 1]))
        ),
        weather=tuple(_weather(rng, late=late)),
    )


def _pools(rng: random.Random, *, late: bool) -> tuple[PoolPlan, ...]:
    count = rng.choice([1, 2, 2])
    return tuple(_pool(rng, number, late=late) for number in range(count))


def _pool(rng: random.Random, number: int, *, late: bool) -> PoolPlan:
    draft = _Draft(rng, late)
    least, most = rng.choice([0, 0, 1]) if number else 0, rng.randint(2, 4 if number else 3)
    if number == 0:
        _directed_pool(draft, most)
    else:
        _other_pool(draft, least, most)
    draft.pause(1.0, 4.0)
    _incidents(draft)
    both = (CapacityType.SPOT, CapacityType.ON_DEMAND)
    return PoolPlan(
        name=f"pool-{number}",
        instance_types=TYPES[number],
        capacity_types=both if rng.random() < 0.4 else (CapacityType.ON_DEMAND,),
        least=least,
        most=most,
        warm=int(number > 0 and rng.random() < 0.2),
        start=0.0,
        steps=tuple(draft.steps),
    )


def _deployments(
    rng: random.Random, pools: tuple[PoolPlan, ...], *, late: bool
) -> tuple[DeploymentPlan, ...]:
    """Return one that fills the first pool and some others, mostly on the last one."""
    first = _deployment(rng, 0, _flutter, pools[0].most, late=late)
    first = replace(first, pools=(pools[0].name,), cpu_milli=LARGE, least=0, start=0.3)
    others = []
    for number in range(1, rng.randint(2, 4)):
        one = _deployment(rng, number, rng.choice(OTHERS), rng.randint(1, 3), late=late)
        names = [pool.name for pool in pools]
        chosen = tuple(rng.sample(names, len(names))) if rng.random() < 0.4 else (names[-1],)
        others.append(replace(one, pools=chosen))
    return (first, *others)


def _deployment(
    rng: random.Random, number: int, tell: Tell, most: int, *, late: bool
) -> DeploymentPlan:
    draft = _Draft(rng, late)
    tell(draft, most)
    story = tell.__name__.strip("_")
    return DeploymentPlan(
        name=f"{story.replace('_', '-')}-{number}",
        story=story,
        pools=(),
        cpu_milli=SMALL,
        least=rng.choice([0, 0, 1]),
        most=most,
        exclusive=rng.random() < 0.2,
        port=rng.choice([None, 8000]),
        scheduling=rng.choice([*SchedulingChoice]),
        start=_tenth(rng, 0.0, 3.0),
        steps=tuple(draft.steps),
    )


def _weather(rng: random.Random, *, late: bool) -> list[Weather]:
    rules: list[dict[str, object]] = [
        {"call": Call.LIST, "code": "Throttling", "retry_after_seconds": 1, "times": 2},
        {"call": Call.LIST, "what": Fault.LOST_RESPONSE, "times": rng.randint(1, 3)},
        {"call": Call.LIST, "what": Fault.LATENCY, "seconds": _tenth(rng, 0.2, 1), "times": 2},
        {"call": Call.LIST_OFFERS, "code": "Throttling", "times": 1},
        {"call": Call.LIST_OFFERS, "what": Fault.LOST_RESPONSE, "times": 2},
        {"call": Call.LIST_WORKLOADS, "what": Fault.LOST_RESPONSE, "times": 2},
    ]
    found = [Weather(_tenth(rng, 1, 10), FaultRule.model_validate(r)) for r in rng.sample(rules, 2)]
    if not late:
        lists = FaultRule(
            call=Call.LIST, what=Fault.LATE_LIST, seconds=LATE, times=None, lasts_seconds=8
        )
        found.append(Weather(_tenth(rng, 0, 4), lists))
    return found
