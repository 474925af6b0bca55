"""What a nodepool's activities are asked for."""

from __future__ import annotations

import pytest

from garrison.domain.deployments.replicas import replica_id
from garrison.domain.pools.call import delete_request
from garrison.domain.resource_ids import replica_prefix
from garrison.models.deployment_state import DeploymentState
from garrison.models.group import NodeStatus, WorkloadState, WorkloadStatus
from tests.domain.pool_world import START, PoolWorld


def world_of(*works: WorkloadStatus) -> PoolWorld:
    """A pool with one machine on which these run."""
    world = PoolWorld(max_instances=1, min_instances=1)
    world.run()
    world.work("u-0", *works)
    world.run()
    return world


def test_a_machine_is_deleted_with_the_names_of_what_still_runs_there() -> None:
    works = [WorkloadStatus(name=f"r-{state}", state=state) for state in WorkloadState]

    deletion = delete_request(world_of(*works).state, "u-0", START)

    assert deletion.replicas == ("r-running",)
    assert deletion.node is not None
    assert deletion.node.provider_id == "i-0"
    assert (deletion.request.tokens, deletion.request.look_at) == (("u-0",), START)


@pytest.mark.parametrize("status", [NodeStatus.TERMINATED, NodeStatus.UNREACHABLE])
def test_nothing_is_read_from_a_node_that_does_not_run(status: NodeStatus) -> None:
    world = world_of(WorkloadStatus(name="r-1", state=WorkloadState.RUNNING))
    world.break_node("u-0", status)

    assert delete_request(world.state, "u-0", START).node is None


@pytest.mark.parametrize("name", ["Chat", "x" * 63])
def test_a_replica_is_known_to_be_of_a_deployment_by_how_its_id_begins(name: str) -> None:
    state = DeploymentState(id=name, uid="0b5a2f5e-7d0c", created_at=START)

    assert replica_id(state, 7).startswith(replica_prefix(name))
