"""What goes on costing money when the workers stop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from temporalio.client import Client

from garrison.errors import InvalidSpec, Problem
from garrison.models.cluster_state import Phase
from garrison.workflows.watch_report import orphan_machines

COSTING = (
    Phase.LAUNCHING,
    Phase.PROVISIONING,
    Phase.RUNNING,
    Phase.DEGRADED,
    Phase.TERMINATING,
)
"""Phases in which a cluster has, or may have, machines."""


@dataclass(frozen=True, slots=True)
class RunningCosts:
    """The living clusters that hold machines, and their rate together.

    Attributes:
        simulated: How many of them are on paper or on this machine.
        orphans: Machines that the watches saw and whose owner nobody knows.
    """

    clusters: int = 0
    usd_per_hour: Decimal = Decimal(0)
    simulated: int = 0
    orphans: int = 0

    def sentence(self) -> str:
        """Return the line with which `up` ends."""
        if not self.orphans:
            return self._of_clusters()
        what = "1 machine has" if self.orphans == 1 else f"{self.orphans} machines have"
        of_clusters = self._of_clusters() if self.clusters else "no cluster goes on"
        return f"{of_clusters}; {what} no owner that Garrison knows (garrison doctor)"

    def _of_clusters(self) -> str:
        if not self.clusters:
            return "nothing goes on costing money"
        one = self.clusters == 1
        what = "1 cluster goes on" if one else f"{self.clusters} clusters go on"
        guards = "its guard pauses" if one else "their guards pause"
        line = f"{what} at {_exact(self.usd_per_hour)} USD/h; {guards} until `garrison up`"
        if not self.simulated:
            return line
        share = "simulated" if self.simulated == self.clusters else f"{self.simulated} simulated"
        return f"{line} ({share})"


async def running_costs(client: Client, providers: Iterable[str] = ()) -> RunningCosts:
    """Return what the clusters of a namespace cost, from visibility and memo alone.

    Args:
        client: Of the namespace.
        providers: Those whose watches are asked for orphans; no worker need run for that.

    Raises:
        RPCError: The service did not answer, or lacks the search attributes.
    """
    memos = await _costing(client)
    return RunningCosts(
        clusters=len(memos),
        usd_per_hour=sum((Decimal(memo.get("hourly_usd") or 0) for memo in memos), Decimal(0)),
        simulated=sum(bool(memo.get("simulated")) for memo in memos),
        orphans=await orphan_machines(client, providers),
    )


async def check_providers(client: Client, configured: Collection[str]) -> None:
    """Return if every living cluster with machines is at a provider that is configured.

    Raises:
        InvalidSpec: A provider was removed from the settings while it has machines.
        RPCError: The service did not answer.
    """
    owners: dict[str, list[str]] = {}
    for memo in await _costing(client):
        if memo.get("provider") and memo["provider"] not in configured:
            owners.setdefault(memo["provider"], []).append(memo["name"])
    if owners:
        raise InvalidSpec(
            "a provider that still has machines cannot be removed; put it back, terminate, then go",
            problems=tuple(
                Problem(f"providers.{name}", f"is missing, and has {', '.join(sorted(clusters))}")
                for name, clusters in sorted(owners.items())
            ),
        )


async def _costing(client: Client) -> list[Mapping[str, Any]]:
    phases = ", ".join(f"'{phase}'" for phase in COSTING)
    query = (
        f"GarrisonKind = 'cluster' AND ExecutionStatus = 'Running' AND GarrisonPhase IN ({phases})"
    )
    return [await found.memo() async for found in client.list_workflows(query, page_size=1000)]


def _exact(amount: Decimal) -> str:
    whole, _, cents = f"{amount:f}".partition(".")
    return f"{whole}.{cents.rstrip('0').ljust(2, '0')}"
