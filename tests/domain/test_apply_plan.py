"""What `apply` has to do: order, differences, what is bought, what cannot be changed."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from garrison.domain.apply_plan import (
    Existing,
    Spec,
    Wanted,
    differences,
    forbidden,
    in_order,
    key_of,
    machines_held,
    plan_step,
    repeated,
)
from garrison.models.apply import ApplyAction, Difference
from garrison.models.compute_cluster import ComputeClusterSpec
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentSpec,
    ReplicaTemplate,
)
from garrison.models.nodepool import NodepoolSpec
from garrison.models.offer import CapacityType

UID = "0b2f6c1e-5d0a-4c53-9a53-6d7f0e9b1a22"
CLUSTER = ComputeClusterSpec(id="gpus", provider="aws", region="us-east-1")
POOL = NodepoolSpec(id="a10g", compute_cluster="gpus", instance_types=("g5.2xlarge",))
DEPLOYMENT = DeploymentSpec(
    id="llama",
    template=ReplicaTemplate(command=("serve",)),
    nodepools=(DeploymentPool(compute_cluster="gpus", nodepool="a10g"),),
)
ONE, OTHER = (f"sealed:0123456789abcdef:{letters * 24}" for letters in ("QUJD", "REVG"))


def wanted(spec: Spec, source: str = "a.yaml") -> Wanted:
    return Wanted(spec, source)


def with_env(**env: str) -> DeploymentSpec:
    return DEPLOYMENT.model_copy(update={"template": DEPLOYMENT.template.replace(env=env)})


def test_each_resource_comes_after_what_it_is_in_and_else_as_the_files_had_it() -> None:
    second = POOL.replace(id="b")
    files = [wanted(spec) for spec in (DEPLOYMENT, second, POOL, CLUSTER)]

    ordered = [one.spec for one in in_order(files)]

    assert ordered == [CLUSTER, second, POOL, DEPLOYMENT]


def test_a_resource_that_is_not_there_is_made() -> None:
    step = plan_step(wanted(POOL), None)

    assert (step.action, step.noun, step.name) == (ApplyAction.CREATE, "nodepool", "gpus/a10g")
    assert (step.differences, step.uid) == ((), None)


@pytest.mark.parametrize("spec", [CLUSTER, POOL, DEPLOYMENT], ids=lambda spec: spec.id)
def test_a_resource_that_is_just_so_is_left_alone(spec: Spec) -> None:
    step = plan_step(wanted(spec), Existing(spec, UID))

    assert (step.action, step.differences, step.uid) == (ApplyAction.UNCHANGED, (), UID)


def test_an_id_in_another_case_is_the_same_resource() -> None:
    loud = POOL.replace(id="A10G", compute_cluster="GPUS")

    assert key_of(loud) == key_of(POOL)
    assert differences(POOL, loud) == ()


def test_each_difference_names_its_field_as_the_file_does() -> None:
    scale = AutoscaleConfig(max_replicas=7, scale_down_delay=timedelta(seconds=1.5))
    after = DEPLOYMENT.replace(description="new", autoscale=scale)

    found = differences(DEPLOYMENT, after)

    assert found == (
        Difference(field="description", before='""', after="new"),
        Difference(field="max_replicas", before="5", after="7"),
        Difference(field="scale_down_delay", before="300", after="1.5"),
    )


def test_lists_and_limits_are_compared_as_they_are() -> None:
    after = POOL.replace(
        capacity_types=(CapacityType.SPOT, CapacityType.ON_DEMAND), max_usd_per_hour=Decimal("1.5")
    )

    found = differences(POOL, after)

    assert [(one.field, one.before, one.after) for one in found] == [
        ("capacity_types", '["on_demand"]', '["spot", "on_demand"]'),
        ("max_usd_per_hour", "none", "1.50"),
    ]


def test_a_value_that_may_be_a_secret_is_never_shown() -> None:
    before = with_env(TOKEN="plain:old-token")
    after = with_env(TOKEN="plain:new-token", OTHER=ONE).replace(description="x")

    shown = [(one.field, one.before, one.after) for one in differences(before, after)]

    assert ("env.TOKEN", "set", "another value") in shown
    assert ("env.OTHER", "none", "set") in shown
    assert "token" not in str(shown).replace("TOKEN", "")


def test_a_changed_command_and_image_are_shown() -> None:
    template = DEPLOYMENT.template.replace(command=("serve", "--tp", "2"), image="vllm:2")

    found = differences(DEPLOYMENT, DEPLOYMENT.replace(template=template))

    assert found == (
        Difference(field="command", before="serve", after="serve --tp 2"),
        Difference(field="image", before="none", after="vllm:2"),
    )


def test_long_texts_are_shown_where_they_differ() -> None:
    line = "vllm serve meta-llama/Llama-3 " + 30 * "--flag value " + "--tp {} --end " + 80 * "x"

    before, after = (
        DEPLOYMENT.replace(
            template=DEPLOYMENT.template.replace(command=("/bin/sh", "-c", line.format(tp)))
        )
        for tp in ("2", "4")
    )
    [found] = differences(before, after)

    assert "--tp 2 --end" in found.before
    assert "--tp 4 --end" in found.after
    assert all(len(text) <= 66 for text in (found.before, found.after))
    assert found.before.startswith("...")
    assert found.before.endswith("...")


def test_a_variable_that_the_file_lost_is_a_difference() -> None:
    found = differences(with_env(A="plain:1", B="plain:2"), with_env(A="plain:1"))

    assert found == (Difference(field="env.B", before="set", after="none"),)


def test_values_sealed_twice_count_as_the_same_and_that_is_told() -> None:
    step = plan_step(wanted(with_env(TOKEN=OTHER)), Existing(with_env(TOKEN=ONE), UID))

    assert step.action is ApplyAction.UNCHANGED
    [told] = step.warnings
    assert "(TOKEN)" in told
    assert "garrison deployment update llama --config a.yaml" in told


def test_a_value_that_becomes_a_secret_is_a_difference() -> None:
    assert differences(with_env(TOKEN="plain:a"), with_env(TOKEN=ONE))


@pytest.mark.parametrize(
    ("field", "value", "key"),
    [
        pytest.param("provider", "gcp", "cloud_provider.id", id="provider"),
        pytest.param("region", "eu-west-1", "region", id="region"),
    ],
)
def test_the_place_of_a_compute_cluster_cannot_change(field: str, value: str, key: str) -> None:
    moved = CLUSTER.replace(**{field: value})

    [problem] = forbidden(plan_step(wanted(moved), Existing(CLUSTER, UID)))

    assert problem.field == f"compute_cluster.{key}"
    assert f"cannot change to {value}; delete it first" in problem.message


def test_everything_else_can_change() -> None:
    described = CLUSTER.replace(description="new")

    assert not forbidden(plan_step(wanted(described), Existing(CLUSTER, UID)))


@pytest.mark.parametrize(
    ("counts", "held"),
    [
        pytest.param({"min_instances": 2, "max_instances": 3}, 2, id="the minimum"),
        pytest.param({"warm_instances": 2, "max_instances": 3}, 2, id="spares"),
        pytest.param(
            {"min_instances": 1, "warm_instances": 2, "max_instances": 3}, 2, id="not both"
        ),
        pytest.param({"min_instances": 2, "max_instances": 0}, 0, id="a disabled pool"),
        pytest.param({"max_instances": 9}, 0, id="nothing"),
    ],
)
def test_machines_without_any_demand_are_what_is_held(counts: dict[str, int], held: int) -> None:
    assert machines_held(POOL.replace(**counts)) == held


@pytest.mark.parametrize(
    ("before", "after", "bought"), [(None, 2, 2), (1, 3, 2), (3, 1, 0)], ids=["new", "more", "less"]
)
def test_only_machines_on_top_are_bought(before: int | None, after: int, bought: int) -> None:
    pool = POOL.replace(max_instances=9)
    existing = None if before is None else Existing(pool.replace(min_instances=before), UID)

    step = plan_step(wanted(pool.replace(min_instances=after)), existing)

    assert step.machines == bought


def test_a_resource_that_two_files_give_is_told_with_both() -> None:
    files = [wanted(POOL, "a.yaml"), wanted(CLUSTER, "b.yaml"), wanted(POOL, "c.yaml")]

    [(source, problem)] = repeated(files)

    assert source == "c.yaml"
    assert problem.message == "nodepool gpus/a10g is given in a.yaml too"
