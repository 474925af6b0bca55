"""What a nodepool may conclude from a purchase, and which offers it gets to see."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from garrison.activities.log_keeper import LogKeeper
from garrison.activities.pool import PoolActivities
from garrison.activities.provider import ProviderActivities
from garrison.activities.saved_logs import SavedLogs
from garrison.errors import (
    GarrisonError,
    ProviderAuth,
    ProviderError,
    ProviderUnreachable,
    QuotaExceeded,
)
from garrison.models.cluster_messages import (
    DeleteAnswer,
    DeleteRequest,
    PurchaseAnswer,
    PurchaseRequest,
)
from garrison.models.group import GroupRequest, LogChunk, Node, NodeStatus
from garrison.models.nodepool import MachineDeletion, PoolOffersRequest
from garrison.models.offer import CapacityType, Offer, OfferList, OfferQuery
from garrison.providers.base import Workloads

NOW = datetime(2026, 5, 1, tzinfo=UTC)
BOUND = timedelta(minutes=1)
PURCHASE = PurchaseRequest(
    provider="sim",
    request=GroupRequest(
        token="u-0",
        owner="nodepool/cc/p",
        uid="u",
        name="cc-p-0",
        region="r",
        instance_type="m",
        count=1,
        max_usd_per_node_hour=Decimal(1),
    ),
)


class Calls:
    """A provider that fails as it is told to, and sells three offers."""

    def __init__(self, error: GarrisonError | None = None) -> None:
        self.error = error

    async def purchase_group(self, purchase: PurchaseRequest) -> PurchaseAnswer:
        assert self.error is not None
        raise self.error

    async def list_offers(self, query: OfferQuery) -> OfferList:
        sold = [
            Offer(provider="sim", region="r", instance_type="m.large", vcpus=2),
            Offer(provider="sim", region="elsewhere", instance_type="m.large"),
            Offer(provider="sim", region="r", instance_type="m.larger"),
        ]
        end = query.offset + 1
        more = end if end < len(sold) else None
        return OfferList(offers=tuple(sold[query.offset : end]), next_offset=more)


def activities(error: GarrisonError | None = None) -> PoolActivities:
    calls = cast(ProviderActivities, Calls(error))
    return PoolActivities(calls, effect_bound=BOUND, clock=lambda: NOW)


DELETION = DeleteRequest(provider="sim", owner="nodepool/cc/p", uid="u", tokens=("u-0",))
NODE = Node(rank=0, provider_id="i-0", status=NodeStatus.RUNNING)


class Machine:
    """A machine on which two replicas run, of which one gives no log, until it is deleted."""

    def __init__(self) -> None:
        self.did: list[str] = []

    async def stop_workload(self, node: Node, name: str) -> None:
        self.did.append(f"stop {name}")

    async def read_log(self, node: Node, name: str, *, offset: int, limit: int) -> LogChunk:
        if name == "silent-1" or "delete" in self.did:
            raise ProviderUnreachable("no answer")
        start = max(4 + offset, 0) if offset < 0 else offset
        return LogChunk(offset=start, data=b"log\n"[start:][:limit])

    async def delete_groups(self, request: DeleteRequest) -> DeleteAnswer:
        self.did.append("delete")
        return DeleteAnswer(ended_at=NOW)


async def test_what_nobody_stopped_has_its_log_saved_before_its_machine_is_deleted(
    tmp_path: Path,
) -> None:
    machine = Machine()
    pools = PoolActivities(
        cast(ProviderActivities, machine),
        effect_bound=BOUND,
        clock=lambda: NOW,
        workloads=cast(Workloads, machine),
        keeper=LogKeeper(tmp_path),
    )
    deletion = MachineDeletion(request=DELETION, node=NODE, replicas=("silent-1", "r-2"))

    answer = await ActivityEnvironment().run(pools.delete_machine, deletion)
    again = await ActivityEnvironment().run(pools.delete_machine, deletion)

    saved = SavedLogs(tmp_path)
    kept = saved.read_replica("r-2", offset=0, limit=99)
    assert answer == again == DeleteAnswer(ended_at=NOW)
    assert sorted(machine.did[:2]) == ["stop r-2", "stop silent-1"]
    assert machine.did[2] == "delete"
    assert kept is not None
    assert kept.data == b"log\n"
    assert saved.read_replica("silent-1", offset=0, limit=99) is None


async def test_a_machine_on_which_nothing_can_run_is_deleted_at_once(tmp_path: Path) -> None:
    machine = Machine()
    pools = PoolActivities(
        cast(ProviderActivities, machine),
        effect_bound=BOUND,
        clock=lambda: NOW,
        workloads=cast(Workloads, machine),
        keeper=LogKeeper(tmp_path),
    )

    await ActivityEnvironment().run(pools.delete_machine, MachineDeletion(request=DELETION))

    assert machine.did == ["delete"]


def on_try(attempt: int) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=attempt)
    return environment


def final(error: Any) -> GarrisonError:
    error.retryable = False
    return cast(GarrisonError, error)


@pytest.mark.parametrize(
    ("error", "attempt", "until"),
    [
        pytest.param(QuotaExceeded("q"), 1, None, id="refused at once leaves nothing"),
        pytest.param(ProviderAuth("a"), 1, None, id="no permission leaves nothing"),
        pytest.param(QuotaExceeded("q"), 2, NOW + BOUND, id="an earlier try may have bought"),
        pytest.param(final(ProviderError("?")), 5, NOW + BOUND, id="an unknown error says nothing"),
    ],
)
async def test_only_a_first_try_that_was_refused_is_sure_to_have_left_nothing(
    error: GarrisonError, attempt: int, until: datetime | None
) -> None:
    answer = await on_try(attempt).run(activities(error).buy_machine, PURCHASE)

    assert answer.refusal is not None
    assert answer.refusal.code is error.code
    assert answer.effects_until == until


async def test_a_passing_fault_of_a_purchase_is_left_to_the_retries() -> None:
    with pytest.raises(ProviderUnreachable):
        await on_try(1).run(activities(ProviderUnreachable("away")).buy_machine, PURCHASE)


async def test_offers_are_those_of_the_region_and_types_that_are_not_sold_are_named() -> None:
    request = PoolOffersRequest(
        provider="sim",
        region="r",
        instance_types=("m.large", "m.huge"),
        capacity_types=(CapacityType.ON_DEMAND,),
    )

    answer = await on_try(1).run(activities().pool_offers, request)

    (found,) = answer.offers
    assert (found.offer.instance_type, found.offer.region) == ("m.large", "r")
    assert found.capacity.cpu_milli == 2000
    assert answer.unknown_types == ("m.huge",)
