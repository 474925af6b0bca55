"""The activities of a deployment, each with its queue, timeouts, retries and words.

Calls to a replica's node are given up after a while, so that the plan sees each failure and tries
again; what is told to a pool is tried until the service takes it.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.workflow import ActivityCancellationType, ActivityHandle

with workflow.unsafe.imports_passed_through():
    from garrison.activities.messages import MessageActivities
    from garrison.activities.publishing import PublishActivities
    from garrison.activities.replicas import ReplicaActivities
    from garrison.models.load import DrainAnswer, DrainRequest, Followed
    from garrison.models.placement import DemandTold, TellAnswer
    from garrison.models.queues import provider_queue
    from garrison.models.replica import (
        AwaitReplicaAnswer,
        AwaitReplicaRequest,
        StartReplicaAnswer,
        StartReplicaRequest,
        StopReplicaAnswer,
        StopReplicaRequest,
    )
    from garrison.workflows.cluster_calls import EAGER, PATIENT, QUICK

GIVE_UP = timedelta(minutes=1)
LONGEST_WAIT = timedelta(hours=24)


def tell_nodepool(told: DemandTold) -> ActivityHandle[TellAnswer]:
    """Tell a pool what is wanted of it."""
    demand = told.demand
    return workflow.start_activity_method(
        MessageActivities.tell_nodepool,
        told,
        start_to_close_timeout=QUICK,
        retry_policy=PATIENT,
        summary=f"demand {demand.generation}: {len(demand.replicas)} replicas in {told.nodepool}",
    )


def publish_load(said: Followed) -> ActivityHandle[None]:
    """Tell routers and the watch of the load how the deployment is."""
    return workflow.start_activity_method(
        PublishActivities.publish_load,
        said,
        start_to_close_timeout=QUICK,
        retry_policy=PATIENT,
        summary=f"publish {said.ready} of {said.desired} replicas",
    )


def drain_replica(request: DrainRequest, heartbeat: timedelta) -> ActivityHandle[DrainAnswer]:
    """Wait until no router has a request at a replica."""
    return workflow.start_activity_method(
        PublishActivities.drain_replica,
        request,
        start_to_close_timeout=request.within + QUICK,
        heartbeat_timeout=heartbeat,
        retry_policy=EAGER,
        cancellation_type=ActivityCancellationType.TRY_CANCEL,
        summary=f"drain {request.replica}",
    )


def start_replica(
    request: StartReplicaRequest, heartbeat: timedelta
) -> ActivityHandle[StartReplicaAnswer]:
    """Start a replica's process; a cancel waits for the outcome, as a stop may follow."""
    return workflow.start_activity_method(
        ReplicaActivities.start_replica,
        request,
        task_queue=provider_queue(request.provider),
        schedule_to_close_timeout=GIVE_UP,
        start_to_close_timeout=GIVE_UP,
        heartbeat_timeout=heartbeat,
        retry_policy=EAGER,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=f"start {request.replica}",
    )


def await_replica(
    request: AwaitReplicaRequest, heartbeat: timedelta
) -> ActivityHandle[AwaitReplicaAnswer]:
    """Wait until a replica is ready, has failed, or its time is over."""
    return workflow.start_activity_method(
        ReplicaActivities.await_replica,
        request,
        task_queue=provider_queue(request.provider),
        start_to_close_timeout=LONGEST_WAIT,
        heartbeat_timeout=heartbeat,
        retry_policy=PATIENT,
        cancellation_type=ActivityCancellationType.TRY_CANCEL,
        summary=f"wait until {request.replica} is ready",
    )


def stop_replica(
    request: StopReplicaRequest, heartbeat: timedelta
) -> ActivityHandle[StopReplicaAnswer]:
    """Stop a replica's process."""
    return workflow.start_activity_method(
        ReplicaActivities.stop_replica,
        request,
        task_queue=provider_queue(request.provider),
        schedule_to_close_timeout=GIVE_UP,
        start_to_close_timeout=GIVE_UP,
        heartbeat_timeout=heartbeat,
        retry_policy=EAGER,
        cancellation_type=ActivityCancellationType.TRY_CANCEL,
        summary=f"stop {request.replica}",
    )
