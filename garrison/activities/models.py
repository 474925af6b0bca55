"""How models are served here: quick, on the common queue."""

from __future__ import annotations

from collections.abc import Mapping

from temporalio import activity

from garrison.models.deployment import DeploymentSpec
from garrison.models.elastic_file import DeploymentFile, resolve
from garrison.models.worker_file import ModelSettings


class ModelActivities:
    """Bound to the `models:` of the worker's settings."""

    def __init__(self, models: Mapping[str, ModelSettings]) -> None:
        self._models = models

    @activity.defn(name="resolve_deployment")
    async def resolve_deployment(self, file: DeploymentFile) -> DeploymentSpec:
        """Return what a deployment should be, the model that it names looked up.

        Raises:
            ModelNotConfigured: No entry matches.
        """
        return resolve(file, self._models)
