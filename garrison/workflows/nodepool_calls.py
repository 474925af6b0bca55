"""The activities of a nodepool that a cluster does not have; the others are in `cluster_calls`."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityHandle

with workflow.unsafe.imports_passed_through():
    from garrison.activities.messages import MessageActivities
    from garrison.activities.pool import PoolActivities
    from garrison.models.cluster_messages import DeleteAnswer, PurchaseAnswer, PurchaseRequest
    from garrison.models.compute_cluster import JoinAnswer
    from garrison.models.membership import MembershipAsked, NodepoolDeletion
    from garrison.models.nodepool import MachineDeletion, PoolOffersAnswer, PoolOffersRequest
    from garrison.models.placement import PlacementsTold, TellAnswer
    from garrison.models.queues import provider_queue
    from garrison.workflows.cluster_calls import ONCE, PATIENT, QUICK, QUOTE_RETRY

EAGER = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)
)
"""For calls of the Temporal service itself, which meet an entity between two runs now and then."""


def join(asked: MembershipAsked) -> ActivityHandle[JoinAnswer]:
    """Enter the compute cluster."""
    return workflow.start_activity_method(
        MessageActivities.join_compute_cluster,
        asked,
        start_to_close_timeout=QUICK,
        retry_policy=EAGER,
        summary=f"join {asked.compute_cluster}",
    )


def leave(asked: MembershipAsked) -> ActivityHandle[TellAnswer]:
    """Leave the compute cluster."""
    return workflow.start_activity_method(
        MessageActivities.leave_compute_cluster,
        asked,
        start_to_close_timeout=QUICK,
        retry_policy=EAGER,
        summary=f"leave {asked.compute_cluster}",
    )


def tell_deployment(told: PlacementsTold) -> ActivityHandle[TellAnswer]:
    """Tell a deployment where its replicas are."""
    return workflow.start_activity_method(
        MessageActivities.tell_deployment,
        told,
        start_to_close_timeout=QUICK,
        retry_policy=EAGER,
        summary=f"tell {told.deployment}",
    )


def delete_nodepool(asked: NodepoolDeletion) -> ActivityHandle[TellAnswer]:
    """Delete a nodepool together with its compute cluster."""
    return workflow.start_activity_method(
        MessageActivities.delete_nodepool,
        asked,
        start_to_close_timeout=QUICK,
        retry_policy=EAGER,
        summary=f"delete {asked.nodepool}",
    )


def find_offers(request: PoolOffersRequest) -> ActivityHandle[PoolOffersAnswer]:
    """Ask a provider what can be bought."""
    return workflow.start_activity_method(
        PoolActivities.pool_offers,
        request,
        task_queue=provider_queue(request.provider),
        start_to_close_timeout=timedelta(seconds=30),
        schedule_to_close_timeout=timedelta(minutes=2),
        retry_policy=QUOTE_RETRY,
        summary=f"prices of {request.provider}",
    )


def delete(deletion: MachineDeletion, heartbeat: timedelta) -> ActivityHandle[DeleteAnswer]:
    """Delete a machine by its token."""
    return workflow.start_activity_method(
        PoolActivities.delete_machine,
        deletion,
        task_queue=provider_queue(deletion.request.provider),
        start_to_close_timeout=timedelta(minutes=2),
        heartbeat_timeout=heartbeat,
        retry_policy=ONCE,
        summary="delete by token",
    )


def buy(order: PurchaseRequest, heartbeat: timedelta) -> ActivityHandle[PurchaseAnswer]:
    """Buy one machine; a cancel waits for the outcome of the call."""
    one = order.request
    return workflow.start_activity_method(
        PoolActivities.buy_machine,
        order,
        task_queue=provider_queue(order.provider),
        start_to_close_timeout=timedelta(minutes=10),
        heartbeat_timeout=heartbeat,
        retry_policy=PATIENT,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=f"buy {one.instance_type} ({one.capacity_type}) in {one.region}",
    )
