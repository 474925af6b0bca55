"""What the observer of a provider last said of itself, read from the service alone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from pydantic import ValidationError
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from garrison.models.observation import WatchReport

RPC_TIMEOUT = timedelta(seconds=5)


async def read_report(client: Client, provider: str) -> WatchReport | None:
    """Return the last report of a provider's watch; None when it has made none.

    Raises:
        RPCError: The service did not answer.
    """
    handle = client.get_workflow_handle(f"watch/{provider}")
    try:
        found = await handle.describe(rpc_timeout=RPC_TIMEOUT)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    return await report_in(client, found)


async def report_in(client: Client, found: WorkflowExecutionDescription) -> WatchReport | None:
    """Return the report in a watch's description; no worker is asked, so it can be old."""
    for pending in found.raw_description.pending_activities:
        details = await client.data_converter.decode(pending.heartbeat_details.payloads)
        if details and isinstance(details[0], dict):
            try:
                return WatchReport.model_validate(details[0])
            except ValidationError:
                return None  # of another version
    return None


async def orphan_machines(client: Client, providers: Iterable[str]) -> int:
    """Return how many machines nobody is known to own, by the last reports.

    Raises:
        RPCError: The service did not answer.
    """
    reports = [await read_report(client, provider) for provider in providers]
    return sum(report.orphan_machines for report in reports if report is not None)
