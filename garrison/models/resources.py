"""What a replica needs of a machine, and what a machine offers to replicas; exact integers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from garrison.models.base import Message

Count = Annotated[int, Field(ge=0, le=2**53)]


class Resources(Message):
    """An amount of each thing that replicas share out among themselves.

    Attributes:
        cpu_milli: Thousandths of a core.
        memory_bytes: Main memory.
        accelerators: Whole accelerators; one is never shared by two replicas.
        accelerator_memory_bytes: Of each single accelerator.
        accelerator_types: Which kinds will do, such as `NVIDIA-A10G` or `NVIDIA-*`, where this is
            a need; the kind itself where it is an offer. Empty in a need means any kind.
    """

    cpu_milli: Count = 0
    memory_bytes: Count = 0
    accelerators: Count = 0
    accelerator_memory_bytes: Count = 0
    accelerator_types: tuple[str, ...] = ()
