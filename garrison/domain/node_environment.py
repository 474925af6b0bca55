"""What every node is told about its cluster.

The names are those that `torchrun`, MPI launchers and their users expect.
"""

from __future__ import annotations

from collections.abc import Sequence

from garrison.models.cluster_state import ClusterNode

MASTER_PORT = 29500
RESERVED = frozenset(
    {
        "NODE_RANK",
        "NUM_NODES",
        "NODE_ADDRS",
        "NODE_ADDR",
        "MASTER_ADDR",
        "MASTER_PORT",
        "GPUS_PER_NODE",
        "NUM_GPUS",
        "HOSTFILE",
        "GARRISON_CLUSTER",
    }
)
"""Set by Garrison on every node; `HOSTFILE` is a path and is set by the node's supervisor."""


def node_environment(
    nodes: Sequence[ClusterNode], rank: int, *, cluster: str, gpus_per_node: int
) -> dict[str, str]:
    """Return the variables of one node; `HOSTFILE` is added where the file is written.

    Args:
        nodes: All nodes, in rank order, with their interconnect addresses.
        rank: The node that it is for.
        cluster: Name of the cluster.
        gpus_per_node: 0 on CPU machines.
    """
    addresses = [node.private_address or "" for node in nodes]
    first = nodes[0].first_port
    return {
        "NODE_RANK": str(rank),
        "NUM_NODES": str(len(nodes)),
        "NODE_ADDRS": "\n".join(addresses),
        "NODE_ADDR": addresses[rank],
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(MASTER_PORT if first is None else first),
        "GPUS_PER_NODE": str(gpus_per_node),
        "NUM_GPUS": str(gpus_per_node * len(nodes)),
        "GARRISON_CLUSTER": cluster,
    }


def hostfile(nodes: Sequence[ClusterNode], *, gpus_per_node: int) -> str:
    """Return an MPI host file: one address a line, with a slot for each GPU (or one)."""
    slots = max(gpus_per_node, 1)
    return "".join(f"{node.private_address} slots={slots}\n" for node in nodes)
