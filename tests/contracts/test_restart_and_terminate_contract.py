"""Restart in place and terminate, as the `Provider` contract has them, for all adapters."""

from __future__ import annotations

import asyncio

import pytest

from garrison.errors import ProviderUnreachable
from garrison.models.group import NodeStatus, RestartResult
from tests.contracts.adapters import (
    AdapterUnderTest,
    Can,
    find,
    gone,
    launched,
    needs,
    until,
)


async def test_a_stopped_node_comes_back_in_place(subject: AdapterUnderTest) -> None:
    needs(subject, Can.STOP_NODE)
    before = (await launched(subject)).nodes
    await subject.stop_node(before[1])

    async def stopped() -> bool:
        group = await find(subject.provider, "token-1")
        return group is not None and group.nodes[1].status is NodeStatus.STOPPED

    await until(subject, stopped)
    result = await subject.provider.restart_node(before[1].provider_id, "restart-1")
    after = (await launched(subject)).nodes

    assert result is RestartResult.RESTARTED
    assert [n.provider_id for n in after] == [n.provider_id for n in before]
    assert after[1].private_address == before[1].private_address
    assert after[1].first_port == before[1].first_port
    assert [n.incarnation for n in after] == [before[0].incarnation, before[1].incarnation + 1]
    assert await subject.existing("token-1") == 2


async def test_one_restart_token_restarts_once(subject: AdapterUnderTest) -> None:
    needs(subject, Can.STOP_NODE)
    node = (await launched(subject)).nodes[0]
    await subject.stop_node(node)

    first = await subject.provider.restart_node(node.provider_id, "restart-1")
    await launched(subject)
    await subject.stop_node(node)
    same = await subject.reopened().restart_node(node.provider_id, "restart-1")
    idle = await find(subject.provider, "token-1")
    other = await subject.provider.restart_node(node.provider_id, "restart-2")

    assert (first, same, other) == (RestartResult.RESTARTED,) * 3
    assert idle is not None
    assert idle.nodes[0].incarnation == node.incarnation + 1
    assert (await launched(subject)).nodes[0].incarnation == node.incarnation + 2


async def test_a_restart_whose_response_was_lost_is_not_repeated(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.STOP_NODE, Can.LOSE_RESPONSE)
    node = (await launched(subject)).nodes[0]
    await subject.stop_node(node)
    await subject.lose_response("restart_node")

    with pytest.raises(ProviderUnreachable):
        await subject.provider.restart_node(node.provider_id, "restart-1")
    again = await subject.reopened().restart_node(node.provider_id, "restart-1")

    assert again is RestartResult.RESTARTED
    assert (await launched(subject)).nodes[0].incarnation == node.incarnation + 1


async def test_a_running_node_is_left_alone(subject: AdapterUnderTest) -> None:
    node = (await launched(subject)).nodes[0]

    result = await subject.provider.restart_node(node.provider_id, "restart-1")

    assert result is RestartResult.ALREADY_RUNNING
    assert (await launched(subject)).nodes[0].incarnation == node.incarnation


async def test_a_node_without_capacity_stays_down(subject: AdapterUnderTest) -> None:
    needs(subject, Can.STOP_NODE, Can.REFUSE_CAPACITY)
    node = (await launched(subject)).nodes[0]
    await subject.stop_node(node)
    await subject.refuse_capacity()

    result = await subject.provider.restart_node(node.provider_id, "restart-1")

    assert result is RestartResult.NO_CAPACITY


async def test_a_terminated_or_unknown_node_is_gone(subject: AdapterUnderTest) -> None:
    node = (await launched(subject)).nodes[0]
    await subject.provider.terminate_group("token-1")

    terminated = await subject.provider.restart_node(node.provider_id, "restart-1")
    unknown = await subject.provider.restart_node("no-such-machine", "restart-2")

    assert (terminated, unknown) == (RestartResult.GONE, RestartResult.GONE)


