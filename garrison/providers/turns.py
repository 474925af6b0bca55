"""Whose turn it is at a provider that allows only so many calls: the rule, without a clock.

Calls are spaced evenly. While several kinds wait, each gets its share of the turns, so that a
terminate does not stand behind sixty launches, nor a launch behind an endless row of lists
(start-time fair queueing, Goyal, Vin and Cheng 1996); within a kind, first come, first served.

A refusal by the provider closes the gate for as long as it said, and halves the pace: the limit is
lower than we know, or others use the account too. Each calm half-minute doubles it again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

SLOWEST = 8
CALM = 30.0
CAREFUL = 4.0
"""Calls per second, before slowing, at a provider that refused a call and names no limit."""


class Kind(StrEnum):
    """The calls of the port, the most urgent first."""

    TERMINATE = "terminate"
    RESTART = "restart"
    LIST = "list"
    LAUNCH = "launch"
    OFFERS = "offers"


SHARES: dict[Kind, int] = {
    Kind.TERMINATE: 4,
    Kind.RESTART: 2,
    Kind.LIST: 2,
    Kind.LAUNCH: 2,
    Kind.OFFERS: 1,
}
_ORDER = {kind: place for place, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A call that waits for its turn."""

    kind: Kind


class Turns:
    """The queue before one provider. Times are seconds of any clock that never goes back."""

    def __init__(self, calls_per_second: float | None) -> None:
        """Begin with an open gate.

        Args:
            calls_per_second: Limit of the account, None when none is known.
        """
        self._limit = calls_per_second
        self._queues: dict[Kind, deque[Ticket]] = {kind: deque() for kind in Kind}
        self._due = dict.fromkeys(Kind, 0.0)
        self._progress = 0.0
        self._last_sent: float | None = None
        self._closed_until: float | None = None
        self._slowness = 1
        self._refused_at: float | None = None

    def arrive(self, kind: Kind) -> Ticket:
        """Stand in the queue."""
        queue = self._queues[kind]
        if not queue:
            # Time in which a kind had nothing to say earns it nothing.
            self._due[kind] = max(self._due[kind], self._progress)
        ticket = Ticket(kind)
        queue.append(ticket)
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Leave the queue; nothing happens to a ticket that has left it."""
        queue = self._queues[ticket.kind]
        if ticket in queue:
            queue.remove(ticket)

    def waiting(self, kind: Kind | None = None) -> int:
        """Return how many calls wait, of one kind or in all."""
        if kind is not None:
            return len(self._queues[kind])
        return sum(map(len, self._queues.values()))

    def take(self, now: float) -> Ticket | None:
        """Return the call that goes out now; None when none waits or none may."""
        kinds = [kind for kind, queue in self._queues.items() if queue]
        if not kinds or now < self.opens_at(now):
            return None
        kind = min(kinds, key=lambda one: (self._due[one], _ORDER[one]))
        self._progress = self._due[kind]
        self._due[kind] += 1 / SHARES[kind]
        self._last_sent = now
        return self._queues[kind].popleft()

    def opens_at(self, now: float) -> float:
        """Return when the next call may go out, `now` or a time before it when it may at once."""
        opens = now if self._closed_until is None else self._closed_until
        pace = self.pace(now)
        if pace is not None and self._last_sent is not None:
            opens = max(opens, self._last_sent + 1 / pace)
        return opens

    def closed(self, now: float) -> bool:
        """Return whether the provider said to keep away."""
        return self._closed_until is not None and now < self._closed_until

    def pace(self, now: float) -> float | None:
        """Return the calls per second that go out now, None for no bound."""
        slowness = self._slowness_at(now)
        if self._limit is None:
            return None if slowness == 1 else CAREFUL / slowness
        return self._limit / slowness

    def expected_wait(self, kind: Kind, now: float) -> float:
        """Return how many seconds a call that arrives now would wait, as far as can be told."""
        opening = max(0.0, self.opens_at(now) - now)
        pace = self.pace(max(now, now + opening))
        if pace is None:
            return opening
        shares = sum(share for one, share in SHARES.items() if self._queues[one] or one is kind)
        return opening + len(self._queues[kind]) * shares / SHARES[kind] / pace

    def refused(self, *, sent_at: float, now: float, after: float) -> None:
        """Close the gate, since the provider refused a call as one too many.

        Args:
            sent_at: When that call went out.
            now: Current time.
            after: Seconds that it said to wait.
        """
        # Calls that were on their way when the first of them was refused tell nothing new.
        if self._refused_at is None or sent_at >= self._refused_at:
            self._slowness = min(SLOWEST, self._slowness_at(now) * 2)
            self._refused_at = now
        self._closed_until = max(now + after, self._closed_until or now)

    def _slowness_at(self, now: float) -> int:
        if self._closed_until is None:
            return 1
        calm = int(max(0.0, now - self._closed_until) / CALM)
        return max(1, self._slowness >> min(calm, SLOWEST))
