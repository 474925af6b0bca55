"""People's wishes for a deployment, in each part of its life."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from garrison.domain.deployments import life as life
from garrison.domain.deployments.plan import advance
from garrison.errors import ConflictPhase, InvalidSpec, NameInUse, NotFound
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentRequest,
    DeploymentSpec,
    EnableRequest,
    HealthProbe,
    ReplicaTemplate,
    ScaleRequest,
)
from garrison.models.deployment_state import DeploymentState

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
POOL = DeploymentPool(compute_cluster="cc", nodepool="a")


def spec(**fields: Any) -> DeploymentSpec:
    given: dict[str, Any] = {
        "id": "chat",
        "template": ReplicaTemplate(command=("serve",)),
        "nodepools": (POOL,),
        **fields,
    }
    return DeploymentSpec(**given)


def asked(wanted: DeploymentSpec, **fields: Any) -> DeploymentRequest:
    return DeploymentRequest(request_id="1", spec=wanted, by="ada", **fields)


def fresh() -> DeploymentState:
    return DeploymentState(id="chat", uid="11112222-uid", created_at=NOW)


def created(**fields: Any) -> DeploymentState:
    state = fresh()
    life.accept_create(state, asked(spec(**fields)), now=NOW)
    return state


def test_all_mistakes_of_a_spec_are_told_at_once() -> None:
    wrong = spec(
        id="other",
        template=ReplicaTemplate(health=HealthProbe()),
        autoscale=AutoscaleConfig(min_replicas=2, max_replicas=1),
        nodepools=(POOL, DeploymentPool(compute_cluster="CC", nodepool="A")),
    )

    with pytest.raises(InvalidSpec) as raised:
        life.check_create(fresh(), asked(wrong))

    assert [one.field for one in raised.value.problems] == [
        "deployment.id",
        "deployment.worker",
        "deployment.autoscale_config.min_replicas",
        "deployment.worker.health",
        "deployment.nodepools",
    ]


def test_a_secret_that_was_not_sealed_is_refused_by_name_and_not_shown() -> None:
    template = ReplicaTemplate(command=("serve",), env={"TOKEN": "hunter2"})

    with pytest.raises(InvalidSpec, match="TOKEN") as raised:
        life.check_create(fresh(), asked(spec(template=template)))

    assert "hunter2" not in str(raised.value)


def test_creating_the_same_again_is_no_conflict_though_its_secrets_were_sealed_anew() -> None:
    one = ReplicaTemplate(command=("serve",), env={"A": "plain:1"})
    other = ReplicaTemplate(command=("serve",), env={"A": "plain:2"})

    life.check_create(created(template=one), asked(spec(template=other)))
    with pytest.raises(NameInUse, match="garrison deployment update chat"):
        life.check_create(created(template=one), asked(spec()))


def test_a_deployment_that_is_being_deleted_keeps_its_name_and_takes_no_change() -> None:
    state = created()
    first = life.accept_delete(state, now=NOW, by="ada")

    with pytest.raises(NameInUse):
        life.check_create(state, asked(spec()))
    with pytest.raises(ConflictPhase):
        life.check_update(state, asked(spec()))
    assert life.accept_delete(state, now=NOW.replace(hour=13), by="bob") == first


def test_a_request_for_another_life_is_not_found() -> None:
    with pytest.raises(NotFound, match="11112222-uid"):
        life.check_changeable(created(), "another")


def test_only_another_template_is_a_new_revision() -> None:
    state = created()

    same = life.accept_update(state, asked(spec(description="now with words")), now=NOW)
    revision = state.revision
    other = ReplicaTemplate(command=("serve", "2"))
    changed = life.accept_update(state, asked(spec(template=other)), now=NOW)

    assert (same.generation, revision) == (2, 1)
    assert (changed.generation, state.revision) == (3, 2)
    assert changed.message == "updated; revision 2 replaces 1"


def test_a_count_above_the_most_is_said_in_the_answer() -> None:
    state = created()

    ack = life.accept_scale(state, ScaleRequest(request_id="1", replicas=9), now=NOW)

    assert ack.message == "scaled to 9, but max_replicas is 5"


def test_a_disabled_deployment_keeps_its_count_for_later() -> None:
    state = created()
    life.accept_scale(state, ScaleRequest(request_id="1", replicas=2), now=NOW)
    advance(state, now=NOW)

    life.accept_enabled(state, EnableRequest(request_id="2"), enabled=False, now=NOW)
    advance(state, now=NOW)
    while_disabled = state.desired
    life.accept_enabled(state, EnableRequest(request_id="3"), enabled=True, now=NOW)
    advance(state, now=NOW)

    assert (while_disabled, state.desired) == (0, 2)
    assert life.status_of(state) == "enabled"


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        pytest.param({"min_replicas": 0, "max_replicas": 1}, 1, id="a lower minimum"),
        pytest.param({"min_replicas": 0, "max_replicas": 0}, 0, id="a maximum of none"),
    ],
)
def test_a13_an_update_of_the_bounds_alone_takes_no_replica_away_that_they_allow(
    change: dict[str, int], kept: int
) -> None:
    serving = ReplicaTemplate(command=("serve",), port=8000)
    state = created(template=serving, autoscale=AutoscaleConfig(min_replicas=1, max_replicas=1))
    advance(state, now=NOW)
    before = state.desired

    changed = spec(template=serving, autoscale=AutoscaleConfig(**change))
    life.accept_update(state, asked(changed), now=NOW)
    advance(state, now=NOW)

    assert (before, state.desired) == (1, kept)
    assert state.revision == 1


def test_where_nobody_counts_requests_a_lower_minimum_counts() -> None:
    state = created(autoscale=AutoscaleConfig(min_replicas=2, max_replicas=2))
    advance(state, now=NOW)

    life.accept_update(state, asked(spec(autoscale=AutoscaleConfig(min_replicas=1))), now=NOW)
    advance(state, now=NOW)

    assert state.desired == 1


def test_a_way_back_to_what_still_runs_replaces_nothing() -> None:
    old, new = ReplicaTemplate(command=("serve",)), ReplicaTemplate(command=("serve", "new"))
    state = created(template=old, autoscale=AutoscaleConfig(min_replicas=2))
    advance(state, now=NOW)
    before = set(state.replicas)
    life.accept_update(state, asked(spec(template=new)), now=NOW)
    advance(state, now=NOW)

    life.accept_update(state, asked(spec(template=old)), now=NOW)

    assert {one.id for one in state.replicas.values() if one.revision == 3} >= before
    assert state.revision == 3
    assert state.templates[3] == old
