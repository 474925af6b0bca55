"""What a quote promises, what a launch may change, and whose a name is."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from garrison.errors import (
    ErrorCode,
    GarrisonError,
    InvalidSpec,
    NameInUse,
    NotFound,
    PriceChanged,
    QuoteExpired,
)
from garrison.models.cluster import ClusterSpec
from garrison.models.cluster_state import Phase
from garrison.providers.simulated.faults import Call, Fault
from tests.workflows.conftest import SOON, Story, VirtualStory, in_phase, phases

MINUTE = timedelta(minutes=1)


async def _refusal(call: Any) -> GarrisonError:
    with pytest.raises(GarrisonError) as caught:
        await call
    return caught.value


async def test_a4_a_name_is_not_free_before_its_last_machine_is_gone(
    virtual: VirtualStory,
) -> None:
    virtual.use(delete_takes=timedelta(seconds=90))

    async with virtual.worker():
        quote = await virtual.quote()
        first = await virtual.clusters.launch(quote.name, request_id="first")
        old = await virtual.until(quote.name, in_phase(Phase.RUNNING))
        await virtual.clusters.terminate(quote.name)
        await virtual.sleep(timedelta(seconds=2))
        same_call = await virtual.clusters.launch(quote.name, request_id="first")
        spec = virtual.spec(name=quote.name)
        refused = [
            await _refusal(virtual.clusters.launch(quote.name, request_id="second")),
            await _refusal(virtual.clusters.launch(quote.name, request_id="second")),
            await _refusal(virtual.clusters.quote(spec)),
            await _refusal(virtual.clusters.quote(spec.model_copy(update={"name": spec.name}))),
        ]
        during = virtual.machines()
        await virtual.ended(quote.name)
        new = await virtual.running(name=quote.name.upper())

    assert same_call == first
    assert [error.code for error in refused] == [ErrorCode.NAME_IN_USE] * 4
    assert all("terminating" in str(error) for error in refused)
    assert {m["uid"] for m in during} == {old.uid}
    assert new.uid != old.uid
    assert {m["uid"] for m in virtual.machines()} == {new.uid}
    assert virtual.console.peak(uid=old.uid) == virtual.console.peak(uid=new.uid) == 2


async def test_a_launched_name_is_in_use_in_any_spelling(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running()
        spec = virtual.spec(name=running.name.upper())
        with pytest.raises(NameInUse):
            await virtual.clusters.quote(spec)
        with pytest.raises(NameInUse):
            await virtual.clusters.launch(running.name)

    assert len(virtual.calls(Call.LAUNCH)) == 1


CHANGED: tuple[dict[str, object], ...] = (
    {"nodes": 3},
    {"gpus_per_node": 4},
    {"accelerator": "A100"},
    {"instance_type": "p3.2xlarge"},
    {"region": "sim-c"},
    {"capacity_type": "spot"},
    {"root_disk_gb": 500},
    {"provider": "aws"},
)


async def test_a_priced_field_that_was_changed_is_refused_and_nothing_is_bought(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        quote = await virtual.quote()
        for change in CHANGED:
            with pytest.raises(PriceChanged, match=next(iter(change))):
                await virtual.clusters.launch(quote.name, spec=ClusterSpec.model_validate(change))
        after = await virtual.status(quote.name)

    assert after.phase is Phase.QUOTED
    assert virtual.calls(Call.LAUNCH) == []


async def test_priced_fields_repeated_as_quoted_are_fine(virtual: VirtualStory) -> None:
    async with virtual.worker():
        quote = await virtual.quote()
        same = {
            "nodes": 2,
            "gpus_per_node": 8,
            "accelerator": "NVIDIA-H100",
            "instance_type": quote.offer.instance_type,
            "region": quote.offer.region,
            "command": ["train"],
        }
        await virtual.clusters.launch(quote.name, spec=ClusterSpec.model_validate(same))
        running = await virtual.until(quote.name, in_phase(Phase.RUNNING))

    assert running.has_command
    assert running.hourly_usd == quote.hourly_usd


async def test_a_quote_above_the_accepted_rate_is_refused(virtual: VirtualStory) -> None:
    async with virtual.worker():
        quote = await virtual.quote()
        with pytest.raises(PriceChanged):
            await virtual.clusters.launch(
                quote.name, max_hourly_usd=quote.hourly_usd - Decimal("0.01")
            )
        await virtual.clusters.launch(quote.name, max_hourly_usd=quote.hourly_usd)
        running = await virtual.until(quote.name, in_phase(Phase.RUNNING))

    assert running.hourly_usd == quote.hourly_usd


async def test_a_price_that_rose_since_the_quote_buys_nothing(virtual: VirtualStory) -> None:
    async with virtual.worker():
        quote = await virtual.quote()
        dearer = quote.offer.usd_per_hour + Decimal("0.01")  # type: ignore[operator]
        virtual.console.set_price(quote.offer.instance_type, dearer)
        await virtual.clusters.launch(quote.name, failover=True)
        ended = await virtual.ended(quote.name)

    assert ended.phase is Phase.FAILED
    assert ended.last_error is not None
    assert ended.last_error.code is ErrorCode.PRICE_CHANGED
    assert virtual.console.peak(uid=quote.uid) == 0
    assert ended.cost_usd == Decimal(0)


async def test_a_price_that_rose_after_a_lost_answer_does_not_hide_what_was_bought(
    virtual: VirtualStory,
) -> None:
    virtual.fault(Call.LAUNCH, Fault.LOST_RESPONSE)

    async with virtual.worker():
        quote = await virtual.quote()
        await virtual.clusters.launch(quote.name)
        while not virtual.machines(quote.uid):
            await virtual.sleep(timedelta(milliseconds=10))
        virtual.console.set_price(quote.offer.instance_type, Decimal(10_000))
        running = await virtual.until(quote.name, in_phase(Phase.RUNNING))

    assert running.hourly_usd == quote.hourly_usd
    assert virtual.console.peak(uid=quote.uid) == 2
    assert {str(m["usd_per_hour"]) for m in virtual.machines()} == {str(quote.offer.usd_per_hour)}


async def test_an_expired_quote_cannot_be_launched_and_its_name_is_free(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        quote = await virtual.quote()
        await virtual.sleep(16 * MINUTE)
        expired = await virtual.status(quote.name)
        with pytest.raises(QuoteExpired):
            await virtual.clusters.launch(quote.name, quote_id=quote.quote_id)
        again = await virtual.quote(name=quote.name)

    assert expired.phase is Phase.EXPIRED
    assert again.uid != quote.uid
    assert virtual.calls(Call.LAUNCH) == []


async def test_a_quote_is_replaced_in_place_and_the_old_one_cannot_be_launched(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        small = await virtual.quote()
        large = await virtual.quote(name=small.name, nodes=3)
        with pytest.raises(QuoteExpired):
            await virtual.clusters.launch(small.name, quote_id=small.quote_id)
        await virtual.clusters.launch(small.name, quote_id=large.quote_id)
        running = await virtual.until(small.name, in_phase(Phase.RUNNING))

    assert large.uid == small.uid
    assert large.hourly_usd == small.hourly_usd * 3 / 2
    assert running.hourly_usd == large.hourly_usd
    assert phases(running) == ["quoted", "launching", "provisioning", "running"]
    assert len(virtual.machines(running.uid)) == 3


async def test_a_replaced_quote_lives_as_long_as_a_new_one(virtual: VirtualStory) -> None:
    async with virtual.worker():
        first = await virtual.quote()
        await virtual.sleep(10 * MINUTE)
        second = await virtual.quote(name=first.name)
        await virtual.sleep(10 * MINUTE)
        living = await virtual.status(first.name)
        await virtual.sleep(6 * MINUTE)
        expired = await virtual.status(first.name)

    assert second.expires_at > first.expires_at
    assert living.phase is Phase.QUOTED
    assert expired.phase is Phase.EXPIRED


async def test_a_launch_that_overtakes_a_new_quote_keeps_what_was_accepted(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        accepted = await virtual.quote()
        virtual.fault(Call.LIST_OFFERS, Fault.LATENCY, seconds=1)
        newer = asyncio.create_task(virtual.quote(name=accepted.name, nodes=3))
        while len(virtual.calls(Call.LIST_OFFERS)) < 2:
            await asyncio.sleep(0.01)
        await virtual.clusters.launch(accepted.name, quote_id=accepted.quote_id)
        with pytest.raises(QuoteExpired):
            await newer
        running = await virtual.until(accepted.name, in_phase(Phase.RUNNING))

    assert running.quote_id == accepted.quote_id
    assert running.hourly_usd == accepted.hourly_usd
    assert running.nodes_wanted == len(virtual.machines(accepted.uid)) == 2


async def test_one_request_id_may_be_used_for_each_kind_of_change(virtual: VirtualStory) -> None:
    async with virtual.worker():
        quote = await virtual.clusters.quote(virtual.spec(), request_id="mine")
        launch = await virtual.clusters.launch(quote.name, request_id="mine")
        again = await virtual.clusters.launch(quote.name, request_id="mine")
        await virtual.clusters.recovery(quote.name, automatic=True, request_id="mine")
        await virtual.until(quote.name, in_phase(Phase.RUNNING))
        await virtual.clusters.terminate(quote.name, request_id="mine")
        ended = await virtual.ended(quote.name)

    assert again == launch
    assert ended.recovery.automatic
    assert ended.phase is Phase.TERMINATED
    assert virtual.console.peak(uid=quote.uid) == 2


async def test_messages_that_nobody_can_read_change_nothing(virtual: VirtualStory) -> None:
    async with virtual.worker():
        running = await virtual.running()
        handle = virtual.handle(running.name)
        for verb in ("quote", "launch", "terminate", "recover", "recovery"):
            for nonsense in ({"request_id": 7}, "x", None, {"spec": {"nodes": "many"}}, [1]):
                with pytest.raises(WorkflowUpdateFailedError):
                    await handle.execute_update(verb, nonsense)
        for signal in ("observe", "terminate", "unheard_of"):
            await handle.signal(signal, {"uid": ["?"]})
        for empty in ([], [None]):
            await handle.signal("observe", args=empty)
        after = await virtual.status(running.name)
        ack = await virtual.clusters.recovery(running.name, automatic=True)

    assert after.phase is Phase.RUNNING
    assert ack.uid == running.uid
    assert len(virtual.machines(running.uid)) == 2


async def test_a_second_quote_that_is_refused_leaves_the_first_one_good(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        good = await virtual.quote()
        with pytest.raises(InvalidSpec):
            await virtual.quote(name=good.name, accelerator="H1000")
        await virtual.clusters.launch(good.name, quote_id=good.quote_id)
        running = await virtual.until(good.name, in_phase(Phase.RUNNING))

    assert running.hourly_usd == good.hourly_usd


async def test_a_first_quote_that_is_refused_leaves_no_life(story: Story) -> None:
    async with story.worker():
        with pytest.raises(InvalidSpec):
            await story.quote(name=f"free-{story.name}", accelerator="H1000")
        with pytest.raises(NotFound):
            await story.clusters.get(f"free-{story.name}")
        with pytest.raises(NotFound):
            await story.clusters.terminate(f"free-{story.name}")
        with pytest.raises(NotFound):
            await story.clusters.launch(f"free-{story.name}")
        listed = await story.clusters.list(include_ended=True)
        quote = await story.quote(name=f"free-{story.name}")

    assert f"free-{story.name}" not in [row.name for row in listed]
    assert quote.hourly_usd > 0


async def test_a_cluster_is_terminated_when_its_lifetime_is_over(virtual: VirtualStory) -> None:
    async with virtual.worker():
        quote = await virtual.quote()
        await virtual.clusters.launch(quote.name, max_lifetime=timedelta(hours=2))
        running = await virtual.until(quote.name, in_phase(Phase.RUNNING))
        await virtual.sleep(timedelta(hours=2))
        ended = await virtual.ended(quote.name)

    assert running.ready_at is not None
    assert ended.billed_until is not None
    assert ended.phase is Phase.TERMINATED
    assert (
        timedelta(hours=2) <= ended.billed_until - running.ready_at < timedelta(hours=2, minutes=1)
    )
    assert virtual.machines(quote.uid) == []


async def test_a_lifetime_ends_also_while_the_command_cannot_be_started(story: Story) -> None:
    story.fault(Call.START_WORKLOAD, code="ConnectionReset", rank=1, times=None)

    async with story.worker():
        quote = await story.quote(command=["train"])
        await story.clusters.launch(quote.name, max_lifetime=timedelta(seconds=2))
        ended = await story.clusters.wait(quote.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert ended.ready_at is not None
    assert ended.billed_until is not None
    assert ended.billed_until - ended.ready_at < timedelta(seconds=4)
    assert story.machines(quote.uid) == []


async def test_a_quote_answers_the_same_request_with_the_same_quote(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        spec = virtual.spec()
        first = await virtual.clusters.quote(spec, request_id="one")
        again = await virtual.clusters.quote(spec, request_id="one")

    assert again == first
    assert len(virtual.calls(Call.LIST_OFFERS)) == 1
