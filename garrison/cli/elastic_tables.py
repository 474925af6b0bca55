"""Compute clusters, nodepools and deployments as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from decimal import Decimal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from garrison.cli.cluster_tables import LAST_EVENTS, marked
from garrison.cli.output import facts, line, state, table_of
from garrison.cli.text import NONE, counted, shortened, span, usd, when
from garrison.models.cluster_status import BlockedStatus, ErrorStatus
from garrison.models.compute_cluster import PRIVATE, ComputeClusterStatus
from garrison.models.deployment import DeploymentStatus, LoadKind, ReplicaStatus
from garrison.models.elastic_rows import ComputeClusterRow, DeploymentRow, NodepoolRow
from garrison.models.nodepool import NodepoolNodeStatus, NodepoolStatus, PoolEvent
from garrison.models.offer import CapacityType

Facts = list[tuple[str, str | Text]]

SHELL = "/bin/sh -c "
"""What a command begins with that was written as one line."""
LONGEST_MODEL = 40
"""Characters of a model or command in a list; `get` shows all of it."""


def compute_cluster_list(rows: Sequence[ComputeClusterRow]) -> list[RenderableType]:
    """Return one row per compute cluster."""
    if not rows:
        return [line("no compute clusters; `garrison computecluster create ID --config FILE`")]
    columns = ("ID", "PHASE", "PROVIDER", "REGION", "NODEPOOLS", "$ /h", "OWNER", "DESCRIPTION")
    return [table_of(columns, [_compute_cluster_row(row) for row in rows])]


def _compute_cluster_row(row: ComputeClusterRow) -> list[str | Text]:
    return [
        row.id,
        state(row.phase),
        row.provider or NONE,
        row.region or NONE,
        ", ".join(row.nodepools) or NONE,
        usd(row.hourly_usd),
        row.owner or NONE,
        row.description or NONE,
    ]


def compute_cluster_tables(status: ComputeClusterStatus) -> Iterable[RenderableType]:
    """Return all that a person wants to know of one compute cluster."""
    yield facts(
        [
            ("id", status.id),
            ("uid", status.uid),
            ("phase", state(status.phase)),
            ("place", f"{status.provider} {status.region}"),
            ("description", status.description),
            ("cluster type", status.cluster_type),
            ("managed by", status.managed_by),
            ("visibility", _visibility(status.visibility)),
            ("owner", status.owner),
            ("created", when(status.created_at)),
            ("nodepools", ", ".join(status.nodepools) or NONE),
        ]
    )


def nodepool_list(rows: Sequence[NodepoolRow]) -> list[RenderableType]:
    """Return one row per nodepool."""
    if not rows:
        return [line("no nodepools; `garrison nodepool create COMPUTECLUSTER ID --config FILE`")]
    columns = (
        *("ID", "COMPUTE_CLUSTER", "PHASE", "PLACE", "INSTANCE_TYPES", "CAPACITY", "MIN/MAX"),
        *("READY/DESIRED", "#PENDING", "$ /h", "REASON"),
    )
    return [table_of(columns, [_nodepool_row(row) for row in rows], wraps="REASON")]


def _nodepool_row(row: NodepoolRow) -> list[str | Text]:
    place = " ".join(filter(None, (row.provider, row.region)))
    return [
        row.id,
        row.compute_cluster,
        state(row.phase),
        marked(place, row.simulated, row.provider_type),
        ", ".join(row.instance_types) or NONE,
        capacity(row.capacity_types),
        f"{row.min_instances}/{row.max_instances}",
        f"{row.ready}/{row.desired}",
        str(row.pending),
        usd(row.hourly_usd),
        row.reason or NONE,
    ]


def capacity(kinds: Sequence[CapacityType]) -> str:
    """Return how machines are bought, the first choice first."""
    ordered = sorted(kinds, key=lambda kind: kind is not CapacityType.SPOT)
    return ", ".join(str(kind).replace("_", "-") for kind in ordered) or NONE


def nodepool_tables(status: NodepoolStatus) -> Iterable[RenderableType]:
    """Return all that a person wants to know of one nodepool."""
    yield facts(_nodepool_facts(status))
    if status.nodes:
        yield line("")
        yield pool_node_table(status.nodes)
    if status.events:
        yield line("")
        yield pool_events_table(status.events[-LAST_EVENTS:])


def _nodepool_facts(status: NodepoolStatus) -> Facts:
    spec = status.spec
    limit = spec.max_usd_per_hour
    warm = f", {spec.warm_instances} warm" if spec.warm_instances else ""
    return [
        ("id", status.id),
        ("compute cluster", status.compute_cluster),
        ("uid", status.uid),
        ("phase", state(status.phase)),
        ("place", " ".join(filter(None, (status.provider, status.region)))),
        ("description", spec.description),
        ("instance types", ", ".join(spec.instance_types)),
        ("capacity", capacity(spec.capacity_types)),
        ("machines", f"{spec.min_instances} to {spec.max_instances}{warm}"),
        ("price limit", "" if limit is None else f"{usd(limit)} USD/h each"),
        ("released after", f"{spec.release_after.total_seconds():g} s empty"),
        ("ready", _of(status.ready, status.desired)),
        ("pending", counted(status.pending, "replica") if status.pending else ""),
        ("$ /h", usd(status.hourly_usd)),
        ("visibility", _visibility(spec.visibility)),
        ("owner", status.owner),
        ("created", when(status.created_at)),
        ("warning", status.warning or ""),
        *_trouble(status.blocked, status.last_error),
    ]


def pool_node_table(nodes: Sequence[NodepoolNodeStatus]) -> Table:
    """Return one row per machine of a pool."""
    columns = (
        *("NODE", "STATE", "STATUS", "ID", "INSTANCE_TYPE", "CAPACITY", "$ /h", "ADDRESS"),
        *("REPLICAS", "MESSAGE"),
    )
    return table_of(columns, [_pool_node_row(node) for node in nodes], wraps="MESSAGE")


def _pool_node_row(node: NodepoolNodeStatus) -> list[str | Text]:
    return [
        node.name,
        state(node.state),
        state(node.status),
        node.provider_id or NONE,
        node.instance_type,
        bought_as(node),
        usd(node.usd_per_hour),
        node.private_address or NONE,
        ", ".join(replica.replica for replica in node.replicas) or NONE,
        node.message or NONE,
    ]


def bought_as(node: NodepoolNodeStatus) -> str:
    """Return how a machine was bought, and why not otherwise."""
    fallback = f" (fallback: {node.fallback})" if node.fallback else ""
    return capacity((node.capacity_type,)) + fallback


def pool_events_table(events: Sequence[PoolEvent]) -> Table:
    """Return events, oldest first."""
    rows = [
        [when(event.time), event.about or NONE, event.reason, event.by, event.message]
        for event in events
    ]
    return table_of(("TIME", "ABOUT", "REASON", "BY", "MESSAGE"), rows, wraps="MESSAGE")


def deployment_list(rows: Sequence[DeploymentRow]) -> list[RenderableType]:
    """Return one row per deployment."""
    if not rows:
        return [line("no deployments; `garrison deployment create ID --config FILE` makes one")]
    columns = (
        *("ID", "MODEL", "STATUS", "READY/DESIRED", "MIN/MAX", "NODEPOOLS", "REVISION"),
        *("$ /h", "REASON"),
    )
    return [table_of(columns, [_deployment_row(row) for row in rows], wraps="REASON")]


def _deployment_row(row: DeploymentRow) -> list[str | Text]:
    rolling = "" if row.rollout == "done" else f" ({row.rollout})"
    return [
        row.id,
        shortened(row.what.removeprefix(SHELL), LONGEST_MODEL) or NONE,
        state(row.status),
        f"{row.ready}/{row.desired}",
        f"{row.min_replicas}/{row.max_replicas}",
        ", ".join(row.nodepools) or NONE,
        f"{row.revision}{rolling}",
        usd(row.hourly_usd, unknown=NONE),
        row.reason or NONE,
    ]


def deployment_tables(status: DeploymentStatus) -> Iterable[RenderableType]:
    """Return all that a person wants to know of one deployment."""
    yield facts(_deployment_facts(status))
    if status.replicas:
        yield line("")
        yield replica_table(status.replicas)
    if status.events:
        yield line("")
        yield pool_events_table(status.events[-LAST_EVENTS:])


def _deployment_facts(status: DeploymentStatus) -> Facts:
    spec, template = status.spec, status.spec.template
    scale, boot = spec.autoscale, status.boot_seconds
    pools = [f"{pool.compute_cluster}/{pool.nodepool}" for pool in spec.nodepools]
    return [
        ("id", status.id),
        ("uid", status.uid),
        ("status", state(status.status)),
        ("description", spec.description),
        ("model", " ".join(filter(None, (template.model, template.model_version)))),
        ("image", template.image or ""),
        ("command", " ".join(template.command or ())),
        ("ready", _of(status.ready, status.desired)),
        ("replicas", f"{scale.min_replicas} to {scale.max_replicas}"),
        ("held at", "" if status.fixed is None else f"{status.fixed}, until `scale --auto`"),
        ("reason", status.reason),
        ("load", _load(status)),
        ("boot", "" if boot is None else f"{span(timedelta(seconds=boot))}, as it lately was"),
        ("rollout", _rollout(status)),
        ("nodepools", ", ".join(pools)),
        ("scheduling", spec.scheduling_choice.name.lower().replace("_", " ")),
        ("$ /h", usd(status.hourly_usd, unknown="")),
        ("visibility", _visibility(spec.visibility)),
        ("owner", status.owner),
        ("created", when(status.created_at)),
        *_trouble(status.blocked, status.last_error),
    ]


_COUNTED = {
    LoadKind.ROUTER: "counted by the router",
    LoadKind.PROMETHEUS: "by Prometheus",
    LoadKind.SCRAPE: "by the replicas' own metrics",
}


def _load(status: DeploymentStatus) -> str:
    """Return what the load asks for, and whether anything follows it."""
    source = _COUNTED[status.load_source]
    if status.demand is None:
        return f"not known yet, {source}" if status.autoscaled else ""
    held = "" if status.autoscaled else "; not followed"
    return f"{status.demand:.3g} replicas needed when the count last changed, {source}{held}"


def _rollout(status: DeploymentStatus) -> str:
    rollout = status.rollout
    why = f": {rollout.reason}" if rollout.reason else ""
    going = f", {counted(rollout.updated, 'replica')} ready" if rollout.state != "done" else ""
    return f"revision {rollout.revision} {rollout.state}{going}{why}"


def replica_table(replicas: Sequence[ReplicaStatus]) -> Table:
    """Return one row per replica."""
    columns = (
        *("REPLICA", "STATE", "#REVISION", "NODEPOOL", "NODE", "ENDPOINT", "#RESTARTS"),
        "REASON",
    )
    rows: list[list[str | Text]] = [
        [
            replica.name,
            state(replica.state),
            str(replica.revision),
            replica.nodepool or NONE,
            replica.node or NONE,
            replica.endpoint or NONE,
            str(replica.restarts),
            replica.reason or NONE,
        ]
        for replica in replicas
    ]
    return table_of(columns, rows, wraps="REASON")


def nodepool_summary(status: NodepoolStatus) -> str:
    """Return a nodepool's state in one line."""
    waiting = f"{counted(status.pending, 'replica')} waiting" if status.pending else ""
    return _joined(
        f"nodepool {status.compute_cluster}/{status.id}: {status.phase}",
        ready_of(status.ready, status.desired, "machine"),
        _others(len(status.nodes) - status.ready),
        waiting,
        f"{usd(status.hourly_usd)} USD/h" if status.hourly_usd else "",
        _blocked(status.blocked),
    )


