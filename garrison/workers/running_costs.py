"""What goes on costing money when the workers stop."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from temporalio.client import Client

from garrison.models.cluster_state import Phase

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
    """

    clusters: int = 0
    usd_per_hour: Decimal = Decimal(0)
    simulated: int = 0

    def sentence(self) -> str:
        """Return the line with which `up` ends."""
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


async def running_costs(client: Client) -> RunningCosts:
    """Return what the clusters of a namespace cost, from visibility and memo alone.

    Raises:
        RPCError: The service did not answer, or lacks the search attributes.
    """
    phases = ", ".join(f"'{phase}'" for phase in COSTING)
    query = (
        f"GarrisonKind = 'cluster' AND ExecutionStatus = 'Running' AND GarrisonPhase IN ({phases})"
    )
    memos = [await found.memo() async for found in client.list_workflows(query, page_size=1000)]
    return RunningCosts(
        clusters=len(memos),
        usd_per_hour=sum((Decimal(memo.get("hourly_usd") or 0) for memo in memos), Decimal(0)),
        simulated=sum(bool(memo.get("simulated")) for memo in memos),
    )


def _exact(amount: Decimal) -> str:
    whole, _, cents = f"{amount:f}".partition(".")
    return f"{whole}.{cents.rstrip('0').ljust(2, '0')}"
