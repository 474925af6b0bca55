"""Phases, and what a person's wishes mean in each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from garrison.domain.clusters.outcome import (
    fail_start,
    note_blocked,
    note_purchase_called,
    note_purchase_failed,
    note_purchased,
    observe,
)
from garrison.domain.clusters.plan import (
    Buy,
    DeleteAll,
    Finish,
    Restart,
    Wait,
    advance,
    plan_next,
)
from garrison.domain.lifecycle import (
    NEXT,
    accept_launch,
    accept_recover,
    accept_recovery_switch,
    accept_terminate,
    check_launchable,
    check_life,
    check_quotable,
    check_recover,
    enter_phase,
    launched_workload,
    next_place,
    note_quoted,
    note_ready,
)
from garrison.errors import (
    ConflictPhase,
    ErrorCode,
    GarrisonError,
    InvalidSpec,
    NameInUse,
    NotFound,
    PriceChanged,
    QuoteExpired,
)
from garrison.models.cluster import ClusterSpec
from garrison.models.cluster_messages import LaunchRequest, PurchaseAnswer, QuoteRequest
from garrison.models.cluster_state import CLOSED_PHASES, ClusterState, Failure, Phase
from garrison.models.group import Group, Node, NodeStatus, Refusal
from garrison.models.observation import Observation
from garrison.models.offer import Offer
from garrison.models.provider import ProviderFacts
from garrison.models.quote import Quote

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def offer(region: str, usd: str = "55.04", provider: str = "cloud") -> Offer:
    return Offer(
        provider=provider,
        region=region,
        instance_type="p5.48xlarge",
        accelerator="H100",
        accelerator_count=Decimal(8),
        accelerator_memory_gib=Decimal(80),
        usd_per_hour=Decimal(usd),
    )


def quoted(*alternatives: Offer, **fields: object) -> ClusterState:
    """A life with a quote for two machines in region a."""
    state = ClusterState(name="train", uid="life", created_at=NOW)
    spec = ClusterSpec.model_validate(
        {"name": "train", "nodes": 2, "gpus_per_node": 8, "accelerator": "H100", **fields}
    )
    quote = Quote(
        quote_id="q1",
        hourly_usd=Decimal("110.08"),
        node_usd_per_hour=Decimal("55.04"),
        parts=(),
        offer=offer("a"),
        gpus_per_node=8,
        alternatives=alternatives,
        facts={"cloud": ProviderFacts(name="cloud", type="cloud", regions=("a", "b"))},
        quoted_at=NOW,
        expires_at=NOW + timedelta(minutes=15),
    )
    note_quoted(state, quote, spec, now=NOW)
    return state


def request(**fields: object) -> LaunchRequest:
    return LaunchRequest.model_validate({"request_id": "r1", "quote_id": "q1", **fields})


def launched(*alternatives: Offer, failover: bool = True) -> ClusterState:
    state = quoted(*alternatives)
    accept_launch(state, request(failover=failover), now=NOW)
    note_purchase_called(state)
    return state


def group(*statuses: NodeStatus) -> Group:
    return Group(
        token="life-0",
        owner="cluster/train",
        uid="life",
        region="a",
        instance_type="p5.48xlarge",
        created_at=NOW,
        nodes=tuple(
            Node(rank=rank, provider_id=f"m{rank}", status=status)
            for rank, status in enumerate(statuses)
        ),
    )


def bought(state: ClusterState) -> ClusterState:
    answer = PurchaseAnswer(group=group(NodeStatus.PENDING, NodeStatus.PENDING), ended_at=NOW)
    note_purchased(state, answer, now=NOW, deadman=timedelta(hours=6))
    return state


@pytest.mark.parametrize("last", sorted(CLOSED_PHASES))
def test_nothing_follows_a_closed_phase(last: Phase) -> None:
    assert NEXT[last] == frozenset()


@pytest.mark.parametrize("phase", sorted(set(Phase) - CLOSED_PHASES - {Phase.TERMINATING}))
def test_every_living_phase_can_be_terminated(phase: Phase) -> None:
    assert Phase.TERMINATING in NEXT[phase]


def test_a_phase_that_cannot_follow_is_a_bug() -> None:
    with pytest.raises(ValueError, match="cannot follow"):
        enter_phase(quoted(), Phase.RUNNING, now=NOW)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        pytest.param(
            {"priced": {"nodes": 3}}, PriceChanged, "nodes was quoted as 2 and is 3", id="nodes"
        ),
        pytest.param({"priced": {"capacity_type": "spot"}}, PriceChanged, "spot", id="spot"),
        pytest.param({"priced": {"accelerator": "A100"}}, PriceChanged, "A100", id="accelerator"),
        pytest.param({"priced": {"accelerator": "H100:4"}}, PriceChanged, "H100:4", id="count"),
        pytest.param({"priced": {"region": "b"}}, PriceChanged, "region", id="another place"),
        pytest.param({"max_hourly_usd": "110.07"}, PriceChanged, "110.07", id="above --max-price"),
        pytest.param({"quote_id": "q0"}, QuoteExpired, "replaced by q1", id="an older quote"),
        pytest.param({"uid": "old"}, NotFound, "old is gone", id="another life"),
        pytest.param({"workload": {"env": {"K": "v"}}}, InvalidSpec, "env.K", id="unsealed secret"),
        pytest.param({"workload": {"ports": [0]}}, InvalidSpec, "ports", id="a bad setting"),
    ],
)
def test_a_launch_is_refused(
    fields: dict[str, object], error: type[GarrisonError], says: str
) -> None:
    with pytest.raises(error, match=says):
        check_launchable(quoted(), request(**fields), now=NOW)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"priced": {"nodes": 2, "gpus_per_node": 8}}, id="repeated as quoted"),
        pytest.param(
            {"priced": {"provider": "cloud", "region": "a"}}, id="as the quote resolved it"
        ),
        pytest.param({"priced": {"accelerator": "h100:8"}}, id="another spelling"),
        pytest.param({"max_hourly_usd": "110.08"}, id="exactly at the bound"),
        pytest.param({"quote_id": None}, id="the current quote"),
        pytest.param({"workload": {"command": ["sleep", "9"]}}, id="workload settings"),
    ],
)
def test_a_launch_is_accepted(fields: dict[str, object]) -> None:
    check_launchable(quoted(), request(**fields), now=NOW)


def test_a_quote_can_be_launched_until_it_expires() -> None:
    state = quoted()
    end = NOW + timedelta(minutes=15)

    check_launchable(state, request(), now=end - timedelta(microseconds=1))
    with pytest.raises(QuoteExpired, match="quote again"):
        check_launchable(state, request(), now=end)


def test_an_expired_quote_ends_the_life() -> None:
    state = quoted()

    advance(state, now=NOW + timedelta(minutes=15), jitter=0)

    assert state.phase is Phase.EXPIRED
    assert plan_next(state, now=NOW) == Finish()


def test_launch_settings_replace_the_quoted_ones_field_by_field() -> None:
    state = quoted(command=["old"], ports=[1])
    assert state.spec is not None

    workload = launched_workload(state.spec, request(workload={"command": ["new"]}))

    assert workload.command == ("new",)
    assert workload.ports == (1,)


def test_from_launching_on_the_name_is_in_use() -> None:
    state = launched()
    spec = ClusterSpec(name="train")

    with pytest.raises(NameInUse, match="is launching"):
        check_quotable(state, QuoteRequest(request_id="r", quote_id="q", spec=spec))
    with pytest.raises(NameInUse, match="launched already"):
        check_launchable(state, request(), now=NOW)


def test_the_token_is_fixed_before_the_call() -> None:
    state = quoted()

    accept_launch(state, request(), now=NOW)

    assert plan_next(state, now=NOW) == Buy()
    assert [purchase.token for purchase in state.purchases] == ["life-0"]


@pytest.mark.parametrize(
    ("code", "region"),
    [
        pytest.param(ErrorCode.INSUFFICIENT_CAPACITY, "a", id="capacity: the next place"),
        pytest.param(ErrorCode.QUOTA_EXCEEDED, "b", id="quota: the next region"),
        pytest.param(ErrorCode.PROVIDER_ERROR, None, id="unknown: nowhere else"),
        pytest.param(ErrorCode.PROVIDER_AUTH, None, id="refused credentials: nowhere else"),
        pytest.param(ErrorCode.INVALID_SPEC, None, id="a bad parameter: nowhere else"),
        pytest.param(ErrorCode.PRICE_CHANGED, None, id="a dearer price: nowhere else"),
    ],
)
def test_where_a_failed_launch_goes_on(code: ErrorCode, region: str | None) -> None:
    zone_b = offer("a").model_copy(update={"zone": "a-2"})
    state = launched(zone_b, offer("b"))

    note_purchase_failed(state, Failure(code=code, message="no"), effects_until=NOW, now=NOW)

    place = next_place(state)
    assert (place.region if place else None) == region
    assert state.phase is (Phase.TERMINATING if region is None else Phase.LAUNCHING)


def test_without_failover_a_refusal_ends_the_launch_after_the_clean_up() -> None:
    state = launched(offer("b"), failover=False)
    refusal = Refusal(message="out of stock")

    note_purchased(
        state, PurchaseAnswer(refusal=refusal, ended_at=NOW), now=NOW, deadman=timedelta(hours=6)
    )

    assert state.phase is Phase.TERMINATING
    assert state.closing == Failure(code=ErrorCode.INSUFFICIENT_CAPACITY, message="out of stock")
    assert isinstance(plan_next(state, now=NOW), DeleteAll)


def test_a_node_that_does_not_start_gives_everything_back_and_charges_nothing() -> None:
    state = bought(launched(failover=False))

    fail_start(state, Failure(code=ErrorCode.PROVIDER_ERROR, message="node 1: broken"), now=LATER)

    assert state.phase is Phase.TERMINATING
    assert state.ready_at is None
    assert state.meter is None
    assert isinstance(plan_next(state, now=LATER), DeleteAll)


def test_the_start_timeout_gives_up() -> None:
    state = bought(launched(failover=False))

    advance(state, now=NOW + timedelta(minutes=20), jitter=0)

    assert state.phase is Phase.TERMINATING
    assert state.closing is not None
    assert "start timeout" in state.closing.message


def test_terminate_is_accepted_twice_and_charges_no_longer() -> None:
    state = bought(launched())
    note_ready(state, now=NOW)

    first = accept_terminate(state, now=LATER, by="ann")
    second = accept_terminate(state, now=LATER + timedelta(hours=1), by="bob")

    assert first == second == LATER
    assert state.meter is not None
    assert state.meter.running_since is None
    assert state.meter.accrued_seconds == 60


def test_terminate_of_a_quote_ends_at_once() -> None:
    state = quoted()

    accept_terminate(state, now=NOW, by="ann")

    assert plan_next(state, now=NOW) == Finish()


def test_terminate_during_the_purchase_waits_for_its_outcome_and_then_deletes() -> None:
    state = launched()
    accept_terminate(state, now=NOW, by="ann")
    assert state.cleanup is None

    note_purchased(
        state,
        PurchaseAnswer(group=group(NodeStatus.PENDING), ended_at=LATER),
        now=LATER,
        deadman=timedelta(hours=6),
    )

    assert state.phase is Phase.TERMINATING
    assert isinstance(plan_next(state, now=LATER), DeleteAll)


def test_max_lifetime_terminates() -> None:
    state = quoted()
    accept_launch(state, request(max_lifetime=3600), now=NOW)
    note_purchase_called(state)
    bought(state)
    note_ready(state, now=NOW)
    assert plan_next(state, now=NOW) != Wait(None)

    advance(state, now=NOW + timedelta(hours=1), jitter=0)

    assert state.phase is Phase.TERMINATING
    assert state.terminate_accepted_at == NOW + timedelta(hours=1)


def test_only_a_degraded_cluster_recovers() -> None:
    state = bought(launched())
    note_ready(state, now=NOW)

    with pytest.raises(ConflictPhase, match="is running"):
        check_recover(state)
    accept_recover(state, now=NOW, by="ann")
    assert state.recovery.requested


def test_a_request_for_another_life_is_refused() -> None:
    check_life(quoted(), None)
    check_life(quoted(), "life")
    with pytest.raises(NotFound):
        check_life(quoted(), "older")


def test_only_the_last_hundred_events_are_kept() -> None:
    state = bought(launched())
    note_ready(state, now=NOW)
    for _ in range(150):
        accept_recover(state, now=NOW, by="ann")

    assert len(state.events) == 100


def seen(*statuses: NodeStatus, at: datetime) -> Observation:
    return Observation(
        owner="cluster/train", uid="life", provider="cloud", begun_at=at, groups=(group(*statuses),)
    )


def test_a_node_that_boots_for_ever_is_given_up_and_recovered() -> None:
    state = bought(launched())
    observe(state, seen(NodeStatus.RUNNING, NodeStatus.RUNNING, at=NOW), now=NOW)
    note_ready(state, now=NOW)
    accept_recovery_switch(state, automatic=True, max_attempts=None, now=NOW, by="ann")
    observe(state, seen(NodeStatus.RUNNING, NodeStatus.STARTING, at=LATER), now=LATER)
    end = LATER + timedelta(minutes=20)
    assert state.phase is Phase.DEGRADED
    assert plan_next(state, now=LATER) == Wait(end, "boot timeout")

    advance(state, now=end, jitter=0)

    assert state.nodes[1].status is NodeStatus.FAILED
    assert plan_next(state, now=end) == Restart((1,))


@pytest.mark.parametrize(
    ("lifetime", "until", "why"),
    [
        (timedelta(minutes=10), timedelta(minutes=10), "max_lifetime"),
        (timedelta(hours=2), timedelta(hours=1), "try again after too_many_requests"),
    ],
)
def test_a_provider_that_asks_for_patience_does_not_put_off_the_end_of_a_lifetime(
    lifetime: timedelta, until: timedelta, why: str
) -> None:
    state = quoted()
    accept_launch(state, request(max_lifetime=lifetime), now=NOW)
    state = bought(state)
    note_ready(state, now=NOW)
    failure = Failure(code=ErrorCode.TOO_MANY_REQUESTS, message="come again")
    note_blocked(state, failure, now=NOW, retry_after=3600)

    assert plan_next(state, now=NOW) == Wait(NOW + until, why)


def test_a_provider_that_asks_for_patience_does_not_put_off_the_start_timeout() -> None:
    state = bought(launched())
    assert state.start_deadline is not None
    failure = Failure(code=ErrorCode.TOO_MANY_REQUESTS, message="come again")
    note_blocked(state, failure, now=LATER, retry_after=36_000)

    assert plan_next(state, now=LATER) == Wait(state.start_deadline, "start timeout")
