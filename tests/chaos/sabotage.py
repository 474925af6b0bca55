"""What is broken on purpose, in worker processes only, to see that the harness notices.

Each breaks one thing that a promise hangs on, and no more.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity

from garrison.activities.provider import ProviderActivities
from garrison.domain import cleanup
from garrison.domain.pools import buying, seats
from garrison.errors import GarrisonError, PriceChanged
from garrison.models.cluster_messages import PurchaseRequest
from garrison.models.cluster_state import Cleanup
from garrison.models.group import Group, Node, Refusal
from garrison.models.nodepool_state import MachineState, NodepoolState
from garrison.models.offer import OfferQuery
from garrison.models.provider import ProviderFacts
from garrison.providers.simulated.provider import SimulatedProvider
from garrison.providers.simulated.workloads import PaperWorkloads

_NOTHING = timedelta(0)


def break_token() -> None:
    """Each further try of a purchase uses a new token, as if none were fixed in the workflow."""
    whole = ProviderActivities._find_or_buy

    async def find_or_buy(
        self: ProviderActivities, token: str, purchase: PurchaseRequest
    ) -> Group | Refusal:
        fresh = token if activity.info().attempt == 1 else uuid.uuid4().hex
        request = purchase.request.model_copy(update={"token": fresh})
        return await whole(self, fresh, purchase.model_copy(update={"request": request}))

    _replace(ProviderActivities, "_find_or_buy", find_or_buy)


def break_adoption() -> None:
    """A repeated purchase does not look for what was bought, at a cloud that judges prices first.

    A cloud may check a price before it looks the token up; without adoption the group that was
    bought below it is then given up as too dear.
    """

    async def find_or_buy(
        self: ProviderActivities, token: str, purchase: PurchaseRequest
    ) -> Group | Refusal:
        request = purchase.request
        if activity.info().attempt > 1:
            for offer in await self._provider.list_offers(OfferQuery()):
                same = (offer.region, offer.instance_type, offer.capacity_type) == (
                    request.region,
                    request.instance_type,
                    request.capacity_type,
                )
                if same and (offer.usd_per_hour or 0) > request.max_usd_per_node_hour:
                    raise PriceChanged(f"{offer.usd_per_hour} USD/h is above the accepted rate")
        return await self._provider.launch_group(request)

    _replace(ProviderActivities, "_find_or_buy", find_or_buy)


def break_settle() -> None:
    """Lists count as never late, and one empty list as proof."""
    read: Callable[[SimulatedProvider], ProviderFacts] = vars(SimulatedProvider)["facts"].fget

    def believing(self: SimulatedProvider) -> ProviderFacts:
        return read(self).model_copy(update={"settle": _NOTHING})

    def note_observed(proof: Cleanup, *, begun_at: Any, machines: int, facts: Any) -> Cleanup:
        after = whole(proof, begun_at=begun_at, machines=machines, facts=facts)
        return after.model_copy(update={"proven": after.empty_at is not None})

    whole = cleanup.note_observed
    _replace(SimulatedProvider, "facts", property(believing))
    _replace(cleanup, "note_observed", note_observed)


def break_terminate() -> None:
    """A delete that fails counts as done, and is not repeated, by no worker of the run."""
    whole = SimulatedProvider.terminate_group
    believed = Path(os.environ["GARRISON_DATA_DIR"]) / "believed-deleted"
    believed.mkdir(exist_ok=True)

    async def terminate_group(self: SimulatedProvider, token: str) -> None:
        if (believed / token).exists():
            return
        try:
            await whole(self, token)
        except GarrisonError:
            (believed / token).touch()

    _replace(SimulatedProvider, "terminate_group", terminate_group)


def break_limit() -> None:
    """Machines on their way out do not count against a nodepool's limit."""

    def room_left(state: NodepoolState) -> int:
        staying = [m for m in state.machines.values() if m.state is not MachineState.TERMINATING]
        most = 0 if state.spec is None else state.spec.max_instances
        return max(0, most - len(staying))

    _replace(buying, "room_left", room_left)


def break_drain() -> None:
    """A draining node goes at once, whoever has yet to acknowledge that it was left."""
    whole = seats.used_machines

    def used_machines(state: NodepoolState) -> set[str]:
        return {
            machine
            for machine in whole(state)
            if machine in state.machines
            and state.machines[machine].state is not MachineState.DRAINING
        }

    _replace(buying, "used_machines", used_machines)


def break_stop() -> None:
    """A replica that goes counts as stopped, whatever becomes of the call."""

    async def stop_workload(self: PaperWorkloads, node: Node, name: str) -> None:
        return

    _replace(PaperWorkloads, "stop_workload", stop_workload)


def _replace(owner: Any, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} to break"
    setattr(owner, name, value)


SABOTAGES: dict[str, Callable[[], None]] = {
    "token": break_token,
    "adoption": break_adoption,
    "settle": break_settle,
    "terminate": break_terminate,
    "limit": break_limit,
    "drain": break_drain,
    "stop": break_stop,
}
"""The last three are of nodepools and deployments, and `token` is of both."""
