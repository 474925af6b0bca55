"""What is asked of a replica's node, from a deployment's state."""

from __future__ import annotations

from datetime import datetime, timedelta

from garrison.domain.deployments.replicas import node_of
from garrison.models.deployment import HealthProbe
from garrison.models.deployment_state import DeploymentState, Replica, Run, RunState
from garrison.models.group import Node
from garrison.models.replica import AwaitReplicaRequest, StartReplicaRequest, StopReplicaRequest

LOOK_WITHIN = timedelta(seconds=30)
"""How long a replica that was ready may leave a look at it unanswered."""


def address_of(node: Node) -> str | None:
    """Return the address at which workers and other replicas reach a node."""
    return node.private_address or node.public_address


def endpoint_of(replica: Replica) -> str | None:
    """Return where a replica listens on its node, None where it does not."""
    node, placement = node_of(replica), replica.placement
    if node is None or placement is None or placement.port is None:
        return None
    address = address_of(node)
    if address is None:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{placement.port}"


def replica_environment(state: DeploymentState, replica: Replica) -> dict[str, str]:
    """Return what Garrison tells a replica of its place; it goes before the user's own words."""
    node, placement = node_of(replica), replica.placement
    assert node is not None
    assert placement is not None
    address = address_of(node) or ""
    env = {
        "HOST": address,
        "NODE_ADDR": address,
        "GARRISON_DEPLOYMENT": state.id,
        "GARRISON_REPLICA": replica.id,
    }
    if placement.port is not None:
        env["PORT"] = str(placement.port)
    if placement.devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, placement.devices))
        env["GPUS_PER_NODE"] = str(len(placement.devices))  # lets a container see accelerators
    return env


def start_request(state: DeploymentState, replica: Replica) -> StartReplicaRequest:
    """Return the order to start a replica's process."""
    node, run = node_of(replica), replica.run
    assert node is not None
    assert run is not None
    template = state.templates[replica.revision]
    return StartReplicaRequest(
        provider=run.provider,
        replica=replica.id,
        generation=run.generation,
        node=node,
        command=template.command,
        image=template.image,
        sealed_env=template.env,
        env=replica_environment(state, replica),
        restart=template.restart,
        max_restarts=template.max_restarts,
    )


def await_request(
    state: DeploymentState, replica: Replica, *, now: datetime
) -> AwaitReplicaRequest:
    """Return the order to wait until a replica is ready, or to look whether it still is."""
    node, run, placement = node_of(replica), replica.run, replica.placement
    assert node is not None
    assert run is not None
    assert placement is not None
    health = state.templates[replica.revision].health
    return AwaitReplicaRequest(
        provider=run.provider,
        replica=replica.id,
        node=node,
        port=placement.port,
        health=health,
        give_up_at=_give_up_at(run, health, now),
    )


def _give_up_at(run: Run, health: HealthProbe | None, now: datetime) -> datetime:
    """One that was ready gets a moment, however long ago it was started."""
    if run.state is RunState.READY:
        return now + LOOK_WITHIN
    return run.started_at + (health or HealthProbe()).start_timeout


def stop_request(replica: Replica) -> StopReplicaRequest:
    """Return the order to stop a replica's process."""
    node, run = node_of(replica), replica.run
    assert node is not None
    assert run is not None
    return StopReplicaRequest(provider=run.provider, replica=replica.id, node=node)
