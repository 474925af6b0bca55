"""What an observation means for a cluster's nodes.

An unanswered question is not an answer: a node is only `lost` or `unreachable` after complete
lists, in more than one pass, have lacked it or could not tell its state for a while. What the
provider says in so many words (stopped, terminated, failed) counts at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from garrison.models.cluster_state import ClusterEvent, ClusterNode, Doubt
from garrison.models.group import Group, Node, NodeStatus
from garrison.models.observation import Observation

GRACE = timedelta(minutes=2)
"""How long a complete list must lack a node, or not know its state, before that counts."""

PASSES = 2
"""In how many passes at least."""

GONE = frozenset({NodeStatus.TERMINATED})
DOWN = frozenset(
    {
        NodeStatus.UNREACHABLE,
        NodeStatus.STOPPED,
        NodeStatus.LOST,
        NodeStatus.TERMINATED,
        NodeStatus.FAILED,
    }
)
"""Not running, and not on the way to it."""

BOOTING = frozenset({NodeStatus.PENDING, NodeStatus.STARTING})

OFF = DOWN - {NodeStatus.UNREACHABLE}
"""Certainly not running."""


def accepts_observation(
    observation: Observation,
    *,
    uid: str,
    observed_at: datetime | None,
    call_ended_at: datetime | None,
) -> bool:
    """Return whether an observation may be believed.

    Dropped are those of another life, those not newer than the last one, and those of a pass
    that began before our own last call ended, since it may show the time before the call.
    """
    if observation.uid != uid:
        return False
    if observed_at is not None and observation.begun_at <= observed_at:
        return False
    return call_ended_at is None or observation.begun_at >= call_ended_at


def living_nodes(groups: Iterable[Group]) -> tuple[Node, ...]:
    """Return every listed machine that is not gone, whatever its state."""
    return tuple(node for group in groups for node in group.nodes if node.status not in GONE)


def listed_nodes(groups: Iterable[Group], token: str) -> dict[int, Node]:
    """Return the machines listed under one token, by rank."""
    return {node.rank: node for group in groups if group.token == token for node in group.nodes}


@dataclass(frozen=True, slots=True)
class Look:
    """Nodes after an observation, and what is worth telling."""

    nodes: list[ClusterNode]
    events: list[ClusterEvent]


def observe_nodes(
    nodes: Sequence[ClusterNode],
    observation: Observation,
    *,
    token: str,
    settled: bool,
    settle: timedelta = timedelta(0),
    now: datetime,
) -> Look:
    """Apply a believed observation to the nodes of one purchase.

    Args:
        nodes: As known so far.
        observation: A complete list that may be believed.
        token: The purchase whose nodes these are.
        settled: Whether what the list lacks means something; False until the provider's settle
            time after our last call.
        settle: How late the provider's lists can be.
        now: For the events.
    """
    listed = listed_nodes(observation.groups, token)
    after = [
        node
        if _is_past(node, listed.get(node.rank), observation.begun_at, settle)
        else _dated(node, _observe(node, listed.get(node.rank), observation.begun_at, settled), now)
        for node in nodes
    ]
    events = [
        event
        for old, new in zip(nodes, after, strict=True)
        for event in _events(old, new, observation.provider, now)
    ]
    return Look(after, events)


def _dated(old: ClusterNode, new: ClusterNode, now: datetime) -> ClusterNode:
    return new if new.status is old.status else new.model_copy(update={"since": now})


def _observe(
    node: ClusterNode, listed: Node | None, begun_at: datetime, settled: bool
) -> ClusterNode:
    if listed is None:
        return _missing(node, begun_at) if settled and node.seen else node
    known = node.model_copy(
        update={
            "seen": True,
            "provider_id": listed.provider_id,
            "private_address": listed.private_address or node.private_address,
            "public_address": listed.public_address,
            "first_port": listed.first_port,
            "ssh": _ssh(node, listed),
            "failure": listed.failure,
            "message": listed.message,
            "notice_at": listed.notice_at,
            "notice_ends_at": listed.notice_ends_at,
            "workload": listed.workloads[0] if listed.workloads else node.workload,
        }
    )
    if not settled and node.status is NodeStatus.STARTING and listed.status is NodeStatus.STOPPED:
        return node  # a late list still shows the time before our restart
    if listed.status is NodeStatus.UNKNOWN:
        return _doubted(known, missing=False, begun_at=begun_at)
    return known.model_copy(
        update={"status": listed.status, "doubt": None, "incarnation": listed.incarnation}
    )


def _is_past(node: ClusterNode, listed: Node | None, begun_at: datetime, settle: timedelta) -> bool:
    """Return whether a late list shows what is known to be over, and so says nothing new.

    That is an earlier boot, or the boot of a node that was seen running since it can be shown.
    """
    if listed is None or listed.status in {NodeStatus.UNKNOWN, *GONE}:
        return False
    if listed.incarnation != node.incarnation:
        return listed.incarnation < node.incarnation
    if node.status is not NodeStatus.RUNNING or listed.status not in BOOTING:
        return False
    return node.since is not None and begun_at < node.since + settle


def _ssh(node: ClusterNode, listed: Node) -> object:
    if listed.ssh is None:
        return node.ssh
    if node.ssh is not None and listed.ssh.host_key is None:
        return listed.ssh.model_copy(update={"host_key": node.ssh.host_key})
    return listed.ssh


def _missing(node: ClusterNode, begun_at: datetime) -> ClusterNode:
    if node.status in {NodeStatus.TERMINATED, NodeStatus.LOST}:
        return node.model_copy(update={"doubt": None})  # what it was doubted for is broken off
    return _doubted(node, missing=True, begun_at=begun_at)


def _doubted(node: ClusterNode, *, missing: bool, begun_at: datetime) -> ClusterNode:
    doubt = node.doubt
    if doubt is None or doubt.missing != missing:
        return node.model_copy(update={"doubt": Doubt(missing=missing, since=begun_at)})
    if begun_at <= (doubt.latest or doubt.since):
        return node  # this pass was counted when it was told first
    doubt = doubt.model_copy(update={"passes": doubt.passes + 1, "latest": begun_at})
    if doubt.passes >= PASSES and begun_at - doubt.since >= GRACE:
        status = NodeStatus.LOST if missing else NodeStatus.UNREACHABLE
        return node.model_copy(update={"doubt": doubt, "status": status})
    return node.model_copy(update={"doubt": doubt})


def _events(
    old: ClusterNode, new: ClusterNode, provider: str, now: datetime
) -> Iterable[ClusterEvent]:
    if new.incarnation > old.incarnation and old.seen:
        yield ClusterEvent(
            time=now,
            node=new.rank,
            reason="NodeBooted",
            message=f"node {new.rank} booted (boot {new.incarnation})",
            by=provider,
        )
    if new.notice_at is not None and new.notice_at != old.notice_at:
        yield ClusterEvent(
            time=now,
            node=new.rank,
            reason="NodeNotice",
            message=f"node {new.rank}: {notice_text(new)}",
            by=provider,
        )
    if new.status is old.status:
        return
    said = f": {new.message}" if new.message else ""
    yield ClusterEvent(
        time=now,
        node=new.rank,
        reason=f"Node{new.status.capitalize()}",
        message=f"node {new.rank} was {old.status} and is {new.status}{said}",
        by=provider,
    )


def notice_text(node: ClusterNode) -> str:
    """Return what a provider's notice says, for people: `will be taken at 12:30:00`."""
    end = node.notice_ends_at
    return "will be taken" if end is None else f"will be taken at {end:%H:%M:%S}"


