"""The noun `computecluster`: parse, call the SDK, print."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from garrison.cli.arguments import Timeout, Uid, Wait, Yes
from garrison.cli.deletion import confirm_delete, print_deleted, print_gone
from garrison.cli.elastic_arguments import (
    ComputeClusterId,
    Config,
    ConfigFile,
    Description,
    in_file,
    read_config,
    unknown,
)
from garrison.cli.elastic_tables import (
    compute_cluster_line,
    compute_cluster_list,
    compute_cluster_summary,
    compute_cluster_tables,
)
from garrison.cli.groups import Group
from garrison.cli.listing import Watch, show_list
from garrison.cli.live import live_view
from garrison.cli.output import Output, OutputOption, emit, line
from garrison.cli.session import Link, connected
from garrison.cli.waiting import wants_to_wait
from garrison.errors import InvalidSpec
from garrison.models.compute_cluster import ComputeClusterSpec, ComputeClusterStatus, DeleteAccepted
from garrison.models.elastic_file import read_compute_cluster_file
from garrison.models.problems import build

NOUN = "computecluster"

app = typer.Typer(
    cls=Group, add_completion=False, help="Providers and regions in which nodepools live."
)

Provider = Annotated[str | None, typer.Option("--provider", help="As `provider list` names it.")]
Region = Annotated[str | None, typer.Option("--region", help="One of the provider's regions.")]


@app.command()
def create(
    name: ComputeClusterId,
    config: Config = None,
    provider: Provider = None,
    region: Region = None,
    description: Description = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a compute cluster; it costs nothing."""
    flags = _given(provider=provider, region=region, description=description)
    file = _read(name, config, flags, output)
    spec = _spec(name, file, flags)
    with connected() as link, in_file(file):
        call = link.garrison.compute_clusters.create(spec)
        made = link.run(call, goes_on=unknown(NOUN, name))
    _print_made(made, "there", output)


@app.command()
def update(
    name: ComputeClusterId,
    config: Config = None,
    description: Description = None,
    visibility: Annotated[int | None, typer.Option(help="10 private, 30, 50 public.")] = None,
    uid: Uid = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change description or visibility; provider and region stay."""
    flags = _given(description=description, visibility=visibility)
    if config is None and not flags:
        raise InvalidSpec("say what to change: --config FILE, --description or --visibility")
    file = None if config is None else _read(name, config, flags, output)
    with connected() as link, in_file(file):
        clusters = link.garrison.compute_clusters
        if file is None:
            now = link.run(clusters.get(name, uid=uid)).model_dump()
            given = {key: now[key] for key in ComputeClusterSpec.model_fields}
            spec = build(ComputeClusterSpec, {**given, **flags}, what="the flags are not valid")
        else:
            spec = _spec(name, file, flags)
        made = link.run(clusters.update(spec, uid=uid), goes_on=unknown(NOUN, name))
    _print_made(made, "changed", output)


def _given(**flags: Any) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _read(
    name: str, config: str | None, flags: dict[str, Any], output: Output
) -> ConfigFile[ComputeClusterSpec] | None:
    if config is None:
        if not {"provider", "region"} <= flags.keys():
            raise InvalidSpec(
                "say where it is: --config FILE, or --provider NAME and --region REGION"
            )
        return None
    return read_config(
        config, lambda data, source: read_compute_cluster_file(data, source, name), output
    )


def _spec(
    name: str, file: ConfigFile[ComputeClusterSpec] | None, flags: dict[str, Any]
) -> ComputeClusterSpec:
    values = {"id": name} if file is None else file.value.model_dump()
    return build(ComputeClusterSpec, {**values, **flags}, what="the flags are not valid")


def _print_made(made: ComputeClusterStatus, word: str, output: Output) -> None:
    text = f"compute cluster {made.id}: {word}, {made.provider} {made.region} (uid {made.uid})"
    emit(made, output, lambda: [line(text)])


@app.command("list")
def list_compute_clusters(watch: Watch = False, output: OutputOption = Output.TABLE) -> None:
    """List compute clusters, newest first, with what their nodepools cost."""
    with connected() as link:
        show_list(
            link,
            link.garrison.compute_clusters.list,
            output,
            watch=watch,
            table=compute_cluster_list,
            name=lambda row: f"compute cluster {row.id}",
            sentence=compute_cluster_line,
        )


@app.command()
def get(name: ComputeClusterId, uid: Uid = None, output: OutputOption = Output.TABLE) -> None:
    """Show one compute cluster."""
    with connected() as link:
        found = link.run(link.garrison.compute_clusters.get(name, uid=uid))
    emit(found, output, lambda: compute_cluster_tables(found))


@app.command()
def delete(
    name: ComputeClusterId,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Its nodepools too, with all their machines.")
    ] = False,
    uid: Uid = None,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a compute cluster; refused while it has nodepools, unless --cascade."""
    waits = wants_to_wait(wait, None, timeout)
    more = " with all nodepools and machines in it" if cascade else ""
    with connected() as link:
        looked = link.garrison.deletions.compute_cluster(name, cascade=cascade, uid=uid)
        goes = link.run(looked)
        confirm_delete(f"Delete compute cluster {name}{more}", name, goes, yes=yes, output=output)
        # The life that was shown, and no successor of it.
        call = link.garrison.compute_clusters.delete(name, cascade=cascade, uid=uid or goes.uid)
        ack = link.run(call, goes_on=unknown(NOUN, name))
        print_deleted("compute cluster", name, ack, goes, output)
        if waits:
            _wait_deleted(link, name, ack, timeout, output)


def _wait_deleted(
    link: Link, name: str, ack: DeleteAccepted, timeout: Timeout, output: Output
) -> None:
    with live_view(
        f"waiting until {name} is gone",
        output,
        summary=compute_cluster_summary,
        parts=lambda status: (),
    ) as view:
        call = link.garrison.compute_clusters.wait_deleted(
            name, uid=ack.uid, timeout=timeout, on_change=view
        )
        link.run(call, goes_on=f"the deletion of {name} goes on")
    print_gone(f"compute cluster {name}", output)