def ready_of(ready: int, desired: int, noun: str) -> str:
    """Return how many of what is wanted is there; more can be, while it goes away."""
    if ready <= desired:
        return f"{ready} of {counted(desired, noun)} ready"
    return f"{counted(ready, noun)} ready, {desired or 'none'} wanted"


def _of(ready: int, desired: int) -> str:
    return f"{ready} of {desired}" if ready <= desired else f"{ready}, {desired or 'none'} wanted"


def _others(count: int) -> str:
    return f"{count} on their way in or out" if count > 0 else ""


def deployment_summary(status: DeploymentStatus) -> str:
    """Return a deployment's state in one line."""
    rollout = status.rollout
    rolling = f"revision {rollout.revision} {rollout.state}" if rollout.state != "done" else ""
    return _joined(
        f"deployment {status.id}: {status.status}",
        ready_of(status.ready, status.desired, "replica"),
        rolling,
        *_reasons(status.replicas),
        _blocked(status.blocked),
    )


def _reasons(replicas: Sequence[ReplicaStatus]) -> list[str]:
    told = [f"{one.state}: {one.reason}" for one in replicas if one.state != "ready" and one.reason]
    return list(dict.fromkeys(told))[:2]


def compute_cluster_summary(status: ComputeClusterStatus) -> str:
    """Return a compute cluster's state in one line."""
    left = f"{counted(len(status.nodepools), 'nodepool')} left" if status.nodepools else ""
    return _joined(f"compute cluster {status.id}: {status.phase}", left)


