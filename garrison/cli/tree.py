"""The command `tree`: everything that deployments run on, with what it costs an hour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.text import Text

from garrison.cli.elastic_tables import bought_as, ready_of
from garrison.cli.output import Output, OutputOption, emit, line, state, table_of
from garrison.cli.session import connected
from garrison.cli.text import NONE, counted, usd
from garrison.models.elastic_rows import ComputeClusterBranch, NodepoolBranch, ResourceTree
from garrison.models.nodepool import NodepoolNodeStatus

INDENT = "  "
COLUMNS = ("NAME", "STATE", "WHAT", "$ /h")
Row = list[str | Text]


def tree(output: OutputOption = Output.TABLE) -> None:
    """Show compute clusters, nodepools, nodes and replicas, with prices per hour."""
    with connected() as link:
        found = link.run(link.garrison.tree())
    emit(found, output, lambda: tree_tables(found))


def tree_tables(found: ResourceTree) -> Iterable[RenderableType]:
    """Return the tree as a table, and the total."""
    if not found.compute_clusters:
        yield line("no compute clusters; `garrison computecluster create ID --config FILE`")
        return
    rows = [row for branch in found.compute_clusters for row in _branch(branch)]
    total: Row = [Text("total", style="bold"), "", "", usd(found.hourly_usd)]
    yield table_of(COLUMNS, [*rows, total], wraps="WHAT")


def _branch(branch: ComputeClusterBranch) -> Iterator[Row]:
    place = " ".join(filter(None, (branch.provider, branch.region)))
    yield [branch.id, state(branch.phase or "missing"), place or NONE, usd(branch.hourly_usd)]
    for pool in branch.nodepools:
        yield from pool_rows(pool)


def pool_rows(pool: NodepoolBranch) -> Iterator[Row]:
    """Yield a nodepool, its nodes and their replicas, one row each."""
    waiting = f", {counted(pool.pending, 'replica')} waiting" if pool.pending else ""
    what = f"{ready_of(pool.ready, pool.desired, 'machine')}{waiting}"
    yield [f"{INDENT}{pool.id}", state(pool.phase), what, usd(pool.hourly_usd)]
    for node in pool.nodes:
        yield from _node(node)


def _node(node: NodepoolNodeStatus) -> Iterator[Row]:
    what = f"{node.instance_type} {bought_as(node)}"
    yield [f"{2 * INDENT}{node.name}", state(node.state), what, usd(node.usd_per_hour)]
    for replica in node.replicas:
        name = replica.deployment.removeprefix("deployment/")
        yield [f"{3 * INDENT}{replica.replica}", "", f"replica of {name}", ""]
