"""The replicas of one deployment, and which of them gets the next request."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from garrison.models.deployment import ReplicaState
from garrison.models.deployment_state import ReplicaEndpoint


@dataclass(slots=True, eq=False)
class Replica:
    """One replica.

    Attributes:
        endpoint: `http://address:port`, None before it listens.
        ready: It gets new requests.
        running: Requests at it.
        refused: How often in a row it took no connection; `aside_until` is when it is tried again.
    """

    name: str
    endpoint: str | None = None
    ready: bool = False
    running: int = 0
    refused: int = 0
    aside_until: float = 0.0

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Count a request at it for the time of the body."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


class Replicas:
    """All replicas that were told of, and former ones that still have requests."""

    def __init__(self, aside: Sequence[float]) -> None:
        self._aside = aside
        self._all: dict[str, Replica] = {}
        self._listed: Collection[str] = ()
        self._turn = 0

    @property
    def running(self) -> int:
        """Requests at any of them."""
        return sum(one.running for one in self._all.values())

    @property
    def ready(self) -> int:
        """How many get requests, or would if they took connections."""
        return sum(one.ready for one in self._all.values())

    def counts(self) -> dict[str, int]:
        """Return the requests under way by replica."""
        self._sweep()
        return {name: one.running for name, one in self._all.items()}

    def take(self, told: Sequence[ReplicaEndpoint]) -> None:
        """Replace what is known; requests under way stay where they are."""
        listed = {one.name for one in told}
        for name, known in self._all.items():
            known.ready = known.ready and name in listed
        for one in told:
            known = self._all.setdefault(one.name, Replica(one.name))
            known.ready = one.state is ReplicaState.READY and one.endpoint is not None
            if known.endpoint != one.endpoint:
                known.endpoint, known.refused, known.aside_until = one.endpoint, 0, 0.0
        self._listed = listed
        self._sweep()

    def choose(self, now: float, avoid: Collection[Replica] = ()) -> Replica | None:
        """Return the replica with the fewest requests, in turn among those with as many.

        Args:
            now: To know which are still put aside.
            avoid: Taken only if there is no other.
        """
        able = [one for one in self._all.values() if one.ready and one.aside_until <= now]
        able = [one for one in able if one not in avoid] or able
        if not able:
            return None
        first = self._turn % len(able)
        self._turn += 1
        return min(able[first:] + able[:first], key=lambda one: one.running)

    def put_aside(self, replica: Replica, now: float) -> float:
        """Give a replica that took no connection a rest; return until when."""
        pause = self._aside[min(replica.refused, len(self._aside) - 1)]
        replica.refused += 1
        replica.aside_until = now + pause
        return replica.aside_until

    def _sweep(self) -> None:
        gone = [n for n, one in self._all.items() if n not in self._listed and not one.running]
        for name in gone:
            del self._all[name]
