"""What is asked of activities, from a cluster's state."""

from __future__ import annotations

from datetime import datetime

from garrison.domain.clusters.outcome import WORKLOAD, restart_token
from garrison.domain.lifecycle import facts_of
from garrison.domain.node_environment import hostfile, node_environment
from garrison.domain.rates import provider_rate, rounded
from garrison.models.cluster_messages import (
    DeleteRequest,
    NodeWorkload,
    PrepareRequest,
    PurchaseRequest,
    RestartRequest,
    SaveLogsRequest,
    StartWorkloadsRequest,
)
from garrison.models.cluster_state import ClusterNode, ClusterState
from garrison.models.group import GroupRequest, Node, NodeStatus
from garrison.models.provider import WorkloadSupport


def owner_id(state: ClusterState) -> str:
    """Return the workflow id of a cluster, which its machines are tagged with."""
    return cluster_workflow_id(state.name)


def cluster_workflow_id(name: str) -> str:
    """Return the workflow id of a cluster's name: lower case, since names ignore case."""
    return f"cluster/{name.lower()}"


def purchase_request(state: ClusterState) -> PurchaseRequest:
    """Return the order of the current purchase; its token is fixed in the state."""
    purchase = state.purchases[-1]
    assert state.spec is not None
    assert state.quote is not None
    offer = purchase.offer
    facts = facts_of(state)
    asked = provider_rate(offer, state.spec.nodes)
    group = GroupRequest(
        token=purchase.token,
        owner=owner_id(state),
        uid=state.uid,
        name=state.name,
        region=offer.region or (facts.regions[0] if facts.regions else ""),
        zone=offer.zone,
        instance_type=offer.instance_type,
        capacity_type=offer.capacity_type,
        count=state.spec.nodes,
        gpus_per_node=state.quote.gpus_per_node,
        root_disk_gb=state.spec.root_disk_gb,
        # What the provider asked when it was quoted, which an own price may lie above or below.
        max_usd_per_node_hour=state.quote.node_usd_per_hour if asked is None else rounded(asked),
        ports=state.spec.ports,
        expose=state.spec.expose,
        options=dict(state.spec.provider_options.get(facts.type, {})),
    )
    return PurchaseRequest(provider=offer.provider, request=group)


def provider_node(node: ClusterNode) -> Node:
    """Return a node as its provider's adapter knows it."""
    return Node(
        rank=node.rank,
        provider_id=node.provider_id or "",
        status=node.status,
        incarnation=node.incarnation,
        private_address=node.private_address,
        public_address=node.public_address,
        first_port=node.first_port,
        ssh=node.ssh,
    )


def prepare_request(state: ClusterState) -> PrepareRequest:
    """Return the order to reach all nodes."""
    assert state.spec is not None
    assert state.quote is not None
    return PrepareRequest(
        provider=facts_of(state).name,
        owner=owner_id(state),
        nodes=tuple(map(provider_node, state.nodes)),
        authorized_keys=state.spec.ssh_keys,
        envs={node.rank: _node_env(state, node.rank) for node in state.nodes},
        hostfile=hostfile(state.nodes, gpus_per_node=state.quote.gpus_per_node),
    )


def _node_env(state: ClusterState, rank: int) -> dict[str, str]:
    gpus = state.quote.gpus_per_node if state.quote else 0
    return node_environment(state.nodes, rank, cluster=state.name, gpus_per_node=gpus)


def start_request(state: ClusterState, ranks: tuple[int, ...]) -> StartWorkloadsRequest:
    """Return the order to start the command on some ranks; env values stay sealed."""
    spec, quote = state.spec, state.quote
    assert spec is not None
    assert quote is not None
    assert spec.command is not None
    gpus = quote.gpus_per_node
    return StartWorkloadsRequest(
        provider=facts_of(state).name,
        owner=owner_id(state),
        uid=state.uid,
        name=WORKLOAD,
        generation=state.generation,
        command=spec.command,
        image=spec.image,
        sealed_env=dict(spec.env),
        hostfile=hostfile(state.nodes, gpus_per_node=gpus),
        restart=spec.restart,
        max_restarts=spec.max_restarts,
        nodes=tuple(
            NodeWorkload(
                node=provider_node(state.nodes[rank]),
                env=_node_env(state, rank),
            )
            for rank in ranks
        ),
    )


def restart_requests(state: ClusterState, ranks: tuple[int, ...]) -> list[RestartRequest]:
    """Return the restarts of the attempt under way, for the nodes that were ever made."""
    return [
        RestartRequest(
            provider=facts_of(state).name,
            owner=owner_id(state),
            uid=state.uid,
            rank=rank,
            provider_id=state.nodes[rank].provider_id or "",
            token=restart_token(state, rank),
        )
        for rank in ranks
        if state.nodes[rank].provider_id
    ]


def delete_request(state: ClusterState, look_at: datetime) -> DeleteRequest:
    """Return the order to delete everything that this life can have at the current provider.

    Also under the tokens of places that were proven empty: a machine that came there later than
    its provider promises is seen in every list, and would keep the proof from ending.
    """
    provider = facts_of(state).name
    tokens = [one.token for one in state.purchases if one.offer.provider == provider]
    return DeleteRequest(
        provider=provider,
        owner=owner_id(state),
        uid=state.uid,
        tokens=tuple(reversed(tokens)),
        look_at=look_at,
    )


def save_logs_request(state: ClusterState) -> SaveLogsRequest | None:
    """Return the order to fetch the logs, None when nothing ran that has any."""
    facts = facts_of(state)
    if state.spec is None or not state.spec.command:
        return None
    if facts.capabilities.workload is not WorkloadSupport.SSH:
        return None
    nodes = tuple(
        provider_node(node)
        for node in state.nodes
        if node.started is not None and node.status is NodeStatus.RUNNING
    )
    if not nodes:
        return None
    return SaveLogsRequest(
        provider=facts.name, cluster=state.name, uid=state.uid, workload=WORKLOAD, nodes=nodes
    )
