"""When a workflow is forgotten, so that it goes on from its history alone."""

from __future__ import annotations

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation

from garrison.workers.unreported import BY_ITSELF, QueryWatch


def _activation(*jobs: str, replaying: bool = False) -> WorkflowActivation:
    act = WorkflowActivation(run_id="run", is_replaying=replaying)
    for job in jobs:
        getattr(act.jobs.add(), job).SetInParent()
    return act


def _query(query_id: str = BY_ITSELF) -> WorkflowActivation:
    act = _activation("query_workflow", replaying=True)
    act.jobs[0].query_workflow.query_id = query_id
    return act


@pytest.mark.parametrize("job", ["resolve_activity", "fire_timer", "signal_workflow", "do_update"])
def test_a_query_after_anything_new_has_the_workflow_forgotten(job: str) -> None:
    forgotten: list[str] = []
    watch = QueryWatch(forgotten.append)

    watch.note(_activation(job))
    watch.note(_query())

    assert forgotten == ["run"]


@pytest.mark.parametrize(
    "acts",
    [
        [_activation("initialize_workflow", "do_update", replaying=True), _query()],
        [_activation("resolve_activity"), _query("1")],
        [_activation("resolve_activity"), _activation("signal_workflow")],
        [_activation("remove_from_cache"), _query()],
    ],
    ids=["only a replay", "a query that a task brought", "no query", "an eviction"],
)
def test_a_workflow_is_kept_that_no_query_can_have_moved(acts: list[WorkflowActivation]) -> None:
    forgotten: list[str] = []
    watch = QueryWatch(forgotten.append)

    for act in acts:
        watch.note(act)

    assert forgotten == []
