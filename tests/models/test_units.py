"""Quantities: exact, and refused where they are not what they seem."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.models.units import MAX_QUANTITY, read_bytes, read_cores, show_bytes, show_cores


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("28Gi", 30_064_771_072),
        ("22.49Gi", 24_148_453_622),  # and 0.24 less: a part of a byte counts as one
        ("40G", 40_000_000_000),
        ("40GB", 40_000_000_000),
        ("40GiB", 42_949_672_960),
        ("1.5Ti", 1_649_267_441_664),
        ("512Mi", 536_870_912),
        ("1024Ki", 1_048_576),
        ("2000k", 2_000_000),
        (" 16777216 ", 16_777_216),
        ("0.000001P", 1_000_000_000),
        ("0", 0),
        ("0Gi", 0),
        ("1Mi", 1_048_576),
    ],
)
def test_a_size_is_exact(text: str, size: int) -> None:
    assert read_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Gi",
        "-1Gi",
        "28gi",
        "28 Gi",
        "28Gib",
        "1e3Gi",
        "0x10",
        "½Gi",
        "٢Gi",
        "1.Gi",
        ".5Gi",
        "8m",
    ],
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size such as 28Gi, 512Mi or 40G, not '"):
        read_bytes(text)


@pytest.mark.parametrize("text", ["28", "1", "1048575", "0.5Mi", "512"])
def test_a_size_without_its_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is less than 1Mi; give a unit"):
        read_bytes(text)


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("8", 8000),
        ("0.5", 500),
        ("500m", 500),
        ("7.5", 7500),
        ("0.001", 1),
        ("0", 0),
        ("2.0", 2000),
    ],
)
def test_cores_are_exact(text: str, milli: int) -> None:
    assert read_cores(text) == milli


@pytest.mark.parametrize("text", ["", "m", "-1", "8 cores", "1e3", "0x8", "8M", "half", ".5"])
def test_what_is_no_number_of_cores_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be a number of cores such as 8, 0\.5 or 500m"):
        read_cores(text)


@pytest.mark.parametrize("text", ["0.0005", "0.5m", "1.0001"])
def test_cores_finer_than_a_thousandth_are_refused_rather_than_rounded(text: str) -> None:
    with pytest.raises(ValueError, match="is finer than a thousandth of a core"):
        read_cores(text)


def test_the_largest_quantity_is_read_and_the_next_refused() -> None:
    assert read_bytes(str(MAX_QUANTITY)) == MAX_QUANTITY
    with pytest.raises(ValueError, match="is too large"):
        read_bytes(str(MAX_QUANTITY + 1))
    with pytest.raises(ValueError, match="is too large"):
        read_cores(str(MAX_QUANTITY))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0Gi"),
        (2**30, "1Gi"),
        (30_064_771_072, "28Gi"),
        (24_148_453_622, "22.49Gi"),
        (2**29, "512Mi"),
        (2**30 + 2**29, "1.5Gi"),
    ],
)
def test_a_size_is_shown_as_people_write_it(size: int, text: str) -> None:
    assert show_bytes(size) == text


@given(st.integers(0, 2**40), st.integers(0, 99))
def test_what_is_written_with_two_places_is_shown_as_written(whole: int, places: int) -> None:
    text = f"{whole % 2**15 + 1}.{places:02}Gi"

    assert show_bytes(read_bytes(text)) == text.replace("Gi", "").rstrip("0").rstrip(".") + "Gi"


@given(st.integers(0, 2**40))
def test_shown_cores_are_read_as_the_same(milli: int) -> None:
    assert read_cores(show_cores(milli)) == milli
