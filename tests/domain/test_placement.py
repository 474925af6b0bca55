"""Where a cluster is bought."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from garrison.catalog.loader import load_offers
from garrison.domain.placement import Placement, choose_offers, consider_offers, offer_label
from garrison.errors import (
    GarrisonError,
    InvalidShape,
    InvalidSpec,
    Unsupported,
)
from garrison.models.cluster import ClusterShape, Orchestrator, ShapeLimits
from garrison.models.offer import CapacityType, Offer, Stock
from garrison.models.provider import Capabilities, ProviderFacts

LIMITS = ShapeLimits()
CLOUD = ProviderFacts(name="cloud", type="aws", capabilities=Capabilities(spot=True))
PAPER = ProviderFacts(
    name="simulated", type="simulated", regions=("sim-a", "sim-b"), simulated=True
)
FACTS = {"cloud": CLOUD, "simulated": PAPER}


def offer(price: str | None = "98.32", **overrides: Any) -> Offer:
    fields: dict[str, Any] = {
        "provider": "cloud",
        "region": "r1",
        "instance_type": "p5",
        "accelerator": "H100",
        "accelerator_count": Decimal(8),
        "accelerator_memory_gib": Decimal(80),
        "usd_per_hour": Decimal(price) if price is not None else None,
    }
    return Offer(**{**fields, **overrides})


SMALL = offer("12", instance_type="p5.4xlarge", accelerator_count=Decimal(1))
CPU = offer(
    "0.1", instance_type="t3", accelerator=None, accelerator_count=0, accelerator_memory_gib=None
)
FORTY = offer("20", instance_type="p4d", accelerator="A100", accelerator_memory_gib=Decimal(40))
EIGHTY = offer("27", instance_type="p4de", accelerator="A100", accelerator_memory_gib=Decimal(80))


def choose(
    *offers: Offer, facts: dict[str, ProviderFacts] | None = None, **shape: Any
) -> Placement:
    wanted = ClusterShape(**{"accelerator": "H100", **shape})
    return choose_offers(wanted, offers, FACTS if facts is None else facts, LIMITS)


def refusal(*offers: Offer, facts: dict[str, ProviderFacts] | None = None, **shape: Any) -> str:
    with pytest.raises(GarrisonError) as caught:
        choose(*offers, facts=facts, **shape)
    return f"{caught.value.code}: {caught.value}"


def test_the_cheapest_machine_of_exactly_the_size_is_chosen() -> None:
    cheap = offer("90", region="r2")

    placement = choose(offer(), cheap, SMALL, gpus_per_node=8)

    assert placement.chosen == cheap
    assert placement.gpus_per_node == 8
    assert placement.alternatives == ()


@pytest.mark.parametrize(
    "bad", [None, "0", "0.0", "-1", "1000000000"], ids=["missing", "zero", "0.0", "less", "absurd"]
)
def test_an_unusable_price_is_never_chosen(bad: str | None) -> None:
    placement = choose(offer(bad, region="r2"), offer("98.32"))

    assert placement.chosen.usd_per_hour == Decimal("98.32")
    assert [row.verdict for row in placement.considered] == ["chosen", "price unknown"]


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity"])
def test_a_price_that_is_no_number_is_never_chosen(bad: str) -> None:
    odd = offer().model_copy(update={"usd_per_hour": Decimal(bad)})

    assert refusal(odd).startswith("price_unavailable: ")


def test_without_any_usable_price_the_quote_is_refused_by_name() -> None:
    said = refusal(offer(None), offer("0", region="r2"))

    assert said.startswith("price_unavailable: ")
    assert "cloud/r1/p5 (8 x H100): price unknown" in said
    assert "cloud/r2/p5 (8 x H100): price unknown" in said


def test_the_cluster_rate_decides_for_several_nodes_only() -> None:
    plain = offer("90", region="r1")
    gang = offer("100", region="r2", cluster_usd_per_hour=Decimal(80))

    assert choose(plain, gang, nodes=1).chosen == plain
    assert choose(plain, gang, nodes=2).chosen == gang


def test_root_disks_count_for_the_price() -> None:
    included = offer("98.40", region="r1")
    extra = offer("98.32", region="r2", root_disk_usd_per_gb_month=Decimal("0.08"))

    assert choose(included, extra).chosen == extra
    assert choose(included, extra, root_disk_gb=2000).chosen == included


def test_a_disk_of_unknown_price_is_not_quoted() -> None:
    said = refusal(offer(root_disk_price_unknown=True), root_disk_gb=100)

    assert said.startswith("price_unavailable: ")
    assert "price of the root disk unknown" in said


def test_alternatives_are_never_dearer_than_the_chosen_one() -> None:
    same = offer("98.32", region="r2")
    dearer = offer("98.33", region="r3")

    placement = choose(offer(), same, dearer)

    assert placement.alternatives == (same,)
    assert [row.verdict for row in placement.considered] == [
        "chosen",
        "not dearer, a place for a failover",
        "dearer by 0.01 USD/h",
    ]


def test_a_cheaper_disk_does_not_make_a_dearer_machine_an_alternative() -> None:
    chosen = offer("98", region="r1", root_disk_usd_per_gb_month=Decimal("0.73"))
    other = offer("99", region="r2")

    placement = choose(chosen, other, root_disk_gb=1000)

    assert (placement.chosen, placement.alternatives) == (chosen, ())


def test_where_no_stock_is_signalled_is_the_last_choice() -> None:
    empty = offer("50", region="r1", stock=Stock.NONE)
    full = offer("90", region="r2", stock=Stock.HIGH)

    placement = choose(empty, full)

    assert placement.chosen == full
    assert placement.alternatives == (empty,)
    assert choose(empty).chosen == empty


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        pytest.param(
            {}, "cluster.gpus_per_node: is needed: H100 is sold with 1, 8 per machine", id="no size"
        ),
        pytest.param(
            {"gpus_per_node": 4},
            "no machine has 4 x H100; it is sold with 1, 8 per machine",
            id="a size that is not sold",
        ),
        pytest.param(
            {"accelerator": "H100:4"}, "no machine has 4 x H100", id="a count in the name"
        ),
        pytest.param(
            {"gpus_per_node": 8, "nodes": 9},
            "cluster.nodes: 9 exceeds the limit 8 (setting limits.max_nodes)",
            id="nodes",
        ),
        pytest.param({"gpus_per_node": 8, "region": "r1", "zone": "z"}, "", id="zone is free"),
    ],
)
def test_sizes_and_limits(shape: dict[str, Any], message: str) -> None:
    if not message:
        assert choose(offer(), SMALL, **shape).chosen.zone == "z"
        return

    said = refusal(offer(), SMALL, **shape)

    assert said.startswith("invalid_shape: ")
    assert message in said


def test_the_gpu_limit_holds_for_a_size_that_the_machine_implies() -> None:
    big = offer(instance_type="nvl", accelerator_count=Decimal(16))

    said = refusal(big, accelerator=None, instance_type="nvl")

    assert "gpus_per_node: 16 exceeds the limit 8 (setting limits.max_gpus_per_node)" in said


def test_mistakes_of_places_names_sizes_and_limits_are_all_told_at_once() -> None:
    with pytest.raises(InvalidSpec) as caught:
        choose(offer(), SMALL, nodes=9, accelerator="H100:7", region="mars")

    assert [str(problem) for problem in caught.value.problems] == [
        "cluster.region: nothing is sold in 'mars'; known: r1",
        "cluster.nodes: 9 exceeds the limit 8 (setting limits.max_nodes)",
        "cluster.accelerator: no machine has 7 x H100; it is sold with 1, 8 per machine",
    ]


def test_mistakes_that_are_all_of_the_size_are_an_invalid_shape() -> None:
    with pytest.raises(InvalidShape) as caught:
        choose(offer(), SMALL, nodes=99, gpus_per_node=9)

    assert [str(problem) for problem in caught.value.problems] == [
        "cluster.nodes: 99 exceeds the limit 8 (setting limits.max_nodes)",
        "cluster.gpus_per_node: 9 exceeds the limit 8 (setting limits.max_gpus_per_node)",
        "cluster.gpus_per_node: no machine has 9 x H100; it is sold with 1, 8 per machine",
    ]


def test_a_provider_of_cpu_machines_says_so_when_an_accelerator_is_wanted() -> None:
    said = refusal(CPU)

    assert "cluster.accelerator: cloud sells only machines without accelerators" in said


def test_the_ceiling_of_a_spot_price_is_the_providers_own_price() -> None:
    own = offer("10", provider_usd_per_hour=Decimal(98))

    placement = choose(own, capacity_type="spot")

    assert placement.chosen.usd_per_hour == Decimal(98)


def test_the_size_comes_from_the_name_or_the_machine_or_the_only_one_sold() -> None:
    assert choose(offer(), SMALL, accelerator="H100:8").gpus_per_node == 8
    assert choose(offer(), SMALL, accelerator=None, instance_type="p5").gpus_per_node == 8
    assert choose(offer()).gpus_per_node == 8


def test_a_cpu_machine_has_exactly_no_accelerators() -> None:
    placement = choose(offer("0.01"), CPU, accelerator=None, gpus_per_node=0)

    assert (placement.chosen, placement.gpus_per_node) == (CPU, 0)


def test_nothing_named_is_asked_back() -> None:
    said = refusal(offer(), CPU, accelerator=None)

    assert said.startswith("invalid_spec: ")
    assert "name an accelerator or an instance type, or say gpus_per_node: 0" in said


@pytest.mark.parametrize("unit", [{"accelerator_count": Decimal("0.5")}, {"instance_type": "x"}])
def test_slices_and_prices_by_the_gpu_are_never_bought(unit: dict[str, Any]) -> None:
    part = offer("1", whole_machine=False, **unit)

    said = refusal(part, accelerator=None, instance_type=part.instance_type)

    assert said.startswith("invalid_shape: ")


def test_machines_on_paper_are_used_only_when_named() -> None:
    paper = offer("1", provider="simulated", region=None, simulated=True)

    assert choose(paper, offer()).chosen.provider == "cloud"
    assert choose(paper, offer(), provider="simulated").chosen.provider == "simulated"
    assert "only when it is named" in refusal(paper)


def test_an_offer_that_is_the_same_everywhere_is_placed_in_each_region() -> None:
    paper = offer("1", provider="simulated", region=None)

    anywhere = choose(paper, provider="simulated")
    there = choose(paper, provider="simulated", region="sim-b")

    assert anywhere.chosen.region == "sim-a"
    assert [a.region for a in anywhere.alternatives] == ["sim-b"]
    assert there.chosen.region == "sim-b"
    assert there.alternatives == ()


def test_offers_of_providers_that_are_not_configured_cannot_be_bought() -> None:
    foreign = offer("1", provider="lambda")

    placement = choose(foreign, offer())

    assert placement.chosen.provider == "cloud"
    assert placement.considered[-1].verdict == "provider lambda is not configured"


def test_regions_that_the_settings_leave_out_are_not_used() -> None:
    facts = {"cloud": CLOUD.replace(regions=("r2",))}

    placement = choose(offer("1"), offer("2", region="r2"), facts=facts)

    assert placement.chosen.region == "r2"
    assert placement.considered[-1].verdict == "a region that the settings do not allow"


def test_unknown_names_are_all_listed_with_the_nearest() -> None:
    with pytest.raises(InvalidSpec) as caught:
        choose(offer(), accelerator="H101", instance_type="p55", region="r11")

    assert [str(problem) for problem in caught.value.problems] == [
        "cluster.region: nothing is sold in 'r11'; did you mean 'r1'?",
        "cluster.instance_type: no instance type is called 'p55'; did you mean 'p5'?",
        "cluster.accelerator: no accelerator is called 'H101'; did you mean 'H100'?",
    ]


def test_an_unknown_provider_is_refused_with_the_configured_ones() -> None:
    said = refusal(offer(), provider="claud")

    assert "provider: no provider 'claud' is configured; did you mean 'cloud'?" in said


def test_a_type_sold_elsewhere_only_is_told_from_an_unknown_one() -> None:
    said = refusal(offer(), SMALL.replace(region="r2"), instance_type="p5", region="r2")

    assert "cluster.instance_type: H100 is not sold there; it is in: r1" in said


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        pytest.param(
            {"accelerator": "A100-40GB", "instance_type": "p5"}, ["accelerator"], id="kind"
        ),
        pytest.param(
            {"accelerator": "A100-40GB:4", "instance_type": "p5", "gpus_per_node": 2},
            ["accelerator", "gpus_per_node"],
            id="kind and count",
        ),
        pytest.param({"accelerator": "H100:8", "gpus_per_node": 4}, ["gpus_per_node"], id="counts"),
        pytest.param({"gpus_per_node": 0}, ["gpus_per_node"], id="none of an accelerator"),
        pytest.param(
            {"accelerator": None, "instance_type": "p5", "gpus_per_node": 0},
            ["gpus_per_node"],
            id="none in a machine that has some",
        ),
    ],
)
def test_contradictions_are_all_refused(shape: dict[str, Any], fields: list[str]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        choose(offer(), SMALL, FORTY, **shape)

    assert [problem.field for problem in caught.value.problems] == [f"cluster.{f}" for f in fields]


def test_an_ambiguous_accelerator_is_asked_back_unless_the_rest_settles_it() -> None:
    assert "A100-40GB, A100-80GB" in refusal(FORTY, EIGHTY, accelerator="A100")

    assert choose(FORTY, EIGHTY, accelerator="A100-80GB").chosen == EIGHTY
    assert choose(FORTY, EIGHTY, accelerator="A100", instance_type="p4de").chosen == EIGHTY
    far = EIGHTY.replace(region="r2")
    assert choose(FORTY, far, accelerator="A100", region="r2").chosen == far


def test_spot_without_a_price_is_quoted_at_most_at_the_on_demand_price() -> None:
    spot = offer("30", region="r2", capacity_type=CapacityType.SPOT)

    placement = choose(offer("20"), offer("90", region="r2"), spot, capacity_type="spot")

    assert placement.chosen.capacity_type is CapacityType.SPOT
    assert placement.chosen.price_is_ceiling
    assert placement.chosen.usd_per_hour == Decimal(20)
    assert (placement.chosen.region, placement.alternatives) == ("r1", ())
    assert choose(offer("90", region="r2"), spot, capacity_type="spot").chosen == spot


def test_a_spot_price_that_is_no_price_falls_back_to_the_ceiling() -> None:
    unknown = offer("0", capacity_type=CapacityType.SPOT)

    placement = choose(offer("20"), unknown, capacity_type="spot")

    assert placement.chosen.usd_per_hour == Decimal(20)
    assert placement.chosen.price_is_ceiling


@pytest.mark.parametrize(
    ("able", "shape", "words"),
    [
        pytest.param({"spot": False}, {"capacity_type": "spot"}, "no spot capacity", id="spot"),
        pytest.param({"gang": False}, {"nodes": 2}, "several machines", id="several nodes"),
        pytest.param({}, {"capacity_type": "reserved"}, "reserved", id="reserved"),
        pytest.param({}, {"orchestrator": Orchestrator.SLURM}, "orchestrator slurm", id="slurm"),
    ],
)
def test_what_a_provider_cannot_do_is_refused(
    able: dict[str, bool], shape: dict[str, Any], words: str
) -> None:
    facts = {"cloud": CLOUD.replace(capabilities=Capabilities(**{"spot": True, **able}))}

    with pytest.raises(Unsupported, match=words):
        choose(offer(), facts=facts, **shape)


def test_a_provider_that_cannot_do_it_is_passed_over_for_one_that_can() -> None:
    facts = {
        **FACTS,
        "single": ProviderFacts(name="single", type="ssh", capabilities=Capabilities(gang=False)),
    }

    placement = choose(offer("1", provider="single"), offer(), facts=facts, nodes=2)

    assert placement.chosen.provider == "cloud"
    assert "all or nothing" in placement.considered[1].verdict


def test_considered_is_bounded_and_begins_with_the_chosen() -> None:
    many = [offer(str(100 + n), region=f"r{n}") for n in range(200)]

    rows = choose(*many).considered

    assert len(rows) == 50
    assert rows[0].verdict == "chosen"
    assert rows[1].verdict == "dearer by 1.00 USD/h"


def test_a_refusal_still_says_what_was_considered() -> None:
    shape = ClusterShape(accelerator="H100", gpus_per_node=4)

    rows = consider_offers(shape, [offer(), SMALL, FORTY], FACTS)
    unpriced = consider_offers(ClusterShape(accelerator="H100"), [offer(None)], FACTS)

    assert [row.verdict for row in rows] == ["has 8 accelerators", "has 1 accelerators"]
    assert [row.verdict for row in unpriced] == ["price unknown"]
    assert consider_offers(ClusterShape(accelerator="?"), [offer()], FACTS) == ()


def test_a_label_names_place_machine_and_capacity() -> None:
    assert offer_label(offer(zone="r1a")) == "cloud/r1a/p5 (8 x H100)"
    assert offer_label(CPU) == "cloud/r1/t3"
    assert offer_label(offer(capacity_type=CapacityType.SPOT)).endswith(", spot")


def test_the_shipped_catalogue_gives_the_cheapest_h100_machine() -> None:
    facts = {"aws": ProviderFacts(name="aws", type="aws")}
    shape = ClusterShape(accelerator="NVIDIA-H100", gpus_per_node=8, nodes=2)

    placement = choose_offers(shape, load_offers(), facts, LIMITS)

    prices = [
        o.usd_per_hour
        for o in load_offers()
        if o.provider == "aws" and o.accelerator == "H100" and o.accelerator_count == 8
    ]
    assert placement.chosen.usd_per_hour == min(p for p in prices if p is not None)
    assert placement.considered[0].usd_per_hour == 2 * (placement.chosen.usd_per_hour or 0)
