from __future__ import annotations

import pytest

from garrison.errors import ErrorCode
from garrison.providers.simulated.faults import Call, Fault
from tests.chaos.plan import (
    BOUND,
    DIRECTED,
    LATE,
    SETTLE,
    TYPES,
    ClusterPlan,
    Kill,
    Rule,
    RunPlan,
    Seen,
    make_plan,
)

SEEDS = range(200)


def _rules(cluster: ClusterPlan) -> list[Rule]:
    return [step for step in cluster.steps if isinstance(step, Rule)]


def _stories(plan: RunPlan) -> list[str]:
    return [cluster.story for cluster in plan.clusters]


def test_the_same_seed_gives_the_same_plan() -> None:
    plans = [make_plan(seed) for seed in SEEDS]

    again = [make_plan(seed) for seed in SEEDS]

    assert again == plans
    assert len({plan.clusters for plan in plans}) == len(SEEDS)


def test_every_run_has_what_each_sabotage_breaks() -> None:
    directed = [tell.__name__.strip("_") for tell in DIRECTED]

    stories = [_stories(make_plan(seed)) for seed in SEEDS]

    assert all(told[: len(directed)] == directed for told in stories)
    assert len({story for told in stories for story in told}) >= 15


def test_no_two_clusters_of_a_run_share_a_name_or_a_price() -> None:
    for plan in map(make_plan, SEEDS):
        names = {cluster.name for cluster in plan.clusters}
        types = {cluster.instance_type for cluster in plan.clusters}

        assert len(names) == len(types) == len(plan.clusters) <= len(TYPES)


def test_lists_are_never_later_than_the_cloud_promises() -> None:
    for plan in map(make_plan, SEEDS):
        own = [
            step.rule.seconds
            for cluster in plan.clusters
            for step in _rules(cluster)
            if step.rule.what is Fault.LATE_LIST
        ]
        lists = [w.rule.seconds for w in plan.weather if w.rule.what is Fault.LATE_LIST]

        assert not (own and lists)
        assert all(seconds <= LATE < SETTLE for seconds in own + lists)


def test_effects_are_never_later_than_the_cloud_promises() -> None:
    late = [
        step.rule.seconds
        for plan in map(make_plan, SEEDS)
        for cluster in plan.clusters
        for step in _rules(cluster)
        if step.rule.what is Fault.DELAYED_EFFECT
    ]

    assert late
    assert max(late) < BOUND.total_seconds()


def test_most_runs_kill_in_the_moment_of_a_call_and_some_kill_the_server() -> None:
    plans = [make_plan(seed) for seed in SEEDS]

    aimed = [
        any(isinstance(step, Seen) for step in cluster.steps[: cluster.steps.index(kill)])
        for plan in plans
        for cluster in plan.clusters
        for kill in cluster.steps
        if isinstance(kill, Kill)
    ]
    servers = sum(bool(plan.server_kills) for plan in plans)

    assert all(aimed)
    assert len(aimed) > len(plans)
    assert len(plans) / 8 < servers < len(plans) / 2


@pytest.mark.parametrize("call", [Call.LAUNCH, Call.TERMINATE, Call.RESTART])
def test_every_call_that_changes_machines_loses_answers_before_and_after(call: Call) -> None:
    sides = {
        step.rule.side
        for plan in map(make_plan, SEEDS)
        for cluster in plan.clusters
        for step in _rules(cluster)
        if step.rule.call is call and step.rule.what is Fault.LOST_RESPONSE
    }

    assert len(sides) == 2


def test_a_launch_may_fail_only_where_its_story_refuses_it() -> None:
    for plan in map(make_plan, SEEDS):
        for cluster in plan.clusters:
            refused = any(
                step.rule.what in {Fault.REFUSAL, Fault.NODE_FAILS} for step in _rules(cluster)
            )

            assert cluster.may_fail <= {ErrorCode.INSUFFICIENT_CAPACITY}
            assert bool(cluster.may_fail) == (refused and not cluster.failover)
