"""The workflow ids of compute clusters, nodepools and deployments.

Names are unique ignoring case, so the ids are in lower case.
"""

from __future__ import annotations


def compute_cluster_workflow_id(name: str) -> str:
    """Return the id of the workflow that is a compute cluster."""
    return f"computecluster/{name.lower()}"


def nodepool_workflow_id(compute_cluster: str, name: str) -> str:
    """Return the id of the workflow that is a nodepool of a compute cluster."""
    return f"nodepool/{compute_cluster.lower()}/{name.lower()}"


def replica_prefix(deployment: str) -> str:
    """Return what the ids of all replicas of a deployment begin with, whichever its life."""
    return f"{deployment[:40].lower()}-"


def deployment_workflow_id(name: str) -> str:
    """Return the id of the workflow that is a deployment."""
    return f"deployment/{name.lower()}"
