"""The providers that workers are configured for."""

from __future__ import annotations

from temporalio.client import Client

from garrison.client.translation import translated
from garrison.models.provider import ProviderFacts


class Providers:
    """What the running watches say of their providers."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> list[ProviderFacts]:
        """Return the configured providers, by name."""
        query = "WorkflowType = 'ProviderWatch' AND ExecutionStatus = 'Running'"
        found = []
        with translated("provider list"):
            async for watch in self._client.list_workflows(query):
                facts = (await watch.memo()).get("facts")
                if facts is not None:
                    found.append(ProviderFacts.model_validate(facts))
        return sorted(found, key=lambda facts: facts.name)
