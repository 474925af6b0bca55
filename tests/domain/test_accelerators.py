"""Names of accelerators as people write them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.catalog.loader import load_offers
from garrison.domain.accelerators import resolve_accelerator
from garrison.errors import InvalidSpec

CATALOGUE = load_offers()


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("H100", "H100", None),
        ("h100", "H100", None),
        (" H100 ", "H100", None),
        ("H100:8", "H100", 8),
        ("8xH100", "H100", 8),
        ("8 x h100", "H100", 8),
        ("H100 x8", "H100", 8),
        ("H100*8", "H100", 8),
        ("H100_SXM", "H100", None),
        ("NVIDIA H100 80GB HBM3", "H100", None),
        ("NVIDIA-A10G", "A10G", None),
        ("a10", "A10G", None),
        ("nvidia-tesla-t4", "T4", None),
        ("T4g", "T4g", None),
        ("NVIDIA-L4", "L4", None),
        ("L4-24GB", "L4", None),
        ("NVIDIA-L40S", "L40S", None),
        ("L40", "L40", None),
        ("NVIDIA-RTX-PRO-6000", "RTX PRO 6000", None),
        ("rtxpro6000", "RTX PRO 6000", None),
        ("RTX-6000-48GB", "RTX 6000", None),
        ("RTX 6000 Ada", "RTX 6000", None),
        ("RTX 6000 96 GB", "RTX PRO 6000", None),
        ("A100-80GB", "A100", None),
        ("NVIDIA A100-SXM4-40GB:8", "A100", 8),
        ("V100-SXM2-32GB", "V100", None),
        ("GB200 NVL72", "GB200", None),
    ],
)
def test_spellings_resolve_to_one_name(text: str, name: str, count: int | None) -> None:
    wish = resolve_accelerator(text, CATALOGUE)

    (variant,) = wish.variants
    assert (variant.name, wish.count) == (name, count)


def test_memory_in_the_name_tells_variants_apart() -> None:
    (small,) = resolve_accelerator("A100-40GB", CATALOGUE).variants
    (large,) = resolve_accelerator("A100-80GB", CATALOGUE).variants

    assert (small.memory_gib, large.memory_gib) == (Decimal(40), Decimal(80))


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("A100", "A100-40GB, A100-80GB"),
        ("RTX 6000", "RTX-6000-48GB, RTX-PRO-6000-96GB"),
        ("RTX_6000_PCI", "RTX-6000-48GB, RTX-PRO-6000-96GB"),
        ("rtx pro", "RTX-PRO-4500-32GB, RTX-PRO-6000-96GB"),
    ],
)
def test_an_ambiguous_name_is_asked_back_with_names_that_work(text: str, choices: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        resolve_accelerator(text, CATALOGUE)

    assert choices in caught.value.problems[0].message
    for choice in choices.split(", "):
        assert len(resolve_accelerator(choice, CATALOGUE).variants) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("H101", "did you mean 'H100'?", id="a typo"),
        pytest.param("H100-40GB", "there is: H100-80GB", id="a size that is not sold"),
        pytest.param("NVIDIA", "known: A100", id="a vendor alone"),
        pytest.param("", "known: A100", id="nothing"),
        pytest.param(":8", "known: A100", id="a count alone"),
        pytest.param("数据", "known: A100", id="another script"),
        pytest.param("H100:0", "1 to 1024", id="none of it"),
        pytest.param("H100:99999", "1 to 1024", id="too many"),
        pytest.param("H100:-1", "no accelerator", id="a negative count"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(text: str, words: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        resolve_accelerator(text, CATALOGUE)

    assert caught.value.problems[0].field == "accelerator"
    assert words in caught.value.problems[0].message


def test_every_name_of_the_catalogue_resolves_with_its_memory() -> None:
    whole = {
        (o.accelerator, o.accelerator_memory_gib)
        for o in CATALOGUE
        if o.accelerator is not None and o.accelerator_count >= 1
    }

    for name, memory in whole:
        (variant,) = resolve_accelerator(f"{name} {memory}GB", CATALOGUE).variants
        assert variant.name == name


@given(st.text(max_size=256))
def test_any_text_is_resolved_or_refused(text: str) -> None:
    try:
        wish = resolve_accelerator(text, CATALOGUE[:100])
    except InvalidSpec:
        return
    assert len(wish.variants) == 1
