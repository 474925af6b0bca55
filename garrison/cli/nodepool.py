"""The noun `nodepool`: parse, call the SDK, print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import RenderableType

from garrison.cli.arguments import Timeout, Uid, Wait, Yes, dollars, duration, resource_name
from garrison.cli.computecluster import Provider, Region
from garrison.cli.deletion import confirm_delete, print_deleted, print_gone
from garrison.cli.elastic_arguments import (
    ComputeClusterId,
    Config,
    ConfigFile,
    Description,
    NodepoolId,
    accept_machines,
    in_file,
    print_ack,
    read_config,
    tell,
    unknown,
)
from garrison.cli.elastic_tables import (
    nodepool_line,
    nodepool_list,
    nodepool_summary,
    nodepool_tables,
    pool_node_table,
)
from garrison.cli.flags import takes_flags
from garrison.cli.groups import Group
from garrison.cli.listing import Watch, show_list
from garrison.cli.live import live_view
from garrison.cli.output import Output, OutputOption, emit, note
from garrison.cli.session import Link, connected
from garrison.cli.waiting import wants_to_wait
from garrison.errors import InvalidSpec
from garrison.models.compute_cluster import ComputeClusterSpec
from garrison.models.elastic_file import NodepoolFile, read_nodepool_file
from garrison.models.nodepool import NodepoolAck, NodepoolSpec, NodepoolStatus
from garrison.models.offer import CapacityType
from garrison.models.problems import build

NOUN = "nodepool"
PoolFile: TypeAlias = ConfigFile[NodepoolFile]
BOTH = (CapacityType.ON_DEMAND, CapacityType.SPOT)

app = typer.Typer(cls=Group, add_completion=False, help="Elastic sets of like machines.")

InstanceTypes = Annotated[
    list[str] | None,
    typer.Option("--instance-type", help="The preferred one first; may be repeated."),
]
Min = Annotated[int | None, typer.Option("--min", min=0, help="Machines that it always holds.")]
Max = Annotated[
    int | None, typer.Option("--max", min=0, help="Machines that it never passes; 0 disables it.")
]
Warm = Annotated[int | None, typer.Option("--warm", min=0, help="Empty machines kept ready.")]
Spot = Annotated[
    bool | None, typer.Option("--spot/--no-spot", help="Spot first, on-demand when it is refused.")
]
SpotOnly = Annotated[bool, typer.Option("--spot-only", help="Never on-demand.")]
PriceLimit = Annotated[
    Decimal | None,
    typer.Option(
        "--max-price", parser=dollars, metavar="USD", help="The most for one machine and hour."
    ),
]
ReleaseAfter = Annotated[
    timedelta | None,
    typer.Option(
        "--release-after",
        parser=duration,
        metavar="DURATION",
        help="How long a machine stays empty before it is given back: 90s, 20m.",
    ),
]


def _pool_flags(
    instance_type: InstanceTypes = None,
    min_instances: Min = None,
    max_instances: Max = None,
    warm: Warm = None,
    spot: Spot = None,
    spot_only: SpotOnly = False,
    max_price: PriceLimit = None,
    release_after: ReleaseAfter = None,
    description: Description = None,
) -> dict[str, Any]:
    """Return what flags say of a nodepool."""
    given = {
        "instance_types": instance_type,
        "min_instances": min_instances,
        "max_instances": max_instances,
        "warm_instances": warm,
        "capacity_types": _capacity(spot, spot_only),
        "max_usd_per_hour": max_price,
        "release_after": release_after,
        "description": description,
    }
    return {name: value for name, value in given.items() if value is not None}


@app.command()
@takes_flags(_pool_flags)
def create(
    compute_cluster: ComputeClusterId,
    name: NodepoolId,
    flags: dict[str, Any],
    config: Config = None,
    provider: Provider = None,
    region: Region = None,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a nodepool; without --min it buys nothing until a deployment wants machines."""
    waits = wants_to_wait(wait, None, timeout)
    if config is None and "instance_types" not in flags:
        raise InvalidSpec("say what it buys: --config FILE, or --instance-type NAME")
    place = _place(compute_cluster, provider, region)
    file = _read(compute_cluster, name, config, output)
    spec = _merged({"compute_cluster": compute_cluster, "id": name}, file, flags, output)
    with connected() as link, in_file(file):
        new = None if place is None else _missing(link, place)
        _accept(link, spec, file, new=new, yes=yes, output=output)
        if new is not None:
            link.run(link.garrison.compute_clusters.create(new))
            note(f"made the compute cluster {new.id}: {new.provider} {new.region}", output)
        call = link.garrison.nodepools.create(spec)
        ack = link.run(call, goes_on=unknown(NOUN, f"{compute_cluster} {name}"))
        _finish(link, spec, ack, waits=waits, timeout=timeout, output=output)


