"""How many machines a nodepool wants, and which it gives back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.domain.pools.count import Counted, PoolCount, Spared, plan_count
from garrison.models.nodepool import NodepoolSpec

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FOREVER = NOW - timedelta(hours=3)
FIVE = timedelta(minutes=5)


def spec(**overrides: Any) -> NodepoolSpec:
    fields = {"id": "p", "compute_cluster": "c", "instance_types": ("a",), "max_instances": 3}
    return NodepoolSpec(**{**fields, **overrides})


def idle(name: str, since: datetime = FOREVER) -> Counted:
    return Counted(name, empty_since=since)


def used(name: str, replicas: int = 1) -> Counted:
    return Counted(name, replicas=replicas)


def going(name: str) -> Counted:
    return Counted(name, usable=False)


def count(*machines: Counted, wanted: int = 0, **fields: Any) -> PoolCount:
    blocked = {"blocked": fields.pop("blocked")} if "blocked" in fields else {}
    return plan_count(spec(**fields), machines, wanted=wanted, now=NOW, **blocked)


def released(plan: PoolCount) -> list[str]:
    return [spared.name for spared in plan.release]


@pytest.mark.parametrize(
    ("machines", "wanted", "fields", "desired", "spares"),
    [
        pytest.param([], 0, {}, 0, 0, id="nothing is wanted, nothing is bought"),
        pytest.param([], 1, {}, 1, 0, id="one replica, one machine, bought by packing"),
        pytest.param([], 0, {"min_instances": 2}, 2, 2, id="the minimum is held"),
        pytest.param([used("a")], 0, {"min_instances": 2}, 2, 1, id="used ones count for it"),
        pytest.param([], 1, {"min_instances": 2}, 2, 1, id="and those that packing buys"),
        pytest.param([going("a")], 0, {"min_instances": 2}, 2, 2, id="those going do not"),
        pytest.param([used("a")], 0, {"warm_instances": 1}, 2, 1, id="a spare is kept ready"),
        pytest.param([], 0, {"warm_instances": 2, "min_instances": 1}, 2, 2, id="spares are of it"),
        pytest.param([idle("a")], 0, {"warm_instances": 1}, 1, 0, id="an empty one is a spare"),
        pytest.param([idle("a")], 1, {"warm_instances": 1}, 2, 0, id="though one is bought too"),
        pytest.param(
            [used("a"), used("b")], 1, {"warm_instances": 2}, 3, 0, id="spares end at the maximum"
        ),
        pytest.param(
            [going("a"), going("b")], 0, {"min_instances": 2}, 2, 1, id="those going fill it too"
        ),
        pytest.param([], 0, {"max_instances": 0, "warm_instances": 1}, 0, 0, id="0 disables"),
    ],
)
def test_machines_are_wanted_for_replicas_the_minimum_and_spares(
    machines: list[Counted], wanted: int, fields: dict[str, int], desired: int, spares: int
) -> None:
    plan = count(*machines, wanted=wanted, **fields)

    assert (plan.desired, plan.spares) == (desired, spares)


def test_a_pool_of_fixed_size_is_left_alone_however_long_it_is_empty() -> None:
    plan = count(idle("a"), idle("b"), min_instances=2, max_instances=2)

    assert plan == PoolCount(desired=2)


def test_idle_machines_go_down_to_the_minimum_and_no_further() -> None:
    plan = count(idle("a"), idle("b"), idle("c"), min_instances=1)

    assert plan.release == (Spared("a", "empty for 5 min"), Spared("b", "empty for 5 min"))
    assert (plan.desired, plan.spares, plan.next_at) == (1, 0, None)


def test_machines_with_replicas_are_part_of_the_minimum() -> None:
    plan = count(used("a"), idle("b"), idle("c"), min_instances=2)

    assert released(plan) == ["b"]


@pytest.mark.parametrize(
    ("empty_for", "expected", "next_at"),
    [
        pytest.param(FIVE, ["a"], None, id="at the end of the wait it goes"),
        pytest.param(FIVE - timedelta(seconds=1), [], NOW + timedelta(seconds=1), id="not before"),
    ],
)
def test_a_machine_stays_empty_for_a_while(
    empty_for: timedelta, expected: list[str], next_at: datetime | None
) -> None:
    plan = count(idle("a", NOW - empty_for))

    assert (released(plan), plan.next_at) == (expected, next_at)


def test_the_next_one_to_go_is_the_one_that_was_empty_longest() -> None:
    late, early = NOW - timedelta(minutes=1), NOW - timedelta(minutes=2)

    assert count(idle("a", late), idle("b", early)).next_at == early + FIVE
    assert count(idle("a", late), idle("b", early), min_instances=2).next_at is None
    assert count(idle("a"), idle("b", late), min_instances=1).next_at is None


def test_a_machine_that_is_not_up_yet_is_not_given_back() -> None:
    plan = count(Counted("a"))

    assert (plan.release, plan.next_at, plan.desired) == ((), None, 0)


def test_above_a_lowered_limit_empty_machines_go_at_once_and_then_the_emptiest() -> None:
    machines = (used("two", 2), used("one"), idle("new", NOW), used("other"))

    plan = count(*machines, max_instances=2)

    assert plan.release == (Spared("new", "max_instances is 2"),)
    assert plan.drain == (Spared("one", "max_instances is 2"),)
    assert plan.desired == 2


def test_a_disabled_pool_gives_up_everything() -> None:
    plan = count(used("a"), idle("b", NOW), max_instances=0, min_instances=0)

    assert (released(plan), [s.name for s in plan.drain], plan.desired) == (["b"], ["a"], 0)


def test_an_empty_machine_makes_room_for_replicas_that_fit_on_another_kind_only() -> None:
    plan = count(idle("small", NOW), min_instances=1, max_instances=1, blocked=1)

    assert plan.release == (Spared("small", "makes room for replicas that do not fit on it"),)
    assert plan.spares == 0


def test_room_is_made_once_for_each_machine_that_is_missing() -> None:
    machines = (going("a"), idle("b", NOW), idle("c", NOW))

    assert released(count(*machines, blocked=1)) == []
    assert released(count(*machines, blocked=2)) == ["b"]


def test_a_wait_of_part_of_a_minute_is_said_so() -> None:
    plan = count(idle("a"), release_after=timedelta(seconds=90))

    assert plan.release == (Spared("a", "empty for 1.5 min"),)


def test_machines_above_the_limit_make_room_too() -> None:
    plan = count(idle("a", NOW), idle("b", NOW), used("c"), max_instances=2, blocked=1)

    assert plan.release == (Spared("a", "max_instances is 2"),)


MACHINES = st.lists(
    st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 10) | st.none()), max_size=6
)


@given(
    MACHINES,
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 6),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_no_pool_passes_its_limit_or_goes_below_its_minimum(
    drawn: list[tuple[bool, int, int | None]],
    least: int,
    warm: int,
    most: int,
    wanted: int,
    blocked: int,
) -> None:
    machines = [
        Counted(
            str(number),
            replicas,
            usable,
            None if ago is None or replicas else NOW - timedelta(minutes=ago),
        )
        for number, (usable, replicas, ago) in enumerate(drawn)
    ]
    least, wanted = min(least, most), min(wanted, max(0, most - len(machines)))

    plan = count(
        *machines,
        wanted=wanted,
        blocked=blocked,
        min_instances=least,
        max_instances=most,
        warm_instances=warm,
    )

    by_name = {machine.name: machine for machine in machines}
    gone = [by_name[spared.name] for spared in (*plan.release, *plan.drain)]
    left = sum(machine.usable for machine in machines) - len(gone)
    aged = [spared for spared in plan.release if spared.reason.startswith("empty")]
    empty = sum(m.usable and not m.replicas for m in machines) - len(plan.release)
    assert len({machine.name for machine in gone}) == len(gone)
    assert all(machine.usable for machine in gone)
    assert not any(by_name[spared.name].replicas for spared in plan.release)
    assert plan.spares == 0 or len(machines) + wanted + plan.spares <= most
    assert plan.desired <= most
    assert left <= most
    assert not plan.drain or left == most
    assert not aged or left + wanted >= least
    assert not aged or empty >= min(warm, max(0, most - left - wanted + empty))
    assert not (plan.spares and aged)
