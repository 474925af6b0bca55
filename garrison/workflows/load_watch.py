"""The watch of one source of load: one long activity, and the deployments that it follows."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from garrison.activities.load import LoadActivities
    from garrison.domain.autoscaling.following import Following
    from garrison.models.load import (
        Followed,
        FollowedChanges,
        LoadWatchInput,
        LoadWatchResult,
        LoadWatchStatus,
    )
    from garrison.models.queues import LOAD_QUEUE
    from garrison.workflows.provider_watch import RETRY

RENEW_EVENTS = 2_000
LOOK_TIMEOUT = timedelta(days=30)


@workflow.defn(name="LoadWatch")
class LoadWatchWorkflow:
    """Keep one observer of a source of load running for ever.

    Workflow ID: `load/<source>`. All work is in its one activity; the workflow holds whom it
    follows, so that none is lost with a worker.
    """

    @workflow.init
    def __init__(self, watch: LoadWatchInput) -> None:
        self._watch = watch
        self._following = Following(watch.followed)

    @workflow.run
    async def run(self, watch: LoadWatchInput) -> None:
        """Run the observer; when it returns, continue as new with what it remembers."""
        result: LoadWatchResult = await workflow.execute_activity_method(
            LoadActivities.watch_load,
            watch,
            task_queue=LOAD_QUEUE,
            start_to_close_timeout=LOOK_TIMEOUT,
            heartbeat_timeout=watch.heartbeat,
            retry_policy=RETRY,
            summary=f"look at the load that {watch.source} counts",
        )
        self._following.forget(result.gone)
        workflow.continue_as_new(
            LoadWatchInput(
                source=watch.source,
                heartbeat=watch.heartbeat,
                followed=self._following.all,
                memories=result.memories,
            ),
        )

    @workflow.signal
    def follow(self, said: Followed | None = None) -> None:
        """Follow a deployment as it is now; an empty or an older word is dropped."""
        if said is not None:
            self._following.take(said)

    @workflow.query
    def followed(self, since: int) -> FollowedChanges:
        """Return the deployments that changed after a number, for the observer."""
        info = workflow.info()
        long = info.get_current_history_length() > RENEW_EVENTS
        return self._following.changes(since, renew=long or info.is_continue_as_new_suggested())

    @workflow.query
    def get(self) -> LoadWatchStatus:
        """Return what is watched, and for whom."""
        ids = sorted(one.id for one in self._following.all)
        return LoadWatchStatus(source=self._watch.source, followed=tuple(ids))
