"""A cloud on paper and a worker that is built as it ships, on real or on virtual time."""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from temporalio.api.enums.v1 import EventType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from garrison.activities.owners import Life, Owner, TemporalOwners
from garrison.activities.watch import Pass, ProviderWatcher
from garrison.activities.watches import Watches, watch_id
from garrison.catalog.loader import load_offers
from garrison.client.clusters import Clusters
from garrison.domain.clusters.call import cluster_workflow_id
from garrison.errors import GarrisonError
from garrison.failures import DATA_CONVERTER
from garrison.models.cluster import ClusterSpec
from garrison.models.cluster_state import Phase
from garrison.models.cluster_status import ClusterStatus, QuoteStatus
from garrison.models.observation import WatchAsk, WatchAsks
from garrison.providers.simulated.console import CallRecord, SimulatedConsole
from garrison.providers.simulated.faults import Call, Fault, FaultRule
from garrison.providers.simulated.provider import SimulatedProvider
from garrison.sealing import load_or_create_key_pair, open_env
from garrison.settings import Settings
from garrison.workers.main import GarrisonWorker, Parts, build_worker, now_utc
from garrison.workflows.cluster import ClusterWorkflow
from garrison.workflows.visibility import ALL_KEYS

Clock = Callable[[], datetime]
Claim = Callable[[ClusterStatus], bool]

BIN = Path(sys.executable).parent
SOON = timedelta(seconds=45)
"""A deadline for what takes a second or two, on a machine that is busy with other things."""