def doubt_resolved_at(nodes: Iterable[ClusterNode]) -> datetime | None:
    """Return the earliest pass that can settle an open doubt, or None without doubts."""
    times = [
        node.doubt.since + GRACE
        for node in nodes
        if node.doubt is not None and node.status not in {NodeStatus.LOST, NodeStatus.UNREACHABLE}
    ]
    return min(times, default=None)


def starting_until(node: ClusterNode, timeout: timedelta) -> datetime | None:
    """Return when a node that boots by itself is given up, None for any other node."""
    if node.status not in {NodeStatus.PENDING, NodeStatus.STARTING} or node.since is None:
        return None
    return node.since + timeout


def down_ranks(nodes: Iterable[ClusterNode]) -> tuple[int, ...]:
    """Return the ranks that are not running and will not run by themselves."""
    return tuple(node.rank for node in nodes if node.status in DOWN)


def all_running(nodes: Sequence[ClusterNode]) -> bool:
    """Return whether the cluster is whole."""
    return bool(nodes) and all(node.status is NodeStatus.RUNNING for node in nodes)


def none_running(nodes: Sequence[ClusterNode]) -> bool:
    """Return whether it is certain that no node runs, so that nothing is charged."""
    return bool(nodes) and all(node.status in OFF for node in nodes)
