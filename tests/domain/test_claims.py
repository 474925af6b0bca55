"""A nodepool's file against the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.catalog.instances import available_resources
from garrison.catalog.loader import load_offers
from garrison.domain.claims import claim_warnings
from garrison.models.elastic_file import read_nodepool_file
from garrison.models.resources import Resources
from garrison.models.units import read_bytes

DATA = Path(__file__).parents[1] / "data" / "clarifai"
KNOWN = Resources(
    cpu_milli=7500,
    memory_bytes=read_bytes("28.35Gi"),
    accelerators=1,
    accelerator_memory_bytes=read_bytes("22.49Gi"),
    accelerator_types=("NVIDIA-A10G",),
)


def test_the_documented_nodepool_claims_more_than_its_machine_has() -> None:
    file, _ = read_nodepool_file((DATA / "nodepool_config.yaml").read_text())
    sold = next(offer for offer in load_offers() if offer.instance_type == "g5.2xlarge")

    told = claim_warnings("g5.2xlarge", file.claims["g5.2xlarge"], available_resources(sold))

    assert told == [
        "g5.2xlarge: the file says 8 cpu cores, the catalogue 7.5",
        "g5.2xlarge: the file says 40Gi accelerator memory, the catalogue 22.49Gi",
    ]


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"memory_bytes": read_bytes("28Gi")}, id="a little less"),
        pytest.param({"cpu_milli": 7125}, id="5 % less"),
        pytest.param({"accelerator_types": ("a10",)}, id="another name of it"),
        pytest.param({"accelerator_types": ("h100", "NVIDIA-*")}, id="one of several names"),
        pytest.param(
            {"accelerators": 1, "accelerator_memory_bytes": KNOWN.accelerator_memory_bytes},
            id="exactly",
        ),
    ],
)
def test_what_agrees_is_not_told(claim: dict[str, object]) -> None:
    assert claim_warnings("x", Resources.model_validate(claim), KNOWN) == []


@pytest.mark.parametrize(
    ("claim", "told"),
    [
        ({"cpu_milli": 7501}, "7.501 cpu cores, the catalogue 7.5"),
        ({"cpu_milli": 7124}, "7.124 cpu cores, the catalogue 7.5"),
        ({"memory_bytes": 32 * 2**30}, "32Gi memory, the catalogue 28.35Gi"),
        ({"accelerators": 2}, "2 accelerators, the catalogue 1"),
        ({"accelerator_types": ("a100",)}, "accelerator a100, the catalogue NVIDIA-A10G"),
        (
            {"accelerator_types": ("AMD-*", "h100")},
            "accelerator AMD-*, h100, the catalogue NVIDIA-A10G",
        ),
    ],
)
def test_what_disagrees_is_told_with_both_figures(claim: dict[str, object], told: str) -> None:
    assert claim_warnings("x", Resources.model_validate(claim), KNOWN) == [
        f"x: the file says {told}"
    ]


def test_a_machine_without_accelerators_is_known_to_have_none() -> None:
    claim = Resources(accelerators=1, accelerator_types=("a10",))

    assert claim_warnings("t3a.large", claim, Resources(cpu_milli=1500)) == [
        "t3a.large: the file says accelerator a10, the catalogue none",
        "t3a.large: the file says 1 accelerators, the catalogue 0",
    ]


def test_a_figure_that_the_catalogue_does_not_know_is_not_compared() -> None:
    known = Resources(accelerators=4, accelerator_types=("GOOGLE-TPU-v7",))
    claim = Resources(accelerators=4, accelerator_memory_bytes=2**35, memory_bytes=2**40)

    assert claim_warnings("x", claim, known) == []
