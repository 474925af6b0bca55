"""Machines that were made before something went wrong: none is kept, none is bought twice."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal

from garrison.errors import ErrorCode
from garrison.models.cluster_state import Phase
from garrison.models.cluster_status import ClusterStatus, QuoteStatus
from garrison.providers.simulated.faults import Call, Fault
from tests.workflows.conftest import SOON, Story, VirtualStory, in_phase, phases, reasons, statuses


def _half_a_launch(virtual: VirtualStory) -> None:
    """In the first place two of three nodes are made, and one of them will not go away."""
    virtual.use(regions=("sim-a", "sim-b"))
    virtual.fault(Call.LAUNCH, Fault.REFUSAL, rank=2, region="sim-a")
    virtual.fault(
        Call.TERMINATE,
        code="IncorrectInstanceState",
        message="try again in 60 seconds",
        retry_after_seconds=60,
        rank=1,
        times=4,
    )


def _blocked_by_the_provider(status: ClusterStatus) -> bool:
    return status.blocked is not None and "try again in 60 seconds" in status.blocked.message


def _launches(virtual: VirtualStory, quote: QuoteStatus) -> list[str]:
    tokens = [call.token for call in virtual.calls(Call.LAUNCH)]
    return [token.removeprefix(f"{quote.uid}-") for token in tokens]


async def test_a1_failed_termination_is_retried_before_the_next_place_is_tried(
    virtual: VirtualStory,
) -> None:
    _half_a_launch(virtual)

    async with virtual.worker():
        quote = await virtual.launched(nodes=3, failover=True)
        waiting = await virtual.until(quote.name, _blocked_by_the_provider)
        asked_while_waiting = _launches(virtual, quote)
        left_while_waiting = virtual.machines(quote.uid)
        running = await virtual.until(quote.name, in_phase(Phase.RUNNING))

    deletes = [call.result for call in virtual.calls(Call.TERMINATE)]
    first, second = virtual.calls(Call.LAUNCH)
    emptied = next(c.at for c in virtual.calls(Call.TERMINATE) if c.result == "ok")
    assert waiting.phase is Phase.LAUNCHING
    assert waiting.last_error is not None
    assert "try again in 60 seconds" in waiting.last_error.message
    assert asked_while_waiting == ["0"]
    assert [machine["rank"] for machine in left_while_waiting] == [1]
    assert deletes[:5] == ["provider_error"] * 4 + ["ok"]
    assert first.at + timedelta(minutes=4) < emptied < second.at
    assert len([c for c in virtual.calls(Call.LIST) if emptied <= c.at <= second.at]) >= 2
    assert {m["region"] for m in virtual.machines(quote.uid)} == {"sim-b"}
    assert virtual.console.peak(uid=quote.uid) == 3
    assert running.hourly_usd == quote.hourly_usd
    assert running.last_error is None


async def test_a1_without_a_next_place_the_launch_fails_once_the_first_is_empty(
    virtual: VirtualStory,
) -> None:
    _half_a_launch(virtual)

    async with virtual.worker():
        quote = await virtual.launched(nodes=3)
        waiting = await virtual.until(quote.name, _blocked_by_the_provider)
        ended = await virtual.ended(quote.name)

    assert waiting.phase is Phase.TERMINATING
    assert phases(ended) == ["quoted", "launching", "terminating", "failed"]
    assert ended.last_error is not None
    assert ended.last_error.code is ErrorCode.INSUFFICIENT_CAPACITY
    assert ended.ready_at is None
    assert ended.cost_usd == Decimal(0)
    assert virtual.machines(quote.uid) == []
    assert virtual.console.peak(uid=quote.uid) == 2
    assert _launches(virtual, quote) == ["0"]


async def test_a3_a_set_up_that_fails_is_tried_again_and_never_buys_again(
    virtual: VirtualStory,
) -> None:
    virtual.use(boot=timedelta(seconds=5))
    names = [f"crowd{number}-{virtual.name}" for number in range(21)]
    virtual.fault(Call.PREPARE, code="ConnectionReset", times=2, owner=f"cluster/{names[0]}")

    async with virtual.worker():
        quotes = await asyncio.gather(*(virtual.launched(name=name) for name in names))
        running = [await virtual.until(q.name, in_phase(Phase.RUNNING)) for q in quotes]

    prepared = [c for c in virtual.calls(Call.PREPARE) if c.owner == f"cluster/{names[0]}"]
    assert "provider_unreachable" in {call.result for call in prepared}
    assert [virtual.console.peak(uid=one.uid) for one in running] == [2] * 21
    assert len(virtual.machines()) == 42
    assert len(virtual.calls(Call.LAUNCH)) == 21


async def test_a5_a_node_that_fails_to_start_is_seen_at_the_next_pass(
    virtual: VirtualStory,
) -> None:
    virtual.use(boot=timedelta(seconds=60))
    virtual.fault(
        Call.LAUNCH,
        Fault.NODE_FAILS,
        rank=2,
        seconds=20,
        code="InsufficientInstanceCapacity",
        message="failed: no capacity",
    )

    async with virtual.worker():
        quote = await virtual.launched(nodes=4)
        giving_back = await virtual.until(quote.name, in_phase(Phase.TERMINATING))
        ended = await virtual.ended(quote.name)

    bought, gave_up = (change.time for change in giving_back.phase_transitions[2:4])
    assert phases(ended) == ["quoted", "launching", "provisioning", "terminating", "failed"]
    assert gave_up - bought < timedelta(seconds=20 + 15 + 5)
    assert ended.last_error is not None
    assert ended.last_error.code is ErrorCode.INSUFFICIENT_CAPACITY
    assert "node 2" in ended.last_error.message
    assert "failed: no capacity" in ended.last_error.message
    assert virtual.machines(quote.uid) == []
    assert virtual.console.peak(uid=quote.uid) == 4


async def test_a6_a_node_that_is_up_is_given_back_when_the_other_fails(
    virtual: VirtualStory,
) -> None:
    virtual.use(boot=timedelta(seconds=60))
    _out_of_stock(virtual, after=60)

    async with virtual.worker():
        quote = await virtual.launched()
        begun = virtual.clock()
        dying = await virtual.until(quote.name, in_phase(Phase.TERMINATING))
        ended = await virtual.ended(quote.name)

    assert statuses(dying) == ["running", "failed"]
    assert ended.ended_at is not None
    assert ended.ended_at - begun < timedelta(minutes=2)
    _check_nothing_was_charged(virtual, ended)


async def test_a6_a_node_that_fails_while_the_others_are_reached_ends_the_launch(
    story: Story,
) -> None:
    _out_of_stock(story, after=2)
    story.fault(Call.PREPARE, code="ConnectionReset", times=None)

    async with story.worker():
        quote = await story.launched()
        reached = await story.until(quote.name, lambda one: statuses(one) == ["running"] * 2)
        ended = await story.clusters.wait(quote.name, phases={Phase.FAILED}, timeout=SOON)

    assert reached.phase is Phase.PROVISIONING
    _check_nothing_was_charged(story, ended)


def _out_of_stock(story: Story, *, after: float) -> None:
    story.fault(
        Call.LAUNCH,
        Fault.NODE_FAILS,
        rank=1,
        seconds=after,
        code="InsufficientInstanceCapacity",
        message="out of stock",
    )


def _check_nothing_was_charged(story: Story, ended: ClusterStatus) -> None:
    assert phases(ended) == ["quoted", "launching", "provisioning", "terminating", "failed"]
    assert ended.ready_at is None
    assert ended.cost_usd == Decimal(0)
    assert ended.last_error is not None
    assert "node 1: out of stock" in ended.last_error.message
    assert story.machines(ended.uid) == []
    assert story.console.peak(uid=ended.uid) == 2
    assert "Emptied" in reasons(ended)
