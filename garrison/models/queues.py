"""Names of the task queues; public, as a deployment may split them over machines."""

from __future__ import annotations

TASK_QUEUE = "garrison"
"""Workflows and quick activities."""

WATCH_QUEUE = "watch"
"""The long-running observers of providers."""


LOAD_QUEUE = "load"
"""The long-running observers of deployments' traffic."""


def provider_queue(provider: str) -> str:
    """Return the task queue of a provider's rate-limited and SSH calls."""
    return f"provider-{provider}"
