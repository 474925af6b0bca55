"""What those who count and carry a deployment's requests are told of it."""

from __future__ import annotations

import hashlib

from garrison.domain.deployments.load import has_load, is_autoscaled
from garrison.domain.deployments.replica_call import endpoint_of
from garrison.domain.deployments.report import count_ready, report_endpoints
from garrison.domain.resource_ids import deployment_workflow_id
from garrison.models.deployment_state import DeploymentState, Replica
from garrison.models.load import DrainRequest, Followed


def note_view(state: DeploymentState) -> None:
    """Number what routers and the watch of the load should know, if it has changed.

    One whose requests nobody can count is told of only if it was before.
    """
    if state.spec is None or not (state.version or has_load(state.spec)):
        return
    source = state.spec.autoscale.load.source
    if source not in state.sources:
        state.sources = (*state.sources, source)
    seen = view(state).model_dump_json(exclude={"version": True, "endpoints": {"version"}})
    digest = hashlib.sha256(seen.encode()).hexdigest()[:16]
    if digest != state.view:
        state.view = digest
        state.version += 1


def view(state: DeploymentState) -> Followed:
    """Return what routers and the watch of the load are to know now."""
    assert state.spec is not None
    ready = min(count_ready(state), state.desired)
    return Followed(
        id=state.id.lower(),
        workflow_id=deployment_workflow_id(state.id),
        uid=state.uid,
        created_at=state.created_at,
        version=state.version,
        generation=state.wish,
        autoscale=state.spec.autoscale,
        autoscaled=is_autoscaled(state),
        desired=state.desired,
        ready=ready,
        starting=state.desired - ready,
        boot=state.boot,
        endpoints=report_endpoints(state),
        former_sources=tuple(
            one for one in state.sources if one is not state.spec.autoscale.load.source
        ),
        closed=state.delete_accepted_at is not None and not state.replicas,
    )


def drain_request(state: DeploymentState, replica: Replica) -> DrainRequest | None:
    """Return the order to let its requests end, None for a replica that never answered any."""
    run = replica.run
    if run is None or run.ready_at is None or endpoint_of(replica) is None:
        return None
    assert state.spec is not None
    return DrainRequest(
        replica=replica.id, endpoints=report_endpoints(state), within=state.spec.drain_timeout
    )
