"""How models are served here: quick, on the common queue."""

from __future__ import annotations

from collections.abc import Mapping

from temporalio import activity

from garrison.activities.workload import OpenEnv
from garrison.domain.secrets import is_sealed
from garrison.errors import InvalidSpec, Problem
from garrison.models.deployment import DeploymentSpec, EnvComparison, SealedEnv
from garrison.models.elastic_file import DeploymentFile, resolve
from garrison.models.worker_file import ModelSettings


class ModelActivities:
    """Bound to the `models:` of the worker's settings."""

    def __init__(self, models: Mapping[str, ModelSettings], open_env: OpenEnv) -> None:
        """Bind to a worker's settings.

        Args:
            models: Of the settings.
            open_env: Opens what clients sealed.
        """
        self._models = models
        self._open_env = open_env

    @activity.defn(name="resolve_deployment")
    async def resolve_deployment(self, file: DeploymentFile) -> DeploymentSpec:
        """Return what a deployment should be, the model that it names looked up.

        Its environment is opened once, to see that it can be: what is missing would else be
        found only on a machine that was bought for it.

        Raises:
            ModelNotConfigured: No entry matches.
            InvalidSpec: With every variable that cannot be opened.
        """
        spec = resolve(file, self._models)
        try:
            self._open_env(spec.template.env)
        except InvalidSpec as error:
            problems = tuple(_of_file(file, problem) for problem in error.problems)
            what = f"the environment of deployment {file.id} cannot be opened"
        else:
            return spec
        raise InvalidSpec(what, problems=problems)

    @activity.defn(name="keep_sealed")
    async def keep_sealed(self, asked: EnvComparison) -> SealedEnv:
        """Return the wanted environment, with what is known where both open to the same text.

        Sealing the same text twice gives two texts, which would pass for another workload. No
        opened value leaves this process.

        Raises:
            InvalidSpec: A value was sealed for another installation.
        """
        kept = {
            name: known
            for name, known in asked.known.items()
            if is_sealed(known) and is_sealed(asked.wanted.get(name, ""))
            if self._open_env({name: known}) == self._open_env({name: asked.wanted[name]})
        }
        return SealedEnv(env={**asked.wanted, **kept})


def _of_file(file: DeploymentFile, problem: Problem) -> Problem:
    """Return a problem of an environment, under the key of the file that it comes from."""
    if file.template is not None:
        return Problem(f"deployment.worker.{problem.field}", problem.message)
    said = f"{problem.field} of the settings' `models:`: {problem.message}"
    return Problem("deployment.worker.model", said)
