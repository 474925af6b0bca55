"""What entities tell and ask each other: quick calls of the Temporal service, on the common queue.

Whether anybody lives under an id is an answer, not a failure; that the service did not answer is
one, and is tried again by the activity's retries.
"""

from __future__ import annotations

from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from garrison.errors import ErrorCode, NotFound
from garrison.models.base import Message
from garrison.models.compute_cluster import DeleteAccepted, JoinAnswer
from garrison.models.membership import MembershipAsked, NodepoolDeletion
from garrison.models.placement import DemandTold, PlacementsTold, TellAnswer

DEMAND_SIGNAL = "demand"
PLACEMENTS_SIGNAL = "placements"

_NOBODY = frozenset({RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT})
"""What says that no workflow runs, or can ever run, under an id."""

A = TypeVar("A", bound=Message)


class MessageActivities:
    """Bound to a client of the service in which the entities live."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn(name="tell_nodepool")
    async def tell_nodepool(self, told: DemandTold) -> TellAnswer:
        """Tell a pool what a deployment wants of it."""
        return await self._signal(told.nodepool, DEMAND_SIGNAL, told.demand)

    @activity.defn(name="tell_deployment")
    async def tell_deployment(self, told: PlacementsTold) -> TellAnswer:
        """Tell a deployment where its replicas are, if it is in the life that is meant."""
        if not await self._lives(told.deployment, told.placements.deployment_uid):
            return TellAnswer(found=False)
        return await self._signal(told.deployment, PLACEMENTS_SIGNAL, told.placements)

    @activity.defn(name="join_compute_cluster")
    async def join_compute_cluster(self, asked: MembershipAsked) -> JoinAnswer:
        """Enter a compute cluster.

        Raises:
            NotFound: There is none of that id.
        """
        answer = await self._update(asked.compute_cluster, "join", asked.request, JoinAnswer)
        if answer is None:
            name = asked.compute_cluster.partition("/")[2]
            raise NotFound(
                f"there is no compute cluster {name}; make it with: "
                f"garrison computecluster create {name}"
            )
        return answer

    @activity.defn(name="leave_compute_cluster")
    async def leave_compute_cluster(self, asked: MembershipAsked) -> TellAnswer:
        """Leave a compute cluster; one that is gone has nobody to leave."""
        answer = await self._update(asked.compute_cluster, "leave", asked.request, JoinAnswer)
        return TellAnswer(found=answer is not None)

    @activity.defn(name="delete_nodepool")
    async def delete_nodepool(self, asked: NodepoolDeletion) -> TellAnswer:
        """Delete a nodepool; say whether the life that is meant still has something to do."""
        if not await self._lives(asked.nodepool, asked.request.uid):
            return TellAnswer(found=False)
        answer = await self._update(asked.nodepool, "delete", asked.request, DeleteAccepted)
        return TellAnswer(found=answer is not None)

    def _handle(self, workflow_id: str) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(workflow_id)

    async def _lives(self, workflow_id: str, uid: str | None) -> bool:
        try:
            described = await self._handle(workflow_id).describe()
        except RPCError as error:
            if error.status in _NOBODY:
                return False
            raise
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return False
        return uid is None or await described.memo_value("uid", uid) == uid

    async def _signal(self, workflow_id: str, name: str, message: Message) -> TellAnswer:
        try:
            await self._handle(workflow_id).signal(name, message)
        except RPCError as error:
            if error.status in _NOBODY:
                return TellAnswer(found=False)
            raise
        return TellAnswer(found=True)

    async def _update(
        self, workflow_id: str, name: str, request: Message, kind: type[A]
    ) -> A | None:
        """Return the answer to an update, None when nobody lives there.

        One that meets its workflow between two runs is tried again by the activity's retries;
        its request id keeps it from being carried out twice.
        """
        try:
            answer: A = await self._handle(workflow_id).execute_update(
                name, request, result_type=kind
            )
        except RPCError as error:
            if error.status in _NOBODY:
                return None
            raise
        except WorkflowUpdateFailedError as error:
            if not isinstance(error.cause, ApplicationError):
                raise
            if error.cause.type == ErrorCode.NOT_FOUND:
                return None  # another life has the name now
            raise error.cause from None
        return answer
