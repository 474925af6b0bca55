"""What an observation means for nodes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.domain.health import (
    Look,
    accepts_observation,
    all_running,
    doubt_resolved_at,
    none_running,
    observe_nodes,
)
from garrison.models.cluster_state import ClusterNode
from garrison.models.group import Group, Node, NodeStatus
from garrison.models.observation import Observation

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = "life-0"
RUNNING, UNKNOWN = NodeStatus.RUNNING, NodeStatus.UNKNOWN


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def observation(
    seconds: float, *statuses: NodeStatus | None, uid: str = "life", boot: int = 1
) -> Observation:
    """One node per status; None is a node that the list lacks."""
    nodes = tuple(
        Node(
            rank=rank,
            provider_id=f"m{rank}",
            status=status,
            incarnation=boot,
            private_address=f"10.0.0.{rank}",
            message="said so",
        )
        for rank, status in enumerate(statuses)
        if status is not None
    )
    group = Group(
        token=TOKEN,
        owner="cluster/c",
        uid=uid,
        region="r",
        instance_type="t",
        created_at=NOW,
        nodes=nodes,
    )
    return Observation(
        owner="cluster/c", uid=uid, provider="p", begun_at=at(seconds), groups=(group,)
    )


def whole(count: int = 2) -> list[ClusterNode]:
    return [ClusterNode(rank=rank, status=RUNNING, seen=True) for rank in range(count)]


def look(
    nodes: list[ClusterNode], seen: Observation, *, settled: bool = True, token: str = TOKEN
) -> Look:
    return observe_nodes(nodes, seen, token=token, settled=settled, now=NOW)


@pytest.mark.parametrize(
    ("begun", "uid", "accepted"),
    [
        pytest.param(20, "life", True, id="newer than all is believed"),
        pytest.param(20, "other", False, id="another life is dropped"),
        pytest.param(10, "life", False, id="what is not newer than the last is dropped"),
        pytest.param(14.9, "life", False, id="begun before our last call ended is dropped"),
        pytest.param(15, "life", True, id="begun when our last call ended is believed"),
    ],
)
def test_stale_observations_are_dropped(begun: float, uid: str, accepted: bool) -> None:
    answer = accepts_observation(
        observation(begun, RUNNING, uid=uid), uid="life", observed_at=at(10), call_ended_at=at(15)
    )

    assert answer is accepted


@pytest.mark.parametrize("lacking", [None, UNKNOWN])
def test_a_pass_that_is_told_twice_counts_once(lacking: NodeStatus | None) -> None:
    nodes = look(whole(), observation(0, RUNNING, lacking)).nodes

    again = look(nodes, observation(0, RUNNING, lacking)).nodes
    late = look(again, observation(120, RUNNING, lacking)).nodes

    assert again == nodes
    assert late[1].doubt is not None
    assert late[1].doubt.passes == 2
    assert look(late, observation(120, RUNNING, lacking)).nodes[1].status is late[1].status


@pytest.mark.parametrize("status", [NodeStatus.STOPPED, NodeStatus.TERMINATED, NodeStatus.FAILED])
def test_the_providers_own_word_counts_at_once(status: NodeStatus) -> None:
    after = look(whole(), observation(1, RUNNING, status))

    assert [node.status for node in after.nodes] == [RUNNING, status]
    assert [(event.node, event.by) for event in after.events] == [(1, "p")]


@pytest.mark.parametrize(
    ("lacking", "end"),
    [
        pytest.param(None, NodeStatus.LOST, id="missing becomes lost"),
        pytest.param(UNKNOWN, NodeStatus.UNREACHABLE, id="unknown becomes unreachable"),
    ],
)
def test_a_doubt_counts_after_two_passes_and_two_minutes(
    lacking: NodeStatus | None, end: NodeStatus
) -> None:
    nodes = look(whole(), observation(0, RUNNING, lacking)).nodes
    assert nodes[1].status is RUNNING
    assert doubt_resolved_at(nodes) == at(120)

    nodes = look(nodes, observation(119, RUNNING, lacking)).nodes
    assert nodes[1].status is RUNNING

    nodes = look(nodes, observation(120, RUNNING, lacking)).nodes
    assert nodes[1].status is end
    assert doubt_resolved_at(nodes) is None


def test_one_good_read_ends_a_doubt() -> None:
    nodes = look(whole(), observation(0, RUNNING, UNKNOWN)).nodes
    nodes = look(nodes, observation(100, RUNNING, RUNNING)).nodes

    nodes = look(nodes, observation(130, RUNNING, UNKNOWN)).nodes

    assert nodes[1].status is RUNNING
    assert doubt_resolved_at(nodes) == at(250)


def test_what_an_unsettled_list_lacks_means_nothing() -> None:
    after = look(whole(), observation(1, RUNNING, None), settled=False)

    assert after.nodes == look(whole(), observation(1, RUNNING, None), settled=False).nodes
    assert after.nodes[1].doubt is None


def test_a_node_never_seen_is_starting_and_not_missing() -> None:
    fresh = [ClusterNode(rank=0, status=NodeStatus.STARTING)]

    after = look(fresh, observation(500, None))

    assert after.nodes == fresh


def test_a_late_list_that_still_says_stopped_after_a_restart_is_not_believed() -> None:
    restarted = [ClusterNode(rank=0, status=NodeStatus.STARTING, seen=True)]

    early = look(restarted, observation(1, NodeStatus.STOPPED), settled=False)
    late = look(restarted, observation(1, NodeStatus.STOPPED), settled=True)

    assert early.nodes[0].status is NodeStatus.STARTING
    assert late.nodes[0].status is NodeStatus.STOPPED


def test_machines_of_another_token_are_not_these_nodes() -> None:
    after = look(whole(), observation(1, NodeStatus.FAILED, NodeStatus.FAILED), token="life-1")

    assert all_running(after.nodes)


def test_a_boot_that_nobody_ordered_is_told() -> None:
    after = look(whole(1), observation(1, RUNNING, boot=2))

    assert after.nodes[0].incarnation == 2
    assert [event.reason for event in after.events] == ["NodeBooted"]


def test_an_unreachable_node_may_run_and_is_charged() -> None:
    nodes = [ClusterNode(rank=0, status=NodeStatus.UNREACHABLE)]

    assert not none_running(nodes)
    assert none_running([ClusterNode(rank=0, status=NodeStatus.STOPPED)])
    assert not none_running([])


@given(
    st.lists(
        st.tuples(st.integers(1, 110), st.sampled_from([RUNNING, UNKNOWN, None])),
        min_size=1,
        max_size=40,
    )
)
def test_a_node_counts_as_gone_only_after_an_unbroken_doubt(
    passes: list[tuple[int, NodeStatus | None]],
) -> None:
    nodes, time = whole(1), 0.0
    streak: list[float] = []
    kind: NodeStatus | None = RUNNING
    for pause, status in passes:
        time += pause
        streak = [*streak, time] if status is kind else [time]
        kind, before = status, nodes[0].status
        nodes = look(nodes, observation(time, status)).nodes
        if status is RUNNING:
            assert nodes[0].status is RUNNING
        elif nodes[0].status is not before:
            assert streak[-1] - streak[0] >= 120
            assert len(streak) >= 2
        elif before is RUNNING:
            assert streak[-1] - streak[0] < 120


def test_a_notice_is_an_event_once_and_changes_no_status() -> None:
    seen = observation(10, RUNNING, RUNNING)
    told = {"notice_at": at(5), "notice_ends_at": at(125)}
    (group,) = seen.groups
    nodes = (group.nodes[0], group.nodes[1].model_copy(update=told))
    given = seen.model_copy(update={"groups": (group.model_copy(update={"nodes": nodes}),)})

    first = look(whole(), given)
    second = look(first.nodes, given.model_copy(update={"begun_at": at(20)}))

    (event,) = first.events
    assert (event.node, event.reason, event.by) == (1, "NodeNotice", "p")
    assert event.message == f"node 1: will be taken at {at(125):%H:%M:%S}"
    assert [node.status for node in first.nodes] == [RUNNING, RUNNING]
    assert second.events == []
