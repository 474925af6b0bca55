"""What is known of nodepools and deployments once a run is quiet."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from garrison.models.deployment import DeploymentStatus
from garrison.models.nodepool import NodepoolStatus
from garrison.providers.simulated.runs import Run
from tests.chaos.elastic_plan import DeploymentPlan, PoolPlan
from tests.chaos.facts import Machine

FIRST_COMMAND = 600


def command_of(revision: int) -> tuple[str, ...]:
    """Return what replicas of a revision run; it does not end within a run."""
    return ("sleep", str(FIRST_COMMAND + revision))


@dataclass(slots=True)
class PoolWish:
    """What was acknowledged for one life of a nodepool.

    Attributes:
        highest: The most machines that it was ever allowed.
    """

    plan: PoolPlan
    uid: str
    least: int
    most: int
    highest: int
    deleted: bool = False


@dataclass(slots=True)
class DeploymentWish:
    """What was acknowledged for one life of a deployment."""

    plan: DeploymentPlan
    uid: str
    fixed: int | None = None
    enabled: bool = True
    revision: int = 1
    deleted: bool = False

    @property
    def desired(self) -> int:
        """How many replicas there should be."""
        if self.deleted or not self.enabled:
            return 0
        return self.plan.least if self.fixed is None else min(self.fixed, self.plan.most)

    @property
    def key(self) -> str:
        """What the ids of its replicas begin with."""
        return f"{self.plan.name}-{self.uid[:8]}"


@dataclass(frozen=True, slots=True)
class PoolLife:
    """One life of a nodepool's name; `faults` are of its end."""

    status: NodepoolStatus
    closed_at: datetime | None
    wish: PoolWish | None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeploymentLife:
    """One life of a deployment's name."""

    status: DeploymentStatus
    closed_at: datetime | None
    wish: DeploymentWish | None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ElasticFacts:
    """All that a verdict is found from.

    Attributes:
        pools: By uid, as `deployments`.
        machines: That exist or existed, as `runs`, by the cloud's own books.
        broken: Machines that incidents stopped or took away.
        complaints: What clients met that they never should.
    """

    pools: dict[str, PoolLife]
    deployments: dict[str, DeploymentLife]
    machines: tuple[Machine, ...]
    runs: tuple[Run, ...]
    broken: frozenset[str] = frozenset()
    complaints: tuple[str, ...] = field(default=())
