"""What lists show of nodepools and compute clusters: search attributes and memo."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

with workflow.unsafe.imports_passed_through():
    from garrison.domain.pools.life import phase_of
    from garrison.domain.pools.places import waiting_seats
    from garrison.domain.pools.report import count_ready, hourly_usd, list_reason, trouble_of
    from garrison.models.compute_cluster import ComputeClusterState
    from garrison.models.nodepool_state import NodepoolState
    from garrison.workflows.visibility import (
        HOURLY_USD,
        KIND,
        OWNER,
        PARENT,
        PHASE,
        PROVIDER,
        REGION,
    )


def nodepool_attributes(state: NodepoolState) -> list[SearchAttributeUpdate[Any]]:
    """Return a nodepool's search attributes, without those that have no value yet."""
    return _present(
        {
            KIND: "nodepool",
            PHASE: str(phase_of(state)),
            PROVIDER: state.provider,
            REGION: state.region or None,
            PARENT: state.compute_cluster,
            OWNER: state.owner or None,
            HOURLY_USD: float(hourly_usd(state)),
        }
    )


def nodepool_memo(state: NodepoolState, *, now: datetime) -> dict[str, Any]:
    """Return all that a list prints of a nodepool, and what the watch needs to know of it."""
    spec, trouble = state.spec, trouble_of(state)
    return {
        "uid": state.uid,
        "id": state.id,
        "compute_cluster": state.compute_cluster,
        "description": spec.description if spec else "",
        "phase": str(phase_of(state)),
        "owner": state.owner,
        "provider": state.provider,
        "provider_type": state.facts.type if state.facts else None,
        "region": state.region or None,
        "simulated": bool(state.facts and state.facts.simulated),
        "instance_types": list(spec.instance_types) if spec else [],
        "capacity_types": [str(kind) for kind in spec.capacity_types] if spec else [],
        "min_instances": spec.min_instances if spec else 0,
        "max_instances": spec.max_instances if spec else 0,
        "warm_instances": spec.warm_instances if spec else 0,
        "desired": state.desired,
        "ready": count_ready(state),
        "pending": len(waiting_seats(state)),
        "deployments": list(state.customers),
        "nodes": len(state.machines),
        "hourly_usd": str(hourly_usd(state)),
        "reason": list_reason(state, now=now),
        "blocked": str(trouble.code) if trouble else None,
        "last_error": str(state.last_error.code) if state.last_error else None,
        "visibility": spec.visibility if spec else None,
        "created_at": _text(state.created_at),
        "delete_accepted_at": _text(state.delete_accepted_at),
    }


def compute_cluster_attributes(state: ComputeClusterState) -> list[SearchAttributeUpdate[Any]]:
    """Return a compute cluster's search attributes."""
    spec = state.spec
    return _present(
        {
            KIND: "computecluster",
            PHASE: "active" if state.delete_accepted_at is None else "deleting",
            PROVIDER: spec.provider if spec else None,
            REGION: spec.region if spec else None,
            OWNER: state.owner or None,
        }
    )


def compute_cluster_memo(state: ComputeClusterState) -> dict[str, Any]:
    """Return all that a list prints of a compute cluster."""
    spec = state.spec
    return {
        "uid": state.uid,
        "id": spec.id if spec else None,
        "description": spec.description if spec else "",
        "phase": "active" if state.delete_accepted_at is None else "deleting",
        "owner": state.owner,
        "provider": spec.provider if spec else None,
        "region": spec.region if spec else None,
        "cluster_type": spec.cluster_type if spec else None,
        "managed_by": spec.managed_by if spec else None,
        "visibility": spec.visibility if spec else None,
        "nodepools": sorted(state.members),
        "created_at": _text(state.created_at),
        "delete_accepted_at": _text(state.delete_accepted_at),
    }


def _present(values: dict[SearchAttributeKey[Any], Any]) -> list[SearchAttributeUpdate[Any]]:
    return [key.value_set(value) for key, value in values.items() if value is not None]


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat().replace("+00:00", "Z")