async def test_terminate_works_twice_and_from_the_token_alone(subject: AdapterUnderTest) -> None:
    await launched(subject)

    await subject.reopened().terminate_group("token-1")
    await subject.provider.terminate_group("token-1")

    await until(subject, lambda: gone(subject, "token-1"))
    await subject.provider.terminate_group("token-1")
    assert await subject.existing("token-1") == 0


async def test_terminating_what_was_never_bought_is_success(subject: AdapterUnderTest) -> None:
    await launched(subject)

    await subject.provider.terminate_group("no-such-token")

    assert await subject.existing("token-1") == 2


async def test_terminate_leaves_other_groups_alone(subject: AdapterUnderTest) -> None:
    await launched(subject, token="token")
    await launched(subject, token="token-2", uid="uid-2", owner="cluster/train-2")

    await subject.provider.terminate_group("token")

    await until(subject, lambda: gone(subject, "token"))
    assert await subject.existing("token-2") == 2


async def test_terminate_of_a_machine_that_was_removed_is_success(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.REMOVE_NODE)
    group = await launched(subject)
    await subject.remove_node(group.nodes[1])

    listed = await find(subject.provider, "token-1")
    restart = await subject.provider.restart_node(group.nodes[1].provider_id, "restart-1")
    await subject.provider.terminate_group("token-1")

    assert listed is not None
    states = {node.rank: node.status for node in listed.nodes}
    assert states[0] is NodeStatus.RUNNING
    assert states.get(1, NodeStatus.TERMINATED) is NodeStatus.TERMINATED
    assert restart is RestartResult.GONE
    await until(subject, lambda: gone(subject, "token-1"))
    assert await subject.existing("token-1") == 0


async def test_terminate_while_machines_boot_ends_them(subject: AdapterUnderTest) -> None:
    await subject.provider.launch_group(subject.request())

    await subject.provider.terminate_group("token-1")

    await until(subject, lambda: gone(subject, "token-1"))
    await subject.pass_time(600)
    assert await subject.existing("token-1") == 0


async def test_terminate_beside_a_launch_leaves_all_or_nothing(subject: AdapterUnderTest) -> None:
    await asyncio.gather(
        subject.provider.launch_group(subject.request()),
        subject.reopened().terminate_group("token-1"),
    )

    assert await subject.existing("token-1") in {0, 2}
    await subject.provider.terminate_group("token-1")
    await until(subject, lambda: gone(subject, "token-1"))
    assert await subject.existing("token-1") == 0


async def test_a_create_that_takes_effect_after_the_delete_is_ended_by_the_next_delete(
    subject: AdapterUnderTest,
) -> None:
    needs(subject, Can.DELAY_EFFECT)
    await subject.delay_effect("launch_group", 30)
    with pytest.raises(ProviderUnreachable):
        await subject.provider.launch_group(subject.request())

    await subject.provider.terminate_group("token-1")
    before = await subject.existing("token-1")
    await subject.pass_time(30)
    after = await subject.existing("token-1")
    await subject.provider.terminate_group("token-1")

    assert (before, after) == (0, 2)
    await until(subject, lambda: gone(subject, "token-1"))
    assert await subject.existing("token-1") == 0


async def test_a_terminate_whose_response_was_lost_has_worked(subject: AdapterUnderTest) -> None:
    needs(subject, Can.LOSE_RESPONSE)
    await launched(subject)
    await subject.lose_response("terminate_group")

    with pytest.raises(ProviderUnreachable):
        await subject.provider.terminate_group("token-1")
    await subject.provider.terminate_group("token-1")

    await until(subject, lambda: gone(subject, "token-1"))
    assert await subject.existing("token-1") == 0


async def test_a_restarted_worker_sees_what_was_there(subject: AdapterUnderTest) -> None:
    before = await launched(subject)

    after = await find(subject.reopened(), "token-1")

    assert after is not None
    assert [(n.rank, n.provider_id, n.status, n.private_address) for n in after.nodes] == [
        (n.rank, n.provider_id, n.status, n.private_address) for n in before.nodes
    ]
    assert after.created_at == before.created_at
