"""Sealing a user's environment before it leaves this process."""

from __future__ import annotations

from collections.abc import Mapping

from temporalio.client import Client

from garrison.client.translation import translated
from garrison.domain.secrets import unsealed_names
from garrison.errors import InvalidSpec, Problem
from garrison.models.cluster import ClusterSpec
from garrison.sealing import read_public_key, seal_env
from garrison.settings import Settings


class Sealer:
    """Knows where the installation's public key is found."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings

    async def sealed(self, spec: ClusterSpec) -> ClusterSpec:
        """Return the spec with every env value sealed, or said to be no secret.

        Raises:
            InvalidSpec: No key is known to seal to.
        """
        if not unsealed_names(spec.env):
            return spec
        return spec.model_copy(update={"env": await self.sealed_env(spec.env)})

    async def sealed_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with every value sealed, or said to be no secret.

        Raises:
            InvalidSpec: No key is known to seal to.
        """
        if not unsealed_names(env):
            return dict(env)
        return seal_env(await self._public_key(), env)

    async def _public_key(self) -> str:
        # What the service's own workers publish goes before a key that lies here, which may be
        # that of another installation.
        found = self._settings.public_key or await self._published_key()
        found = found or read_public_key(self._settings.data_dir)
        if found is None:
            raise InvalidSpec(
                "no sealing key is known: start a worker, or set GARRISON_PUBLIC_KEY",
                problems=(Problem("env", "its values are sealed before they leave this process"),),
            )
        return found

    async def _published_key(self) -> str | None:
        query = "WorkflowType = 'ProviderWatch' AND ExecutionStatus = 'Running'"
        with translated("sealing key"):
            async for watch in self._client.list_workflows(query):
                key = (await watch.memo()).get("public_key")
                if isinstance(key, str):
                    return key
        return None
