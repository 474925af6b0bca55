"""What lists and filters show of deployments."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

with workflow.unsafe.imports_passed_through():
    from garrison.domain.deployments.assignment import pool_ids
    from garrison.domain.deployments.life import status_of
    from garrison.domain.deployments.report import (
        count_ready,
        describe_template,
        hourly_usd,
        reason_in_short,
        report_rollout,
    )
    from garrison.models.deployment_state import DeploymentState
    from garrison.workflows.visibility import ENDED_AT, KIND, OWNER, PHASE

SHOWN = 200
"""Characters of a text in a list."""


def deployment_attributes(state: DeploymentState) -> list[SearchAttributeUpdate[Any]]:
    """Return a deployment's search attributes, without those that have no value yet."""
    values: dict[SearchAttributeKey[Any], Any] = {
        KIND: "deployment",
        PHASE: status_of(state),
        OWNER: state.owner or None,
        ENDED_AT: state.ended_at,
    }
    return [key.value_set(value) for key, value in values.items() if value is not None]


def deployment_memo(state: DeploymentState) -> dict[str, Any]:
    """Return all that a list prints of a deployment."""
    assert state.spec is not None
    rollout, usd = report_rollout(state), hourly_usd(state)
    return {
        "uid": state.uid,
        "id": state.id,
        "status": status_of(state),
        "what": describe_template(state.spec.template)[:SHOWN],
        "nodepools": [pool.removeprefix("nodepool/") for pool in pool_ids(state.spec)],
        "pools": sorted(talk.uid for talk in state.pools.values() if talk.listed and talk.uid),
        "min_replicas": state.spec.autoscale.min_replicas,
        "max_replicas": state.spec.autoscale.max_replicas,
        "desired": state.desired,
        "ready": count_ready(state),
        "fixed": state.fixed,
        "revision": rollout.revision,
        "rollout": rollout.state,
        "hourly_usd": None if usd is None else str(usd),
        "reason": reason_in_short(state)[:SHOWN],
        "owner": state.owner,
        "created_at": _text(state.created_at),
        "delete_accepted_at": _text(state.delete_accepted_at),
        "ended_at": _text(state.ended_at),
    }


def _text(time: Any) -> str | None:
    return None if time is None else time.isoformat().replace("+00:00", "Z")
