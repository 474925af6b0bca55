"""The nodes of a cluster, as a client reaches them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from garrison.client.keys import ClientKeys
from garrison.domain.clusters.outcome import ENDED, WORKLOAD
from garrison.errors import ConflictPhase, NotFound, Unsupported
from garrison.models.cluster_messages import ReadLogRequest
from garrison.models.cluster_state import UP_PHASES
from garrison.models.cluster_status import ClusterNodeStatus, ClusterStatus, Connection, SshStatus
from garrison.models.group import Node, SshEndpoint

ON_PAPER = "simulated"
_SPECIAL = re.compile(r"""[\s"'\\#]""")


def connections_of(status: ClusterStatus, keys: ClientKeys) -> list[Connection]:
    """Return how to reach each node; host keys are written for the OpenSSH client."""
    ends = [node.ssh for node in status.nodes if node.ssh is not None]
    known = keys.write_known_hosts(f"{status.name}-{status.uid[:8]}", ends)
    real = status.provider_type != ON_PAPER
    keys.public_key()  # makes the key that the command names
    return [
        Connection(
            rank=node.rank,
            status=node.status,
            private_address=node.private_address,
            ssh=node.ssh,
            command=connection_command(node.ssh, keys, known) if node.ssh and real else None,
        )
        for node in status.nodes
    ]


def ssh_endpoint(status: ClusterStatus, rank: int) -> SshStatus:
    """Return where to log in to a node.

    Raises:
        NotFound: There is no such rank.
        Unsupported: The machines are on paper.
        ConflictPhase: The node has no SSH server now.
    """
    node = node_of(status, rank)
    if status.provider_type == ON_PAPER:
        raise Unsupported(f"nodes of {status.provider} are on paper: nobody can log in")
    if node.ssh is None:
        raise ConflictPhase(f"node {rank} of {status.name} is {node.status}; it has no SSH server")
    return node.ssh


def connection_command(end: SshStatus, keys: ClientKeys, known_hosts: Path) -> str:
    """Return the shell command that logs in to a node with the OpenSSH client."""
    # Not `-i`: it looks for the file under its name, and reads it under the expanded name.
    files = {"IdentityFile": str(keys.private_path), "UserKnownHostsFile": str(known_hosts)}
    options = [word for name, path in files.items() for word in ("-o", f"{name}={_quoted(path)}")]
    return shlex.join(["ssh", *options, "-p", str(end.port), f"{end.user}@{end.host}"])


def _quoted(path: str) -> str:
    """Return a path as the value of an OpenSSH option, which has quotes and tokens of its own."""
    literal = path.replace("%", "%%")
    if not _SPECIAL.search(literal):
        return literal
    escaped = literal.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def rank_ended(status: ClusterStatus, rank: int) -> bool:
    """Return whether the command of a rank has ended while the cluster is up."""
    work = node_of(status, rank).workload
    return status.phase in UP_PHASES and work is not None and work.state in ENDED


def node_of(status: ClusterStatus, rank: int) -> ClusterNodeStatus:
    """Return one node.

    Raises:
        NotFound: There is no such rank.
    """
    if not 0 <= rank < len(status.nodes):
        raise NotFound(f"cluster {status.name} has no node {rank}; it has {len(status.nodes)}")
    return status.nodes[rank]


def log_request(status: ClusterStatus, rank: int) -> ReadLogRequest:
    """Return where the log of a rank is read.

    Raises:
        NotFound: There is no such rank.
        ConflictPhase: Nothing was bought yet.
    """
    seen = node_of(status, rank)
    if status.provider is None:
        raise ConflictPhase(f"cluster {status.name} is {status.phase} and has no nodes")
    node = Node(
        rank=rank,
        provider_id=seen.provider_id or "",
        status=seen.status,
        private_address=seen.private_address,
        ssh=SshEndpoint(**seen.ssh.model_dump()) if seen.ssh else None,
    )
    return ReadLogRequest(
        provider=status.provider,
        cluster=status.name,
        uid=status.uid,
        workload=WORKLOAD,
        rank=rank,
        node=node if seen.provider_id else None,
    )