def nodepool_line(row: NodepoolRow) -> str:
    """Return a line of a list as one sentence, for changes."""
    return _joined(
        f"nodepool {row.compute_cluster}/{row.id}: {row.phase}",
        ready_of(row.ready, row.desired, "machine"),
        f"{counted(row.pending, 'replica')} waiting" if row.pending else "",
        f"{usd(row.hourly_usd)} USD/h" if row.hourly_usd else "",
        row.reason,
    )


def deployment_line(row: DeploymentRow) -> str:
    """Return a line of a list as one sentence, for changes."""
    rolling = f"revision {row.revision} {row.rollout}" if row.rollout != "done" else ""
    return _joined(
        f"deployment {row.id}: {row.status}",
        ready_of(row.ready, row.desired, "replica"),
        rolling,
        row.reason,
    )


def compute_cluster_line(row: ComputeClusterRow) -> str:
    """Return a line of a list as one sentence, for changes."""
    cost = f"{usd(row.hourly_usd)} USD/h" if row.hourly_usd != Decimal(0) else ""
    pools = counted(len(row.nodepools), "nodepool")
    return _joined(f"compute cluster {row.id}: {row.phase}", pools, cost)


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _visibility(number: int) -> str:
    return "" if number == PRIVATE else f"{number}, not enforced"


def _blocked(blocked: BlockedStatus | None) -> str:
    return "" if blocked is None else f"blocked by {blocked.code}: {blocked.message}"


def _trouble(blocked: BlockedStatus | None, error: ErrorStatus | None) -> Facts:
    stopped = ""
    if blocked is not None:
        stopped = (
            f"{blocked.code}: {blocked.message} (since {when(blocked.since)},"
            f" {blocked.tries} tries, again at {when(blocked.retry_at)})"
        )
    last = "" if error is None else f"{error.code}: {error.message}"
    return [("blocked", stopped), ("last error", last)]
