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

LOCAL = "local"
_GUARDS = "their guards pause"


@dataclass(frozen=True, slots=True)
class RunningCosts:
    """The living clusters and nodepools that hold machines, and their rate together.

    Attributes:
        simulated: How many of them are on paper, `local` those on this machine.
        orphans: Machines that the watches saw and whose owner nobody knows.
    """

    clusters: int = 0
    usd_per_hour: Decimal = Decimal(0)
    simulated: int = 0
    orphans: int = 0
    nodepools: int = 0
    local: int = 0

    def sentence(self) -> str:
        """Return the line with which `up` ends."""
        if not self.orphans:
            return self._of_owners()
        what = "1 machine has" if self.orphans == 1 else f"{self.orphans} machines have"
        of_owners = self._of_owners() if self._owners else "no cluster goes on"
        return f"{of_owners}; {what} no owner that Garrison knows (garrison doctor)"

    @property
    def _owners(self) -> int:
        return self.clusters + self.nodepools

    def _of_owners(self) -> str:
        if not self._owners:
            return "nothing goes on costing money"
        kinds = {"cluster": self.clusters, "nodepool": self.nodepools}
        who = " and ".join(f"{n} {kind}{'s' * (n != 1)}" for kind, n in kinds.items() if n)
        verb, guards = ("goes", "its guard pauses") if self._owners == 1 else ("go", _GUARDS)
        line = f"{who} {verb} on at {_exact(self.usd_per_hour)} USD/h; {guards} until `garrison up`"
        marks = {"simulated": self.simulated, "on this machine": self.local}
        shares = [mark if n == self._owners else f"{n} {mark}" for mark, n in marks.items() if n]
        return f"{line} ({', '.join(shares)})" if shares else line


async def running_costs(client: Client, providers: Iterable[str] = ()) -> RunningCosts:
    """Return what the clusters of a namespace cost, from visibility and memo alone.

    Args:
        client: Of the namespace.
        providers: Those whose watches are asked for orphans; no worker need run for that.

    Raises:
        RPCError: The service did not answer, or lacks the search attributes.
    """
    clusters, pools = await _clusters(client), await _nodepools(client)
    memos = [*clusters, *pools]
    return RunningCosts(
        clusters=len(clusters),
        nodepools=len(pools),
        usd_per_hour=sum((Decimal(memo.get("hourly_usd") or 0) for memo in memos), Decimal(0)),
        simulated=sum(_is_marked(memo) and memo.get("provider_type") != LOCAL for memo in memos),
        local=sum(_is_marked(memo) and memo.get("provider_type") == LOCAL for memo in memos),
        orphans=await orphan_machines(client, providers),
    )


async def check_providers(client: Client, configured: Collection[str]) -> None:
    """Return if every living owner of machines is at a provider that is configured.

    Raises:
        InvalidSpec: A provider was removed from the settings while it has machines.
        RPCError: The service did not answer.
    """
    owners: dict[str, list[str]] = {}
    for memo in [*await _clusters(client), *await _nodepools(client)]:
        if memo.get("provider") and memo["provider"] not in configured:
            owners.setdefault(memo["provider"], []).append(memo.get("name") or memo["id"])
    if owners:
        raise InvalidSpec(
            "a provider that still has machines cannot be removed; put it back, terminate, then go",
            problems=tuple(
                Problem(f"providers.{name}", f"is missing, and has {', '.join(sorted(clusters))}")
                for name, clusters in sorted(owners.items())
            ),
        )


async def _clusters(client: Client) -> list[Mapping[str, Any]]:
    phases = ", ".join(f"'{phase}'" for phase in COSTING)
    return await _memos(client, f"GarrisonKind = 'cluster' AND GarrisonPhase IN ({phases})")


async def _nodepools(client: Client) -> list[Mapping[str, Any]]:
    return [memo for memo in await _memos(client, "GarrisonKind = 'nodepool'") if memo.get("nodes")]


def _is_marked(memo: Mapping[str, Any]) -> bool:
    """Return whether the machines of an owner are no cloud's: on paper, or on this machine."""
    return bool(memo.get("simulated"))


async def _memos(client: Client, query: str) -> list[Mapping[str, Any]]:
    running = f"{query} AND ExecutionStatus = 'Running'"
    return [await found.memo() async for found in client.list_workflows(running, page_size=1000)]


def _exact(amount: Decimal) -> str:
    whole, _, cents = f"{amount:f}".partition(".")
    return f"{whole}.{cents.rstrip('0').ljust(2, '0')}"
