"""The port through which the router learns of deployments, and wakes them."""

from __future__ import annotations

from typing import Protocol

from garrison.models.deployment_state import DeploymentEndpoints


class Directory(Protocol):
    """Knows which deployments there are and where their replicas answer.

    Every method raises a `GarrisonError` when nobody answered: that says nothing about deployments.
    """

    async def running(self) -> tuple[str, ...]:
        """Return the ids of all deployments that exist."""
        ...

    async def endpoints(self, deployment: str) -> DeploymentEndpoints | None:
        """Return where a deployment's replicas answer, None when there is no such deployment."""
        ...

    async def wake(self, deployment: str, uid: str) -> None:
        """Ask one life of a deployment for a replica; asking again does no harm."""
        ...
