"""What a machine offers to replicas, as its price list says."""

from __future__ import annotations

from decimal import Decimal

from garrison.models.offer import Offer
from garrison.models.resources import Resources

GIB = 2**30


def nominal_resources(offer: Offer) -> Resources:
    """Return all of a machine; what nobody said is nothing."""
    accelerators = int(offer.accelerator_count)
    return Resources(
        cpu_milli=(offer.vcpus or 0) * 1000,
        memory_bytes=_bytes(offer.memory_gib),
        accelerators=accelerators,
        accelerator_memory_bytes=_bytes(offer.accelerator_memory_gib) if accelerators else 0,
        accelerator_types=(offer.accelerator,) if offer.accelerator and accelerators else (),
    )


def _bytes(gib: Decimal | None) -> int:
    return int((gib or Decimal(0)) * GIB)
