"""A cluster's life in which anything may happen next, on the time-skipping server.

All that ships takes part: the worker's activities, the simulated cloud, the watcher's pass. A
cancel that meets an activity between two of its tries can stop this server's time, so faults are
over before somebody terminates; `life_by_hand` plays what that leaves out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as NoAnswer
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer

from garrison.activities.watch import ProviderWatcher
from garrison.domain.health import DOWN, GONE
from garrison.errors import GarrisonError
from garrison.failures import DATA_CONVERTER
from garrison.models.cluster_messages import TerminateRequest
from garrison.models.cluster_state import UP_PHASES, Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.models.observation import Observation
from garrison.providers.simulated.faults import Call, Fault
from garrison.workers.main import workflow_runner
from garrison.workflows.cluster import ClusterWorkflow
from garrison.workflows.visibility import ALL_KEYS
from tests.workflows.conftest import BIN, Directory, ServerClock, VirtualStory
from tests.workflows.life_promises import Promises

T = TypeVar("T")

PATIENCE = 60
"""Seconds of real time in which the server answers, however busy the computer is."""

REGIONS = ("sim-a", "sim-b", "sim-c")
SETTLE = timedelta(seconds=20)
SPANS = (1, 15, 30, 61, 121, 600)

LAUNCH_FAULTS: dict[str, dict[str, Any]] = {
    "refused": {"what": Fault.REFUSAL},
    "refused after one node": {"what": Fault.REFUSAL, "rank": 1},
    "quota": {"code": "VcpuLimitExceeded"},
    "denied": {"code": "AuthFailure"},
    "throttled": {"code": "RequestLimitExceeded"},
    "request lost": {"what": Fault.LOST_RESPONSE, "when": "before"},
    "answer lost": {"what": Fault.LOST_RESPONSE},
    "late effect": {"what": Fault.DELAYED_EFFECT, "seconds": 25},
    "shown late": {"what": Fault.LATE_LIST, "seconds": 18},
    "a node fails": {"what": Fault.NODE_FAILS, "seconds": 10, "rank": 0},
}
OTHER_FAULTS: dict[str, tuple[Call, dict[str, Any]]] = {
    "deletes refused": (Call.TERMINATE, {"code": "RequestLimitExceeded", "times": 3}),
    "delete's answer lost": (Call.TERMINATE, {"what": Fault.LOST_RESPONSE}),
    "late delete": (Call.TERMINATE, {"what": Fault.DELAYED_EFFECT, "seconds": 25}),
    "delete shown late": (Call.TERMINATE, {"what": Fault.LATE_LIST, "seconds": 18}),
    "list late": (Call.LIST, {"what": Fault.LATE_LIST, "seconds": 18, "times": 2}),
    "away": (Call.LIST, {"code": "RequestTimeout", "times": None, "lasts_seconds": 200}),
    "no host for a restart": (Call.RESTART, {"what": Fault.REFUSAL}),
    "restart's answer lost": (Call.RESTART, {"what": Fault.LOST_RESPONSE}),
    "node hidden": (Call.STATUS, {"what": Fault.UNKNOWN, "rank": 0, "times": 9}),
}

spans = st.sampled_from(SPANS)
some = st.integers(0, 20)


class Recorder(Directory):
    """Tells owners, and keeps what was told; on request it only keeps it."""

    def __init__(self, story: VirtualStory) -> None:
        super().__init__(story)
        self.kept: list[Observation] = []
        self.holding = False

    async def tell(self, observation: Observation) -> bool:
        self.kept.append(observation)
        return True if self.holding else await super().tell(observation)


class Stage:
    """A server, a worker and a cloud, for all lives one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.call(self._open())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out something on the stage's own loop."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout=PATIENCE)
        except NoAnswer:
            future.cancel()
            raise AssertionError(f"no answer within {PATIENCE} s: has time stopped?") from None

    async def _open(self) -> None:
        self._environment = await WorkflowEnvironment.start_time_skipping(
            data_converter=DATA_CONVERTER,
            test_server_existing_path=str(BIN / "temporal-test-server"),
        )
        client = self._environment.client
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace="default",
                search_attributes={key.name: int(key.indexed_value_type) for key in ALL_KEYS},  # type: ignore[misc]
            )
        )
        self._clock = ServerClock(client.service_client.config.target_host)
        self.story = VirtualStory(self._environment, self._folder, self._clock)
        self.story.use(settle=SETTLE)
        self._worker = self.story.worker()
        self.recorder = Recorder(self.story)
        self.story._watcher = ProviderWatcher(
            self.story.provider, self.recorder, self.story.asks, clock=self._clock
        )
        await self._worker.__aenter__()

    def close(self) -> None:
        self.call(self._worker.__aexit__(None, None, None))
        self.call(self._environment.shutdown())
        self._clock.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=PATIENCE)
        self._loop.close()


