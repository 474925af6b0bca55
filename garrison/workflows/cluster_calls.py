"""The activities of a cluster, each with its queue, timeouts, retries and words for the timeline.

Steps that the plan itself repeats are tried once, so that each failure is seen; the others retry
by themselves until they work, are refused, or are cancelled. `heartbeat` is how long after a
worker died its call is given to another.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityHandle

with workflow.unsafe.imports_passed_through():
    from garrison.activities.installation import InstallationActivities
    from garrison.activities.provider import ProviderActivities
    from garrison.activities.workload import WorkloadActivities
    from garrison.models.cluster_messages import (
        DeleteAnswer,
        DeleteRequest,
        LookRequest,
        PlaceAnswer,
        PlaceRequest,
        PrepareAnswer,
        PrepareRequest,
        PurchaseAnswer,
        PurchaseRequest,
        QuoteTerms,
        RestartAnswer,
        RestartRequest,
        SaveLogsAnswer,
        SaveLogsRequest,
        StartWorkloadsAnswer,
        StartWorkloadsRequest,
    )
    from garrison.models.queues import provider_queue

QUICK = timedelta(seconds=30)
CALL = timedelta(minutes=5)
QUOTE_RETRY = RetryPolicy(maximum_attempts=4, maximum_interval=timedelta(seconds=5))
PATIENT = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))
EAGER = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=5)
)
ONCE = RetryPolicy(maximum_attempts=1)


def read_terms() -> ActivityHandle[QuoteTerms]:
    """Read what the installation allows and configures."""
    return workflow.start_local_activity_method(
        InstallationActivities.quote_terms, start_to_close_timeout=QUICK
    )


def read_terms_as_task() -> ActivityHandle[QuoteTerms]:
    """Read the same by an ordinary activity, for entities that are told things from their start.

    A signal that comes while a local activity runs is handled before its end, and a replay
    handles it after it (temporalio 1.35): what follows could then not be replayed.
    """
    return workflow.start_activity_method(
        InstallationActivities.quote_terms,
        start_to_close_timeout=QUICK,
        retry_policy=PATIENT,
        summary="read the settings",
    )


def find_places(request: PlaceRequest) -> ActivityHandle[PlaceAnswer]:
    """Find a provider's offers for a shape."""
    return workflow.start_activity_method(
        ProviderActivities.place_cluster,
        request,
        task_queue=provider_queue(request.provider),
        start_to_close_timeout=timedelta(seconds=10),
        schedule_to_close_timeout=timedelta(seconds=45),
        retry_policy=QUOTE_RETRY,
        summary=f"offers of {request.provider}",
    )


def buy(order: PurchaseRequest, heartbeat: timedelta) -> ActivityHandle[PurchaseAnswer]:
    """Buy a group; a cancel waits for the outcome of the call."""
    group = order.request
    return workflow.start_activity_method(
        ProviderActivities.purchase_group,
        order,
        task_queue=provider_queue(order.provider),
        start_to_close_timeout=timedelta(minutes=10),
        heartbeat_timeout=heartbeat,
        retry_policy=PATIENT,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=f"buy {group.count} x {group.instance_type} in {group.region}",
    )


def prepare(request: PrepareRequest, heartbeat: timedelta) -> ActivityHandle[PrepareAnswer]:
    """Reach all nodes."""
    return workflow.start_activity_method(
        ProviderActivities.prepare_nodes,
        request,
        task_queue=provider_queue(request.provider),
        start_to_close_timeout=CALL,
        heartbeat_timeout=heartbeat,
        retry_policy=EAGER,
        cancellation_type=ActivityCancellationType.TRY_CANCEL,
        summary="reach all nodes over SSH",
    )


def start_workloads(
    request: StartWorkloadsRequest, heartbeat: timedelta
) -> ActivityHandle[StartWorkloadsAnswer]:
    """Start the command on some nodes."""
    return workflow.start_activity_method(
        WorkloadActivities.start_workloads,
        request,
        task_queue=provider_queue(request.provider),
        start_to_close_timeout=CALL,
        heartbeat_timeout=heartbeat,
        retry_policy=PATIENT,
        cancellation_type=ActivityCancellationType.TRY_CANCEL,
        summary=f"start the command on {len(request.nodes)} nodes",
    )


def restart(request: RestartRequest, heartbeat: timedelta) -> ActivityHandle[RestartAnswer]:
    """Bring one node back in place."""
    return workflow.start_activity_method(
        ProviderActivities.restart_node,
        request,
        task_queue=provider_queue(request.provider),
        start_to_close_timeout=CALL,
        heartbeat_timeout=heartbeat,
        retry_policy=PATIENT,
        cancellation_type=ActivityCancellationType.TRY_CANCEL,
        summary=f"restart node {request.rank}",
    )


def save_logs(request: SaveLogsRequest, heartbeat: timedelta) -> ActivityHandle[SaveLogsAnswer]:
    """Fetch the logs of all nodes, within bounds."""
    return workflow.start_activity_method(
        WorkloadActivities.save_logs,
        request,
        task_queue=provider_queue(request.provider),
        start_to_close_timeout=timedelta(seconds=25),
        schedule_to_close_timeout=timedelta(seconds=40),
        heartbeat_timeout=heartbeat,
        retry_policy=ONCE,
        summary="fetch the logs",
    )


def delete(request: DeleteRequest, heartbeat: timedelta) -> ActivityHandle[DeleteAnswer]:
    """Delete by token."""
    return workflow.start_activity_method(
        ProviderActivities.delete_groups,
        request,
        task_queue=provider_queue(request.provider),
        start_to_close_timeout=timedelta(minutes=2),
        heartbeat_timeout=heartbeat,
        retry_policy=ONCE,
        summary="delete by token",
    )


def ask_watch(request: LookRequest, *, deadman: bool) -> ActivityHandle[None]:
    """Ask the watch of a provider for a look."""
    return workflow.start_activity_method(
        InstallationActivities.ensure_watch,
        request,
        start_to_close_timeout=QUICK,
        retry_policy=PATIENT,
        summary="deadman probe" if deadman else f"ask the watch of {request.provider}",
    )
