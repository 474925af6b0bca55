"""Who answers for machines, how old they must be, and what they have cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from garrison.domain.orphans import YOUNGEST, describe_orphan, is_orphaned, settle_time
from garrison.models.group import Group, Node, NodeStatus
from garrison.models.orphan import Orphan
from garrison.models.provider import ProviderFacts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FACTS = ProviderFacts(name="cloud", type="aws", effect_bound=timedelta(seconds=30))
TICK = timedelta(microseconds=1)


def _orphan(
    age: timedelta,
    *statuses: NodeStatus,
    price: str | None = "1.50",
    facts: ProviderFacts = FACTS,
    known: bool = False,
) -> Orphan:
    group = Group(
        token="t",
        owner="cluster/a",
        uid="u",
        region="r",
        instance_type="i",
        usd_per_node_hour=None if price is None else Decimal(price),
        created_at=NOW - age,
        nodes=tuple(
            Node(rank=rank, provider_id=f"i-{rank}", status=status)
            for rank, status in enumerate(statuses or (NodeStatus.RUNNING,))
        ),
    )
    return describe_orphan(group, facts=facts, installation="ours", known=known, now=NOW)


@pytest.mark.parametrize(
    ("known", "running", "own", "orphaned"),
    [
        pytest.param(False, False, True, True, id="a life that nobody knows"),
        pytest.param(False, False, False, True, id="one of another installation that nobody knows"),
        pytest.param(True, True, True, False, id="a life that runs"),
        pytest.param(True, True, False, False, id="one of another installation that runs here"),
        pytest.param(True, False, True, False, id="a closed life, which the watch reaps"),
        pytest.param(True, False, False, True, id="a closed life that no watch sees"),
    ],
)
def test_machines_are_orphans_when_nobody_else_would_delete_them(
    known: bool, running: bool, own: bool, orphaned: bool
) -> None:
    assert is_orphaned(known=known, running=running, own=own) is orphaned


@pytest.mark.parametrize(
    ("settle", "bound", "expected"),
    [
        pytest.param(0, 1, YOUNGEST, id="ten minutes at a quick provider"),
        pytest.param(7, 4, timedelta(minutes=11), id="what a slow one may take"),
    ],
)
def test_a_purchase_is_left_alone_as_long_as_it_could_be_under_way(
    settle: int, bound: int, expected: timedelta
) -> None:
    facts = FACTS.replace(settle=timedelta(minutes=settle), effect_bound=timedelta(minutes=bound))

    limit = settle_time(facts)
    at, before = _orphan(limit, facts=facts), _orphan(limit - TICK, facts=facts)

    assert limit == expected
    assert (at.sweepable, before.sweepable) == (True, False)
    assert before.reason == "too young: left alone until 2026-01-01T12:00:00Z"


def test_cost_is_age_times_the_rate_of_the_machines_that_are_left() -> None:
    orphan = _orphan(
        timedelta(hours=2, minutes=30),
        NodeStatus.RUNNING,
        NodeStatus.TERMINATED,
        NodeStatus.STOPPED,
    )

    assert [machine.provider_id for machine in orphan.machines] == ["i-0", "i-2"]
    assert orphan.age_seconds == 9000
    assert orphan.usd_per_hour == Decimal("3.00")
    assert orphan.cost_usd == Decimal("7.5")


def test_an_unknown_price_is_an_unknown_cost() -> None:
    orphan = _orphan(timedelta(hours=1), price=None)

    assert orphan.usd_per_hour is None
    assert orphan.cost_usd is None
    assert orphan.sweepable


def test_machines_from_the_future_are_young_and_have_cost_nothing() -> None:
    orphan = _orphan(timedelta(hours=-3))

    assert not orphan.sweepable
    assert orphan.age_seconds == 0
    assert orphan.cost_usd == 0


@pytest.mark.parametrize(
    ("known", "words"), [(False, "unknown to this Temporal Service"), (True, "has ended")]
)
def test_an_orphan_says_why_nobody_answers_for_it(known: bool, words: str) -> None:
    assert words in _orphan(timedelta(hours=1), known=known).reason
