"""Deployments as Temporal knows them: each is a workflow that is asked, and woken by a signal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowQueryRejectedError
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

from garrison.client.translation import translated
from garrison.domain.resource_ids import deployment_workflow_id
from garrison.models.deployment_state import DeploymentEndpoints
from garrison.models.load import WakeRequest

CALL_TIMEOUT = timedelta(seconds=3)
LIST = "WorkflowType = 'Deployment' AND ExecutionStatus = 'Running'"


class TemporalDirectory:
    """A `Directory`."""

    def __init__(self, client: Client) -> None:
        """Wrap a connected client.

        Args:
            client: Connected with `garrison.failures.DATA_CONVERTER`.
        """
        self._client = client

    async def running(self) -> tuple[str, ...]:
        """See `Directory.running`."""
        prefix = deployment_workflow_id("")
        with translated("list of deployments"):
            found = [one.id async for one in self._client.list_workflows(LIST)]
        return tuple(one.removeprefix(prefix) for one in found if one.startswith(prefix))

    async def endpoints(self, deployment: str) -> DeploymentEndpoints | None:
        """See `Directory.endpoints`."""
        handle = self._client.get_workflow_handle(deployment_workflow_id(deployment))
        with translated(f"deployment {deployment}"):
            try:
                told: DeploymentEndpoints = await handle.query(
                    "endpoints",
                    result_type=DeploymentEndpoints,
                    reject_condition=QueryRejectCondition.NOT_OPEN,
                    rpc_timeout=CALL_TIMEOUT,
                )
            except WorkflowQueryRejectedError:
                return None
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message:
                    return None
                raise
        return told

    async def wake(self, deployment: str, uid: str) -> None:
        """See `Directory.wake`."""
        handle = self._client.get_workflow_handle(deployment_workflow_id(deployment))
        request = WakeRequest(uid=uid, asked_at=datetime.now(UTC))
        with translated(f"deployment {deployment}"):
            await handle.signal("wake", request, rpc_timeout=CALL_TIMEOUT)
