"""The watch of one provider: one long activity, and the asks of owners."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from garrison.activities.watch import WatchActivities
    from garrison.models.observation import (
        WatchAsk,
        WatchAsks,
        WatchInput,
        WatchResult,
        WatchStatus,
    )
    from garrison.models.queues import WATCH_QUEUE

RENEW_EVENTS = 2_000
PASS_TIMEOUT = timedelta(days=30)
FORGET_AFTER = timedelta(minutes=30)
"""A due ask is answered within a pass; after so long it is not even told again by a new worker."""
RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=1.5,
    maximum_interval=timedelta(seconds=10),
)


@workflow.defn(name="ProviderWatch")
class ProviderWatchWorkflow:
    """Keep one observer of a provider running for ever.

    Workflow ID: `watch/<provider>`. All work is in its one activity; the workflow holds the asks
    until they are answered, so that none is lost with a worker.
    """

    @workflow.init
    def __init__(self, watch: WatchInput) -> None:
        self._watch = watch
        self._asks: dict[str, tuple[int, WatchAsk]] = {}
        self._last = 0
        for ask in watch.asks:
            self._keep(ask)

    @workflow.run
    async def run(self, watch: WatchInput) -> None:
        """Run the observer; when it returns, continue as new with the asks still open."""
        result: WatchResult = await workflow.execute_activity_method(
            WatchActivities.watch_provider,
            watch,
            task_queue=WATCH_QUEUE,
            start_to_close_timeout=PASS_TIMEOUT,
            heartbeat_timeout=watch.heartbeat,
            retry_policy=RETRY,
            summary=f"observe {watch.provider}",
        )
        answered = set(result.answered)
        workflow.continue_as_new(
            WatchInput(
                provider=watch.provider,
                facts=watch.facts,
                heartbeat=watch.heartbeat,
                asks=tuple(ask for _, ask in self._asks.values() if ask not in answered),
            ),
            memo=workflow.memo(),
        )

    @workflow.signal
    def ask(self, ask: WatchAsk | None = None) -> None:
        """Have an owner told of a pass from a time on; its newest ask counts.

        An empty signal is dropped: one that raised would stop the watch.
        """
        if ask is not None:
            self._keep(ask)

    @workflow.query
    def asks(self, since: int) -> WatchAsks:
        """Return the asks after a sequence number, for the observer."""
        info = workflow.info()
        long = info.get_current_history_length() > RENEW_EVENTS
        return WatchAsks(
            asks=tuple(ask for number, ask in self._asks.values() if number > since),
            last=self._last,
            renew=long or info.is_continue_as_new_suggested(),
        )

    @workflow.query
    def get(self) -> WatchStatus:
        """Return what is watched and who waits for a look."""
        return WatchStatus(
            provider=self._watch.provider,
            facts=self._watch.facts,
            asks=tuple(ask for _, ask in self._asks.values()),
        )

    def _keep(self, ask: WatchAsk) -> None:
        self._last += 1
        self._asks[ask.owner] = (self._last, ask)
        # Not an ask for later than now, however far ahead the newest one looks.
        oldest = min(ask.not_before, workflow.now()) - FORGET_AFTER
        self._asks = {
            owner: kept for owner, kept in self._asks.items() if kept[1].not_before >= oldest
        }
