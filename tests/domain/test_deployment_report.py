"""What readers see of a deployment's replicas."""

from __future__ import annotations

from garrison.domain.deployments.outcome import restart
from garrison.domain.deployments.replicas import _take_placement
from garrison.domain.deployments.report import report_deployment
from garrison.models.deployment_state import DeploymentState
from garrison.models.group import WorkloadState, WorkloadStatus
from tests.domain.test_deployment_life import NOW
from tests.domain.test_deployment_outcome import placed, with_replicas


def told(state: DeploymentState, restarts: int | None) -> int:
    """Take what a node says of the replica's process, and return the count that readers see."""
    replica = state.replicas["chat-1"]
    assert replica.placement is not None
    work = None
    if restarts is not None:
        work = WorkloadStatus(name="chat-1", state=WorkloadState.RUNNING, restarts=restarts)
    placement = replica.placement.replace(workload=work)
    _take_placement(state, "nodepool/cc/a", placement, NOW)
    return report_deployment(state).replicas[0].restarts


def test_restarts_never_go_back_when_another_process_counts_from_zero() -> None:
    state = with_replicas(1)
    placed(state, "chat-1")
    counts = [told(state, restarts) for restarts in (0, 2, None, 2, 3)]

    restart(state, "chat-1", now=NOW)
    counts += [told(state, restarts) for restarts in (3, 0, 1, None, 2)]

    assert counts == [0, 2, 2, 2, 3, 4, 4, 5, 5, 6]
