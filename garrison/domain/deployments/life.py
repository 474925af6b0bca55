"""What people's wishes mean for a deployment in each part of its life."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from garrison.domain.deployments.load import hand_over
from garrison.domain.lifecycle import MAX_EVENTS
from garrison.domain.resource_ids import nodepool_workflow_id
from garrison.domain.secrets import unsealed_names
from garrison.errors import ConflictPhase, InvalidSpec, NameInUse, NotFound, Problem
from garrison.models.deployment import (
    DeploymentAck,
    DeploymentRequest,
    DeploymentSpec,
    EnableRequest,
    ReplicaTemplate,
    ScaleRequest,
)
from garrison.models.deployment_state import DeploymentState, Rollout, RunState
from garrison.models.nodepool import PoolEvent


def add_event(
    state: DeploymentState,
    reason: str,
    message: str,
    *,
    now: datetime,
    about: str | None = None,
    by: str = "garrison",
) -> None:
    """Keep an event; the last 100 are kept."""
    state.events.append(
        PoolEvent(time=now, about=about, reason=reason, message=message, by=by or "unknown")
    )
    del state.events[:-MAX_EVENTS]


def status_of(state: DeploymentState) -> str:
    """Return `enabled`, `disabled`, `deleting` or `deleted`."""
    if state.ended_at is not None:
        return "deleted"
    if state.delete_accepted_at is not None:
        return "deleting"
    return "enabled" if state.enabled else "disabled"


def check_life(state: DeploymentState, uid: str | None) -> None:
    """Return if a request is meant for this life.

    Raises:
        NotFound: It pins another one.
    """
    if uid is not None and uid != state.uid:
        raise NotFound(
            f"deployment {state.id} with uid {uid} is gone; a later life of the name is {state.uid}"
        )


def check_changeable(state: DeploymentState, uid: str | None) -> None:
    """Return if a deployment can be changed.

    Raises:
        NotFound: It was never created, or another life is meant.
        ConflictPhase: It is being deleted.
    """
    check_life(state, uid)
    if state.delete_accepted_at is not None:
        raise ConflictPhase(f"deployment {state.id} is being deleted; nothing of it can be changed")
    if state.spec is None:
        raise NotFound(f"there is no deployment {state.id}")


def check_spec(state: DeploymentState, spec: DeploymentSpec) -> None:
    """Return if a deployment can be like this.

    Raises:
        InvalidSpec: With every mistake.
    """
    if problems := tuple(_problems(state, spec)):
        raise InvalidSpec(f"deployment {spec.id} is not valid", problems=problems)


def _problems(state: DeploymentState, spec: DeploymentSpec) -> Iterable[Problem]:
    template, scale = spec.template, spec.autoscale
    if spec.id.lower() != state.id.lower():
        yield Problem("deployment.id", f"is {spec.id}, but this is deployment {state.id}")
    if not template.command and not template.image:
        yield Problem("deployment.worker", "needs a command, an image or a configured model")
    if scale.min_replicas > scale.max_replicas:
        text = f"is {scale.min_replicas}, above max_replicas {scale.max_replicas}"
        yield Problem("deployment.autoscale_config.min_replicas", text)
    if template.health is not None and template.port is None:
        yield Problem("deployment.worker.health", "needs a port to ask; give worker.port")
    for name in unsealed_names(template.env):
        yield Problem(f"deployment.worker.env.{name}", "is not sealed by the client")
    ids = [nodepool_workflow_id(pool.compute_cluster, pool.nodepool) for pool in spec.nodepools]
    for name in sorted({name for name in ids if ids.count(name) > 1}):
        yield Problem("deployment.nodepools", f"names {name} more than once")


def check_create(state: DeploymentState, request: DeploymentRequest) -> None:
    """Return if a deployment can be made, or was made just so.

    Raises:
        NameInUse: There is another one of the name, or one that is being deleted.
        InvalidSpec: With every mistake.
    """
    check_life(state, request.uid)
    if state.delete_accepted_at is not None:
        raise NameInUse(f"deployment {state.id} is being deleted; its name is free once it is gone")
    check_spec(state, request.spec)
    if state.spec is not None and not _is_same(state.spec, request.spec):
        raise NameInUse(
            f"there is a deployment {state.id} with other settings; "
            f"change it with: garrison deployment update {state.id}"
        )


def _is_same(one: DeploymentSpec, other: DeploymentSpec) -> bool:
    """Sealed texts differ each time that they are made, so only the names are compared."""
    return _readable(one) == _readable(other)


def _readable(spec: DeploymentSpec) -> DeploymentSpec:
    names = dict.fromkeys(sorted(spec.template.env), "")
    template = spec.template.model_copy(update={"env": names})
    return spec.model_copy(update={"template": template, "id": spec.id.lower()})


def check_update(state: DeploymentState, request: DeploymentRequest) -> None:
    """Return if a deployment can be changed to this.

    Raises:
        NotFound, ConflictPhase: It cannot be changed at all.
        InvalidSpec: With every mistake.
    """
    check_changeable(state, request.uid)
    check_spec(state, request.spec)


KEPT = "as before the update; the load decides from here"
HELD = "as it was held; the load decides from here"


def accept_create(
    state: DeploymentState, request: DeploymentRequest, *, now: datetime
) -> DeploymentAck:
    """Take a spec as the first one; one that was made just so is left as it is."""
    if state.spec is not None:
        return _ack(state, "exists already, just so", now=state.accepted_at or now)
    state.accepted_at = now
    _take_spec(state, request.spec)
    add_event(state, "Created", "created", now=now, by=request.by)
    return _accepted(state, "created", now=now)


def accept_update(
    state: DeploymentState, request: DeploymentRequest, *, now: datetime
) -> DeploymentAck:
    """Take a changed spec; another template is a new revision, which replaces the older ones."""
    before = state.revision
    _take_spec(state, request.spec)
    if state.fixed is None and state.enabled:
        # A lower minimum says nothing of the load: what runs is kept until something does.
        hand_over(state, KEPT)
    resume(state, now=now)
    rolled = state.revision != before
    text = f"updated; revision {state.revision} replaces {before}" if rolled else "updated"
    add_event(state, "Updated", text, now=now, by=request.by)
    return _accepted(state, text, now=now)


def _take_spec(state: DeploymentState, spec: DeploymentSpec) -> None:
    state.spec = spec
    newest: ReplicaTemplate | None = state.templates.get(state.revision)
    if newest == spec.template:
        return
    state.revision += 1
    _keep_those_that_run(state, spec.template)
    state.templates[state.revision] = spec.template
    wanted = [replica for replica in state.replicas.values() if replica.leaving is None]
    state.rollout = Rollout(rolling=any(one.revision != state.revision for one in wanted))


def _keep_those_that_run(state: DeploymentState, template: ReplicaTemplate) -> None:
    """A way back to what still runs replaces nothing: these replicas are of the new revision."""
    same = {number for number, one in state.templates.items() if one == template}
    for replica in list(state.replicas.values()):
        if replica.revision in same:
            state.replicas[replica.id] = replica.model_copy(update={"revision": state.revision})


def accept_scale(state: DeploymentState, request: ScaleRequest, *, now: datetime) -> DeploymentAck:
    """Hold a count, or give it back to autoscaling."""
    if request.replicas is None and state.fixed is not None:
        hand_over(state, HELD)
    state.wish += 1
    state.fixed, state.fixed_by = request.replicas, request.by
    resume(state, now=now)
    if request.replicas is None:
        text = "follows the load again"
    else:
        assert state.spec is not None
        most = state.spec.autoscale.max_replicas
        text = f"scaled to {request.replicas}"
        if request.replicas > most:
            text += f", but max_replicas is {most}"
    add_event(state, "ScaleAsked", text, now=now, by=request.by)
    return _accepted(state, text, now=now)


def accept_enabled(
    state: DeploymentState, request: EnableRequest, *, enabled: bool, now: datetime
) -> DeploymentAck:
    """Enable or disable; a disabled one keeps its settings and has no replicas."""
    changed = state.enabled is not enabled
    state.enabled, state.enabled_by = enabled, request.by
    if enabled:
        resume(state, now=now)
    if changed:
        # What the load asked for before says nothing about now.
        state.wish += 1
        state.target, state.target_reason, state.demand = None, "", None
    text = "enabled" if enabled else "disabled"
    if changed:
        add_event(state, text.capitalize(), text, now=now, by=request.by)
    return _accepted(state, text, now=now)


def accept_delete(state: DeploymentState, *, now: datetime, by: str, why: str = "") -> datetime:
    """Have a deployment stop all and end; return when that was first asked."""
    if state.delete_accepted_at is None:
        state.delete_accepted_at = now
        state.generation += 1
        add_event(state, "DeleteAsked", why or "delete asked for", now=now, by=by)
    return state.delete_accepted_at


def resume(state: DeploymentState, *, now: datetime) -> None:
    """A person's word: what has failed is tried again, and a stopped rollout goes on."""
    state.rollout = state.rollout.model_copy(update={"stopped": None})
    for replica in list(state.replicas.values()):
        run = replica.run
        if run is not None and run.state is RunState.FAILED:
            again = run.model_copy(update={"given_up": False, "retry_at": now})
            changes = {"run": again, "restarted_at": ()}
            state.replicas[replica.id] = replica.model_copy(update=changes)


def _accepted(state: DeploymentState, message: str, *, now: datetime) -> DeploymentAck:
    state.generation += 1
    return _ack(state, message, now=now)


def _ack(state: DeploymentState, message: str, *, now: datetime) -> DeploymentAck:
    return DeploymentAck(
        id=state.id, uid=state.uid, generation=state.generation, accepted_at=now, message=message
    )
