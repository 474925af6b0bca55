"""What is told of a watch to whoever counts: how its observer fares, and what it sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from garrison.activities.owners import Owner
from garrison.models.cluster_state import Phase
from garrison.models.group import Group
from garrison.models.nodepool import PoolPhase
from garrison.models.observation import WatchReport

MISSING = "missing"
"""The state of a node that a running cluster should have and that no list shows."""


class WatchMeter(Protocol):
    """Is told by the observers of this process."""

    def began(self, provider: str, report: WatchReport) -> None:
        """Take note that a provider is observed from here, and what was reported before."""
        ...

    def reported(self, provider: str, report: WatchReport) -> None:
        """Take the report of each heartbeat, so every few seconds, also while passes fail."""
        ...

    def counted(self, provider: str, phases: Mapping[str, int], nodes: Mapping[str, int]) -> None:
        """Take what a complete pass saw: owners by phase, nodes by state."""
        ...

    def ended(self, provider: str) -> None:
        """Take note that the provider is no longer observed from here."""
        ...


class UnmeteredWatch:
    """Tells nobody."""

    def began(self, provider: str, report: WatchReport) -> None:
        """See `WatchMeter.began`."""

    def reported(self, provider: str, report: WatchReport) -> None:
        """See `WatchMeter.reported`."""

    def counted(self, provider: str, phases: Mapping[str, int], nodes: Mapping[str, int]) -> None:
        """See `WatchMeter.counted`."""

    def ended(self, provider: str) -> None:
        """See `WatchMeter.ended`."""


def count_phases(owners: Iterable[Owner]) -> dict[str, int]:
    """Return how many owners are in each phase; those that only asked have none."""
    counts: dict[str, int] = {}
    for owner in owners:
        if owner.phase is not None:
            counts[owner.phase] = counts.get(owner.phase, 0) + 1
    return counts


def count_nodes(groups: Iterable[Group], owners: Iterable[Owner]) -> dict[str, int]:
    """Return how many nodes are in each state, by the provider's word, and how many it misses."""
    counts: dict[str, int] = {}
    listed: dict[tuple[str, str], int] = {}
    for group in groups:
        key = (group.owner, group.uid)
        listed[key] = listed.get(key, 0) + len(group.nodes)
        for node in group.nodes:
            counts[node.status] = counts.get(node.status, 0) + 1
    missing = sum(
        max(0, owner.nodes - listed.get((owner.workflow_id, owner.uid), 0))
        for owner in owners
        if owner.phase in {Phase.RUNNING, Phase.DEGRADED, PoolPhase.ACTIVE}
    )
    return {**counts, MISSING: missing} if missing else counts
