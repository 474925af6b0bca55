"""What a healthy cluster costs while nothing happens, and that a long life goes on."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from temporalio.worker import Replayer

from garrison.failures import DATA_CONVERTER
from garrison.models.cluster_state import Phase
from garrison.providers.simulated.faults import Call, Fault
from garrison.workers.main import workflow_runner
from garrison.workflows.cluster import ClusterWorkflow
from tests.workflows.conftest import SOON, Story, VirtualStory

PROBE = Counter(
    TIMER_FIRED=1,
    ACTIVITY_TASK_SCHEDULED=1,
    ACTIVITY_TASK_STARTED=1,
    ACTIVITY_TASK_COMPLETED=1,
    WORKFLOW_EXECUTION_SIGNALED=1,
    WORKFLOW_TASK_SCHEDULED=3,
    WORKFLOW_TASK_STARTED=3,
    WORKFLOW_TASK_COMPLETED=3,
    TIMER_STARTED=2,
    TIMER_CANCELED=1,
    WORKFLOW_PROPERTIES_MODIFIED=3,
)
"""What one deadman probe adds to a history at most: the ask, and the answer to it."""


async def test_a_healthy_cluster_is_idle_for_a_day_but_for_its_deadman_probes(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running()
        before = await virtual.history(running.name)
        calls = len(virtual.calls())
        await virtual.watch(timedelta(hours=24), every=timedelta(minutes=10))
        after = await virtual.history(running.name)
        status = await virtual.status(running.name)

    grown = after - before
    probes = grown["ACTIVITY_TASK_SCHEDULED"]
    allowed = Counter({kind: count * probes for kind, count in PROBE.items()})
    assert 3 <= probes <= 5
    assert grown <= allowed
    assert status.phase is Phase.RUNNING
    assert len(virtual.calls()) - calls == len(virtual.calls(Call.LIST, after=calls))
    assert virtual.console.peak(uid=running.uid) == 2


async def test_a_quote_that_nobody_launches_costs_one_timer(virtual: VirtualStory) -> None:
    async with virtual.worker():
        quote = await virtual.quote()
        before = await virtual.history(quote.name)
        await virtual.watch(timedelta(minutes=14))
        after = await virtual.history(quote.name)

    assert after == before


async def test_a_long_life_is_the_same_when_it_is_replayed(
    virtual: VirtualStory,
) -> None:
    virtual.fault(Call.LAUNCH, Fault.REFUSAL, region="sim-a")
    virtual.fault(Call.TERMINATE, code="InternalError")

    async with virtual.worker():
        running = await virtual.running(
            failover=True, command=["train"], recovery={"automatic": True}
        )
        virtual.console.kill(virtual.node_id(0))
        await virtual.until(running.name, lambda s: s.phase is Phase.DEGRADED)
        await virtual.until(running.name, lambda s: s.phase is Phase.RUNNING)
        await virtual.watch(timedelta(hours=2), every=timedelta(hours=1))
        await virtual.clusters.terminate(running.name)
        ended = await virtual.ended(running.name)
        history = await virtual.handle(running.name).fetch_history()
    replayer = Replayer(
        workflows=[ClusterWorkflow],
        workflow_runner=workflow_runner(),
        data_converter=DATA_CONVERTER,
    )
    replayed = await replayer.replay_workflow(history)

    assert replayed.replay_failure is None
    assert ended.phase is Phase.TERMINATED
    assert virtual.machines() == []
    assert virtual.console.peak(uid=running.uid) == 2


async def test_the_watch_that_somebody_ended_in_temporal_loses_no_cleanup(
    story: Story,
) -> None:
    async with story.worker():
        running = await story.running()
        watch = story.client.get_workflow_handle(f"watch/{story.name}")
        await watch.terminate("in the UI")
        await story.clusters.terminate(running.name)
        ended = await story.clusters.wait(running.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert ended.phase is Phase.TERMINATED
    assert story.machines() == []
