"""The `compute_cluster:`, `nodepool:` and `deployment:` blocks, key by key, as people write them.

They are the blocks of the public API (clarifai-grpc 12.6.0) with keys of our own. A key that the
public messages have and that means nothing here is `Unused`: accepted, and told in a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, ClassVar

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
)

from garrison.models.base import Model, Name
from garrison.models.cluster import PublicKey, Text
from garrison.models.offer import CapacityType
from garrison.models.problems import shown
from garrison.models.worker_file import (
    MAX_ACCELERATORS,
    AcceleratorTypes,
    Bytes,
    Cores,
)

MAX_COUNT = 10_000
MAX_SECONDS = 30 * 86_400
MAX_INSTANCE_TYPES = 100
MAX_POOLS = 100

UNUSED = "unused"
Unused = Annotated[JsonValue, UNUSED]


def chosen(choices: Mapping[str, Any], words: str) -> BeforeValidator:
    """Accept a number or a name in any case."""

    def convert(value: Any) -> Any:
        key = value.strip().casefold() if isinstance(value, str) else value
        if isinstance(key, str) and key in choices:
            return choices[key]
        if value in choices.values():
            return value
        but = f", not {shown(value)}" if isinstance(value, str) else ""
        raise ValueError(f"must be {words}{but}")

    return BeforeValidator(convert)


def _some(value: Any) -> Any:
    # A bound of the tuple would also count what is there but not valid.
    if isinstance(value, list | tuple) and not value:
        raise ValueError("must not be empty: give at least one")
    return value


def _or_empty(value: Any) -> Any:
    return "" if value is None else value


_VISIBILITIES = {
    "0": 10,
    "unknown_visibility": 10,
    "10": 10,
    "private": 10,
    "30": 30,
    "org": 30,
    "50": 50,
    "public": 50,
}
_CAPACITY_TYPES = {
    "1": CapacityType.ON_DEMAND,
    "on_demand_type": CapacityType.ON_DEMAND,
    "on_demand": CapacityType.ON_DEMAND,
    "2": CapacityType.SPOT,
    "spot_type": CapacityType.SPOT,
    "spot": CapacityType.SPOT,
}
Description = Annotated[str, BeforeValidator(_or_empty), Field(max_length=1000)]
Gettable = Annotated[int, chosen(_VISIBILITIES, "10 (PRIVATE), 30 (ORG) or 50 (PUBLIC)")]
Capacity = Annotated[CapacityType, chosen(_CAPACITY_TYPES, "1 (ON_DEMAND_TYPE) or 2 (SPOT_TYPE)")]
Some = BeforeValidator(_some)
"""Refuses an empty list."""

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
WholeSeconds = Annotated[int, Field(ge=0, le=MAX_SECONDS)]
ManagedBy = Annotated[
    str,
    chosen(
        {"clarifai": "clarifai", "garrison": "garrison"},
        "clarifai or garrison, which both mean that Garrison buys the machines",
    ),
]
ClusterType = Annotated[str, chosen({"dedicated": "dedicated"}, "dedicated")]


class VisibilityBlock(Model):
    """Who may see it."""

    gettable: Gettable = 10


class CloudProviderBlock(Model):
    """Whose machines."""

    id: Name
    name: Unused = None
    special_handling: Unused = None


class ComputeClusterBlock(Model):
    """What stands under `compute_cluster:`."""

    id: Name | None = None
    description: Description = ""
    cloud_provider: CloudProviderBlock
    region: Text
    managed_by: ManagedBy = "garrison"
    cluster_type: ClusterType = "dedicated"
    visibility: VisibilityBlock = VisibilityBlock()
    user_id: Unused = None
    created_at: Unused = None
    modified_at: Unused = None
    key: Unused = None


class ComputeClusterRef(Model):
    """A compute cluster named inside another block; only its id counts."""

    id: Name
    description: Unused = None
    cloud_provider: Unused = None
    region: Unused = None
    managed_by: Unused = None
    cluster_type: Unused = None
    visibility: Unused = None
    user_id: Unused = None
    created_at: Unused = None
    modified_at: Unused = None
    key: Unused = None


class ComputeInfoBlock(Model):
    """What a file claims that an instance type has; compared with the catalogue, never believed.

    Attributes:
        accelerator_memory: Of each single accelerator.
    """

    other_words: ClassVar[Mapping[str, str]] = {
        "gpu": "num_accelerators",
        "gpus": "num_accelerators",
        "num_gpus": "num_accelerators",
        "accelerators": "num_accelerators",
        "gpu_memory": "accelerator_memory",
        "gpu_type": "accelerator_type",
        "cpu": "cpu_limit",
        "memory": "cpu_memory",
    }

    cpu_limit: Cores = 0
    cpu_memory: Bytes = 0
    num_accelerators: int | None = Field(default=None, ge=0, le=MAX_ACCELERATORS)
    accelerator_type: AcceleratorTypes = ()
    accelerator_memory: Bytes = 0
    cpu_requests: Unused = None
    cpu_memory_requests: Unused = None
    accelerator_topology: Unused = None

    @field_validator("accelerator_type", "accelerator_memory")
    @classmethod
    def _needs_accelerators(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("num_accelerators") == 0:
            raise ValueError("contradicts num_accelerators: 0; remove one of them")
        return value


class InstanceTypeBlock(Model):
    """A kind of machine, under the provider's own name for it."""

    id: Text
    compute_info: ComputeInfoBlock | None = None
    description: Unused = None
    price: Unused = None
    cloud_provider: Unused = None
    region: Unused = None
    allowed_capacity_types: Unused = None
    feature_flag_group: Unused = None
    special_handling: Unused = None
    architecture: Unused = None
    available_compute_info: Unused = None