class Story:
    """One worker, its cloud and a client, for one test."""

    def __init__(
        self,
        client: Client,
        folder: Path,
        *,
        name: str | None = None,
        clock: Clock = now_utc,
        **cloud: object,
    ) -> None:
        self.name = name or f"sim{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.clock = clock
        self.keys = load_or_create_key_pair(folder)
        self.settings = Settings(
            data_dir=folder,
            log_dir=folder / "logs",
            owner="ann",
            public_key=self.keys.public_text,
            watch_interval=timedelta(seconds=1),
            watch_interval_busy=timedelta(milliseconds=300),
            heartbeat_timeout=timedelta(seconds=10),
            quote_valid=timedelta(minutes=15),
            providers={},
        )
        self.path = folder / "simulated.db"
        self.cloud: dict[str, object] = {
            "boot": timedelta(seconds=0.2),
            "effect_bound": timedelta(seconds=1),
            **cloud,
        }
        self.console = SimulatedConsole(self.path, clock=clock)
        self.client = client
        self.clusters = Clusters(client, self.settings)
        self.names: list[str] = []
        self.use()

    def use(self, **cloud: object) -> None:
        """Change what the cloud is like; call it before the worker is built."""
        self.cloud |= cloud
        self.provider = SimulatedProvider(
            self.path,
            installation="test",
            name=self.name,
            clock=self.clock,
            **{"offers": load_offers(), **self.cloud},  # type: ignore[arg-type]
        )
        self.parts = self.parts_of(self.provider)

    def parts_of(self, provider: SimulatedProvider) -> Parts:
        """What a worker for a cloud is built from."""
        return Parts(
            settings=self.settings,
            providers={self.name: provider},
            open_env=lambda env: open_env(self.keys, env, self.folder / "secrets"),
            public_key=self.keys.public_text,
            clock=self.clock,
        )

    def worker(self) -> GarrisonWorker:
        return build_worker(self.client, self.parts)

    def spec(self, **fields: Any) -> ClusterSpec:
        """A cluster of two 8 x H100 machines on this story's cloud."""
        given = {
            "name": f"c{uuid.uuid4().hex[:8]}",
            "nodes": 2,
            "gpus_per_node": 8,
            "accelerator": "H100",
            "provider": self.name,
            **fields,
        }
        spec = ClusterSpec.model_validate(given)
        if spec.name is not None:
            self.names.append(spec.name)
        return spec

    async def quote(self, **fields: Any) -> QuoteStatus:
        return await self.clusters.quote(self.spec(**fields))

    async def launched(self, *, failover: bool | None = None, **fields: Any) -> QuoteStatus:
        """Quote and launch a cluster."""
        quote = await self.quote(**fields)
        await self.clusters.launch(quote.name, quote_id=quote.quote_id, failover=failover)
        return quote

    async def running(self, **fields: Any) -> ClusterStatus:
        """Quote and launch a cluster, and wait until it runs."""
        quote = await self.launched(**fields)
        return await self.clusters.wait(quote.name, phases={Phase.RUNNING}, timeout=SOON)

    async def until(self, name: str, claim: Claim, *, within: timedelta = SOON) -> ClusterStatus:
        """Return the first status of which a claim is true."""
        end = now_utc() + within
        while True:
            status = await self.status(name)
            if claim(status):
                return status
            assert now_utc() < end, f"not within {within}: {status.model_dump_json(indent=1)}"
            await asyncio.sleep(0.05)

    async def status(self, name: str) -> ClusterStatus:
        """What the workflow itself answers, whether it lives or not."""
        return await self.handle(name).query(ClusterWorkflow.get)

    def handle(self, name: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(cluster_workflow_id(name))

    async def history(self, name: str) -> Counter[str]:
        """How many events of each type the current run has."""
        found: Counter[str] = Counter()
        async for event in self.handle(name).fetch_history_events():
            found[EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")] += 1
        return found

    def machines(self, uid: str | None = None) -> list[dict[str, Any]]:
        """What the cloud itself says is there."""
        return [m for m in self.console.inventory() if uid is None or m["uid"] == uid]

    def node_id(self, rank: int) -> str:
        """The provider's own id of a rank, where the story has one cluster."""
        (found,) = (m["provider_id"] for m in self.machines() if m["rank"] == rank)
        return str(found)

    def calls(self, call: Call | None = None, *, after: int = 0) -> list[CallRecord]:
        """The log of provider calls, all of them or one kind, after the first so many."""
        log = self.console.calls()[after:]
        return [record for record in log if call is None or record.call == call]

    def fault(self, call: Call, what: Fault = Fault.ERROR, **fields: Any) -> FaultRule:
        """Script an incident."""
        return self.console.add_fault(
            FaultRule.model_validate({"call": call, "what": what, **fields})
        )

    async def end(self) -> None:
        """Leave nothing behind that a later test's worker would be given to do."""
        ids = [*map(cluster_workflow_id, self.names), watch_id(self.name)]
        for workflow_id in ids:
            handle: WorkflowHandle[Any, Any] = self.client.get_workflow_handle(workflow_id)
            try:
                await handle.terminate("the test is over")
            except RPCError:
                continue  # it ended by itself, or never began


class Directory(TemporalOwners):
    """Owners by name, as lists are not implemented on the time-skipping server."""

    def __init__(self, story: Story) -> None:
        super().__init__(story.client)
        self._story = story

    async def running(self, provider: str) -> Sequence[Owner]:
        found = [await self._owner(name) for name in dict.fromkeys(self._story.names)]
        return [owner for owner in found if owner is not None]

    async def _owner(self, name: str) -> Owner | None:
        handle = self._story.handle(name)
        try:
            described = await handle.describe()
        except RPCError:
            return None
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return None
        status = await self._story.status(name)
        return Owner(handle.id, status.uid, status.phase, status.nodes_wanted)

    async def life_of(self, workflow_id: str, uid: str) -> Life:
        described = await self._story.client.get_workflow_handle(workflow_id).describe()
        running = described.status is WorkflowExecutionStatus.RUNNING
        return Life.LIVING if running else Life.CLOSED


class LosableAsks:
    """The asks of a worker without a watch, which can get lost on the way."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches
        self.losing = False

    async def start(self, provider: str) -> None:
        await self._watches.start(provider)

    async def ask(self, provider: str, ask: WatchAsk) -> None:
        await self._watches.ask(provider, ask)

    async def asks(self, provider: str, *, since: int) -> WatchAsks:
        answer = await self._watches.asks(provider, since=since)
        return answer.model_copy(update={"asks": ()}) if self.losing else answer

    async def woken(self, provider: str, *, timeout_seconds: float) -> bool:
        return await self._watches.woken(provider, timeout_seconds=timeout_seconds)


class VirtualStory(Story):
    """A story in which hours pass at once; its watch is this object, by hand.

    Not for what cancels an activity between two of its tries: on the time-skipping server that
    can stop time for good.
    """

    def __init__(self, environment: WorkflowEnvironment, folder: Path, clock: Clock) -> None:
        super().__init__(
            environment.client,
            folder,
            clock=clock,
            boot=timedelta(seconds=14),
            effect_bound=timedelta(seconds=30),
        )
        self._environment = environment
        self._watcher: ProviderWatcher | None = None

    def worker(self) -> GarrisonWorker:
        worker = build_worker(self.client, self.parts, watch=False)
        self.asks = LosableAsks(worker.watches)
        self._watcher = ProviderWatcher(self.provider, Directory(self), self.asks, clock=self.clock)
        return worker

    async def observe(self) -> Pass | None:
        """Let the watch make one pass; None when the provider does not answer."""
        assert self._watcher is not None
        try:
            return await self._watcher.observe_once()
        except GarrisonError:
            return None

    async def sleep(self, time: timedelta) -> None:
        """Let time pass with nobody watching."""
        await self._environment.sleep(time)

    async def watch(self, time: timedelta, *, every: timedelta = timedelta(seconds=15)) -> None:
        """Let time pass under a watch, which also looks when it is asked to."""
        end = self.clock() + time
        while (now := self.clock()) < end:
            await self.sleep(min(self._pause(now, every), end - now))
            await self.observe()

    def _pause(self, now: datetime, every: timedelta) -> timedelta:
        assert self._watcher is not None
        asked = self._watcher.next_ask_at
        return every if asked is None else max(min(every, asked - now), timedelta(seconds=1))

    async def until(
        self,
        name: str,
        claim: Claim,
        *,
        within: timedelta = timedelta(minutes=30),
        every: timedelta = timedelta(seconds=15),
    ) -> ClusterStatus:
        """Let time pass under a watch until a claim is true."""
        end = self.clock() + within
        while True:
            status = await self.status(name)
            if claim(status):
                return status
            assert self.clock() < end, f"not within {within}: {status.model_dump_json(indent=1)}"
            await self.sleep(self._pause(self.clock(), every))
            await self.observe()

    async def running(self, **fields: Any) -> ClusterStatus:
        quote = await self.launched(**fields)
        return await self.until(quote.name, in_phase(Phase.RUNNING))

    async def ended(
        self,
        name: str,
        *,
        within: timedelta = timedelta(hours=1),
        every: timedelta = timedelta(seconds=15),
    ) -> ClusterStatus:
        """Let time pass until a life is over, then ten more minutes."""
        status = await self.until(
            name, lambda one: one.ended_at is not None, within=within, every=every
        )
        await self.sleep(timedelta(minutes=10))
        return status


def in_phase(*phases: Phase) -> Claim:
    """The claim that a cluster is in one of these phases."""
    return lambda status: status.phase in phases


def statuses(status: ClusterStatus) -> list[str]:
    """The nodes' states by rank."""
    return [str(node.status) for node in status.nodes]


def phases(status: ClusterStatus) -> list[str]:
    """All phases that a cluster went through."""
    return [str(change.phase) for change in status.phase_transitions]


def reasons(status: ClusterStatus) -> Collection[str]:
    """The reasons of all events."""
    return [event.reason for event in status.events]


class ServerClock:
    """The time-skipping server's time, from any thread."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        connecting = asyncio.run_coroutine_threadsafe(Client.connect(address), self._loop)
        self._client = connecting.result(timeout=10)

    def __call__(self) -> datetime:
        asking = asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        return asking.result(timeout=10)

    async def _ask(self) -> datetime:
        answer = await self._client.test_service.get_current_time(Empty())
        return answer.time.ToDatetime().replace(tzinfo=UTC)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


@pytest.fixture(scope="session")
async def time_server() -> AsyncIterator[WorkflowEnvironment]:
    """A server on which hours pass at once, with our search attributes."""
    environment = await WorkflowEnvironment.start_time_skipping(
        data_converter=DATA_CONVERTER,
        test_server_existing_path=str(BIN / "temporal-test-server"),
    )
    await environment.client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace="default",
            search_attributes={key.name: int(key.indexed_value_type) for key in ALL_KEYS},  # type: ignore[misc]
        )
    )
    yield environment
    await environment.shutdown()


@pytest.fixture(scope="session")
async def virtual_clock(time_server: WorkflowEnvironment) -> AsyncIterator[Clock]:
    clock = ServerClock(time_server.client.service_client.config.target_host)
    yield clock
    clock.stop()


@pytest.fixture
async def story(client: Client, tmp_path: Path) -> AsyncIterator[Story]:
    story = Story(client, tmp_path)
    yield story
    await story.end()


@pytest.fixture
async def virtual(
    time_server: WorkflowEnvironment, virtual_clock: Clock, tmp_path: Path
) -> AsyncIterator[VirtualStory]:
    story = VirtualStory(time_server, tmp_path, virtual_clock)
    yield story
    await story.end()
