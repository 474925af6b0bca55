"""What people and programs see of a cluster's state."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from garrison.domain.pricing import cost_usd
from garrison.domain.rates import provider_rate
from garrison.models.billing import Meter
from garrison.models.cluster_state import ClusterNode, ClusterState, Purchase, Recovery
from garrison.models.cluster_status import (
    BlockedStatus,
    ClusterNodeStatus,
    ClusterStatus,
    ErrorStatus,
    NodeWorkloadStatus,
    PurchaseStatus,
    QuoteStatus,
    RecoveryStatus,
    SshStatus,
)
from garrison.models.offer import Offer
from garrison.models.quote import Quote

STOCK_NOTE = "for one node; whether all can be placed together is known only at launch"


def report_cluster(state: ClusterState, *, now: datetime) -> ClusterStatus:
    """Return a cluster as readers see it; `cost_usd` is as of `now`."""
    offer = current_offer(state)
    quote = state.quote
    return ClusterStatus(
        name=state.name,
        uid=state.uid,
        phase=state.phase,
        provider=offer.provider if offer else None,
        provider_type=provider_type(state),
        region=offer.region if offer else None,
        zone=offer.zone if offer else None,
        instance_type=offer.instance_type if offer else None,
        accelerator=offer.accelerator if offer else None,
        capacity_type=offer.capacity_type if offer else None,
        simulated=bool(offer and offer.simulated),
        nodes_wanted=state.spec.nodes if state.spec else 0,
        gpus_per_node=quote.gpus_per_node if quote else 0,
        hourly_usd=quote.hourly_usd if quote else None,
        provider_hourly_usd=provider_hourly_usd(state),
        cost_usd=cost_usd(state.meter, now) if state.meter else Decimal(0),
        charged_seconds=state.meter.accrued_seconds if state.meter else Decimal(0),
        charging_since=state.meter.running_since if state.meter else None,
        account=state.spec.account if state.spec else "default",
        owner=state.owner,
        quote_id=quote.quote_id if quote else None,
        created_at=state.created_at,
        quoted_at=quote.quoted_at if quote else None,
        expires_at=quote.expires_at if quote else None,
        ready_at=state.ready_at,
        billed_until=state.terminate_accepted_at if state.ready_at else None,
        ended_at=state.ended_at,
        terminate_accepted_at=state.terminate_accepted_at,
        recovery=_recovery(state.recovery),
        last_error=_error(state),
        blocked=_blocked(state),
        has_command=bool(state.spec and state.spec.command),
        nodes=tuple(map(_node, state.nodes)),
        purchases=tuple(map(_purchase, state.purchases)),
        phase_transitions=tuple(state.phase_transitions),
        events=tuple(state.events),
    )


def charge_until(status: ClusterStatus, now: datetime) -> ClusterStatus:
    """Return a status with `cost_usd` as of `now`, as a healthy cluster's workflow sleeps."""
    if status.hourly_usd is None or status.charging_since is None:
        return status
    meter = Meter(
        rate_usd_per_hour=status.hourly_usd,
        accrued_seconds=status.charged_seconds,
        running_since=status.charging_since,
    )
    return status.model_copy(update={"cost_usd": cost_usd(meter, now)})


def current_offer(state: ClusterState) -> Offer | None:
    """Return the offer of the current purchase, or of the quote."""
    if state.purchase is not None:
        return state.purchase.offer
    return state.quote.offer if state.quote else None


def provider_type(state: ClusterState) -> str | None:
    """Return the adapter of the current provider, None before a quote."""
    offer = current_offer(state)
    facts = state.quote.facts.get(offer.provider) if state.quote and offer else None
    return facts.type if facts else None


def provider_hourly_usd(state: ClusterState) -> Decimal | None:
    """Return what the provider charges an hour for what is bought now, None before that."""
    purchase = state.purchase
    if purchase is None or purchase.emptied_at is not None or state.spec is None:
        return None
    price = provider_rate(purchase.offer, state.spec.nodes)
    return None if price is None else price * state.spec.nodes


def _recovery(recovery: Recovery) -> RecoveryStatus:
    episode = recovery.episode
    return RecoveryStatus(
        automatic=recovery.automatic,
        max_attempts=recovery.max_attempts,
        episode=episode.id if episode else None,
        attempts=episode.attempts if episode else 0,
        in_progress=recovery.attempt is not None,
        next_attempt_at=episode.next_attempt_at if episode else None,
        reason=(episode.reason or None) if episode else None,
        healthy_since=episode.healthy_since if episode else None,
        last_error=episode.last_error if episode else None,
    )


