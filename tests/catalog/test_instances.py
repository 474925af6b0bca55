"""What replicas can really use of a machine."""

from __future__ import annotations

from decimal import Decimal

import pytest

from garrison.catalog.instances import available_resources, load_instances
from garrison.catalog.loader import load_offers
from garrison.models.offer import Offer
from garrison.models.resources import Resources

GIB = 2**30
A10G = Resources(
    cpu_milli=7500,
    memory_bytes=30_440_580_711,
    accelerators=1,
    accelerator_memory_bytes=24_148_453_622,
    accelerator_types=("NVIDIA-A10G",),
)


def offer(**fields: object) -> Offer:
    return Offer.model_validate({"provider": "aws", "instance_type": "g5.2xlarge", **fields})


@pytest.mark.parametrize(
    "sold",
    [
        pytest.param(offer(vcpus=8, memory_gib=32), id="by the provider's name"),
        pytest.param(offer(provider="mine", provider_type="aws"), id="by its adapter"),
        pytest.param(offer(provider="AWS", instance_type="G5.2xlarge"), id="in any case"),
        pytest.param(
            offer(provider="paper", provider_type="simulated", simulated=True),
            id="a simulated machine as the real one",
        ),
    ],
)
def test_a_machine_of_the_file_has_what_the_file_says(sold: Offer) -> None:
    assert available_resources(sold) == A10G


def test_a_machine_that_is_not_in_the_file_has_all_that_is_sold() -> None:
    sold = offer(
        provider="lambda",
        vcpus=26,
        memory_gib=Decimal("200.5"),
        accelerator="RTX PRO 6000",
        accelerator_count=2,
        accelerator_memory_gib=96,
    )

    assert available_resources(sold) == Resources(
        cpu_milli=26_000,
        memory_bytes=401 * GIB // 2,
        accelerators=2,
        accelerator_memory_bytes=96 * GIB,
        accelerator_types=("NVIDIA-RTX-PRO-6000",),
    )


@pytest.mark.parametrize(
    ("fields", "resources"),
    [
        pytest.param({}, Resources(), id="nothing is known"),
        pytest.param(
            {"accelerator": "L4", "accelerator_count": "0.5", "accelerator_memory_gib": 24},
            Resources(),
            id="a slice is no accelerator",
        ),
        pytest.param(
            {"accelerator": "MI300X", "accelerator_count": 8},
            Resources(accelerators=8, accelerator_types=("AMD-MI300X",)),
            id="a maker by its part",
        ),
    ],
)
def test_what_an_offer_does_not_say_is_not_there(
    fields: dict[str, object], resources: Resources
) -> None:
    assert available_resources(offer(instance_type="x", **fields)) == resources


def test_the_shipped_file_is_read_whole_and_never_says_more_than_is_sold() -> None:
    sold = {(o.provider, o.instance_type): o for o in load_offers() if o.whole_machine}
    both = {key: known for key, known in load_instances().items() if key in sold}

    assert len(load_instances()) == 59
    assert len(both) >= 15
    for key, known in both.items():
        cores, memory = sold[key].vcpus, sold[key].memory_gib
        assert cores is None or known.cpu_milli < 1000 * cores, key
        assert memory is None or known.memory_bytes < memory * GIB, key
        assert known.accelerators == sold[key].accelerator_count, key
