"""A client SDK that answers from memory and keeps what it was asked."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from garrison.client.deletions import Deletions
from garrison.domain.pricing import sort_offers
from garrison.errors import ErrorCode, GarrisonError, NotFound, WaitTimeout, error_of
from garrison.models.cluster import ClusterSpec
from garrison.models.cluster_messages import ActionAck, TerminateAck
from garrison.models.cluster_state import CLOSED_PHASES, ClusterEvent, Phase, PhaseTransition
from garrison.models.cluster_status import (
    ClusterNodeStatus,
    ClusterRow,
    ClusterStatus,
    Connection,
    ErrorStatus,
    NodeWorkloadStatus,
    QuoteStatus,
    RecoveryStatus,
)
from garrison.models.elastic_rows import ResourceTree
from garrison.models.group import NodeStatus, WorkloadState
from garrison.models.observation import ProviderStatus, WatchReport
from garrison.models.offer import Offer, OfferQuery, Stock
from garrison.models.orphan import Orphan, OrphanReport, Swept
from garrison.models.quote import Considered, QuotePart
from tests.cli.fake_elastic import (
    TREE,
    FakeApply,
    FakeComputeClusters,
    FakeDeployments,
    FakeNodepools,
)

NOW = datetime(2030, 5, 17, 12, 0, 0, 250_000, tzinfo=UTC)
UID = "0b2f6c1e-5d0a-4c53-9a53-6d7f0e9b1a11"
OFFER = Offer(
    provider="simulated",
    region="sim-a",
    instance_type="p5.48xlarge",
    vcpus=192,
    memory_gib=Decimal(2048),
    accelerator="H100",
    accelerator_count=Decimal(8),
    accelerator_memory_gib=Decimal(80),
    usd_per_hour=Decimal("47.28"),
    stock=Stock.HIGH,
    source="catalogue",
    as_of="2030-01-01",
    simulated=True,
)


def quote(**overrides: Any) -> QuoteStatus:
    """Return a quote for two machines of eight H100."""
    given: dict[str, Any] = {
        "name": "train-1",
        "uid": UID,
        "quote_id": "q-1",
        "nodes": 2,
        "gpus_per_node": 8,
        "hourly_usd": Decimal("94.66"),
        "parts": (
            QuotePart(
                what="p5.48xlarge (8 x H100)",
                quantity=Decimal(2),
                unit_usd_per_hour=Decimal("47.28"),
                usd_per_hour=Decimal("94.56"),
            ),
            QuotePart(
                what="root disk 200 GB",
                quantity=Decimal(400),
                unit="GB",
                unit_usd_per_hour=Decimal("0.00025"),
                usd_per_hour=Decimal("0.1"),
            ),
            QuotePart(what="network", quantity=Decimal(2), included=True),
        ),
        "availability": "high (for one node)",
        "expires_at": NOW + timedelta(minutes=15),
        "offer": OFFER,
        "considered": tuple(
            Considered(offer=f"simulated sim-a type-{n}", verdict="dearer") for n in range(9)
        ),
    }
    return QuoteStatus(**{**given, **overrides})


def node(rank: int, **overrides: Any) -> ClusterNodeStatus:
    """Return a running node."""
    given: dict[str, Any] = {
        "rank": rank,
        "status": NodeStatus.RUNNING,
        "provider_id": f"sim-{rank}",
        "private_address": f"10.0.0.{rank + 1}",
    }
    return ClusterNodeStatus(**{**given, **overrides})


def status(phase: Phase = Phase.RUNNING, **overrides: Any) -> ClusterStatus:
    """Return a cluster of two nodes."""
    given: dict[str, Any] = {
        "name": "train-1",
        "uid": UID,
        "phase": phase,
        "provider": "simulated",
        "region": "sim-a",
        "instance_type": "p5.48xlarge",
        "accelerator": "H100",
        "simulated": True,
        "nodes_wanted": 2,
        "gpus_per_node": 8,
        "hourly_usd": Decimal("94.66"),
        "provider_hourly_usd": Decimal("94.66"),
        "cost_usd": Decimal("1.577666666666"),
        "owner": "ada",
        "quote_id": "q-1",
        "created_at": NOW,
        "recovery": RecoveryStatus(automatic=False, max_attempts=3),
        "nodes": (node(0), node(1)),
        "phase_transitions": (PhaseTransition(phase=Phase.QUOTED, time=NOW),),
        "events": (ClusterEvent(time=NOW, node=1, reason="NodeReady", message="node 1 is ready"),),
    }
    return ClusterStatus(**{**given, **overrides})


def failed(code: ErrorCode) -> ClusterStatus:
    """Return a cluster whose launch did not work."""
    return status(Phase.FAILED, nodes=(), last_error=ErrorStatus(code=code, message="no H100"))


def worked(*states: WorkloadState) -> ClusterStatus:
    """Return a running cluster whose nodes' commands are in these states."""
    nodes = [
        node(rank, workload=NodeWorkloadStatus(state=state)) for rank, state in enumerate(states)
    ]
    return status(nodes=tuple(nodes), has_command=True)


