"""What the service itself says of nodepools and deployments at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from garrison.client.elastic_kinds import COMPUTE_CLUSTER, DEPLOYMENT, NODEPOOL
from garrison.client.entity import Kind
from tests.chaos.elastic_driver import ClusterDriver, DeploymentDriver, PoolDriver
from tests.chaos.elastic_facts import DeploymentLife, ElasticFacts, PoolLife
from tests.chaos.truth import Truth
from tests.chaos.witness import WITHIN

SOUND = frozenset({WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED})


async def gather_elastic_facts(
    client: Client,
    truth: Truth,
    cluster: ClusterDriver,
    pools: Sequence[PoolDriver],
    deployments: Sequence[DeploymentDriver],
) -> ElasticFacts:
    """Return what is known now, histories left out.

    Raises:
        RPCError, WorkflowQueryFailedError: The service or its workers do not answer.
    """
    lives = {
        status.uid: DeploymentLife(
            status, end, _wish(deployments, status.uid), faults=_faults(execution)
        )
        async for execution, status, end in _lives(client, DEPLOYMENT)
    }
    found = {
        status.uid: PoolLife(status, end, _wish(pools, status.uid), faults=_faults(execution))
        async for execution, status, end in _lives(client, NODEPOOL)
    }
    machines, _ = truth.books()
    askers = [cluster.asker, *(driver.asker for driver in (*pools, *deployments))]
    return ElasticFacts(
        pools=found,
        deployments=lives,
        machines=machines,
        runs=truth.runs(),
        broken=frozenset().union(*(driver.broken for driver in pools)),
        complaints=tuple(text for asker in askers for text in asker.complaints),
    )


async def has_ended(client: Client) -> bool:
    """Return whether no compute cluster lives."""
    query = f"WorkflowType = '{COMPUTE_CLUSTER.workflow}' AND ExecutionStatus = 'Running'"
    return (await client.count_workflows(query)).count == 0


async def _lives(
    client: Client, kind: Kind[Any]
) -> AsyncIterator[tuple[WorkflowExecution, Any, Any]]:
    async for execution in client.list_workflows(f"WorkflowType = '{kind.workflow}'"):
        if execution.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
            continue
        if (await execution.memo()).get(kind.phase) is None:
            continue  # nobody's `create` was accepted there; it owns nothing, and ends
        handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
        status = await handle.query("get", result_type=kind.status, rpc_timeout=WITHIN)
        yield execution, status, execution.close_time


def _wish(drivers: Iterable[Any], uid: str) -> Any:
    wishes: Mapping[str, Any] = {}
    for driver in drivers:
        wishes = {**wishes, **driver.wishes}
    return wishes.get(uid)


def _faults(execution: WorkflowExecution) -> tuple[str, ...]:
    return () if execution.status in SOUND else (f"ended as {execution.status}",)
