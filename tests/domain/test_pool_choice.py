"""In which order a deployment tries its nodepools."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.domain.deployments.pool_choice import PoolChoice, order_pools
from garrison.domain.resource_ids import (
    compute_cluster_workflow_id,
    deployment_workflow_id,
    nodepool_workflow_id,
)
from garrison.models.deployment import DeploymentPool, SchedulingChoice
from garrison.models.offer import CapacityType
from garrison.models.placement import PoolSummary

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


def pool(name: str, priority: int = 0) -> DeploymentPool:
    return DeploymentPool(compute_cluster="cc", nodepool=name, priority=priority)


def summary(price: str | None = "1", **fields: Any) -> PoolSummary:
    usd = Decimal(price) if price is not None else None
    return PoolSummary(provider="cloud", usd_per_hour=usd, **fields)


def order(
    choice: SchedulingChoice,
    *pools: DeploymentPool,
    seed: str = "uid/r1",
    **summaries: PoolSummary,
) -> str:
    """Return the names of the pools in order, as one word."""
    known = {f"nodepool/cc/{name}": told for name, told in summaries.items()}
    found = order_pools(pools, known, choice, seed=seed)
    return "".join(one.nodepool.rpartition("/")[2] for one in found)


A, B, C = pool("a"), pool("b"), pool("c")


def test_workflow_ids_ignore_the_case_of_names() -> None:
    assert compute_cluster_workflow_id("CC") == "computecluster/cc"
    assert nodepool_workflow_id("CC", "Pool_1") == "nodepool/cc/pool_1"
    assert deployment_workflow_id("My-App") == "deployment/my-app"


@pytest.mark.parametrize("choice", list(SchedulingChoice))
def test_a_higher_priority_goes_first_whatever_the_choice(choice: SchedulingChoice) -> None:
    worse = summary("9", full=True)

    found = order(choice, A, pool("b", 1), pool("c", 9), a=summary(), b=summary(), c=worse)

    assert found == ("c" if choice is SchedulingChoice.FAIL else "cba")


@pytest.mark.parametrize("choice", [SchedulingChoice.PERFORMANCE, SchedulingChoice.NETWORK])
def test_performance_and_network_keep_the_order_of_the_file(choice: SchedulingChoice) -> None:
    assert order(choice, C, A, B, a=summary("1"), b=summary("2", full=True)) == "cab"


def test_fail_has_only_the_first_and_says_that_it_is_full() -> None:
    told = {"nodepool/cc/b": summary(full=True), "nodepool/cc/a": summary()}

    found = order_pools([B, A], told, SchedulingChoice.FAIL, seed="")

    assert found == (PoolChoice("nodepool/cc/b", full=True, known=True),)


def test_price_takes_the_cheapest_that_fits_and_unknown_prices_last() -> None:
    cheap, dear, unknown = summary("1"), summary("2"), summary(None)
    full = summary("0.1", full=True)
    pools = (pool("f"), pool("u"), A, B)

    assert order(SchedulingChoice.PRICE, *pools, f=full, u=unknown, a=dear, b=cheap) == "bauf"
    assert order(SchedulingChoice.PRICE, *pools, f=full, a=dear, b=cheap) == "bauf"


def test_utilization_takes_the_fullest_that_fits() -> None:
    half, most = summary(utilization=Decimal("0.5")), summary(utilization=Decimal("0.9"))
    full = summary(utilization=Decimal(1), full=True)
    pools = (pool("f"), pool("u"), A, B)

    assert order(SchedulingChoice.UTILIZATION, *pools, f=full, a=half, b=most) == "bauf"
    assert order(SchedulingChoice.UTILIZATION, pool("u"), A, a=half) == "au"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(SchedulingChoice.PREFER_SPOT, "sbd"), (SchedulingChoice.PREFER_ONDEMAND, "bds")],
)
def test_the_preferred_capacity_goes_before_the_price(
    choice: SchedulingChoice, expected: str
) -> None:
    pools = (pool("d"), pool("s"), pool("b"))
    both = summary("2", capacity_types=(SPOT, ON_DEMAND))

    found = order(
        choice,
        *pools,
        d=summary("3", capacity_types=(ON_DEMAND,)),
        s=summary("1", capacity_types=(SPOT,)),
        b=both,
    )

    assert found == expected


def test_random_is_the_same_for_the_same_seed_and_fair_over_many() -> None:
    firsts = Counter(
        order(SchedulingChoice.RANDOM, A, B, C, seed=f"uid/{n}")[0] for n in range(300)
    )

    assert order(SchedulingChoice.RANDOM, A, B, C, seed="x") == order(
        SchedulingChoice.RANDOM, C, B, A, seed="x"
    )
    assert all(70 < firsts[name] < 130 for name in "abc")


def test_a_pool_that_said_nothing_yet_is_not_taken_to_be_full() -> None:
    found = order_pools([A], {}, SchedulingChoice.PRICE, seed="")

    assert found == (PoolChoice("nodepool/cc/a", full=False, known=False),)


def test_a_pool_named_twice_counts_once_by_its_higher_priority() -> None:
    twice = DeploymentPool(compute_cluster="CC", nodepool="A", priority=5)

    assert order(SchedulingChoice.PERFORMANCE, A, B, twice) == "ab"
    assert order(SchedulingChoice.PERFORMANCE, B, A, twice) == "ab"


@given(
    st.lists(st.builds(pool, st.sampled_from("abcdef"), st.integers(0, 9)), min_size=1),
    st.sampled_from(SchedulingChoice),
    st.dictionaries(
        st.sampled_from([f"nodepool/cc/{name}" for name in "abcdef"]),
        st.builds(
            summary,
            st.sampled_from([None, "1", "2"]),
            full=st.booleans(),
            utilization=st.sampled_from([Decimal(0), Decimal("0.5")]),
            capacity_types=st.sampled_from([(SPOT,), (ON_DEMAND,), (SPOT, ON_DEMAND)]),
        ),
    ),
)
def test_every_pool_is_there_once_and_priorities_never_rise(
    pools: list[DeploymentPool], choice: SchedulingChoice, told: dict[str, PoolSummary]
) -> None:
    highest: dict[str, int] = {}
    for one in pools:
        name = f"nodepool/cc/{one.nodepool}"
        highest[name] = max(one.priority, highest.get(name, 0))

    found = [one.nodepool for one in order_pools(pools, told, choice, seed="s")]

    priorities = [highest[name] for name in found]
    assert priorities == sorted(priorities, reverse=True)
    if choice is SchedulingChoice.FAIL:
        assert len(found) == 1
        assert priorities[0] == max(highest.values())
    else:
        assert sorted(found) == sorted(highest)
