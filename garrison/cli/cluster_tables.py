"""Clusters and quotes as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from garrison.cli.output import facts, line, state, table_of
from garrison.cli.text import NONE, cost, number, span, usd, when
from garrison.models.cluster_state import ClusterEvent, Phase
from garrison.models.cluster_status import (
    ClusterNodeStatus,
    ClusterRow,
    ClusterStatus,
    Connection,
    PurchaseStatus,
    QuoteStatus,
)
from garrison.models.offer import Offer
from garrison.models.quote import QuotePart

MARKS = {"local": "(this machine)"}
SIMULATED = "(simulated)"
LAST_EVENTS = 10
SHORT_CONSIDERED = 4


def shape(nodes: int, gpus_per_node: int, accelerator: str | None) -> str:
    """Return `2 x 8 H100`."""
    per_node = f"{gpus_per_node} {accelerator or 'GPU'}" if gpus_per_node else "CPU"
    return f"{nodes} x {per_node}"


def marked(text: str | None, simulated: bool, kind: str | None) -> str:
    """Return text, saying so when the machines are on paper or on this computer.

    Args:
        text: Provider or place.
        simulated: Whether a mark is due.
        kind: The provider's adapter.
    """
    plain = text or NONE
    return f"{plain} {MARKS.get(kind or '', SIMULATED)}" if simulated else plain


def place(offer: Offer) -> str:
    """Return where an offer is: provider, region, zone."""
    return " ".join(part for part in (offer.provider, offer.region, offer.zone) if part)


def list_table(rows: Sequence[ClusterRow]) -> list[RenderableType]:
    """Return one row per cluster."""
    if not rows:
        return [line("no clusters; `garrison cluster up -f FILE` makes one")]
    columns = (
        "NAME",
        "PHASE",
        "SHAPE",
        "PROVIDER",
        "REGION",
        "INSTANCE TYPE",
        "$ /h",
        "$ COST",
        "OWNER",
        "CREATED",
        "READY",
        "LAST ERROR",
    )
    return [table_of(columns, [_list_row(row) for row in rows])]


def _list_row(row: ClusterRow) -> list[str | Text]:
    return [
        row.name,
        state(row.phase),
        row.shape or NONE,
        marked(row.provider, row.simulated, row.provider_type),
        row.region or NONE,
        row.instance_type or NONE,
        usd(row.hourly_usd, unknown=NONE),
        NONE if row.cost_usd is None else cost(row.cost_usd),
        row.owner or NONE,
        when(row.created_at),
        when(row.ready_at),
        row.last_error or NONE,
    ]


def status_tables(status: ClusterStatus) -> Iterable[RenderableType]:
    """Return all that a person wants to know of one cluster."""
    yield facts(_facts(status))
    if status.nodes:
        yield line("")
        yield node_table(status)
    if len(status.purchases) > 1:
        yield line("")
        yield purchases_table(status.purchases)
    if status.events:
        yield line("")
        yield events_table(status.events[-LAST_EVENTS:])


def _facts(status: ClusterStatus) -> list[tuple[str, str | Text]]:
    where = " ".join(dict.fromkeys(filter(None, (status.provider, status.region, status.zone))))
    return [
        ("name", status.name),
        ("uid", status.uid),
        ("phase", state(status.phase)),
        ("shape", shape(status.nodes_wanted, status.gpus_per_node, status.accelerator)),
        ("place", marked(where, status.simulated, status.provider_type)),
        ("instance type", status.instance_type or ""),
        ("capacity type", str(status.capacity_type or "")),
        ("$ /h", _rate(status)),
        ("cost", _cost(status)),
        ("account", status.account),
        ("owner", status.owner),
        ("volume", status.volume or ""),
        *_times(status),
        ("recovery", recovery_text(status)),
        ("blocked", _blocked(status)),
        ("last error", _last_error(status)),
    ]


def _rate(status: ClusterStatus) -> str:
    if status.hourly_usd is None:
        return ""
    paid = status.provider_hourly_usd
    other = f" (the provider charges {usd(paid)})" if paid not in {None, status.hourly_usd} else ""
    return usd(status.hourly_usd) + other


def _cost(status: ClusterStatus) -> str:
    going = f" and counting since {when(status.charging_since)}" if status.charging_since else ""
    until = f" until {when(status.billed_until)}" if status.billed_until else ""
    return f"{cost(status.cost_usd)} USD{until or going}"


def _times(status: ClusterStatus) -> list[tuple[str, str | Text]]:
    expires = status.expires_at if status.phase in {Phase.QUOTED, Phase.EXPIRED} else None
    times = {
        "created": status.created_at,
        "quote expires" if status.phase is Phase.QUOTED else "quote expired": expires,
        "ready": status.ready_at,
        "terminate accepted": status.terminate_accepted_at,
        "ended": status.ended_at,
    }
    return [(name, when(time)) for name, time in times.items() if time is not None]


def recovery_text(status: ClusterStatus) -> str:
    """Return where recovery stands, in one line."""
    recovery = status.recovery
    parts = ["automatic" if recovery.automatic else "off"]
    if recovery.episode is not None:
        parts.append(
            f"episode {recovery.episode}: {recovery.attempts} of {recovery.max_attempts} attempts"
        )
    else:
        parts.append(f"at most {recovery.max_attempts} attempts per episode")
    if recovery.in_progress:
        parts.append("one in progress")
    if recovery.next_attempt_at is not None:
        parts.append(f"next at {when(recovery.next_attempt_at)}")
    if recovery.healthy_since is not None:
        parts.append(f"healthy since {when(recovery.healthy_since)}")
    else:
        parts += [text for text in (recovery.reason, recovery.last_error) if text]
    return "; ".join(parts)


def _blocked(status: ClusterStatus) -> str:
    blocked = status.blocked
    if blocked is None:
        return ""
    return (
        f"{blocked.code}: {blocked.message} (since {when(blocked.since)}, {blocked.tries} tries,"
        f" again at {when(blocked.retry_at)})"
    )


def _last_error(status: ClusterStatus) -> str:
    error = status.last_error
    return "" if error is None else f"{error.code}: {error.message}"


def node_table(status: ClusterStatus) -> Table:
    """Return one row per node."""
    columns = ["#RANK", "STATUS", "ID", "ADDRESS", "#RESTARTS", "WORKLOAD"]
    rows = [_node_row(node) for node in status.nodes]
    messages = [_message(node) for node in status.nodes]
    if any(messages):
        columns.append("MESSAGE")
        rows = [[*row, message] for row, message in zip(rows, messages, strict=True)]
    return table_of(columns, rows, wraps="MESSAGE")


def _message(node: ClusterNodeStatus) -> str:
    return node.message or (node.workload.message if node.workload else None) or ""


def _node_row(node: ClusterNodeStatus) -> list[str | Text]:
    return [
        str(node.rank),
        state(node.status),
        node.provider_id or NONE,
        node.private_address or NONE,
        str(node.restarts),
        _workload(node),
    ]


def _workload(node: ClusterNodeStatus) -> str | Text:
    work = node.workload
    if work is None:
        return NONE
    notes = [f"exit {work.exit_code}"] if work.exit_code is not None else []
    notes += [f"{work.restarts} restarts"] if work.restarts else []
    text = state(work.state)
    return text.append(f" ({', '.join(notes)})", style="default") if notes else text


def purchases_table(purchases: Sequence[PurchaseStatus]) -> Table:
    """Return every place that was tried, in order."""
    rows = [
        [
            str(number),
            purchase.provider,
            purchase.region or NONE,
            purchase.instance_type,
            str(purchase.code or NONE),
            purchase.answer or NONE,
        ]
        for number, purchase in enumerate(purchases, start=1)
    ]
    columns = ("#TRY", "PROVIDER", "REGION", "INSTANCE TYPE", "CODE", "ANSWER")
    return table_of(columns, rows, wraps="ANSWER")


def events_table(events: Sequence[ClusterEvent]) -> Table:
    """Return events, oldest first."""
    rows = [
        [
            when(event.time),
            NONE if event.node is None else str(event.node),
            event.reason,
            event.by,
            event.message,
        ]
        for event in events
    ]
    return table_of(("TIME", "#NODE", "REASON", "BY", "MESSAGE"), rows, wraps="MESSAGE")


def connections_table(connections: Sequence[Connection]) -> Table:
    """Return how to log in to each node."""
    rows: list[list[str | Text]] = [
        [
            str(connection.rank),
            state(connection.status),
            connection.private_address or NONE,
            connection.command or NONE,
        ]
        for connection in connections
    ]
    return table_of(("#RANK", "STATUS", "ADDRESS", "COMMAND"), rows)


def quote_tables(quote: QuoteStatus, *, verbose: bool = False) -> Iterable[RenderableType]:
    """Return a price in parts, with all that a person needs to accept it."""
    offer = quote.offer
    what = shape(quote.nodes, quote.gpus_per_node, offer.accelerator)
    where = marked(f"{place(offer)} {offer.instance_type}", offer.simulated, offer.provider_type)
    yield line(f"{quote.name}: {what}, {where}")
    yield table_of(("PART", "#QUANTITY", "$ /unit/h", "$ /h"), _quote_rows(quote))
    left = quote.expires_at - datetime.now(UTC)
    yield facts(
        [
            ("availability", quote.availability),
            ("capacity type", str(offer.capacity_type)),
            ("price from", " ".join(part for part in (offer.source, offer.as_of) if part)),
            ("expires", f"{when(quote.expires_at)} (in {span(left)})"),
            ("quote id", quote.quote_id),
            ("uid", quote.uid),
            ("failover", _alternatives(quote)),
        ]
    )
    if quote.considered:
        yield from _considered(quote, verbose=verbose)


def _quote_rows(quote: QuoteStatus) -> list[list[str | Text]]:
    rows: list[list[str | Text]] = [_part_row(part) for part in quote.parts]
    total = "at most" if quote.at_most else ""
    rows.append([Text("total", style="bold"), "", total, usd(quote.hourly_usd)])
    return rows


def _part_row(part: QuotePart) -> list[str | Text]:
    amount = f"{number(part.quantity)} {part.unit}"
    if part.included:
        return [part.what, amount, "", "included"]
    return [part.what, amount, usd(part.unit_usd_per_hour), usd(part.usd_per_hour)]


def _alternatives(quote: QuoteStatus) -> str:
    places = [f"{place(offer)} {offer.instance_type}" for offer in quote.alternatives]
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return ", ".join(places[:3]) + more


def _considered(quote: QuoteStatus, *, verbose: bool) -> Iterable[RenderableType]:
    listed = quote.considered if verbose else quote.considered[:SHORT_CONSIDERED]
    rows = [[seen.offer, usd(seen.usd_per_hour), seen.verdict] for seen in listed]
    yield line("")
    yield table_of(("CONSIDERED", "$ /h", "VERDICT"), rows, wraps="VERDICT")
    hidden = len(quote.considered) - len(listed)
    if hidden:
        yield line(f"and {hidden} more offers; -v shows all")
