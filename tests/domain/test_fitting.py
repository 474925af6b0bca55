"""Whether a machine could take a replica, and in words why not."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from garrison.domain.accelerators import names_kind
from garrison.domain.packing.fitting import dominant_share, fits_never, serves, suits
from garrison.models.resources import Resources

GIB = 2**30
G5 = Resources(
    cpu_milli=7500,
    memory_bytes=28 * GIB,
    accelerators=1,
    accelerator_memory_bytes=int(Decimal("22.49") * GIB),
    accelerator_types=("NVIDIA-A10G",),
)
L4 = Resources(
    cpu_milli=48_000,
    memory_bytes=180 * GIB,
    accelerators=4,
    accelerator_memory_bytes=int(Decimal("21.9") * GIB),
    accelerator_types=("L4",),
)
CPU = Resources(cpu_milli=2000, memory_bytes=4 * GIB)


def need(gpus: int = 1, *types: str, **fields: Any) -> Resources:
    return Resources(accelerators=gpus, accelerator_types=types, **fields)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a10", "NVIDIA-A10G"),
        ("NVIDIA-A10G", "A10G"),
        ("A10G", "A10"),
        ("nvidia a10g", "NVIDIA-A10G"),
        ("NVIDIA-*", "NVIDIA-A10G"),
        ("NVIDIA-*", "RTX PRO 6000"),
        ("nvidia", "T4g"),
        ("*", "MI300X"),
        ("A1*", "NVIDIA-A10G"),
        ("NVIDIA-RTX-*", "RTX PRO 6000"),
        ("AMD-*", "MI300X"),
        ("GOOGLE-TPU-*", "GOOGLE-TPU-v5e"),
        ("GOOGLE-*", "TPU-v5e"),
        ("H100_SXM", "NVIDIA-H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
    ],
)
def test_an_accelerator_is_meant_however_it_is_written(text: str, kind: str) -> None:
    assert names_kind(text, kind)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("A100", "A10G"),
        ("L4", "L40"),
        ("L40", "L40S"),
        ("T4", "T4g"),
        ("RTX 6000", "RTX PRO 6000"),
        ("NVIDIA-*", "MI300X"),
        ("NVIDIA-*", "GOOGLE-TPU-v5e"),
        ("AMD-*", "NVIDIA-A10G"),
        ("H?00*", "H100"),
        ("[AH]*", "H100"),
        ("GPU", "H100"),
        ("", "H100"),
    ],
)
def test_another_accelerator_is_not_meant(text: str, kind: str) -> None:
    assert not names_kind(text, kind)


def test_a_size_in_the_name_counts_where_the_memory_is_known() -> None:
    assert names_kind("A100-80GB", "NVIDIA-A100", Decimal(80))
    assert not names_kind("A100-80GB", "NVIDIA-A100", Decimal(40))
    assert names_kind("A100-80GB", "NVIDIA-A100")


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (need(1, "H100", "a10"), True),
        (need(1, "H100"), False),
        (need(1), True),
        (need(2), False),
        (need(0, "H100", accelerator_memory_bytes=80 * GIB), True),
        (need(1, accelerator_memory_bytes=G5.accelerator_memory_bytes), True),
        (need(1, accelerator_memory_bytes=G5.accelerator_memory_bytes + 1), False),
        (need(0, memory_bytes=28 * GIB), True),
        (need(0, memory_bytes=28 * GIB + 1), False),
        (need(0, cpu_milli=7500), True),
        (need(0, cpu_milli=7501), False),
    ],
)
def test_a_machine_serves_what_is_not_above_what_it_has(wanted: Resources, *, fits: bool) -> None:
    assert serves(wanted, G5) is fits
    assert (fits_never(wanted, [G5]) is None) is fits


def test_a_size_in_the_name_is_compared_with_the_machines() -> None:
    forty, unknown = (
        Resources(accelerators=1, accelerator_memory_bytes=size, accelerator_types=("A100",))
        for size in (40 * GIB, 0)
    )

    assert serves(need(1, "A100-40GB"), forty)
    assert not serves(need(1, "A100-80GB"), forty)
    assert serves(need(1, "A100-80GB"), unknown)


def test_kinds_suit_however_many_are_free() -> None:
    assert suits(need(9, "a10"), G5)
    assert not suits(need(1, "H100"), G5)
    assert not suits(need(1, accelerator_memory_bytes=80 * GIB), G5)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (need(1, "H100", "AMD-*"), "no machine of this pool has H100 or AMD-*"),
        (need(8), "no machine of this pool has 8 accelerators, the most is 4"),
        (
            need(2, "a10"),
            "no machine of this pool has 2 accelerators, the most of those that fit otherwise is 1",
        ),
        (
            need(1, accelerator_memory_bytes=40 * GIB),
            "needs 40Gi of accelerator memory, the largest of those that fit otherwise has 22.49Gi",
        ),
        (need(0, memory_bytes=512 * GIB), "needs 512Gi of memory, the largest has 180Gi"),
        (
            need(1, "a10", memory_bytes=64 * GIB),
            "needs 64Gi of memory, the largest of those that fit otherwise has 28Gi",
        ),
        (need(0, cpu_milli=48_500), "needs 48.5 cores, the largest has 48"),
    ],
)
def test_why_no_machine_will_do_is_said_with_both_figures(wanted: Resources, words: str) -> None:
    assert fits_never(wanted, [CPU, G5, L4]) == words


def test_a_pool_without_accelerators_says_so() -> None:
    assert fits_never(need(1), [CPU]) == "no machine of this pool has accelerators"


def test_a_size_that_is_short_by_a_byte_does_not_read_as_enough() -> None:
    words = fits_never(need(0, memory_bytes=28 * GIB + 1), [G5])

    assert words == "needs 30064771073 bytes of memory, the largest has 30064771072 bytes"


def test_one_machine_must_meet_all_of_a_need() -> None:
    both = need(1, "a10", cpu_milli=48_000)

    assert fits_never(both, [G5, L4]) == (
        "needs 48 cores, the largest of those that fit otherwise has 7.5"
    )


def test_where_no_machine_is_known_nothing_is_ruled_out() -> None:
    assert fits_never(need(8), []) is None


@pytest.mark.parametrize(
    ("need", "share"),
    [
        (Resources(), Fraction(0)),
        (Resources(cpu_milli=1000, memory_bytes=8 * GIB), Fraction(1, 4)),
        (Resources(cpu_milli=1000, accelerators=1), Fraction(1, 2)),
    ],
    ids=["nothing", "a quarter of the memory", "one of two accelerators"],
)
def test_a_replica_has_the_largest_share_of_anything_that_it_needs(
    need: Resources, share: Fraction
) -> None:
    machine = Resources(cpu_milli=8000, memory_bytes=32 * GIB, accelerators=2)

    assert dominant_share(need, machine) == share
    assert dominant_share(need, Resources()) == 0
