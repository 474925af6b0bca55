"""What people and programs see of a nodepool's state."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from garrison.domain.pools.buying import idle_since
from garrison.domain.pools.life import phase_of
from garrison.domain.pools.places import waiting_seats
from garrison.domain.pools.plan import IDLE_FOR
from garrison.domain.pools.seats import seats_on
from garrison.domain.rates import rounded
from garrison.models.cluster_state import Blocked
from garrison.models.cluster_status import BlockedStatus, ErrorStatus, SshStatus
from garrison.models.group import NodeStatus
from garrison.models.nodepool import (
    NodepoolNodeStatus,
    NodepoolReplicaStatus,
    NodepoolStatus,
    PoolPhase,
)
from garrison.models.nodepool_state import Machine, MachineState, NodepoolState


def report_pool(state: NodepoolState, *, now: datetime) -> NodepoolStatus:
    """Return a nodepool as readers see it; it must have been created.

    Raises:
        ValueError: It was not.
    """
    if state.spec is None:
        raise ValueError("this nodepool was not created yet")
    return NodepoolStatus(
        id=state.id,
        compute_cluster=state.compute_cluster,
        uid=state.uid,
        phase=phase_of(state),
        spec=state.spec,
        generation=state.generation,
        observed_generation=state.observed_generation,
        provider=state.provider,
        region=state.region or None,
        owner=state.owner,
        created_at=state.created_at,
        desired=state.desired,
        ready=count_ready(state),
        pending=len(waiting_seats(state)),
        hourly_usd=hourly_usd(state),
        blocked=_blocked(state),
        last_error=_last_error(state),
        warning=warning(state, now=now),
        nodes=tuple(_node(state, machine) for machine in state.machines.values()),
        events=tuple(state.events),
    )


def count_ready(state: NodepoolState) -> int:
    """Return how many machines run and can be reached."""
    return sum(
        machine.state is MachineState.RUNNING and machine.node.status is NodeStatus.RUNNING
        for machine in state.machines.values()
    )


def hourly_usd(state: NodepoolState) -> Decimal:
    """Return what all machines cost an hour, with those on their way in or out."""
    prices = (machine.offer.offer.usd_per_hour for machine in state.machines.values())
    return rounded(sum((price for price in prices if price is not None), Decimal(0)))


def trouble_of(state: NodepoolState) -> Blocked | None:
    """Return what stops progress: of the whole pool, else of one of its machines."""
    machines = (machine.trouble for machine in state.machines.values())
    troubles = (state.blocked, state.market_trouble, *machines)
    return next((trouble for trouble in troubles if trouble is not None), None)


def warning(state: NodepoolState, *, now: datetime) -> str | None:
    """Return what a person should look at, None when there is nothing."""
    idle = idle_since(state)
    if idle is None or now < idle + IDLE_FOR:
        return None
    hours = int((now - idle).total_seconds() // 3600)
    return (
        f"no replica has used it for {hours} h, at {hourly_usd(state)} USD/h; "
        "lower min_instances and warm_instances to give the machines back"
    )


def list_reason(state: NodepoolState, *, now: datetime) -> str:
    """Return the one thing that a list says of why a pool is as it is, empty if all is well."""
    trouble = trouble_of(state)
    if trouble is not None:
        return f"{trouble.code}: {trouble.message}"
    waits = next((seat.reason for _, seat in waiting_seats(state) if seat.reason), "")
    if waits and phase_of(state) is not PoolPhase.DELETING:
        return waits
    return warning(state, now=now) or ""


def _blocked(state: NodepoolState) -> BlockedStatus | None:
    trouble = trouble_of(state)
    return BlockedStatus(**trouble.model_dump()) if trouble is not None else None


def _last_error(state: NodepoolState) -> ErrorStatus | None:
    error = state.last_error
    return None if error is None else ErrorStatus(code=error.code, message=error.message)


def _node(state: NodepoolState, machine: Machine) -> NodepoolNodeStatus:
    offer, node = machine.offer.offer, machine.node
    trouble = f"{machine.trouble.code}: {machine.trouble.message}" if machine.trouble else None
    return NodepoolNodeStatus(
        name=machine.name,
        state=machine.state,
        status=node.status,
        provider_id=node.provider_id,
        instance_type=offer.instance_type,
        zone=offer.zone,
        capacity_type=offer.capacity_type,
        fallback=machine.fallback,
        usd_per_hour=None if offer.usd_per_hour is None else rounded(offer.usd_per_hour),
        private_address=node.private_address,
        ssh=SshStatus(**node.ssh.model_dump()) if node.ssh else None,
        created_at=machine.created_at,
        ready_at=machine.ready_at,
        empty_since=machine.empty_since,
        notice_at=node.notice_at,
        notice_ends_at=node.notice_ends_at,
        message=trouble or node.message or machine.why or None,
        replicas=tuple(
            NodepoolReplicaStatus(
                deployment=state.customers[uid].demand.deployment, replica=seat.demand.replica
            )
            for uid, seat in seats_on(state, machine.name)
        ),
    )


def details_markdown(state: NodepoolState) -> str:
    """Return the phase and a table of machines, for the Temporal UI."""
    spec = state.spec
    first = [f"**{phase_of(state)}**"]
    if spec is not None:
        first += [", ".join(spec.instance_types), f"{spec.min_instances}..{spec.max_instances}"]
    first += [f"{state.provider} {state.region}"] if state.provider else []
    lines = [" · ".join([*first, f"{hourly_usd(state)} USD/h"])]
    trouble = trouble_of(state)
    if trouble is not None:
        lines.append(f"\nblocked: `{trouble.code}` {_cell(trouble.message)}")
    if state.machines:
        lines += ["", _row(*_COLUMNS), "|---" * len(_COLUMNS) + "|"]
        lines += [_row(*_cells(state, machine)) for machine in state.machines.values()]
    return "\n".join(lines)


_COLUMNS = ("node", "state", "instance type", "capacity", "replicas", "why")
_GAP = "\u2003"


def _cells(state: NodepoolState, machine: Machine) -> tuple[str, ...]:
    offer = machine.offer.offer
    kind = str(offer.capacity_type).replace("_", "-")
    fallback = f" (fallback: {machine.fallback})" if machine.fallback else ""
    count = len(seats_on(state, machine.name))
    number = str(machine.number)
    return (number, machine.state, offer.instance_type, kind + fallback, str(count), machine.why)


def _row(*cells: str) -> str:
    return "| " + " | ".join(_cell(cell) + _GAP for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
