"""Whom a quote asks, what it refuses at once, and the own price beside the provider's."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from garrison.domain.clusters.quote import merge_places, providers_to_ask, silent_place
from garrison.domain.rates import node_rate, provider_rate
from garrison.errors import ErrorCode, GarrisonError, InvalidShape, InvalidSpec, Problem
from garrison.models.cluster import ClusterSpec, ShapeLimits
from garrison.models.cluster_messages import PlaceAnswer, QuoteTerms
from garrison.models.offer import CapacityType, Offer
from garrison.models.provider import ProviderFacts
from garrison.models.quote import QuoteRefusal
from garrison.settings import PriceOverride, ProviderSettings, ProviderType

TERMS = QuoteTerms(
    providers={
        "cloud": ProviderFacts(name="cloud", type="aws"),
        "simulated": ProviderFacts(name="simulated", type="simulated", simulated=True),
    },
    limits=ShapeLimits(),
)


def refused(**fields: Any) -> GarrisonError:
    with pytest.raises(GarrisonError) as caught:
        providers_to_ask(ClusterSpec.model_validate(fields), TERMS)
    return caught.value


def test_an_unknown_provider_does_not_hide_that_the_limits_are_passed() -> None:
    error = refused(provider="simulatd", nodes=99, gpus_per_node=9)

    assert error.code is ErrorCode.INVALID_SPEC
    assert str(error).splitlines()[1:] == [
        "  cluster.provider: no provider 'simulatd' is configured; did you mean 'simulated'?",
        "  cluster.nodes: 99 exceeds the limit 8 (setting limits.max_nodes)",
        "  cluster.gpus_per_node: 9 exceeds the limit 8 (setting limits.max_gpus_per_node)",
    ]


def test_a_provider_like_no_other_is_refused_with_what_is_known() -> None:
    assert "'zzz' is configured; known: cloud, simulated" in str(refused(provider="zzz"))


def test_settings_that_no_adapter_heeds_are_refused() -> None:
    error = refused(
        provider="simulated",
        account="other",
        provider_options={"simulated": {"a": 1}, "aws": {"b": 2}, "local": {}},
    )

    assert error.code is ErrorCode.UNSUPPORTED
    assert str(error).splitlines()[1:] == [
        "  cluster.account: 'other' is not supported; the only account is 'default'",
        "  cluster.provider_options.simulated: is not supported: simulated takes no options",
        "  cluster.provider_options.aws: is not supported: provider simulated is of type simulated",
    ]


def test_options_of_the_adapter_that_sells_it_are_left_to_it() -> None:
    spec = ClusterSpec.model_validate({"provider_options": {"aws": {"b": 2}}})

    assert providers_to_ask(spec, TERMS) == ("cloud",)


def test_what_several_providers_refuse_alike_is_told_once() -> None:
    shared, own = Problem("cluster.nodes", "too many"), Problem("cluster.region", "none")
    answers = [
        PlaceAnswer(provider=name, refusal=QuoteRefusal(
            code=ErrorCode.INVALID_SPEC, message="head\n  ...", problems=problems))
        for name, problems in (("a", (shared,)), ("b", (own, shared)))
    ]  # fmt: skip

    with pytest.raises(InvalidSpec) as caught:
        merge_places(answers, 1)

    assert caught.value.problems == (shared, own)
    assert not isinstance(caught.value, InvalidShape)


@pytest.mark.parametrize(
    ("override", "offered", "one", "several"),
    [
        pytest.param({"usd_per_hour": 10}, {}, ("10", "60"), ("10", "60"), id="below the list"),
        pytest.param({"usd_per_hour": 90}, {}, ("90", "60"), ("90", "60"), id="above the list"),
        pytest.param(
            {"cluster_usd_per_hour": 9}, {}, ("60", "60"), ("9", "60"), id="own cluster rate"
        ),
        pytest.param(
            {"usd_per_hour": 10, "cluster_usd_per_hour": 9},
            {"cluster_usd_per_hour": Decimal(50)},
            ("10", "60"),
            ("9", "50"),
            id="both",
        ),
        pytest.param(
            {"usd_per_hour": 10}, {"usd_per_hour": None}, ("10", "10"), ("10", "10"), id="unlisted"
        ),
    ],
)
def test_an_own_price_is_what_is_paid_and_the_providers_rate_is_kept_beside_it(
    override: dict[str, Any],
    offered: dict[str, Any],
    one: tuple[str, str],
    several: tuple[str, str],
) -> None:
    fields: dict[str, Any] = {"usd_per_hour": Decimal(60), **offered}
    offer = Offer(provider="cloud", instance_type="p5", **fields)

    priced = PriceOverride.model_validate(override).apply(offer)

    for nodes, (paid, asked) in ((1, one), (2, several)):
        assert node_rate(priced, nodes) == Decimal(paid)
        assert provider_rate(priced, nodes) == Decimal(asked)


def test_an_own_price_is_not_that_of_a_spot_machine() -> None:
    settings = ProviderSettings.model_validate(
        {"type": ProviderType.SIMULATED, "prices": {"p5": {"usd_per_hour": 10}}}
    )
    spot = Offer(
        provider="cloud",
        instance_type="p5",
        capacity_type=CapacityType.SPOT,
        usd_per_hour=Decimal(20),
    )

    assert settings.price(spot) is spot


def _sold(provider: str, usd: str = "2.00") -> PlaceAnswer:
    offer = Offer(provider=provider, instance_type="h100.8x", usd_per_hour=Decimal(usd))
    return PlaceAnswer(provider=provider, offers=(offer,), gpus_per_node=8)


SILENT = silent_place("b", ErrorCode.PROVIDER_UNREACHABLE, "no answer")


def test_a_provider_that_cannot_be_asked_is_shown_and_keeps_nobody_from_the_others() -> None:
    found = merge_places([SILENT, _sold("a")], 1)

    assert found.chosen.provider == "a"
    assert [(row.offer, row.verdict) for row in found.considered] == [
        ("b", "could not be asked: provider_unreachable: no answer")
    ]


def test_where_nobody_else_has_a_place_a_silent_provider_may_have_had_one() -> None:
    none = QuoteRefusal(code=ErrorCode.INVALID_SHAPE, message="nobody sells that")

    with pytest.raises(GarrisonError) as caught:
        merge_places([PlaceAnswer(provider="a", refusal=none), SILENT], 1)

    assert caught.value.code is ErrorCode.PROVIDER_UNREACHABLE
