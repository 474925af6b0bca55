"""The noun `offer`: what providers sell."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated

import typer
from rich.console import RenderableType

from garrison.cli.arguments import dollars, quantity
from garrison.cli.cluster_tables import marked
from garrison.cli.groups import Group
from garrison.cli.output import Output, OutputOption, emit, line, table_of
from garrison.cli.session import connected
from garrison.cli.text import NONE, number, usd
from garrison.models.offer import CapacityType, Offer, OfferQuery
from garrison.models.problems import build

app = typer.Typer(cls=Group, add_completion=False, help="What providers sell, with prices.")


@app.callback()
def _offer() -> None:
    """What providers sell, with prices."""


@app.command("list")
def list_offers(
    search: Annotated[str | None, typer.Option(help="Text in any column.")] = None,
    provider: Annotated[str | None, typer.Option()] = None,
    region: Annotated[str | None, typer.Option()] = None,
    instance_type: Annotated[str | None, typer.Option()] = None,
    accelerator: Annotated[str | None, typer.Option(help="H100, NVIDIA-A10G.")] = None,
    min_gpus: Annotated[
        Decimal | None, typer.Option(parser=quantity, metavar="N", help="In one machine.")
    ] = None,
    min_memory: Annotated[
        Decimal | None, typer.Option(parser=quantity, metavar="GIB", help="Of one machine.")
    ] = None,
    cpu_only: Annotated[
        bool, typer.Option("--cpu-only", help="Only machines without accelerators.")
    ] = False,
    capacity_type: Annotated[CapacityType | None, typer.Option()] = None,
    max_price: Annotated[
        Decimal | None, typer.Option(parser=dollars, metavar="USD", help="Per machine and hour.")
    ] = None,
    sort: Annotated[
        str, typer.Option(metavar="[-]COLUMN", help="A `-` puts the largest first.")
    ] = "price",
    output: OutputOption = Output.TABLE,
) -> None:
    """List offers, cheapest first; those of unknown price come last."""
    query = build(
        OfferQuery,
        {
            "search": search,
            "provider": provider,
            "region": region,
            "instance_type": instance_type,
            "accelerator": accelerator,
            "min_gpus": min_gpus,
            "min_memory_gib": min_memory,
            "cpu_only": cpu_only,
            "capacity_type": capacity_type,
            "max_usd_per_hour": max_price,
        },
        what="the filters are not valid",
    )
    column, descending = sort.removeprefix("-"), sort.startswith("-")
    with connected() as link:
        found = link.run(link.garrison.offers.list(query, sort=column, descending=descending))
    emit(found, output, lambda: _tables(found))


def _tables(offers: Sequence[Offer]) -> list[RenderableType]:
    if not offers:
        return [line("no offer matches")]
    columns = (
        "PROVIDER",
        "REGION",
        "INSTANCE TYPE",
        "ACCELERATOR",
        "#GPU GIB",
        "#VCPUS",
        "#GIB",
        "CAPACITY",
        "$ /h",
        "$ /h IN CLUSTER",
        "STOCK",
        "SOURCE",
        "AS OF",
    )
    return [table_of(columns, [_row(offer) for offer in offers])]


def _row(offer: Offer) -> list[str]:
    ceiling = "at most " if offer.price_is_ceiling and offer.usd_per_hour is not None else ""
    return [
        marked(offer.provider, offer.simulated, offer.provider_type),
        " ".join(part for part in (offer.region, offer.zone) if part) or NONE,
        offer.instance_type,
        _accelerator(offer),
        number(offer.accelerator_memory_gib),
        number(offer.vcpus),
        number(offer.memory_gib),
        str(offer.capacity_type),
        ceiling + usd(offer.usd_per_hour),
        usd(offer.cluster_usd_per_hour, unknown=NONE),
        str(offer.stock),
        offer.source or NONE,
        offer.as_of or NONE,
    ]


def _accelerator(offer: Offer) -> str:
    if offer.accelerator is None:
        return "CPU"
    return f"{number(offer.accelerator_count)} x {offer.accelerator}"