def _error(state: ClusterState) -> ErrorStatus | None:
    error = state.last_error
    return None if error is None else ErrorStatus(code=error.code, message=error.message)


def _blocked(state: ClusterState) -> BlockedStatus | None:
    return BlockedStatus(**state.blocked.model_dump()) if state.blocked else None


def _node(node: ClusterNode) -> ClusterNodeStatus:
    ssh, work = node.ssh, node.workload
    return ClusterNodeStatus(
        rank=node.rank,
        status=node.status,
        provider_id=node.provider_id,
        private_address=node.private_address,
        ssh=SshStatus(**ssh.model_dump()) if ssh else None,
        restarts=node.restarts,
        message=node.message,
        workload=NodeWorkloadStatus(**work.model_dump()) if work else None,
    )


def _purchase(purchase: Purchase) -> PurchaseStatus:
    return PurchaseStatus(
        provider=purchase.offer.provider,
        region=purchase.offer.region,
        instance_type=purchase.offer.instance_type,
        answer=purchase.answer,
        code=purchase.code,
        emptied_at=purchase.emptied_at,
    )


def report_quote(state: ClusterState, quote: Quote) -> QuoteStatus:
    """Return a quote as readers see it."""
    return QuoteStatus(
        name=state.name,
        uid=state.uid,
        quote_id=quote.quote_id,
        nodes=state.spec.nodes if state.spec else 0,
        gpus_per_node=quote.gpus_per_node,
        hourly_usd=quote.hourly_usd,
        at_most=quote.at_most,
        parts=quote.parts,
        availability=f"{quote.offer.stock} ({STOCK_NOTE})",
        expires_at=quote.expires_at,
        offer=quote.offer,
        alternatives=quote.alternatives,
        considered=quote.considered,
    )


def shape_text(*, nodes: int, gpus_per_node: int, accelerator: str | None) -> str:
    """Return a cluster's shape in a few words: `2 x 8 H100`, `2 x CPU`."""
    per_node = f"{gpus_per_node} {accelerator or 'GPU'}" if gpus_per_node else "CPU"
    return f"{nodes} x {per_node}"


def state_shape(state: ClusterState) -> str:
    """Return the shape of a quoted state."""
    offer = current_offer(state)
    if offer is None or state.spec is None or state.quote is None:
        return ""
    return shape_text(
        nodes=state.spec.nodes,
        gpus_per_node=state.quote.gpus_per_node,
        accelerator=offer.accelerator,
    )


def place_text(offer: Offer, kind: str | None) -> str:
    """Return where a cluster is, each word once: `aws us-east-1 p5.48xlarge`, `local`."""
    words = dict.fromkeys(filter(None, (offer.provider, offer.region, offer.instance_type)))
    mark = {"local": " (this machine)", "simulated": " (on paper)"}.get(kind or "", "")
    return " ".join(words) + mark


def details_markdown(state: ClusterState) -> str:
    """Return the phase and a table of nodes, for the Temporal UI.

    The UI shows tables without any space between columns, so each cell brings its own.
    """
    offer = current_offer(state)
    first = [f"**{state.phase or 'not quoted'}**", state_shape(state)]
    if offer is not None:
        first.append(place_text(offer, provider_type(state)))
    if state.quote is not None:
        first.append(f"{state.quote.hourly_usd} USD/h")
    lines = [" · ".join(filter(None, first))]
    if state.blocked is not None:
        lines.append(f"\nblocked: `{state.blocked.code}` {_cell(state.blocked.message)}")
    if state.last_error is not None:
        lines.append(f"\nlast error: `{state.last_error.code}` {_cell(state.last_error.message)}")
    if state.nodes and state.purchase is not None:
        lines += ["", _row(*_COLUMNS), "|---" * len(_COLUMNS) + "|"]
        lines += [_row(*_cells(node)) for node in state.nodes]
    return "\n".join(lines)


_COLUMNS = ("node", "status", "address", "restarts", "workload")
_GAP = "\u2003"


def _cells(node: ClusterNode) -> tuple[str, ...]:
    work = node.workload
    text = "" if work is None else str(work.state)
    if work is not None and work.exit_code is not None:
        text += f" (exit {work.exit_code})"
    address = node.private_address or ""
    return (str(node.rank), node.status, address, str(node.restarts), text)


def _row(*cells: str) -> str:
    return "| " + " | ".join(_cell(cell) + _GAP for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
