"""What is known of a run once it is quiet: what was promised, what is said, what exists."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from garrison.models.cluster_status import ClusterStatus
from tests.chaos.plan import ClusterPlan


@dataclass(frozen=True, slots=True)
class Ack:
    """An update that was acknowledged.

    Attributes:
        by_signal: The service took note of it while no worker answered, so that the time is the
            client's.
        automatic: What a switch of recovery asked for.
    """

    verb: str
    uid: str
    at: datetime
    by_signal: bool = False
    automatic: bool | None = None


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a cluster's name.

    Attributes:
        closed: Its workflow has ended.
        faults: What its history has that no history should have.
    """

    plan: ClusterPlan
    status: ClusterStatus
    closed: bool
    acks: tuple[Ack, ...] = ()
    faults: tuple[str, ...] = ()

    def acknowledged(self, verb: str) -> list[Ack]:
        """Return the acknowledgements of one verb, oldest first."""
        return [ack for ack in self.acks if ack.verb == verb]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that exists or existed, by the cloud's own books.

    Attributes:
        ended_at: When it was gone; None while it exists.
        boots: How often it was started.
    """

    provider_id: str
    token: str
    uid: str
    rank: int
    region: str
    created_at: datetime
    ended_at: datetime | None
    boots: int = 1


@dataclass(frozen=True, slots=True)
class Bought:
    """A purchase that took effect, in whole or in part."""

    token: str
    uid: str
    wanted: int
    usd: Decimal
    at: datetime
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a verdict is found from.

    Attributes:
        at: When the machines were looked at.
        lives: By uid.
        complaints: What clients met that they never should.
    """

    at: datetime
    lives: dict[str, Life]
    machines: tuple[Machine, ...]
    purchases: tuple[Bought, ...]
    complaints: tuple[str, ...] = field(default=())
