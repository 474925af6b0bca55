"""What happens in a run, as data made from a seed: the same seed, the same plan.

A plan is a few clusters, each with a story of a person's actions and of incidents, and the kills
and the weather that hit all of them. Nothing here knows a clock or a process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from garrison.errors import ErrorCode
from garrison.models.cluster_state import Phase
from garrison.providers.simulated.faults import Call, Fault, FaultRule

REGIONS = ("sim-a", "sim-b", "sim-c")
BOOT = 0.4
DELETE = 2.5
SETTLE = 3.0
BOUND = timedelta(seconds=2)
"""The cloud's promises: how late a list, and how late an effect, can be."""

LATE = 2.8
"""Lists are so late, and no later: a promise that the cloud itself breaks proves nothing."""

HELD = 3.0
"""Seconds that a call is held where a kill is to find it."""

CALM_START = (0.0, 0.3)
START = (3.0, 6.0)
"""Seconds at which stories begin."""

TYPES = (
    *("c5.large", "c5.xlarge", "c5.2xlarge", "c5.4xlarge", "c5.9xlarge", "c5.12xlarge"),
    *("c6i.large", "c6i.xlarge", "c6i.2xlarge", "c6i.4xlarge", "c6i.8xlarge", "c6i.12xlarge"),
)
"""One for each cluster of a run, so that a price or a stock is the business of one cluster."""


class Moment(StrEnum):
    """Of a provider call: before it takes effect, or after."""

    RECEIVED = "received"
    EFFECT = "effect"


@dataclass(frozen=True, slots=True)
class Pause:
    """Let time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Quote:
    """Ask for a price; begins a life where there is none."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Accept the quote, and ask so many times more with the same request id."""

    repeats: int = 0


@dataclass(frozen=True, slots=True)
class Terminate:
    """Give everything back, and ask so many times more with the same request id."""

    repeats: int = 0


@dataclass(frozen=True, slots=True)
class Recover:
    """Ask for one recovery attempt."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Turn automatic recovery on or off."""

    automatic: bool
    max_attempts: int | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until the cluster is in one of these phases."""

    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """Wait until the cloud's log has a call for this cluster, at a moment of it."""

    call: Call
    moment: Moment


@dataclass(frozen=True, slots=True)
class Rule:
    """Script a fault of the cloud's calls for this cluster; its owner is filled in."""

    rule: FaultRule


@dataclass(frozen=True, slots=True)
class Price:
    """Change the price of this cluster's machines, everywhere."""

    factor: int


@dataclass(frozen=True, slots=True)
class PowerCut:
    """Stop a machine; a restart brings it back."""

    rank: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Take a machine away, with the provider's word; nothing brings it back."""

    rank: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill every worker with -9, and start them again after a while."""

    down: float


Step = (
    Pause
    | Quote
    | Launch
    | Terminate
    | Recover
    | Switch
    | Await
    | Seen
    | Rule
    | Price
    | PowerCut
    | Remove
    | Kill
)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """One cluster's story.

    Attributes:
        start: When its first step is due, in seconds.
        may_fail: The codes with which its launch may fail, since its story scripts their cause.
        command: Whether something runs on its nodes.
    """

    name: str
    story: str
    nodes: int
    instance_type: str
    start: float
    steps: tuple[Step, ...]
    failover: bool = False
    recovery: bool = False
    command: bool = False
    may_fail: frozenset[ErrorCode] = frozenset()

    @property
    def cuts(self) -> int:
        """How many machines lose their power."""
        return sum(isinstance(step, PowerCut) for step in self.steps)

    @property
    def rises(self) -> bool:
        """Whether its machines become dearer."""
        return any(isinstance(step, Price) for step in self.steps)

    @property
    def removed(self) -> bool:
        """Whether a machine is taken away for good."""
        return any(isinstance(step, Remove) for step in self.steps)


@dataclass(frozen=True, slots=True)
class WorkerKill:
    """At a time, kill one worker, or all of them, for a while."""

    at: float
    down: float
    all: bool


@dataclass(frozen=True, slots=True)
class ServerKill:
    """At a time, kill the Temporal server, for a while."""

    at: float
    down: float


@dataclass(frozen=True, slots=True)
class Weather:
    """At a time, a fault of calls that concern all clusters."""

    at: float
    rule: FaultRule


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that happens in one run."""

    seed: int
    workers: int
    clusters: tuple[ClusterPlan, ...]
    kills: tuple[WorkerKill, ...] = ()
    server_kills: tuple[ServerKill, ...] = ()
    weather: tuple[Weather, ...] = ()


