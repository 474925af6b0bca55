"""Deleting compute clusters, nodepools and deployments: what goes is shown before it goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.text import Text

from garrison.cli.confirm import can_ask, confirm
from garrison.cli.elastic_tables import replica_table
from garrison.cli.output import Output, emit, line, show, table_of
from garrison.cli.text import usd, when
from garrison.cli.tree import COLUMNS, Row, pool_rows
from garrison.models.compute_cluster import DeleteAccepted
from garrison.models.elastic_rows import DeletePreview, DeploymentLoss


def confirm_delete(
    question: str, what: str, preview: DeletePreview, *, yes: bool, output: Output
) -> None:
    """Show what goes, to people, and have it confirmed, on a terminal only."""
    if output is Output.TABLE:
        show(preview_tables(preview))
    if not yes and can_ask():
        confirm(question, otherwise=f"{what} was left as it is")


def preview_tables(preview: DeletePreview) -> Iterable[RenderableType]:
    """Return what goes: machines with their prices, replicas, and who loses a place."""
    if preview.nodepools:
        rows = [row for pool in preview.nodepools for row in pool_rows(pool)]
        total: Row = [Text("total", style="bold"), "", "", usd(preview.hourly_usd)]
        yield table_of(COLUMNS, [*rows, total], wraps="WHAT")
    yield from (line(_sentence(loss)) for loss in preview.deployments)
    if preview.replicas:
        yield replica_table(preview.replicas)
        yield from _saved(preview)


def _sentence(loss: DeploymentLoss) -> str:
    lost = f"loses {', '.join(loss.replicas)}" if loss.replicas else "has no replica there"
    left = f"goes on in {', '.join(loss.nodepools)}" if loss.nodepools else "has no other nodepool"
    return f"deployment {loss.id} {lost}, and {left}"


def _saved(preview: DeletePreview) -> Iterator[RenderableType]:
    if preview.hourly_usd:
        yield line(f"their shares of the machines are {usd(preview.hourly_usd)} USD/h")


def print_deleted(
    noun: str, name: str, ack: DeleteAccepted, preview: DeletePreview, output: Output
) -> None:
    """Write that a deletion was accepted; programs are told with it what goes."""
    text = f"{noun} {name}: delete accepted at {when(ack.accepted_at)} (uid {ack.uid})"
    goes = preview.model_dump(mode="json", exclude={"uid"})
    emit({**ack.model_dump(mode="json"), "goes": goes}, output, lambda: [line(text)])


def print_gone(what: str, output: Output) -> None:
    """Say that a deletion is over, to people."""
    if output is Output.TABLE:
        emit([], output, lambda: [line(f"{what}: deleted")])
