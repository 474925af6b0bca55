"""A compute cluster: the provider and region in which nodepools live."""

from __future__ import annotations

from pydantic import Field

from garrison.models.base import Message, Name, Time

PRIVATE = 10
"""The visibility that is enforced; others are stored and shown, see `contracts`."""


class ComputeClusterSpec(Message):
    """What a compute cluster should be.

    Attributes:
        provider: A configured provider's name.
        region: One of that provider's regions.
        visibility: The public API's number: 10 private, 30 organisation, 50 public.
    """

    id: Name
    provider: Name
    region: str
    description: str = ""
    cluster_type: str = "dedicated"
    managed_by: str = "garrison"
    visibility: int = PRIVATE


class NodepoolMember(Message):
    """A nodepool that lives in a compute cluster: its workflow id and which life of it."""

    owner: str
    uid: str


class ComputeClusterState(Message):
    """Everything a compute cluster knows; passed on when it continues as new."""

    schema_version: int = 1
    uid: str
    owner: str = ""
    created_at: Time
    spec: ComputeClusterSpec | None = None
    members: dict[str, NodepoolMember] = Field(default_factory=dict)
    delete_accepted_at: Time | None = None
    cascade: bool = False
    answers: dict[str, dict[str, object]] = Field(default_factory=dict)


class ComputeClusterInput(Message):
    """Start a compute cluster's life, or continue one.

    Attributes:
        revision: Which way the run goes where ways differ, see `docs/changing-workflows.md`.
    """

    id: str
    uid: str
    owner: str = ""
    revision: int = 0
    state: ComputeClusterState | None = None


class ComputeClusterRequest(Message):
    """Create or update a compute cluster (updates `create` and `update`).

    Attributes:
        uid: Pins the life; None takes the living one.
    """

    request_id: str
    spec: ComputeClusterSpec
    uid: str | None = None
    by: str = ""


class JoinRequest(Message):
    """A nodepool enters its compute cluster (update `join`), or leaves it (update `leave`)."""

    request_id: str
    member: NodepoolMember


class JoinAnswer(Message):
    """Where a nodepool lives now."""

    uid: str
    provider: str
    region: str


class DeleteRequested(Message):
    """Delete a compute cluster, nodepool or deployment (update `delete`).

    Attributes:
        cascade: Delete what is in it too.
    """

    request_id: str
    uid: str | None = None
    cascade: bool = False
    by: str = ""


class DeleteAccepted(Message):
    """A delete was taken; the same answer each time."""

    id: str
    uid: str
    accepted_at: Time


class ComputeClusterStatus(Message):
    """What `get` on a compute cluster answers.

    Attributes:
        phase: `active` or `deleting`.
        nodepools: Ids of its nodepools, in order.
    """

    id: str
    uid: str
    phase: str
    provider: str
    region: str
    description: str = ""
    cluster_type: str = "dedicated"
    managed_by: str = "garrison"
    visibility: int = PRIVATE
    owner: str = ""
    created_at: Time
    nodepools: tuple[str, ...] = ()