@dataclass
class _Draft:
    """A story while it is told.

    Attributes:
        late: Whether lists are late for this story's own calls; else they are for everybody's,
            never both, as together they would be later than the cloud promises.
    """

    rng: random.Random
    nodes: int
    late: bool
    steps: list[Step] = field(default_factory=list)
    failover: bool = False
    recovery: bool = False
    command: bool = False
    may_fail: frozenset[ErrorCode] = frozenset()

    def add(self, *steps: Step) -> None:
        self.steps += steps

    def fault(self, call: Call, what: Fault = Fault.ERROR, **fields: Any) -> None:
        """Script a fault, unless it is a lateness in a run where every list is late."""
        if what is Fault.LATE_LIST and not self.late:
            return
        self.add(Rule(FaultRule.model_validate({"call": call, "what": what, **fields})))

    def kill(self) -> None:
        self.add(Kill(down=_tenth(self.rng, 0.1, 1.0)))

    def some(self, low: float, high: float) -> float:
        return _tenth(self.rng, low, high)

    def flip(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    def held(self, call: Call, moment: Moment) -> None:
        """Hold one call where a kill is to find it."""
        when = "before" if moment is Moment.RECEIVED else "after"
        self.fault(call, Fault.LATENCY, when=when, seconds=HELD)

    def spoil(self, call: Call) -> None:
        """Script one fault, or none, for a call of this cluster that changes machines."""
        choices: list[dict[str, Any]] = [
            {},
            {"what": Fault.LOST_RESPONSE, "when": "before"},
            {"what": Fault.LOST_RESPONSE, "when": "after", "times": 2},
            {"what": Fault.DELAYED_EFFECT, "seconds": self.some(0.3, 1.5)},
            {"what": Fault.LATENCY, "when": "before", "seconds": self.some(0.3, 1.5)},
            {"what": Fault.LATENCY, "when": "after", "seconds": self.some(0.3, 1.5)},
            {"code": "Throttling", "retry_after_seconds": 1},
            {"code": "InternalError", "when": "after"},
        ]
        if call in {Call.LAUNCH, Call.TERMINATE}:
            choices.append({"what": Fault.LATE_LIST, "seconds": LATE})
        chosen = self.rng.choice(choices)
        if chosen:
            self.fault(call, **chosen)

    def end(self) -> None:
        """End the story with a terminate, or leave the cluster alive."""
        if self.flip(0.7):
            self.spoil(Call.TERMINATE)
            self.add(Pause(self.some(0, 1.0)), Terminate(repeats=self.rng.randrange(3)), DELETED)


def _tenth(rng: random.Random, low: float, high: float) -> float:
    return round(rng.uniform(low, high), 1)


RUNNING = Await((Phase.RUNNING, Phase.TERMINATED, Phase.FAILED))
DEGRADED = Await((Phase.DEGRADED, Phase.TERMINATED, Phase.FAILED))
DELETED = Seen(Call.TERMINATE, Moment.EFFECT)
ENDED = Await((Phase.TERMINATED, Phase.FAILED))


def _lost_answer(draft: _Draft) -> None:
    draft.held(Call.LAUNCH, Moment.EFFECT)
    draft.add(Quote(), Launch(), Seen(Call.LAUNCH, Moment.EFFECT))
    draft.kill()
    draft.add(RUNNING)
    draft.end()


def _price_rise(draft: _Draft) -> None:
    draft.held(Call.LAUNCH, Moment.EFFECT)  # so that the price rises before the next try
    draft.fault(Call.LAUNCH, Fault.LOST_RESPONSE, when="after")
    draft.add(Quote(), Launch(), Seen(Call.LAUNCH, Moment.EFFECT), Price(factor=2))
    draft.add(RUNNING)
    draft.end()


def _late_list(draft: _Draft) -> None:
    draft.fault(Call.LAUNCH, Fault.LATE_LIST, seconds=LATE)
    moment = Moment.EFFECT
    if draft.flip():
        draft.fault(Call.LAUNCH, Fault.DELAYED_EFFECT, seconds=draft.some(1.0, 1.8))
        moment = Moment.RECEIVED
    draft.add(Quote(), Launch(), Seen(Call.LAUNCH, moment), Terminate())


def _refused_delete(draft: _Draft) -> None:
    rank = draft.rng.randrange(draft.nodes) if draft.flip() else None
    words = "try again in 60 seconds"
    draft.fault(Call.TERMINATE, code="IncorrectState", message=words, times=2, rank=rank)
    draft.add(Quote(), Launch())
    draft.add(RUNNING if draft.flip() else Seen(Call.LAUNCH, Moment.EFFECT))
    draft.add(Terminate(repeats=1), DELETED)


def _killed_purchase(draft: _Draft) -> None:
    moment = draft.rng.choice([*Moment])
    draft.held(Call.LAUNCH, moment)
    draft.add(Quote(), Launch(repeats=1), Seen(Call.LAUNCH, moment))
    if draft.flip():
        draft.add(Terminate())
    draft.kill()
    if draft.flip():
        draft.add(Pause(draft.some(0, 2)), Terminate(repeats=1))


def _unwanted_purchase(draft: _Draft) -> None:
    draft.fault(Call.LAUNCH, Fault.DELAYED_EFFECT, seconds=draft.some(0.5, 1.8))
    draft.fault(Call.LAUNCH, Fault.LATE_LIST, seconds=LATE)
    draft.add(Quote(), Launch(), Seen(Call.LAUNCH, Moment.RECEIVED), Terminate())
    draft.spoil(Call.TERMINATE)
    if draft.flip():
        draft.kill()


def _killed_delete(draft: _Draft) -> None:
    moment = draft.rng.choice([*Moment])
    draft.held(Call.TERMINATE, moment)
    draft.add(Quote(), Launch())
    draft.add(RUNNING if draft.flip() else Seen(Call.LAUNCH, Moment.EFFECT))
    draft.add(Terminate(), Seen(Call.TERMINATE, moment))
    draft.kill()


def _failover(draft: _Draft) -> None:
    draft.failover = True
    part = {"rank": draft.rng.randrange(draft.nodes)} if draft.flip(0.7) else {}
    draft.fault(Call.LAUNCH, Fault.REFUSAL, times=draft.rng.choice([1, 1, 2]), **part)
    draft.spoil(Call.TERMINATE)
    draft.add(Quote(), Launch(), Seen(Call.LAUNCH, Moment.RECEIVED))
    if draft.flip():
        draft.add(Pause(draft.some(0, 1)))
        draft.kill()
    if draft.flip(0.3):
        draft.add(Pause(draft.some(0, 3)), Terminate())
    else:
        draft.add(RUNNING)
        draft.end()


def _no_capacity(draft: _Draft) -> None:
    draft.may_fail = frozenset({ErrorCode.INSUFFICIENT_CAPACITY})
    draft.fault(Call.LAUNCH, Fault.REFUSAL, rank=draft.nodes - 1)
    draft.spoil(Call.LAUNCH)
    draft.spoil(Call.TERMINATE)
    draft.add(Quote(), Launch(), ENDED, Quote(), Launch(), RUNNING)


def _too_dear(draft: _Draft) -> None:
    draft.add(Quote(), Price(factor=3), Launch(repeats=1), ENDED)


def _failed_start(draft: _Draft) -> None:
    draft.may_fail = frozenset({ErrorCode.INSUFFICIENT_CAPACITY})
    draft.fault(Call.LAUNCH, Fault.NODE_FAILS, seconds=0.2, rank=draft.rng.randrange(draft.nodes))
    draft.spoil(Call.TERMINATE)
    draft.add(Quote(), Launch(), ENDED)


def _recovered(draft: _Draft) -> None:
    draft.recovery = draft.flip()
    draft.command = draft.flip()
    draft.add(Quote(), Launch())
    if not draft.recovery:
        draft.add(Switch(automatic=True, max_attempts=5))
    draft.add(RUNNING)
    moment = draft.rng.choice([*Moment])
    killed = draft.flip(0.6)
    if killed:
        draft.held(Call.RESTART, moment)
    else:
        draft.spoil(Call.RESTART)
    draft.add(PowerCut(draft.rng.randrange(draft.nodes)))
    if killed:
        draft.add(Seen(Call.RESTART, moment))
        draft.kill()
    else:
        draft.add(DEGRADED)
    if draft.flip(0.3):
        draft.add(Terminate())
    else:
        draft.add(RUNNING)
        draft.end()


def _recovered_by_hand(draft: _Draft) -> None:
    draft.add(Quote(), Launch(), RUNNING)
    draft.spoil(Call.RESTART)
    draft.add(PowerCut(draft.rng.randrange(draft.nodes)), DEGRADED, Recover())
    if draft.flip(0.3):
        draft.add(Switch(automatic=draft.flip()))
    draft.add(RUNNING)
    draft.end()


def _reclaimed(draft: _Draft) -> None:
    draft.recovery = draft.flip()
    draft.add(Quote(), Launch(), RUNNING, Remove(draft.rng.randrange(draft.nodes)), DEGRADED)
    draft.end()


def _again(draft: _Draft) -> None:
    draft.spoil(Call.LAUNCH)
    draft.spoil(Call.TERMINATE)
    draft.add(Quote(), Launch(), Pause(draft.some(0, 2)), Terminate(repeats=1))
    draft.add(Quote(), Launch(), ENDED, Quote(), Launch(repeats=1), RUNNING)
    draft.end()


def _only_quoted(draft: _Draft) -> None:
    draft.add(Quote(), Pause(draft.some(0, 1)), Quote())
    if draft.flip():
        draft.add(Terminate(repeats=1))


def _hasty(draft: _Draft) -> None:
    draft.command = draft.flip()
    draft.spoil(Call.LAUNCH)
    draft.spoil(Call.TERMINATE)
    draft.add(Quote(), Launch(), Pause(draft.some(0, 1.5)), Terminate(repeats=2))


def _plain(draft: _Draft) -> None:
    draft.command = True
    draft.spoil(Call.LAUNCH)
    if draft.flip():
        draft.fault(Call.PREPARE, code="Unavailable", times=2)
    draft.add(Quote(), Launch(repeats=2), RUNNING)
    draft.end()


Tell = Callable[[_Draft], None]

CALM: tuple[Tell, ...] = (_price_rise, _late_list, _late_list, _refused_delete)
"""In every run, and begun before its first kill: each is what one of the sabotages breaks."""

DIRECTED: tuple[Tell, ...] = (*CALM, _lost_answer)
"""In every run."""

OTHERS: tuple[Tell, ...] = (
    *(_killed_purchase, _unwanted_purchase, _killed_delete, _failover, _no_capacity, _too_dear),
    *(_failed_start, _recovered, _recovered, _recovered_by_hand, _reclaimed, _again),
    *(_only_quoted, _hasty, _plain),
)


def make_plan(seed: int) -> RunPlan:
    """Return the plan of a seed."""
    rng = random.Random(seed)
    late = rng.random() < 0.7
    stories = [*DIRECTED, *rng.choices(OTHERS, k=rng.randint(2, 4))]
    starts = [_tenth(rng, *(CALM_START if tell in CALM else START)) for tell in stories]
    clusters = [
        _cluster(rng, index, tell, start, late=late)
        for index, (tell, start) in enumerate(zip(stories, starts, strict=True))
    ]
    return RunPlan(
        seed=seed,
        workers=rng.choice([1, 2]),
        clusters=tuple(clusters),
        kills=tuple(
            WorkerKill(_tenth(rng, 4, 11), _tenth(rng, 0.1, 1.0), rng.random() < 0.5)
            for _ in range(rng.randint(0, 2))
        ),
        server_kills=tuple(
            ServerKill(_tenth(rng, 3, 8), _tenth(rng, 0.1, 1.5))
            for _ in range(rng.choice([0, 0, 0, 1]))
        ),
        weather=tuple(_weather(rng, late=late)),
    )


def _cluster(
    rng: random.Random, index: int, tell: Tell, start: float, *, late: bool
) -> ClusterPlan:
    draft = _Draft(rng, nodes=rng.randint(1, 3), late=late)
    tell(draft)
    story = tell.__name__.strip("_")
    return ClusterPlan(
        name=f"{story.replace('_', '-')}-{index}",
        story=story,
        nodes=draft.nodes,
        instance_type=TYPES[index],
        start=start,
        steps=tuple(draft.steps),
        failover=draft.failover,
        recovery=draft.recovery,
        command=draft.command,
        may_fail=draft.may_fail,
    )


def _weather(rng: random.Random, *, late: bool) -> list[Weather]:
    rules: list[dict[str, object]] = [
        {"call": Call.LIST, "code": "Throttling", "retry_after_seconds": 1, "times": 2},
        {"call": Call.LIST, "what": Fault.LOST_RESPONSE, "times": rng.randint(1, 3)},
        {"call": Call.LIST, "what": Fault.LATENCY, "seconds": _tenth(rng, 0.2, 1), "times": 2},
        {"call": Call.LIST_OFFERS, "code": "Throttling", "times": 1},
        {"call": Call.LIST_OFFERS, "what": Fault.LOST_RESPONSE, "times": 1},
    ]
    found = [Weather(_tenth(rng, 3, 10), FaultRule.model_validate(r)) for r in rng.sample(rules, 2)]
    if not late:
        lists = FaultRule(
            call=Call.LIST, what=Fault.LATE_LIST, seconds=LATE, times=None, lasts_seconds=8
        )
        found.append(Weather(_tenth(rng, 0, 4), lists))
    return found
