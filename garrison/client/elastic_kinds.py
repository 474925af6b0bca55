"""Compute clusters, nodepools and deployments by their ids, and their lines in lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from garrison.client.entity import Entity, Kind
from garrison.domain.resource_ids import (
    compute_cluster_workflow_id,
    deployment_workflow_id,
    nodepool_workflow_id,
)
from garrison.errors import InvalidSpec
from garrison.models.base import NAME_PATTERN, Message
from garrison.models.compute_cluster import ComputeClusterStatus
from garrison.models.deployment import DeploymentStatus
from garrison.models.nodepool import NodepoolStatus

COMPUTE_CLUSTER = Kind("compute cluster", "ComputeCluster", ComputeClusterStatus)
NODEPOOL = Kind("nodepool", "Nodepool", NodepoolStatus)
DEPLOYMENT = Kind("deployment", "Deployment", DeploymentStatus, phase="status")

_ID = re.compile(NAME_PATTERN.strip("^$"))

R = TypeVar("R", bound=Message)


def compute_cluster_entity(name: str) -> Entity:
    """Return a compute cluster by its id.

    Raises:
        InvalidSpec: It cannot be one.
    """
    return Entity(name, compute_cluster_workflow_id(_checked(name, "compute cluster")))


def nodepool_entity(compute_cluster: str, name: str) -> Entity:
    """Return a nodepool by its compute cluster's id and its own.

    Raises:
        InvalidSpec: One of them cannot be one.
    """
    parent = _checked(compute_cluster, "compute cluster")
    return Entity(f"{parent}/{name}", nodepool_workflow_id(parent, _checked(name, "nodepool")))


def deployment_entity(name: str) -> Entity:
    """Return a deployment by its id.

    Raises:
        InvalidSpec: It cannot be one.
    """
    return Entity(name, deployment_workflow_id(_checked(name, "deployment")))


def nodepools_of(compute_cluster: str) -> str:
    """Return what the workflow ids of a compute cluster's nodepools begin with."""
    return nodepool_workflow_id(_checked(compute_cluster, "compute cluster"), "")


def row_of(model: type[R], memo: Mapping[str, Any], **more: Any) -> R:
    """Return a line of a list from a memo; a field without a value keeps its default."""
    known = {**memo, **more}
    return model.model_validate({k: v for k, v in known.items() if v is not None})


def total_usd(parts: Iterable[tuple[Decimal | None, int]]) -> Decimal | None:
    """Return what some pools cost an hour, None where a price is not known.

    Args:
        parts: What each costs, and how many machines it has; without machines it costs nothing.
    """
    total = Decimal(0)
    for usd, machines in parts:
        if usd is None and machines:
            return None
        total += usd or 0
    return total


def _checked(text: str, noun: str) -> str:
    if not _ID.fullmatch(text):
        raise InvalidSpec(
            f"{text[:64]!r} is no {noun} id: 1 to 63 letters, digits, '-' or '_', first a letter"
            " or digit"
        )
    return text
