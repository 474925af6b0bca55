"""A world on paper: requests, one queue, replicas that boot, and the nodes that they need.

One central queue, first come first served. A replica is `concurrency` slots. It boots in
`replica_boot` on a node that is there; a new node takes `node_boot` before that. A node has room
for two replicas, a draining one included, and is given back a minute after it is empty. A replica
is billed from its creation to the end of its drain. When there are too many, those that boot go
first, then the least busy, then those on the emptiest node.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.autoscale.traces import Trace

BOOTED, DONE, EMPTIED = 0, 1, 2
AFTER_THE_LAST = 1800.0
"""The world goes on this long after a trace, so that what is kept for nobody is paid for."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How long machines take."""

    replica_boot: float = 60
    node_boot: float = 180
    per_node: int = 2
    keep_node: float = 60
    max_replicas: int = 5


@dataclass(eq=False, slots=True)
class Node:
    """A machine; `since` is when it was last emptied."""

    created: float
    ready_at: float
    replicas: int = 0
    since: float = 0


@dataclass(eq=False, slots=True)
class Replica:
    """One replica, from the wish for it to the end of its drain."""

    created: float
    node: Node
    ready: bool = False
    draining: bool = False
    busy: int = 0


class Policy(Protocol):
    """An autoscaler: `tick` returns the count that it wants.

    Attributes:
        name: As in the tables.
        wakes: It is asked at once when a request finds no replica wanted.
    """

    name: str
    wakes: bool

    def tick(self, world: World) -> int:
        """Return how many replicas there should be."""
        ...

    def pause(self, world: World) -> float:
        """Return the seconds until it is asked again."""
        ...


@dataclass(slots=True)
class World:
    """The state of the world, of which a policy sees what a real one would see.

    Attributes:
        presence: The time integral of requests in the system, `served` of those that run.
        boot: Of the request-to-ready times, as the caller of the shipped decision keeps it.
    """

    trace: Trace
    rules: Rules = field(default_factory=Rules)
    now: float = 0
    target: int = 0
    arrived: int = 0
    completed: int = 0
    running: int = 0
    presence: float = 0
    served: float = 0
    queue: deque[int] = field(default_factory=deque)
    replicas: list[Replica] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    boots: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    targets: list[tuple[float, int]] = field(default_factory=list)
    replica_seconds: float = 0
    node_seconds: float = 0
    starts: int = 0
    _events: list[tuple[float, int, int, Replica | Node]] = field(default_factory=list)
    _order: int = 0

    @property
    def ready(self) -> int:
        """Return how many replicas take requests."""
        return sum(one.ready and not one.draining for one in self.replicas)

    @property
    def starting(self) -> int:
        """Return how many replicas boot."""
        return sum(not one.ready for one in self.replicas)

    @property
    def queued(self) -> int:
        """Return how many requests wait."""
        return len(self.queue)

    def run(self, policy: Policy) -> None:
        """Let the trace happen under one autoscaler."""
        arrivals, end = self.trace.arrivals, self.trace.end + AFTER_THE_LAST
        next_tick = 0.0
        while True:
            arrival = arrivals[self.arrived] if self.arrived < len(arrivals) else math.inf
            event = self._events[0][0] if self._events else math.inf
            at = min(arrival, event, next_tick)
            if at > end:
                break
            self._pass_to(at)
            if at == event:
                self._happen()
            elif at == arrival:
                self.queue.append(self.arrived)
                self.arrived += 1
                self._serve()
                if self.target == 0 and policy.wakes:
                    next_tick = at
            else:
                self._scale(policy.tick(self))
                next_tick = at + policy.pause(self)
        self._pass_to(end)
        self._close()

    def _pass_to(self, at: float) -> None:
        self.presence += (self.running + len(self.queue)) * (at - self.now)
        self.served += self.running * (at - self.now)
        self.now = at

    def _at(self, time: float, kind: int, thing: Replica | Node) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, kind, thing))

    def _happen(self) -> None:
        _, _, kind, thing = heapq.heappop(self._events)
        if isinstance(thing, Node):
            if thing.replicas == 0 and thing in self.nodes and thing.since <= self.now:
                self._release(thing)
        elif kind == BOOTED:
            if not thing.draining:
                thing.ready = True
                self.boots.append(self.now - thing.created)
        else:
            thing.busy -= 1
            self.running -= 1
            self.completed += 1
            if thing.draining and thing.busy == 0:
                self._remove(thing)
        self._serve()

    def _serve(self) -> None:
        slots = self.trace.spec.concurrency
        while self.queue:
            able = [one for one in self.replicas if one.ready and not one.draining]
            free = [one for one in able if one.busy < slots]
            if not free:
                return
            one = min(free, key=lambda each: each.busy)
            request = self.queue.popleft()
            self.waits.append(self.now - self.trace.arrivals[request])
            one.busy += 1
            self.running += 1
            self._at(self.now + self.trace.services[request], DONE, one)

    def _scale(self, target: int) -> None:
        target = min(target, self.rules.max_replicas)
        if target != self.target:
            self.target = target
            self.targets.append((self.now, target))
        living = [one for one in self.replicas if not one.draining]
        for _ in range(target - len(living)):
            self._start()
        victims = sorted(living, key=lambda one: (one.ready, one.busy, one.node.replicas))
        for one in victims[: max(0, len(living) - target)]:
            one.draining = True
            if one.busy == 0:
                self._remove(one)

    def _start(self) -> None:
        room = [node for node in self.nodes if node.replicas < self.rules.per_node]
        if room:
            node = max(room, key=lambda each: each.replicas)
        else:
            node = Node(self.now, self.now + self.rules.node_boot)
            self.nodes.append(node)
        node.replicas += 1
        one = Replica(self.now, node)
        self.replicas.append(one)
        self.starts += 1
        self._at(max(self.now, node.ready_at) + self.rules.replica_boot, BOOTED, one)

    def _remove(self, one: Replica) -> None:
        self.replicas.remove(one)
        self.replica_seconds += self.now - one.created
        one.draining = True
        one.node.replicas -= 1
        if one.node.replicas == 0:
            one.node.since = self.now + self.rules.keep_node
            self._at(one.node.since, EMPTIED, one.node)

    def _release(self, node: Node) -> None:
        self.nodes.remove(node)
        self.node_seconds += self.now - node.created

    def _close(self) -> None:
        self.replica_seconds += sum(self.now - one.created for one in self.replicas)
        self.node_seconds += sum(self.now - node.created for node in self.nodes)
        # Who was never served has waited to the end at least.
        self.waits += [self.now - self.trace.arrivals[request] for request in self.queue]