@app.command()
@takes_flags(_pool_flags)
def update(
    compute_cluster: ComputeClusterId,
    name: NodepoolId,
    flags: dict[str, Any],
    config: Config = None,
    uid: Uid = None,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a nodepool; what is not given stays, but a file replaces everything."""
    waits = wants_to_wait(wait, None, timeout)
    if config is None and not flags:
        raise InvalidSpec("say what to change: --config FILE, or flags such as --max 3")
    file = _read(compute_cluster, name, config, output)
    with connected() as link, in_file(file):
        before = link.run(link.garrison.nodepools.get(compute_cluster, name, uid=uid))
        spec = _merged(before.spec.model_dump(), file, flags, output)
        _accept(link, spec, file, before=before.spec, yes=yes, output=output)
        call = link.garrison.nodepools.update(spec, uid=before.uid)
        ack = link.run(call, goes_on=unknown(NOUN, f"{compute_cluster} {name}"))
        _finish(link, spec, ack, waits=waits, timeout=timeout, output=output)


def _capacity(spot: bool | None, spot_only: bool) -> tuple[CapacityType, ...] | None:
    """Return how machines are bought, None where no flag says it.

    Raises:
        InvalidSpec: Two flags say two things.
    """
    if spot_only and spot is not None:
        other = "--spot" if spot else "--no-spot"
        raise InvalidSpec(f"{other} and --spot-only do not go together; give one of them")
    if spot_only:
        return (CapacityType.SPOT,)
    if spot is None:
        return None
    return BOTH if spot else (CapacityType.ON_DEMAND,)


def _place(name: str, provider: str | None, region: str | None) -> ComputeClusterSpec | None:
    """Return where a compute cluster should be that may not exist yet.

    Raises:
        InvalidSpec: Only half of it is said.
    """
    if provider is None and region is None:
        return None
    if provider is None or region is None:
        raise InvalidSpec("--provider and --region go together: they say where machines are")
    values = {"id": name, "provider": provider, "region": region}
    return build(ComputeClusterSpec, values, what="the flags are not valid")


def _missing(link: Link, place: ComputeClusterSpec) -> ComputeClusterSpec | None:
    """Return a place whose compute cluster is still to be made, None where it is there.

    Raises:
        InvalidSpec: It is there, in another place.
    """
    clusters = link.garrison.compute_clusters
    found = link.run(clusters.find(place.id))
    if found is None:
        link.run(clusters.check(place))
        return place
    if (found.provider, found.region) != (place.provider, place.region):
        raise InvalidSpec(
            f"compute cluster {found.id} is at {found.provider} {found.region}, not at"
            f" {place.provider} {place.region}; leave out --provider and --region, or give another"
            " compute cluster"
        )
    return None


def _read(compute_cluster: str, name: str, config: str | None, output: Output) -> PoolFile | None:
    if config is None:
        return None
    return read_config(
        config,
        lambda data, source: read_nodepool_file(data, source, name, compute_cluster),
        output,
    )


def _merged(
    base: dict[str, Any], file: PoolFile | None, flags: dict[str, Any], output: Output
) -> NodepoolSpec:
    """Return what flags say, else a file, else what is there.

    Raises:
        InvalidSpec: With every mistake.
    """
    written = base if file is None else file.value.spec.model_dump()
    spec = build(NodepoolSpec, {**written, **flags}, what="the flags are not valid")
    if file is not None:
        for name in flags:
            if getattr(spec, name) != getattr(file.value.spec, name):
                note(f"the flag for {name} wins over the file", output)
    return spec


def _accept(
    link: Link,
    spec: NodepoolSpec,
    file: PoolFile | None,
    *,
    new: ComputeClusterSpec | None = None,
    before: NodepoolSpec | None = None,
    yes: bool,
    output: Output,
) -> None:
    """Tell what is strange about a nodepool, and have confirmed what it buys at once."""
    claims = {} if file is None else file.value.claims
    call = link.garrison.nodepools.preview(spec, claims=claims, compute_cluster=new, before=before)
    preview = link.run(call)
    tell(preview.warnings, output)
    what = spec.instance_types[0] if preview.offer is None else preview.offer.instance_type
    accept_machines(what, preview.machines, preview.usd_per_hour, yes=yes, output=output)


def _finish(
    link: Link,
    spec: NodepoolSpec,
    ack: NodepoolAck,
    *,
    waits: bool,
    timeout: timedelta | None,
    output: Output,
) -> None:
    """Print an acknowledgement, or wait and print what came of it."""
    name = f"{spec.compute_cluster}/{spec.id}"
    if not waits or output is Output.TABLE:
        print_ack(NOUN, name, ack, output)
    if not waits:
        return
    with _view(f"waiting until {name} has its machines", output) as view:
        call = link.garrison.nodepools.wait(
            spec.compute_cluster,
            spec.id,
            uid=ack.uid,
            generation=ack.generation,
            timeout=timeout,
            on_change=view,
        )
        status = link.run(call, goes_on=f"nodepool {name} goes on")
    emit(status, output, lambda: nodepool_tables(status))


def _view(title: str, output: Output) -> AbstractContextManager[Callable[[NodepoolStatus], None]]:
    return live_view(title, output, summary=nodepool_summary, parts=_parts)


def _parts(status: NodepoolStatus) -> Iterator[RenderableType]:
    if status.nodes:
        yield pool_node_table(status.nodes)


@app.command("list")
def list_nodepools(
    compute_cluster: Annotated[
        str | None,
        typer.Argument(metavar="[COMPUTECLUSTER]", parser=resource_name, help="Only those in it."),
    ] = None,
    watch: Watch = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List nodepools, newest first."""
    with connected() as link:
        show_list(
            link,
            lambda: link.garrison.nodepools.list(compute_cluster),
            output,
            watch=watch,
            table=nodepool_list,
            name=lambda row: f"nodepool {row.compute_cluster}/{row.id}",
            sentence=nodepool_line,
        )


@app.command()
def get(
    compute_cluster: ComputeClusterId,
    name: NodepoolId,
    uid: Uid = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one nodepool: machines, replicas on them, price, last events."""
    with connected() as link:
        found = link.run(link.garrison.nodepools.get(compute_cluster, name, uid=uid))
    emit(found, output, lambda: nodepool_tables(found))


@app.command()
def delete(
    compute_cluster: ComputeClusterId,
    name: NodepoolId,
    uid: Uid = None,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a nodepool: replicas move or wait, and every machine is given back."""
    waits = wants_to_wait(wait, None, timeout)
    path = f"{compute_cluster}/{name}"
    question = f"Delete nodepool {path} and give back its machines"
    with connected() as link:
        goes = link.run(link.garrison.deletions.nodepool(compute_cluster, name, uid=uid))
        confirm_delete(question, path, goes, yes=yes, output=output)
        call = link.garrison.nodepools.delete(compute_cluster, name, uid=uid or goes.uid)
        ack = link.run(call, goes_on=unknown(NOUN, f"{compute_cluster} {name}"))
        print_deleted(NOUN, path, ack, goes, output)
        if not waits:
            return
        with _view(f"waiting until {path} has given back its machines", output) as view:
            gone = link.garrison.nodepools.wait_deleted(
                compute_cluster, name, uid=ack.uid, timeout=timeout, on_change=view
            )
            link.run(gone, goes_on=f"the deletion of {path} goes on")
    print_gone(f"nodepool {path}", output)
