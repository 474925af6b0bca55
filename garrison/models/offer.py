"""What providers sell: one offer is an instance type in a place at a price."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum

from garrison.models.base import Message, Money


class CapacityType(StrEnum):
    """How a machine is bought."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"


class Stock(StrEnum):
    """The provider's signal for *one* machine; joint stock is known only at launch."""

    HIGH = "high"
    LOW = "low"
    NONE = "none"
    UNKNOWN = "unknown"


class Offer(Message):
    """An instance type in a place, with what is known of its price.

    Attributes:
        region: Where; None when the offer is the same everywhere.
        accelerator: Canonical accelerator name (`H100`), None for a CPU machine.
        accelerator_count: Accelerators in one machine; below 1 is a slice.
        accelerator_memory_gib: Memory of one accelerator.
        usd_per_hour: Price of one machine; None is unknown, which is not free.
        cluster_usd_per_hour: Price of one machine inside a multi-node cluster where that differs.
        provider_usd_per_hour: What the provider itself asks where the price is the operator's
            own; None is the same.
        provider_cluster_usd_per_hour: The same inside a multi-node cluster.
        price_is_ceiling: The price is an upper bound (spot quoted at the on-demand price).
        root_disk_usd_per_gb_month: None when the rate includes the disk, or nobody said its price.
        root_disk_price_unknown: A disk costs extra or may do so, and nobody said how much.
        whole_machine: False for price rows that are no machine (per GPU, slices).
        source: Who said the price; `as_of` when: a date, or a year.
        provider_type: The adapter that sells it, `local` say; None in a bare catalogue.
        simulated: The machine exists on paper or on this computer only.
    """

    provider: str
    region: str | None = None
    zone: str | None = None
    instance_type: str
    vcpus: int | None = None
    memory_gib: Decimal | None = None
    accelerator: str | None = None
    accelerator_count: Decimal = Decimal(0)
    accelerator_memory_gib: Decimal | None = None
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    usd_per_hour: Money | None = None
    cluster_usd_per_hour: Money | None = None
    provider_usd_per_hour: Money | None = None
    provider_cluster_usd_per_hour: Money | None = None
    price_is_ceiling: bool = False
    root_disk_usd_per_gb_month: Money | None = None
    root_disk_price_unknown: bool = False
    whole_machine: bool = True
    provider_type: str | None = None
    stock: Stock = Stock.UNKNOWN
    source: str = ""
    as_of: str = ""
    simulated: bool = False


class OfferQuery(Message):
    """Filters; None matches everything.

    Attributes:
        offset: How many matching offers to skip, for pages.
    """

    search: str | None = None
    provider: str | None = None
    region: str | None = None
    instance_type: str | None = None
    accelerator: str | None = None
    min_gpus: Decimal | None = None
    min_memory_gib: Decimal | None = None
    cpu_only: bool = False
    capacity_type: CapacityType | None = None
    max_usd_per_hour: Money | None = None
    offset: int = 0


class OfferList(Message):
    """A page of a provider's answer.

    Attributes:
        next_offset: Where the next page begins, None on the last.
    """

    offers: tuple[Offer, ...] = ()
    next_offset: int | None = None