ROW = ClusterRow(
    name="train-1",
    uid=UID,
    phase=Phase.RUNNING,
    shape="2 x 8 H100",
    provider="simulated",
    region="sim-a",
    instance_type="p5.48xlarge",
    hourly_usd=Decimal("94.66"),
    cost_usd=Decimal("1.577666"),
    owner="ada",
    created_at=NOW,
    ready_at=NOW,
    simulated=True,
)

List = list  # the fakes have methods of that name
OnChange = Callable[[ClusterStatus], None]


@dataclass
class FakeClusters:
    """Clusters of a made-up service.

    Attributes:
        story: What `get` and `wait` see, one status after another; the last one stays.
        calls: Method name and arguments of every call.
        error: Raised by every call, if set.
    """

    story: List[ClusterStatus] = field(default_factory=lambda: [status()])
    calls: List[tuple[str, dict[str, Any]]] = field(default_factory=List)
    error: BaseException | None = None
    quoted_as: QuoteStatus = field(default_factory=quote)
    log: tuple[bytes, ...] = ()
    rows: List[List[ClusterRow]] = field(default_factory=lambda: [[ROW]])
    ssh_status: int = 0

    def named(self, method: str) -> List[dict[str, Any]]:
        """Return the arguments of each call of a method."""
        return [arguments for name, arguments in self.calls if name == method]

    def _called(self, method: str, **arguments: Any) -> None:
        self.calls.append((method, arguments))
        if self.error is not None:
            raise self.error

    async def quote(self, spec: ClusterSpec, *, request_id: str | None = None) -> QuoteStatus:
        self._called("quote", spec=spec)
        return self.quoted_as

    async def quoted(self, name: str, quote_id: str) -> QuoteStatus:
        self._called("quoted", name=name, quote_id=quote_id)
        return self.quoted_as

    async def launch(self, name: str, **arguments: Any) -> ActionAck:
        self._called("launch", name=name, **arguments)
        return self._ack(Phase.LAUNCHING)

    async def get(self, name: str, *, uid: str | None = None) -> ClusterStatus:
        self._called("get", name=name, uid=uid)
        return self.story[0]

    async def list(self, **filters: Any) -> List[ClusterRow]:
        self._called("list", **filters)
        if not self.rows:
            raise KeyboardInterrupt
        return self.rows.pop(0)

    async def wait(
        self,
        name: str,
        *,
        phases: Collection[Phase],
        timeout: timedelta | None = None,
        uid: str | None = None,
        on_change: OnChange | None = None,
    ) -> ClusterStatus:
        self._called("wait", name=name, phases=set(phases), timeout=timeout, uid=uid)
        return self._follow(lambda now: now.phase in phases, on_change)

    async def wait_workload(
        self, name: str, *, timeout: timedelta | None = None, on_change: OnChange | None = None
    ) -> ClusterStatus:
        self._called("wait_workload", name=name, timeout=timeout)
        return self._follow(lambda now: now is self.story[-1], on_change)

    def _follow(
        self, done: Callable[[ClusterStatus], bool], on_change: OnChange | None
    ) -> ClusterStatus:
        for now in self.story:
            if on_change is not None:
                on_change(now)
            if done(now):
                return now
            if now.phase in CLOSED_PHASES:
                code = now.last_error.code if now.last_error else ErrorCode.CONFLICT_PHASE
                raise error_of(code, f"{now.name} ended {now.phase}")
        raise WaitTimeout("train-1 is not there yet; it goes on")

    async def connections(self, name: str) -> Sequence[Connection]:
        self._called("connections", name=name)
        return [Connection(rank=0, status=NodeStatus.RUNNING, command="ssh -p 2222 root@h")]

    async def terminate(self, name: str, *, uid: str | None = None) -> TerminateAck:
        self._called("terminate", name=name, uid=uid)
        return TerminateAck(name=name, uid=UID, accepted_at=NOW)

    async def recover(self, name: str) -> ActionAck:
        self._called("recover", name=name)
        return self._ack(Phase.DEGRADED)

    async def recovery(self, name: str, **change: Any) -> ActionAck:
        self._called("recovery", name=name, **change)
        return self._ack(Phase.RUNNING)

    async def logs(
        self,
        name: str,
        *,
        rank: int = 0,
        uid: str | None = None,
        tail_bytes: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[bytes]:
        self._called("logs", name=name, rank=rank, tail_bytes=tail_bytes, follow=follow)
        for chunk in self.log:
            yield chunk

    async def ssh(self, name: str, *, rank: int = 0, command: Sequence[str] = ()) -> int:
        self._called("ssh", name=name, rank=rank, command=tuple(command))
        return self.ssh_status

    def _ack(self, phase: Phase) -> ActionAck:
        return ActionAck(name="train-1", uid=UID, accepted_at=NOW, phase=phase, message="accepted")


@dataclass
class FakeOffers:
    """A price list."""

    offers: List[Offer] = field(default_factory=lambda: [OFFER])
    queries: List[OfferQuery] = field(default_factory=List)

    async def list(
        self, query: OfferQuery, *, sort: str = "price", descending: bool = False
    ) -> List[Offer]:
        self.queries.append(query)
        return sort_offers(self.offers, sort, descending=descending)


class FakeProviders:
    """One provider."""

    def __init__(self) -> None:
        self.watch: WatchReport | None = None

    async def list(self) -> List[ProviderStatus]:
        return [
            ProviderStatus(name="simulated", type="simulated", simulated=True, watch=self.watch)
        ]


@dataclass
class FakeOrphans:
    """Machines that nobody answers for, and what was asked about them."""

    report: OrphanReport = field(default_factory=OrphanReport)
    swept: List[Swept] = field(default_factory=List)
    asked: List[dict[str, Any]] = field(default_factory=List)
    sweeps: List[tuple[Orphan, ...]] = field(default_factory=List)

    async def list(
        self, *, provider: str | None = None, installation: str | None = None
    ) -> OrphanReport:
        self.asked.append({"provider": provider, "installation": installation})
        return self.report

    async def sweep(self, orphans: Sequence[Orphan]) -> List[Swept]:
        self.sweeps.append(tuple(orphans))
        return self.swept


@dataclass
class FakeGarrison:
    """The whole SDK."""

    clusters: FakeClusters = field(default_factory=FakeClusters)
    offers: FakeOffers = field(default_factory=FakeOffers)
    providers: FakeProviders = field(default_factory=FakeProviders)
    orphans: FakeOrphans = field(default_factory=FakeOrphans)
    compute_clusters: FakeComputeClusters = field(default_factory=FakeComputeClusters)
    nodepools: FakeNodepools = field(default_factory=FakeNodepools)
    deployments: FakeDeployments = field(default_factory=FakeDeployments)
    apply: FakeApply = field(default_factory=FakeApply)
    resources: ResourceTree = TREE
    connect_error: GarrisonError | None = None

    @property
    def deletions(self) -> Deletions:
        """The real one, over the fakes."""
        parts: tuple[Any, ...] = (self.compute_clusters, self.nodepools, self.deployments)
        return Deletions(*parts)

    async def tree(self) -> ResourceTree:
        return self.resources

    def connect(self) -> AbstractAsyncContextManager[Any]:
        """Return a connection, as `Garrison.connect()` does."""

        @contextlib.asynccontextmanager
        async def connection() -> AsyncIterator[FakeGarrison]:
            if self.connect_error is not None:
                raise self.connect_error
            yield self

        return connection()


def missing() -> NotFound:
    """Return what the SDK raises for an unknown name."""
    return NotFound("there is no cluster train-1")
