"""The directory of owners: when it is listed anew, and when a count of it is enough."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from garrison.activities.owners import DEPLOYMENTS, LIST_AGAIN, PHASE, TemporalOwners
from garrison.models.cluster_state import Phase
from garrison.models.nodepool import PoolPhase
from garrison.models.observation import Observation


@dataclass
class Execution:
    """A workflow as visibility shows it."""

    id: str
    phase: str = Phase.RUNNING
    memo: dict[str, Any] = field(default_factory=lambda: {"uid": "u", "nodes": 2})

    @property
    def typed_search_attributes(self) -> TypedSearchAttributes:
        return TypedSearchAttributes([SearchAttributePair(PHASE, str(self.phase))])

    async def memo_value(self, key: str, default: Any) -> Any:
        return self.memo.get(key, default)


@dataclass
class Count:
    count: int


class Visibility:
    """A client that knows lists and counts only, and how often it was asked for them."""

    def __init__(self) -> None:
        self.executions = [Execution("cluster/a"), Execution("cluster/b")]
        self.deployments: list[Execution] = []
        self.lists = 0
        self.counts = 0
        self.now = 0.0

    async def list_workflows(self, query: str, page_size: int) -> AsyncIterator[Execution]:
        self.lists += 1
        for execution in self._of(query):
            yield execution

    async def count_workflows(self, query: str) -> Count:
        self.counts += 1
        return Count(len(self._of(query)))

    def _of(self, query: str) -> list[Execution]:
        return self.deployments if query == DEPLOYMENTS else self.executions

    def deploy(self, *uids: str) -> None:
        """Have these deployments run, and no others."""
        self.deployments = [Execution(f"deployment/{uid}", memo={"uid": uid}) for uid in uids]

    def get_workflow_handle(self, workflow_id: str) -> Visibility:
        return self

    async def signal(self, name: str, observation: Observation) -> None:
        return None


@pytest.fixture
def visibility() -> Visibility:
    return Visibility()


@pytest.fixture
def owners(visibility: Visibility) -> TemporalOwners:
    return TemporalOwners(visibility, clock=lambda: visibility.now)  # type: ignore[arg-type]


async def ids(owners: TemporalOwners, provider: str = "cloud") -> list[str]:
    return [owner.workflow_id for owner in await owners.running(provider)]


async def test_a_calm_fleet_is_counted_and_not_listed_again(
    visibility: Visibility, owners: TemporalOwners
) -> None:
    found = [await ids(owners) for _ in range(5)]

    assert found == [["cluster/a", "cluster/b"]] * 5
    assert (visibility.lists, visibility.counts) == (1, 4)


@pytest.mark.parametrize("left", [1, 3], ids=["one ended", "one began"])
async def test_an_owner_that_begins_or_ends_is_known_at_once(
    visibility: Visibility, owners: TemporalOwners, left: int
) -> None:
    await ids(owners)
    visibility.executions = [Execution(f"cluster/{n}") for n in range(left)]

    assert await ids(owners) == [f"cluster/{n}" for n in range(left)]


@pytest.mark.parametrize(
    "phase", [Phase.LAUNCHING, Phase.PROVISIONING, Phase.TERMINATING, PoolPhase.DELETING]
)
async def test_the_directory_is_listed_while_an_owner_is_in_transition(
    visibility: Visibility, owners: TemporalOwners, phase: str
) -> None:
    visibility.executions[1].phase = phase
    await ids(owners)
    visibility.executions[1].phase = Phase.DEGRADED

    found = [(await owners.running("cloud"))[1].phase for _ in range(2)]

    assert found == [Phase.DEGRADED, Phase.DEGRADED]
    assert visibility.lists == 2


async def test_an_owner_that_was_told_something_is_read_again(
    visibility: Visibility, owners: TemporalOwners
) -> None:
    await ids(owners)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    await owners.tell(Observation(owner="cluster/a", uid="u", provider="cloud", begun_at=now))
    visibility.executions[0].phase = Phase.DEGRADED

    assert [one.phase for one in await owners.running("cloud")] == [Phase.DEGRADED, Phase.RUNNING]


async def test_an_end_hidden_by_a_beginning_is_known_within_two_minutes(
    visibility: Visibility, owners: TemporalOwners
) -> None:
    await ids(owners)
    visibility.executions[0] = Execution("cluster/c", Phase.QUOTED)
    assert await ids(owners) == ["cluster/a", "cluster/b"]
    visibility.now += LIST_AGAIN

    assert await ids(owners) == ["cluster/c", "cluster/b"]


async def test_what_is_known_of_one_provider_is_not_another_ones(
    visibility: Visibility, owners: TemporalOwners
) -> None:
    await ids(owners)

    await ids(owners, "other")

    assert visibility.lists == 2


async def test_a_workflow_without_a_life_is_no_owner_and_keeps_nothing_from_being_seen(
    visibility: Visibility, owners: TemporalOwners
) -> None:
    visibility.executions.append(Execution("cluster/x", memo={}))

    found = [await ids(owners) for _ in range(2)]

    assert found == [["cluster/a", "cluster/b"]] * 2
    assert visibility.lists == 2


def nodepool(*deployments: str) -> Execution:
    memo = {"uid": "p", "nodes": 1, "deployments": list(deployments)}
    return Execution("nodepool/cc/p", PoolPhase.ACTIVE, memo)


async def gone(owners: TemporalOwners) -> list[tuple[str, ...]]:
    return [owner.gone for owner in await owners.running("cloud")]


async def test_a_deployment_that_does_not_run_is_told_of_the_pool_that_has_seats_for_it(
    visibility: Visibility, owners: TemporalOwners
) -> None:
    visibility.executions = [Execution("cluster/a"), nodepool("d1", "d2")]
    visibility.deploy("d1", "d2", "d3")
    before = await gone(owners)

    visibility.deploy("d1", "d3")

    assert before == [(), ()]
    assert await gone(owners) == [(), ("d2",)]


async def test_calm_deployments_are_counted_and_not_listed_again(
    visibility: Visibility, owners: TemporalOwners
) -> None:
    visibility.executions = [nodepool("d1")]
    visibility.deploy("d1", "d2")

    found = [await gone(owners) for _ in range(5)]

    assert found == [[()]] * 5
    assert (visibility.lists, visibility.counts) == (2, 8)


async def test_a_deployment_whose_end_another_ones_beginning_hides_is_missed_within_two_minutes(
    visibility: Visibility, owners: TemporalOwners
) -> None:
    visibility.executions = [nodepool("d1")]
    visibility.deploy("d1")
    await gone(owners)
    visibility.deploy("d2")
    hidden = await gone(owners)

    visibility.now += LIST_AGAIN

    assert (hidden, await gone(owners)) == ([()], [("d1",)])


async def test_where_no_pool_has_seats_for_anybody_deployments_are_not_asked_for(
    visibility: Visibility, owners: TemporalOwners
) -> None:
    visibility.executions = [Execution("cluster/a"), nodepool()]

    await gone(owners)

    assert (visibility.lists, visibility.counts) == (1, 0)


@pytest.mark.parametrize("owner", ["", "cluster/nobody", "\x1b[31m\n", "\x00", "x" * 2000])
async def test_nobody_is_told_under_a_name_that_no_workflow_has_or_can_have(
    client: Client, owner: str
) -> None:
    news = Observation(owner=owner, uid="life", provider="p", begun_at=datetime.now(UTC))

    assert not await TemporalOwners(client).tell(news)