class ServedLife(RuleBasedStateMachine):
    """One cluster after the other on the one stage."""

    stage: ClassVar[Stage]

    @initialize(
        nodes=st.integers(1, 3),
        automatic=st.booleans(),
        failover=st.booleans(),
        first=st.sampled_from((None, None, *LAUNCH_FAULTS)),
    )
    def begin(self, nodes: int, automatic: bool, failover: bool, first: str | None) -> None:
        self.story, self.recorder = self.stage.story, self.stage.recorder
        self.story.names.clear()
        self.recorder.kept.clear()
        self.recorder.holding = False
        self.touched = False
        if first is not None:
            self.story.fault(Call.LAUNCH, **LAUNCH_FAULTS[first])
        recovery = {"automatic": automatic, "max_attempts": 2}
        quote = self.do(self.story.quote(nodes=nodes, recovery=recovery))
        self.name, self.uid, self.nodes = quote.name, quote.uid, nodes
        self.status: ClusterStatus = self.do(self.story.status(self.name))
        self.promises = Promises(self.status)
        self.promises.check(self.status, self.story.clock())
        self.do(
            self.story.clusters.launch(
                self.name, quote_id=quote.quote_id, failover=failover, request_id="launch"
            )
        )
        self.answer = self.do(self.story.clusters.launch(self.name, request_id="launch"))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.stage.call(work)

    def attempt(self, work: Coroutine[Any, Any, object]) -> bool:
        """Do what may well be refused."""
        try:
            self.do(work)
        except GarrisonError:
            return False
        return True

    # Wishes

    @rule()
    def launch_again(self) -> None:
        assert not self.attempt(self.story.clusters.launch(self.name, quote_id="another"))
        if self.status.ended_at is None:
            again = self.do(self.story.clusters.launch(self.name, request_id="launch"))
            assert again == self.answer

    @rule(how=st.sampled_from(("update", "signal", "cancel")), span=spans)
    @precondition(lambda self: self.status.phase in {Phase.PROVISIONING, *UP_PHASES})
    def terminate(self, how: str, span: int) -> None:
        """The faults of calls that are tried again by themselves are over by then."""
        self.story.console.clear_faults()
        self.do(self.story.watch(timedelta(minutes=1)))
        if self.do(self.story.status(self.name)).ended_at is not None:
            return
        handle = self.story.handle(self.name)
        match how:
            case "update":
                first = self.do(self.story.clusters.terminate(self.name))
                assert self.do(self.story.clusters.terminate(self.name)) == first
            case "signal":
                self.do(handle.signal("terminate", TerminateRequest(request_id="", by="ann")))
            case "cancel":
                self.do(handle.cancel())
        self.do(self.story.watch(timedelta(seconds=span)))
        assert self.do(self.story.status(self.name)).terminate_accepted_at is not None

    @rule(automatic=st.sampled_from((True, False)), most=st.sampled_from((None, 1, 4)))
    def switch(self, automatic: bool, most: int | None) -> None:
        self.attempt(
            self.story.clusters.recovery(self.name, automatic=automatic, max_attempts=most)
        )

    @rule()
    @precondition(lambda self: self.status.phase in UP_PHASES)
    def recover(self) -> None:
        accepted = self.attempt(self.story.clusters.recover(self.name))
        assert not (accepted and self.status.phase is Phase.RUNNING)

    # Time and the watch

    @rule(span=spans)
    def watch(self, span: int) -> None:
        self.do(
            self.story.watch(timedelta(seconds=span), every=timedelta(seconds=max(15, span // 6)))
        )

    @rule(span=spans)
    def sleep(self, span: int) -> None:
        """Nobody looks for a while."""
        self.do(self.story.sleep(timedelta(seconds=span)))

    @rule()
    def look_and_keep(self) -> None:
        """A pass of which nobody is told before somebody delivers it, late."""
        self.recorder.holding = True
        self.do(self.story.observe())
        self.recorder.holding = False

    @rule(which=some, others=st.booleans())
    @precondition(lambda self: self.recorder.kept)
    def deliver_late(self, which: int, others: bool) -> None:
        seen = self.recorder.kept[-1 - which % len(self.recorder.kept)]
        if others:
            seen = seen.model_copy(update={"uid": "another", "groups": ()})
        self.do(Directory.tell(self.recorder, seen))

    # What befalls machines, calls and markets

    @rule(which=some, what=st.sampled_from(("kill", "revive", "vanish", "reclaim")))
    def befall(self, which: int, what: str) -> None:
        machines = self.story.machines(self.uid)
        if not machines:
            return
        self.touched = True
        node, console = machines[which % len(machines)]["provider_id"], self.story.console
        try:
            match what:
                case "kill":
                    console.kill(node)
                case "revive":
                    console.revive(node)
                case _:
                    console.delete_node(node, vanish=what == "vanish")
        except GarrisonError:
            return  # it is being deleted, or has power

    @rule(what=st.sampled_from(sorted(OTHER_FAULTS)))
    def fault(self, what: str) -> None:
        call, fields = OTHER_FAULTS[what]
        self.touched |= call is Call.STATUS
        self.story.fault(call, **fields)

    @rule(region=st.sampled_from(REGIONS), factor=st.sampled_from((1, 2)))
    def reprice(self, region: str, factor: int) -> None:
        kind = self.status.instance_type
        assert kind is not None
        price = None if factor == 1 else Decimal(1_000)
        self.story.console.set_price(kind, price, region=region)

    # Promises

    @invariant()
    def keeps_its_promises(self) -> None:
        if not hasattr(self, "promises"):
            return
        self.status = status = self.do(self.story.status(self.name))
        self.promises.check(status, self.story.clock())
        machines = self.story.machines(self.uid)
        assert self.story.console.peak(uid=self.uid) <= self.nodes, "more machines than nodes"
        assert len({machine["region"] for machine in machines}) <= 1, "two places at once"
        assert status.hourly_usd is not None
        for machine in machines:
            assert Decimal(machine["usd_per_hour"]) * self.nodes <= status.hourly_usd
        if status.ended_at is not None:
            assert machines == []
        if status.ready_at is not None and not self.touched:
            assert status.phase is not Phase.DEGRADED, "degraded, and nothing is wrong"
            assert not [node for node in status.nodes if node.status in DOWN - GONE]

    def teardown(self) -> None:
        if not hasattr(self, "promises"):
            return
        self.do(self._end())
        self.keeps_its_promises()
        assert self.status.ended_at is not None

    async def _end(self) -> None:
        """Terminate, let it go well, and see that everything is over and stays so."""
        self.story.console.clear_faults()
        await self.story.watch(timedelta(minutes=1))
        if (await self.story.status(self.name)).ended_at is None:
            await self.story.clusters.terminate(self.name)
        await self.story.ended(self.name)
        assert self.story.machines(self.uid) == []
        history = await self.story.handle(self.name).fetch_history()
        kinds = [event.WhichOneof("attributes") for event in history.events]
        assert "workflow_task_failed_event_attributes" not in kinds
        replayer = Replayer(
            workflows=[ClusterWorkflow],
            data_converter=DATA_CONVERTER,
            workflow_runner=workflow_runner(),
        )
        await replayer.replay_workflow(history)
        for region in REGIONS:
            kind = self.status.instance_type
            assert kind is not None
            self.story.console.set_price(kind, None, region=region)
