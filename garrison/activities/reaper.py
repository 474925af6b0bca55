"""Deleting the machines of a life that is over, and saving what ran on them first."""

from __future__ import annotations

import re

from temporalio import activity

from garrison.activities.log_keeper import LogKeeper
from garrison.domain.clusters.outcome import WORKLOAD
from garrison.errors import GarrisonError
from garrison.models.base import NAME_PATTERN
from garrison.models.group import Group, Node, NodeStatus
from garrison.providers.base import Provider

KEEP_LOGS_SECONDS = 10
"""How long the logs of a group can hold up its deletion."""
CLUSTER = "cluster/"


class Reaper:
    """Bound to one provider; remembers whose logs it has saved."""

    def __init__(self, provider: Provider, keeper: LogKeeper | None) -> None:
        self._provider = provider
        self._keeper = keeper
        self._logs_kept: set[str] = set()

    async def reap(self, group: Group) -> bool:
        """Delete a group; False when the provider did not, and it is to be tried again."""
        extra = {"owner": group.owner, "uid": group.uid, "token": group.token}
        await self.keep_logs(group)
        try:
            await self._provider.terminate_group(group.token)
        except GarrisonError as error:
            # The machines are still listed in the next pass, which tries again.
            activity.logger.warning("reap failed", extra={**extra, "error": str(error)})
            return False
        activity.logger.warning("reaped machines of a closed life", extra=extra)
        return True

    async def keep_logs(self, group: Group) -> None:
        """Save what ran on a closed life's nodes, once, as far as that is quick."""
        name, nodes = _cluster_of(group), [node for node in group.nodes if _has_log(node)]
        if self._keeper is None or name is None or group.token in self._logs_kept or not nodes:
            return
        workloads = self._provider.workloads
        if workloads is None:
            return
        self._logs_kept.add(group.token)
        extra: dict[str, object] = {"owner": group.owner, "token": group.token}
        try:
            outcomes = await self._keeper.keep(
                workloads,
                nodes,
                cluster=name,
                uid=group.uid,
                workload=WORKLOAD,
                whole_seconds=KEEP_LOGS_SECONDS,
            )
        except Exception:  # whatever it is, machines that cost money are not kept for a log
            activity.logger.exception("logs were not saved", extra=extra)
            return
        if failed := {rank: text for rank, text in outcomes.items() if isinstance(text, str)}:
            activity.logger.warning("logs were not saved", extra={**extra, "failed": failed})


def _cluster_of(group: Group) -> str | None:
    """Return the name for the log directory; tags are others' text, so only a plain one."""
    name = group.owner.removeprefix(CLUSTER)
    plain = all(re.fullmatch(NAME_PATTERN, text) for text in (name, group.uid))
    return name.lower() if plain and group.owner.startswith(CLUSTER) else None


def _has_log(node: Node) -> bool:
    if node.status is not NodeStatus.RUNNING:
        return False
    return node.workloads is None or any(work.name == WORKLOAD for work in node.workloads)
