"""The `Provider` contract, one suite for all adapters (design.md section 5)."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from garrison.errors import (
    ERROR_CLASSES,
    ErrorCode,
    InvalidSpec,
    PriceChanged,
    ProviderUnreachable,
)
from garrison.models.group import Group, NodeStatus, Refusal, RestartResult
from garrison.models.offer import OfferQuery
from garrison.providers.base import SeesInstallations
from tests.contracts.adapters import (
    AdapterUnderTest,
    Can,
    all_nodes,
    find,
    gone,
    launched,
    needs,
    until,
)

BOOTING = (NodeStatus.PENDING, NodeStatus.STARTING, NodeStatus.RUNNING)


async def test_offers_are_cheapest_first_and_none_is_free(subject: AdapterUnderTest) -> None:
    offers = await subject.provider.list_offers(OfferQuery())

    prices = [offer.usd_per_hour for offer in offers]
    known = [price for price in prices if price is not None]
    assert offers
    assert known == sorted(known)
    assert all(price > 0 for price in known)
    assert prices[: len(known)] == known
    assert {offer.provider for offer in offers} == {subject.provider.facts.name}


async def test_filters_leave_only_what_matches(subject: AdapterUnderTest) -> None:
    wanted = subject.request()
    query = OfferQuery(instance_type=wanted.instance_type, region=wanted.region)

    offers = await subject.provider.list_offers(query)
    nothing = await subject.provider.list_offers(OfferQuery(max_usd_per_hour=Decimal("0.0001")))

    assert {offer.instance_type for offer in offers} == {wanted.instance_type}
    assert nothing == []


async def test_a_launched_group_carries_our_tags_and_starts(subject: AdapterUnderTest) -> None:
    request = subject.request()

    bought = await subject.provider.launch_group(request)
    listed = await launched(subject)

    assert isinstance(bought, Group)
    assert all_nodes(bought, *BOOTING)
    for group in (bought, listed):
        assert (group.token, group.owner, group.uid) == (request.token, request.owner, request.uid)
        assert [node.rank for node in group.nodes] == [0, 1]
        assert group.usd_per_node_hour is not None
        assert group.usd_per_node_hour <= request.max_usd_per_node_hour
    assert [n.provider_id for n in bought.nodes] == [n.provider_id for n in listed.nodes]
    assert len({(n.private_address, n.first_port) for n in listed.nodes}) == 2


async def test_the_same_token_returns_the_same_group(subject: AdapterUnderTest) -> None:
    first = await subject.provider.launch_group(subject.request())

    again = await subject.provider.launch_group(subject.request())
    restarted = await subject.reopened().launch_group(subject.request())

    assert isinstance(first, Group)
    for repeated in (again, restarted):
        assert isinstance(repeated, Group)
        assert [n.provider_id for n in repeated.nodes] == [n.provider_id for n in first.nodes]
    assert await subject.existing("token-1") == 2


async def test_concurrent_launches_of_one_token_buy_once(subject: AdapterUnderTest) -> None:
    providers = [subject.provider, subject.reopened(), subject.reopened()]

    answers = await asyncio.gather(
        *(p.launch_group(subject.request()) for p in providers for _ in range(3))
    )

    ids = {tuple(n.provider_id for n in a.nodes) for a in answers if isinstance(a, Group)}
    assert len(ids) == 1
    assert all(isinstance(answer, Group) for answer in answers)
    assert await subject.existing("token-1") == 2


async def test_a_launch_whose_response_was_lost_is_found_again(subject: AdapterUnderTest) -> None:
    needs(subject, Can.LOSE_RESPONSE)
    await subject.lose_response("launch_group")

    with pytest.raises(ProviderUnreachable):
        await subject.provider.launch_group(subject.request())
    again = await subject.reopened().launch_group(subject.request())

    assert isinstance(again, Group)
    assert len(again.nodes) == 2
    assert await subject.existing("token-1") == 2


async def test_a_launch_that_takes_effect_late_is_not_made_twice(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.DELAY_EFFECT)
    await subject.delay_effect("launch_group", 30)

    with pytest.raises(ProviderUnreachable):
        await subject.provider.launch_group(subject.request())
    await subject.provider.launch_group(subject.request())
    await subject.pass_time(60)

    assert await subject.existing("token-1") == 2
    assert len(await subject.provider.list_groups()) == 1


async def test_a_terminated_token_never_buys_again(subject: AdapterUnderTest) -> None:
    await launched(subject)
    await subject.provider.terminate_group("token-1")

    again = await subject.reopened().launch_group(subject.request())

    assert isinstance(again, Group)
    assert not any(node.status in BOOTING for node in again.nodes)
    await until(subject, lambda: gone(subject, "token-1"))
    assert await subject.existing("token-1") == 0


async def test_two_tokens_are_two_groups_with_addresses_of_their_own(
    subject: AdapterUnderTest,
) -> None:
    one = await launched(subject, token="one")
    two = await launched(subject, token="two", uid="uid-2", owner="cluster/train-2")

    nodes = one.nodes + two.nodes
    assert len({node.provider_id for node in nodes}) == 4
    assert len({(node.private_address, node.first_port) for node in nodes}) == 4


async def test_without_capacity_a_launch_is_refused_and_makes_nothing(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.REFUSE_CAPACITY)
    await subject.refuse_capacity()

    answer = await subject.provider.launch_group(subject.request())

    assert isinstance(answer, Refusal)
    assert answer.code is ErrorCode.INSUFFICIENT_CAPACITY
    assert answer.message
    assert await subject.existing("token-1") == 0
    assert await subject.provider.list_groups() == []


async def test_what_a_partial_refusal_made_is_listed_and_deleted_by_token(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.REFUSE_PART)
    await subject.refuse_part(2)

    answer = await subject.provider.launch_group(subject.request(count=3))
    listed = await find(subject.provider, "token-1")
    again = await subject.provider.launch_group(subject.request(count=3))
    left = await subject.existing("token-1")
    await subject.provider.terminate_group("token-1")

    assert isinstance(answer, Refusal)
    assert isinstance(again, Refusal)
    assert listed is not None
    assert [node.rank for node in listed.nodes] == [0, 1]
    assert left == 2
    await until(subject, lambda: gone(subject, "token-1"))
    assert await subject.existing("token-1") == 0


async def test_nothing_is_bought_above_the_accepted_price(subject: AdapterUnderTest) -> None:
    accepted = subject.request().max_usd_per_node_hour
    price = (await launched(subject, token="price")).usd_per_node_hour
    below = subject.request(max_usd_per_node_hour=(price or accepted) / 2)

    with pytest.raises(PriceChanged, match=str(below.max_usd_per_node_hour)):
        await subject.provider.launch_group(below)

    assert await subject.existing("token-1") == 0


async def test_a_raised_price_is_named_with_the_accepted_one(subject: AdapterUnderTest) -> None:
    needs(subject, Can.CHANGE_PRICE)
    await launched(subject, token="before")
    await subject.raise_price()

    with pytest.raises(PriceChanged, match=str(subject.request().max_usd_per_node_hour)):
        await subject.provider.launch_group(subject.request())
    bought_before = await subject.provider.launch_group(subject.request(token="before"))

    assert await subject.existing("token-1") == 0
    assert isinstance(bought_before, Group)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"region": "nowhere-1"}, id="an unknown region"),
        pytest.param({"instance_type": "no.such"}, id="an unknown instance type"),
        pytest.param({"count": 0}, id="no machine at all"),
        pytest.param({"token": "x" * 65}, id="a token too long"),
        pytest.param({"token": "töken"}, id="a token beyond ASCII"),
        pytest.param({"options": {"no-such-option": 1}}, id="an unknown option"),
    ],
)
async def test_an_order_that_nobody_can_fill_is_invalid(
    subject: AdapterUnderTest, changes: dict[str, object]
) -> None:
    with pytest.raises(InvalidSpec):
        await subject.provider.launch_group(subject.request(**changes))

    assert await subject.provider.list_groups() == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.QUOTA_EXCEEDED,
        ErrorCode.PROVIDER_AUTH,
        ErrorCode.INVALID_SPEC,
        ErrorCode.TOO_MANY_REQUESTS,
        ErrorCode.PROVIDER_UNREACHABLE,
        ErrorCode.PROVIDER_ERROR,
    ],
)
@pytest.mark.parametrize("call", ["launch_group", "list_groups", "terminate_group"])
async def test_a_vendor_error_is_raised_as_what_it_means(
    subject: AdapterUnderTest, call: str, code: ErrorCode
) -> None:
    needs(subject, Can.FAIL_CALL)
    await subject.fail_call(call, code, "the vendor's own words")
    arguments = {
        "launch_group": (subject.request(),),
        "list_groups": (),
        "terminate_group": ("token-1",),
    }

    with pytest.raises(ERROR_CLASSES[code], match="the vendor's own words") as caught:
        await getattr(subject.provider, call)(*arguments[call])

    assert caught.value.code is code
    assert await subject.existing("token-1") == 0


async def test_a_failed_list_is_an_error_and_never_an_empty_list(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.FAIL_CALL)
    await launched(subject)
    await subject.fail_call("list_groups", ErrorCode.PROVIDER_UNREACHABLE, "reset")

    with pytest.raises(ProviderUnreachable):
        await subject.provider.list_groups()
    listed = await find(subject.provider, "token-1")

    assert listed is not None
    assert all_nodes(listed, NodeStatus.RUNNING)


async def test_a_late_list_hides_what_is_new_and_shows_what_is_gone(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.LIST_LATE)
    await launched(subject, token="old")
    await subject.pass_time(60)
    await subject.list_late(30)

    await subject.provider.launch_group(subject.request(token="new"))
    await subject.provider.terminate_group("old")
    early = {group.token: group for group in await subject.provider.list_groups()}
    truth = (await subject.existing("new"), await subject.existing("old"))
    await subject.pass_time(30)
    late = {group.token: group for group in await subject.provider.list_groups()}

    assert set(early) == {"old"}
    assert all_nodes(early["old"], NodeStatus.RUNNING)
    assert truth == (2, 0)
    assert "new" in late
    assert "old" not in late or all_nodes(late["old"], NodeStatus.TERMINATED)


async def test_a_node_whose_state_is_hidden_is_unknown_in_a_complete_list(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.HIDE_NODE)
    group = await launched(subject)
    await subject.hide_node(group.nodes[1])

    listed = await find(subject.provider, "token-1")

    assert listed is not None
    assert [n.status for n in listed.nodes] == [NodeStatus.RUNNING, NodeStatus.UNKNOWN]


async def test_a_node_that_fails_to_start_says_why(subject: AdapterUnderTest) -> None:
    needs(subject, Can.FAIL_NODE)
    await subject.fail_node(1, "failed: no capacity")

    await subject.provider.launch_group(subject.request())

    async def failed() -> Group | None:
        group = await find(subject.provider, "token-1")
        return group if group and group.nodes[1].status is NodeStatus.FAILED else None

    group = await until(subject, failed)
    assert group.nodes[1].failure is ErrorCode.INSUFFICIENT_CAPACITY
    assert group.nodes[1].message == "failed: no capacity"
    assert group.nodes[0].status is not NodeStatus.FAILED


async def test_machines_of_another_installation_are_never_seen_or_touched(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.SHARE_ACCOUNT)
    foreign = subject.foreign()
    theirs = await foreign.launch_group(subject.request(token="theirs"))
    assert isinstance(theirs, Group)
    await launched(subject)

    await subject.provider.terminate_group("theirs")
    restart = await subject.provider.restart_node(theirs.nodes[0].provider_id, "restart-1")
    ours = await subject.provider.list_groups()
    seen_by_them = await foreign.list_groups()

    assert restart is RestartResult.GONE
    assert [group.token for group in ours] == ["token-1"]
    assert [group.token for group in seen_by_them] == ["theirs"]
    assert all_nodes(seen_by_them[0], *BOOTING)
    assert await subject.existing("theirs") == 2


async def test_machines_of_other_installations_are_counted_by_those_who_can(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.SHARE_ACCOUNT)
    provider, foreign = subject.provider, subject.foreign()
    if not isinstance(provider, SeesInstallations):
        pytest.skip("it cannot tell cheaply")
    await foreign.launch_group(subject.request(token="theirs", count=2))
    await provider.launch_group(subject.request(count=1))

    before = await provider.other_installations()
    await foreign.terminate_group("theirs")

    assert before == {"theirs": 2}
    assert await provider.other_installations() == {}
