"""The life of a compute cluster: what may be asked of it, and what follows.

A `ComputeClusterState` is replaced, not changed; only its dictionary of answers is.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from garrison.errors import ConflictPhase, InvalidSpec, NameInUse, NotFound, Problem
from garrison.models.compute_cluster import (
    ComputeClusterRequest,
    ComputeClusterSpec,
    ComputeClusterState,
    ComputeClusterStatus,
    DeleteRequested,
    JoinAnswer,
    JoinRequest,
    NodepoolMember,
)

FIXED = ("provider", "region", "cluster_type", "managed_by")
"""What machines depend on, so that it cannot change while there may be some."""


def check_life(name: str, state: ComputeClusterState, uid: str | None) -> None:
    """Return if this is the life that is meant.

    Raises:
        NotFound: It is another one.
    """
    if uid is not None and uid != state.uid:
        raise NotFound(f"compute cluster {name} of uid {uid} is gone; uid {state.uid} lives")


def check_create(name: str, state: ComputeClusterState, request: ComputeClusterRequest) -> None:
    """Return if the compute cluster can be created so, or is so already.

    Raises:
        NameInUse: A living one has this name, with another spec or on its way out.
        InvalidSpec: With all mistakes.
    """
    if state.delete_accepted_at is not None:
        raise NameInUse(f"compute cluster {name} is being deleted; create it again once it is gone")
    _check_spec(name, request.spec)
    if state.spec is not None and state.spec != request.spec:
        raise NameInUse(
            f"compute cluster {name} exists with other settings; "
            f"change it with: garrison computecluster update {name}"
        )


def check_update(name: str, state: ComputeClusterState, request: ComputeClusterRequest) -> None:
    """Return if the description and such can be replaced.

    Raises:
        NotFound: It has no spec yet, or another life is meant.
        ConflictPhase: It is being deleted.
        InvalidSpec: With all mistakes.
    """
    check_life(name, state, request.uid)
    spec = _spec_of(name, state)
    if state.delete_accepted_at is not None:
        raise ConflictPhase(f"compute cluster {name} is being deleted")
    _check_spec(name, request.spec)
    problems = tuple(
        Problem(field, f"is fixed; it is {getattr(spec, field)}. Make another compute cluster")
        for field in FIXED
        if getattr(spec, field) != getattr(request.spec, field)
    )
    if problems:
        raise InvalidSpec(f"compute cluster {name} cannot change so", problems=problems)


def _check_spec(name: str, spec: ComputeClusterSpec) -> None:
    problems = []
    if spec.id.lower() != name.lower():
        problems.append(Problem("id", f"is fixed; this compute cluster is {name}"))
    if not spec.region:
        problems.append(Problem("region", "must be one of the provider's regions"))
    if problems:
        raise InvalidSpec(f"compute cluster {name} is not valid", problems=tuple(problems))


def _spec_of(name: str, state: ComputeClusterState) -> ComputeClusterSpec:
    if state.spec is None:
        raise NotFound(f"there is no compute cluster {name}")
    return state.spec


def check_join(name: str, state: ComputeClusterState, request: JoinRequest) -> None:
    """Return if a nodepool may enter, or is in already.

    Raises:
        NotFound: There is no such compute cluster.
        ConflictPhase: It is being deleted.
    """
    _spec_of(name, state)
    if request.member == state.members.get(member_name(request.member)):
        return
    if state.delete_accepted_at is not None:
        raise ConflictPhase(f"compute cluster {name} is being deleted and takes no nodepool")


def join(state: ComputeClusterState, member: NodepoolMember) -> ComputeClusterState:
    """Return the state with a nodepool; a new life of it replaces the one before."""
    members = {**state.members, member_name(member): member}
    return replaced(state, members=members)


def leave(state: ComputeClusterState, member: NodepoolMember) -> ComputeClusterState:
    """Return the state without that life of a nodepool."""
    name = member_name(member)
    if state.members.get(name) != member:
        return state
    return replaced(state, members={k: v for k, v in state.members.items() if k != name})


def member_name(member: NodepoolMember) -> str:
    """Return a nodepool's id within its compute cluster, in lower case."""
    return member.owner.rpartition("/")[2]


def place(state: ComputeClusterState) -> JoinAnswer:
    """Return where its nodepools live."""
    spec = state.spec
    return JoinAnswer(
        uid=state.uid,
        provider=spec.provider if spec is not None else "",
        region=spec.region if spec is not None else "",
    )


def check_delete(name: str, state: ComputeClusterState, request: DeleteRequested) -> None:
    """Return if it can be deleted.

    Raises:
        NotFound: Another life is meant.
        ConflictPhase: It has nodepools, and they were not to go with it.
    """
    check_life(name, state, request.uid)
    if state.delete_accepted_at is None:
        check_empty(name, state.members, cascade=request.cascade)


def check_empty(name: str, nodepools: Collection[str], *, cascade: bool) -> None:
    """Return if nothing is in the way of a delete.

    Raises:
        ConflictPhase: It has nodepools, and they were not to go with it.
    """
    if nodepools and not cascade:
        raise ConflictPhase(
            f"compute cluster {name} has nodepools: {', '.join(sorted(nodepools))}; "
            "delete them first, or with it: --cascade"
        )


def accept_delete(
    state: ComputeClusterState, *, cascade: bool, now: datetime
) -> ComputeClusterState:
    """Return the state on its way out; when it was first accepted stays."""
    accepted_at = state.delete_accepted_at or now
    return replaced(state, delete_accepted_at=accepted_at, cascade=state.cascade or cascade)


def replaced(state: ComputeClusterState, **changes: object) -> ComputeClusterState:
    """Return the state with some fields changed."""
    after: ComputeClusterState = state.replace(**changes)
    return after


def report(name: str, state: ComputeClusterState) -> ComputeClusterStatus:
    """Return a compute cluster as readers see it.

    Raises:
        NotFound: It was never created.
    """
    spec = _spec_of(name, state)
    return ComputeClusterStatus(
        id=spec.id,
        uid=state.uid,
        phase="active" if state.delete_accepted_at is None else "deleting",
        provider=spec.provider,
        region=spec.region,
        description=spec.description,
        cluster_type=spec.cluster_type,
        managed_by=spec.managed_by,
        visibility=spec.visibility,
        owner=state.owner,
        created_at=state.created_at,
        nodepools=tuple(sorted(state.members)),
    )
