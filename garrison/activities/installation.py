"""What this installation allows, and the asks of owners: quick, on the common queue."""

from __future__ import annotations

from temporalio import activity

from garrison.activities.watches import Watches
from garrison.models.cluster_messages import LookRequest, QuoteTerms
from garrison.models.observation import WatchAsk


class InstallationActivities:
    """Bound to the settings of the worker."""

    def __init__(self, terms: QuoteTerms, watches: Watches) -> None:
        self._terms = terms
        self._watches = watches

    @activity.defn(name="quote_terms")
    async def quote_terms(self) -> QuoteTerms:
        """Return the configured providers and limits."""
        return self._terms

    @activity.defn(name="ensure_watch")
    async def ensure_watch(self, request: LookRequest) -> None:
        """Start the provider's watch where it does not run, and ask it for a look."""
        ask = WatchAsk(owner=request.owner, uid=request.uid, not_before=request.not_before)
        await self._watches.ask(request.provider, ask)
