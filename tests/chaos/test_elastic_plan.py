from __future__ import annotations

from itertools import chain

from garrison.providers.simulated.faults import Call, Fault
from tests.chaos.elastic_plan import (
    LOSSES,
    Create,
    DeploymentPlan,
    ElasticPlan,
    Notice,
    PoolPlan,
    PowerCut,
    Remove,
    Resize,
    Step,
    make_elastic_plan,
)
from tests.chaos.plan import BOUND, LATE, SETTLE, Rule

SEEDS = range(200)


def _rules(plan: PoolPlan | DeploymentPlan) -> list[Rule]:
    return [step for step in plan.steps if isinstance(step, Rule)]


def _steps(plan: ElasticPlan) -> list[Step]:
    told = [one.steps for one in plan.pools] + [one.steps for one in plan.deployments]
    return [*chain.from_iterable(told)]


def test_the_same_seed_gives_the_same_plan() -> None:
    plans = [make_elastic_plan(seed) for seed in SEEDS]

    again = [make_elastic_plan(seed) for seed in SEEDS]

    assert again == plans
    assert len({(plan.pools, plan.deployments) for plan in plans}) == len(SEEDS)


def test_every_run_has_what_each_sabotage_breaks() -> None:
    for plan in map(make_elastic_plan, SEEDS):
        first = plan.pools[0]
        lost = _rules(first)[0].rule

        assert (lost.call, lost.what, lost.skip) == (Call.LAUNCH, Fault.LOST_RESPONSE, 0)
        assert any(isinstance(step, Resize) and step.most < first.most for step in first.steps)
        assert plan.deployments[0].story == "flutter"
        assert plan.deployments[0].most == first.most


def test_all_stories_are_told() -> None:
    stories = {one.story for seed in SEEDS for one in make_elastic_plan(seed).deployments}
    kinds = {type(step) for seed in SEEDS for step in _steps(make_elastic_plan(seed))}

    assert len(stories) == 6
    assert kinds == set(Step.__args__)


def test_every_deployment_begins_with_its_creation_on_a_pool_of_the_run() -> None:
    for plan in map(make_elastic_plan, SEEDS):
        names = {pool.name for pool in plan.pools}

        assert all(isinstance(one.steps[0], Create) for one in plan.deployments)
        assert all(one.pools and {*one.pools} <= names for one in plan.deployments)


def test_a_pool_can_always_buy_something_soon() -> None:
    for pool in chain.from_iterable(make_elastic_plan(seed).pools for seed in SEEDS):
        refused = [rule for rule in _rules(pool) if rule.rule.what is Fault.REFUSAL]
        lost = [step for step in pool.steps if isinstance(step, (Notice, PowerCut, Remove))]

        assert sum(rule.rule.times or 99 for rule in refused) < len(pool.instance_types)
        assert len(lost) <= LOSSES


def test_neither_lists_nor_effects_are_later_than_the_cloud_promises() -> None:
    late: list[float] = []
    for plan in map(make_elastic_plan, SEEDS):
        rules = [step.rule for step in _steps(plan) if isinstance(step, Rule)]
        own = [rule.seconds for rule in rules if rule.what is Fault.LATE_LIST]
        lists = [w.rule.seconds for w in plan.weather if w.rule.what is Fault.LATE_LIST]
        late += [rule.seconds for rule in rules if rule.what is Fault.DELAYED_EFFECT]

        assert not (own and lists)
        assert all(seconds <= LATE < SETTLE for seconds in own + lists)

    assert late
    assert max(late) < BOUND.total_seconds()