class CapacityBlock(Model):
    """How machines are bought."""

    capacity_types: Annotated[tuple[Capacity, ...], Some]


class NodepoolBlock(Model):
    """What stands under `nodepool:`.

    Attributes:
        max_price_per_hour: In US dollars, of one machine.
    """

    id: Name | None = None
    compute_cluster: ComputeClusterRef | None = None
    description: Description = ""
    instance_types: Annotated[
        tuple[InstanceTypeBlock, ...], Some, Field(max_length=MAX_INSTANCE_TYPES)
    ]
    node_capacity_type: CapacityBlock = CapacityBlock(capacity_types=(CapacityType.ON_DEMAND,))
    min_instances: Count = 0
    max_instances: Count = 1
    warm_instances: Count = 0
    on_demand_base: Count = 0
    on_demand_fallback: bool = False
    max_price_per_hour: Decimal | None = Field(default=None, gt=0, allow_inf_nan=False)
    release_after_seconds: WholeSeconds = 300
    ssh_keys: tuple[PublicKey, ...] = Field(default=(), max_length=100)
    visibility: VisibilityBlock = VisibilityBlock()
    created_at: Unused = None
    modified_at: Unused = None
    enforced_min_instances: Unused = None
    enforced_max_instances: Unused = None
    metadata: Unused = None
    special_handling: Unused = None
    node_count: Unused = None
    status: Unused = None
    status_description: Unused = None

    @field_validator("instance_types")
    @classmethod
    def _each_once(cls, value: tuple[InstanceTypeBlock, ...]) -> tuple[InstanceTypeBlock, ...]:
        check_unique([kind.id for kind in value])
        return value

    @field_validator("max_instances")
    @classmethod
    def _above_min(cls, value: int, info: ValidationInfo) -> int:
        return at_least(value, "min_instances", info)

    @field_validator("on_demand_base", "on_demand_fallback")
    @classmethod
    def _beside_spot(cls, value: int, info: ValidationInfo) -> int:
        block = info.data.get("node_capacity_type")
        if value and block is not None and len(set(block.capacity_types)) < 2:
            raise ValueError("needs both capacity types, [1, 2]; add the other or leave this out")
        return value

    @field_validator("warm_instances", "on_demand_base")
    @classmethod
    def _within_max(cls, value: int, info: ValidationInfo) -> int:
        most = info.data.get("max_instances")
        if most is not None and value > most:
            raise ValueError(f"must be at most max_instances ({most}), not {value}")
        return value


def at_least(value: int, other: str, info: ValidationInfo) -> int:
    """Return a number that must not be below that of an earlier field."""
    least = info.data.get(other)
    if least is not None and value < least:
        raise ValueError(f"must be at least {other} ({least}), not {value}")
    return value


def check_unique(names: list[str]) -> None:
    """Refuse names that differ in nothing, or in case only."""
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            raise ValueError(f"has {shown(name)} twice")
        seen.add(name.casefold())
