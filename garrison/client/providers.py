"""The providers that the workers are configured for."""

from __future__ import annotations

import uuid
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import RetryPolicy

from garrison.client.translation import translated
from garrison.models.cluster_messages import QuoteTerms
from garrison.models.observation import ProviderStatus
from garrison.models.queues import TASK_QUEUE
from garrison.workflows.watch_report import read_report

CALL_TIMEOUT = timedelta(seconds=10)


class Providers:
    """What the workers say of their providers."""

    def __init__(self, client: Client, *, call_timeout: timedelta = CALL_TIMEOUT) -> None:
        self._client = client
        self._call_timeout = call_timeout

    async def list(self) -> list[ProviderStatus]:
        """Return the configured providers by name, each with the last report of its watch.

        Raises:
            ServiceUnreachable: No worker answers.
        """
        with translated("provider list"):
            terms: QuoteTerms = await self._client.execute_activity(
                "quote_terms",
                id=f"list-providers/{uuid.uuid4()}",
                task_queue=TASK_QUEUE,
                result_type=QuoteTerms,
                schedule_to_close_timeout=self._call_timeout,
                start_to_close_timeout=self._call_timeout,
                retry_policy=RetryPolicy(maximum_attempts=2),
                summary="configured providers",
            )
            return [
                ProviderStatus(**dict(facts), watch=await read_report(self._client, facts.name))
                for facts in sorted(terms.providers.values(), key=lambda facts: facts.name)
            ]
