"""What the SDK asks workers about orphans, and how it puts their answers together."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from garrison.client.orphans import Orphans, installations_in
from garrison.errors import ErrorCode, InvalidSpec
from garrison.models.group import NodeStatus
from garrison.models.observation import ProviderStatus
from garrison.models.orphan import (
    Orphan,
    OrphanMachine,
    OrphanPage,
    OrphanQuery,
    SweepAnswer,
    SweepRequest,
    SweepResult,
    Swept,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _orphan(token: str, *, provider: str = "a", sweepable: bool = True) -> Orphan:
    machine = OrphanMachine(
        provider_id=f"i-{token}",
        rank=0,
        status=NodeStatus.RUNNING,
        region="r",
        instance_type="t",
        created_at=NOW,
    )
    return Orphan(
        provider=provider,
        installation="ours",
        owner=f"cluster/{token}",
        uid=f"uid-{token}",
        token=token,
        machines=(machine,),
        age_seconds=3600,
        sweepable=sweepable,
        reason="why",
    )


class Workers:
    """Two providers, `a` and `b`, whose answers the test scripts."""

    def __init__(self) -> None:
        self.pages: dict[str, list[OrphanPage]] = {}
        self.broken_sweeps = 0
        self.queries: list[tuple[str, OrphanQuery]] = []
        self.sweeps: list[SweepRequest] = []

    async def list(self) -> list[ProviderStatus]:
        return [ProviderStatus(name=name, type="t") for name in ("a", "b")]

    async def execute_activity(self, name: str, request: Any, **options: Any) -> Any:
        provider = options["task_queue"].removeprefix("provider-")
        if name == "list_orphans":
            self.queries.append((provider, request))
            return self.pages.get(provider, [OrphanPage(installation="ours", own=True)]).pop(0)
        self.sweeps.append(request)
        if len(self.sweeps) <= self.broken_sweeps:
            raise RPCError("no poller", RPCStatusCode.DEADLINE_EXCEEDED, b"")
        return SweepAnswer(
            swept=tuple(
                Swept(provider=provider, installation="ours", token=one, result=SweepResult.GONE)
                for one in request.tokens
            )
        )


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def orphans(workers: Workers) -> Orphans:
    return Orphans(workers, workers)  # type: ignore[arg-type]


async def test_the_report_has_all_pages_of_all_providers(
    orphans: Orphans, workers: Workers
) -> None:
    first = OrphanPage(
        installation="ours",
        own=True,
        orphans=(_orphan("1"),),
        claimed_machines=2,
        others={"x": 1},
        next_after="1",
    )
    second = OrphanPage(installation="ours", own=True, orphans=(_orphan("2"),), claimed_machines=3)
    third = OrphanPage(installation="ours", own=True, others={"x": 2, "y": 1})
    workers.pages = {"a": [first, second], "b": [third]}

    report = await orphans.list()

    assert [one.token for one in report.orphans] == ["1", "2"]
    assert report.claimed_machines == 5
    assert report.others == {"x": 3, "y": 1}
    assert report.installations == ("ours",)
    assert [query.after for provider, query in workers.queries if provider == "a"] == [None, "1"]


@pytest.mark.parametrize(
    "asked",
    [{"provider": "c"}, {"installation": ""}, {"installation": "-x"}, {"installation": "a b"}],
)
async def test_what_cannot_be_is_refused_before_any_provider_is_asked(
    orphans: Orphans, workers: Workers, asked: dict[str, str]
) -> None:
    with pytest.raises(InvalidSpec):
        await orphans.list(**asked)
    assert workers.queries == []


async def test_a_sweep_asks_for_what_was_seen_in_small_parts(
    orphans: Orphans, workers: Workers
) -> None:
    seen = [_orphan(f"{number:02}") for number in range(45)]
    young = _orphan("young", sweepable=False)

    swept = await orphans.sweep([*seen, young])

    assert [len(request.tokens) for request in workers.sweeps] == [20, 20, 5]
    assert all("young" not in request.tokens for request in workers.sweeps)
    assert {one.token: one.result for one in swept}["young"] is SweepResult.LEFT
    assert [one.owner for one in swept] == [one.owner for one in (*seen, young)]


async def test_a_part_that_is_not_answered_is_named_and_the_others_are_swept(
    orphans: Orphans, workers: Workers
) -> None:
    workers.broken_sweeps = 1

    swept = await orphans.sweep([_orphan(f"{number:02}") for number in range(25)])

    results = [one.result for one in swept]
    assert results == [SweepResult.FAILED] * 20 + [SweepResult.GONE] * 5
    assert swept[0].code is ErrorCode.SERVICE_UNREACHABLE


def test_a_tag_that_is_no_id_of_an_installation_is_not_shown_as_one() -> None:
    page = OrphanPage(
        installation="ours",
        own=True,
        others={"lab-2": 3, "x;touch pwned": 1, "\x1b[31m": 1, "x" * 400: 1},
    )

    assert installations_in(page) == {"lab-2": 3}
