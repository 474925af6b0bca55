"""What workloads can really use of a machine; its own services take a part of what is sold."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from importlib.resources import files

from garrison.models.offer import Offer
from garrison.models.resources import Resources
from garrison.models.units import read_bytes, read_cores

GIB = 2**30
_MAKERS = (("MI", "AMD"), ("TPU", "GOOGLE"))
"""By the beginning of a name; every other accelerator of the catalogue is NVIDIA's."""

Key = tuple[str, str]
"""Provider and instance type, in lower case."""


def available_resources(offer: Offer) -> Resources:
    """Return what replicas can share out among themselves on one machine.

    It is what `instances.csv` says of this instance type at this provider, by the provider's name
    or else its adapter's. A simulated machine is as the real one of its name. For a machine that
    is not in the file nothing is taken off: all that the offer says, and nothing of what it does
    not say.
    """
    known = load_instances()
    machine = offer.instance_type.lower()
    for provider in filter(None, (offer.provider, offer.provider_type)):
        if (provider.lower(), machine) in known:
            return known[provider.lower(), machine]
    alike = [found for (_, name), found in known.items() if name == machine]
    if offer.simulated and len(alike) == 1:
        return alike[0]
    return _as_sold(offer)


@cache
def load_instances() -> Mapping[Key, Resources]:
    """Return every machine of the shipped file."""
    return read_instances((files("garrison.catalog") / "instances.csv").read_text("utf-8"))


def read_instances(text: str) -> Mapping[Key, Resources]:
    """Return the machines of a file in the form of `instances.csv`."""
    return {
        (row["provider"].lower(), row["instance_type"].lower()): _resources(row)
        for row in csv.DictReader(io.StringIO(text))
    }


def _resources(row: Mapping[str, str]) -> Resources:
    memory = row["accelerator_memory_each"]
    return Resources(
        cpu_milli=read_cores(row["cpu_cores_available"]),
        memory_bytes=read_bytes(row["cpu_memory_available"]),
        accelerators=int(row["accelerators"]),
        accelerator_memory_bytes=read_bytes(memory) if memory else 0,
        accelerator_types=tuple(filter(None, (row["accelerator_type"],))),
    )


def _as_sold(offer: Offer) -> Resources:
    # A slice of an accelerator is none: one is never shared.
    count = int(offer.accelerator_count)
    has = count > 0 and offer.accelerator is not None
    return Resources(
        cpu_milli=1000 * (offer.vcpus or 0),
        memory_bytes=_bytes(offer.memory_gib),
        accelerators=count,
        accelerator_memory_bytes=_bytes(offer.accelerator_memory_gib) if has else 0,
        accelerator_types=(_full_name(offer.accelerator),) if has and offer.accelerator else (),
    )


def _bytes(gib: Decimal | None) -> int:
    return int((gib or Decimal(0)) * GIB)


def _full_name(accelerator: str) -> str:
    """Return a name with its maker, so that `NVIDIA-*` finds it."""
    maker = next((maker for start, maker in _MAKERS if accelerator.startswith(start)), "NVIDIA")
    name = accelerator.replace(" ", "-")
    return name if name.startswith(f"{maker}-") else f"{maker}-{name}"
