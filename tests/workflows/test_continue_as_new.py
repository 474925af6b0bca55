"""A long life under load goes over into new runs, and nobody who asks it anything notices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowUpdateInput,
    WorkflowHandle,
    WorkflowUpdateHandle,
)
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from garrison.activities.watches import watch_id
from garrison.client.clusters import Clusters
from garrison.errors import ConflictPhase, NotFound, TooManyRequests
from garrison.failures import DATA_CONVERTER
from garrison.models.cluster_messages import ActionAck, ClusterInput
from garrison.models.cluster_state import ClusterState, Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.models.observation import Observation, WatchAsk, WatchStatus
from garrison.providers.simulated.faults import Call
from garrison.workflows.visibility import ALL_KEYS
from tests.workflows.conftest import BIN, SOON, Story

RENEW_AFTER = 200
"""Events after which this server suggests continue-as-new, instead of 4,096."""

CLIENTS = 8
UPDATES = 240
REPEATED = 60
"""So many of the last updates are sent twice at once, and then again: 200 answers are kept."""

SIGNALS = 100
RENEWALS = 3
WATCH_RENEWALS = 2
HOUR = timedelta(hours=1)

Runs = list[list[HistoryEvent]]


@pytest.fixture(scope="module")
async def hasty_server() -> AsyncIterator[WorkflowEnvironment]:
    environment = await WorkflowEnvironment.start_local(
        data_converter=DATA_CONVERTER,
        search_attributes=ALL_KEYS,
        dev_server_existing_path=str(BIN / "temporal"),
        # Updates that cross a continue-as-new are service failures to it, and what is tested.
        dev_server_log_level="never",
        dev_server_extra_args=[
            "--dynamic-config-value",
            f"limit.historyCount.suggestContinueAsNew={RENEW_AFTER}",
        ],
    )
    yield environment
    await environment.shutdown()


@pytest.fixture
async def hasty(hasty_server: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Story]:
    story = Story(hasty_server.client, tmp_path)
    yield story
    await story.end()


async def _runs(story: Story, workflow_id: str) -> Runs:
    """The events of all runs of an id, the latest run first."""
    runs: Runs = []
    run_id: str | None = None
    while not runs or run_id:
        handle = story.client.get_workflow_handle(workflow_id, run_id=run_id)
        runs.append([event async for event in handle.fetch_history_events()])
        started = runs[-1][0].workflow_execution_started_event_attributes
        run_id = started.continued_execution_run_id
    return runs


class Crowd:
    """Several clients that change one cluster at once, each change under a name of its own."""

    def __init__(self, story: Story, name: str) -> None:
        self._story = story
        self._name = name
        self._left = iter(range(UPDATES))
        self.acks: dict[int, ActionAck] = {}
        self.other_acks: dict[int, ActionAck] = {}

    async def change(self, number: int) -> ActionAck:
        settings = self._story.settings.model_copy(update={"owner": f"user-{number}"})
        clusters = Clusters(self._story.client, settings, call_timeout=SOON)
        return await clusters.recovery(
            self._name, max_attempts=1 + number % 100, request_id=f"change-{number}"
        )

    async def one_client(self) -> None:
        for number in self._left:
            if number < UPDATES - REPEATED:
                self.acks[number] = await self.change(number)
            else:
                both = await asyncio.gather(self.change(number), self.change(number))
                self.acks[number], self.other_acks[number] = both

    async def all_clients(self) -> None:
        await asyncio.gather(*(self.one_client() for _ in range(CLIENTS)))


async def _feed(story: Story, running: ClusterStatus) -> None:
    """Send old news by hand; what provider it names tells one from the other."""
    handle = story.handle(running.name)
    for number in range(SIGNALS):
        stale = Observation(
            owner=handle.id,
            uid=running.uid,
            provider=f"hand-{number}",
            begun_at=story.clock() - HOUR,
        )
        await handle.signal("observe", stale)
        await asyncio.sleep(0.03)


async def _changes(runs: Runs, last: ClusterStatus) -> Counter[str]:
    """How often each user changed the recovery, by the states that runs handed on and the last.

    A state keeps the last 100 events, so that every run's overlaps with the one before.
    """
    found: set[tuple[str, datetime]] = set()
    for events in (last.events, *[state.events for state in await _handed_on(runs)]):
        changes = [(one.by, one.time) for one in events if one.reason == "RecoveryChanged"]
        assert len(set(changes)) == len(changes)
        found.update(changes)
    return Counter(by for by, _ in found)


async def _handed_on(runs: Runs) -> list[ClusterState]:
    ends = [events[-1].workflow_execution_continued_as_new_event_attributes for events in runs[1:]]
    inputs = [await DATA_CONVERTER.decode(end.input.payloads, [ClusterInput]) for end in ends]
    return [given.state for (given,) in inputs]


def _signals(runs: Runs, name: str) -> list[Payload]:
    signals = [
        event.workflow_execution_signaled_event_attributes
        for events in runs
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    ]
    return [signal.input.payloads[0] for signal in signals if signal.signal_name == name]


async def test_changes_and_news_in_hundreds_are_each_taken_once_over_several_continuations(
    hasty: Story,
) -> None:
    async with hasty.worker():
        running = await hasty.running(recovery={"automatic": True})
        handle = hasty.handle(running.name)
        shown, machines = await _shown(handle), hasty.machines(running.uid)
        crowd = Crowd(hasty, running.name)
        await asyncio.gather(crowd.all_clients(), _feed(hasty, running))
        after, machines_after = await hasty.status(running.name), hasty.machines(running.uid)
        shown_after = await _shown(handle)
        again = {number: await crowd.change(number) for number in range(UPDATES - 20, UPDATES)}
        late = [asyncio.create_task(crowd.change(UPDATES + number)) for number in range(10)]
        ack = await hasty.clusters.terminate(running.name)
        behind = await asyncio.gather(*late, return_exceptions=True)
        ended = await hasty.clusters.wait(running.name, phases={Phase.TERMINATED}, timeout=SOON)
        runs = await _runs(hasty, handle.id)
        news = [
            await DATA_CONVERTER.decode([one], [Observation]) for one in _signals(runs, "observe")
        ]

    by_hand = Counter(one.provider for (one,) in news if one.provider.startswith("hand-"))
    too = [f"user-{UPDATES + n}" for n, one in enumerate(behind) if isinstance(one, ActionAck)]
    changes = await _changes(runs, ended)
    assert len(runs) > RENEWALS
    assert max(map(len, runs)) < 3 * RENEW_AFTER
    assert changes == Counter([*(f"user-{number}" for number in range(UPDATES)), *too])
    assert set(crowd.acks) == set(range(UPDATES))
    assert crowd.other_acks == {number: crowd.acks[number] for number in crowd.other_acks}
    assert len(crowd.other_acks) == REPEATED
    assert again == {number: crowd.acks[number] for number in again}
    assert by_hand == Counter(f"hand-{number}" for number in range(SIGNALS))
    assert shown_after == shown
    assert machines_after == machines
    assert after.phase is Phase.RUNNING
    assert {type(one) for one in behind} <= {ActionAck, ConflictPhase, NotFound}
    assert ended.terminate_accepted_at == ack.accepted_at
    assert hasty.machines(running.uid) == []
    assert len(hasty.calls(Call.LAUNCH)) == 1
    assert hasty.calls(Call.RESTART) == []


async def _shown(handle: WorkflowHandle[Any, Any]) -> tuple[object, object]:
    """What lists show of a workflow: memo and search attributes."""
    described = await handle.describe()
    ours = [pair for pair in described.typed_search_attributes if pair.key.name.startswith("Garr")]
    return await described.memo(), ours


async def test_asks_in_hundreds_are_all_kept_over_renewals_also_while_the_provider_is_away(
    hasty: Story,
) -> None:
    async with hasty.worker() as worker:
        handle = hasty.client.get_workflow_handle(watch_id(hasty.name))
        first = await _shown(handle)
        later = hasty.clock() + HOUR
        hasty.fault(Call.LIST, code="InternalError", times=None)
        asked, runs_seen = 0, set[str | None]()
        async with asyncio.timeout(SOON.total_seconds()):
            while len(runs_seen) <= WATCH_RENEWALS:
                asks = [
                    WatchAsk(owner=f"cluster/{asked + more}", uid="x", not_before=later)
                    for more in range(3)
                ]
                await asyncio.gather(*(worker.watches.ask(hasty.name, ask) for ask in asks))
                asked += len(asks)
                runs_seen.add((await handle.describe()).run_id)
        hasty.console.clear_faults()
        running = await hasty.running()
        status = WatchStatus.model_validate(await handle.query("get"))
        last = await _shown(handle)
        runs = await _runs(hasty, handle.id)

    kept = Counter(ask.owner for ask in status.asks if ask.owner != hasty.handle(running.name).id)
    assert kept == Counter(f"cluster/{number}" for number in range(asked))
    assert asked > 100
    assert max(map(len, runs)) < 3 * RENEW_AFTER
    assert last == first


class Crossing(Interceptor, OutboundInterceptor):
    """A service in which every update crosses a continue-as-new."""

    def __init__(self) -> None:
        self.refused = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        self.next = next
        return self

    async def start_workflow_update(
        self, input: StartWorkflowUpdateInput
    ) -> WorkflowUpdateHandle[Any]:
        self.refused += 1
        raise RPCError(
            "Unable to perform workflow execution update due to unexpected workflow task failure.",
            RPCStatusCode.FAILED_PRECONDITION,
            b"",
        )


async def test_terminate_is_accepted_while_no_update_gets_through(story: Story) -> None:
    crossing = Crossing()
    config = story.client.config()
    config["interceptors"] = [crossing]
    unlucky = Clusters(Client(**config), story.settings, call_timeout=timedelta(seconds=1))

    async with story.worker():
        quote = await story.quote()
        with pytest.raises(TooManyRequests):
            await unlucky.recovery(quote.name, automatic=True)
        refused = crossing.refused
        ack = await unlucky.terminate(quote.name)
        ended = await story.clusters.wait(quote.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert refused > 1
    assert crossing.refused > refused
    assert ack.uid == ended.uid
    assert ended.phase is Phase.TERMINATED


async def test_a_repeated_request_gets_the_first_answer_also_after_continue_as_new(
    hasty: Story,
) -> None:
    async with hasty.worker():
        running = await hasty.running()
        handle = hasty.handle(running.name)
        first_run = (await handle.describe()).run_id
        run, answers = first_run, dict[str, ActionAck]()
        while run == first_run:
            ids = [f"change-{len(answers) + number}" for number in range(8)]
            acks = await asyncio.gather(
                *(
                    hasty.clusters.recovery(running.name, max_attempts=5, request_id=one)
                    for one in ids
                )
            )
            answers |= dict(zip(ids, acks, strict=True))
            run = (await handle.describe()).run_id
        kept = list(answers)[-100:]
        again = [
            await hasty.clusters.recovery(running.name, max_attempts=9, request_id=one)
            for one in kept[::20]
        ]
        renewed = await hasty.status(running.name)
        (row,) = await hasty.clusters.list(provider=hasty.name)
        hasty.console.kill(hasty.node_id(0))
        await hasty.clusters.wait(running.name, phases={Phase.DEGRADED}, timeout=SOON)
        await hasty.clusters.terminate(running.name)
        await hasty.clusters.wait(running.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert again == [answers[one] for one in kept[::20]]
    assert renewed.uid == running.uid
    assert renewed.phase is Phase.RUNNING
    assert renewed.ready_at == running.ready_at
    assert renewed.recovery.max_attempts == 5
    assert row.uid == running.uid
    assert row.phase is Phase.RUNNING
    assert hasty.console.peak(uid=running.uid) == 2
    assert hasty.machines() == []
