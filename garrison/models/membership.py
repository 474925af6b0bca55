"""What a nodepool and its compute cluster ask of each other, through activities."""

from __future__ import annotations

from garrison.models.base import Message
from garrison.models.compute_cluster import DeleteRequested, JoinRequest


class MembershipAsked(Message):
    """Enter or leave a compute cluster, named by its workflow id."""

    compute_cluster: str
    request: JoinRequest


class NodepoolDeletion(Message):
    """Delete a nodepool, named by its workflow id, with its compute cluster."""

    nodepool: str
    request: DeleteRequested
