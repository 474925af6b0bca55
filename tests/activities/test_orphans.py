"""What a sweep deletes, what it leaves, and what it says of both."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from garrison.activities import orphans as module
from garrison.activities.orphans import OrphanActivities
from garrison.activities.owners import Life, Owner
from garrison.activities.watches import ManualWatches
from garrison.catalog.loader import load_offers
from garrison.errors import ErrorCode, ProviderUnreachable
from garrison.models.group import Group, GroupRequest
from garrison.models.observation import Observation
from garrison.models.orphan import (
    OrphanPage,
    OrphanQuery,
    SweepAnswer,
    SweepRequest,
    SweepResult,
)
from garrison.providers.base import Provider
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.faults import Call, Fault, FaultRule
from garrison.providers.simulated.provider import SimulatedProvider

START = datetime(2026, 1, 1, tzinfo=UTC)
OLD = timedelta(hours=2)


class Directory:
    """Lives as the test says; a list of lives is given one lookup after the other."""

    def __init__(self) -> None:
        self.living: list[Owner] = []
        self.lives: dict[str, list[Life | RPCError]] = {}
        self.asked: list[str] = []

    async def running(self, provider: str) -> Sequence[Owner]:
        return self.living

    async def life_of(self, workflow_id: str, uid: str) -> Life:
        self.asked.append(workflow_id)
        found = self.lives.get(workflow_id, [Life.UNKNOWN])
        answer = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(answer, RPCError):
            raise answer
        return answer

    async def tell(self, observation: Observation) -> bool:
        raise NotImplementedError


class Scene:
    """An account with machines of several lives, seen by a worker of the installation `ours`."""

    def __init__(self, folder: Path) -> None:
        self.now = START
        self.path = folder / "cloud.db"
        self.console = SimulatedConsole(self.path, clock=self.clock)
        self.directory = Directory()
        self.watches = ManualWatches()
        self.settle = timedelta(0)

    def clock(self) -> datetime:
        return self.now

    def account(self, installation: str = "ours") -> SimulatedProvider:
        return SimulatedProvider(
            self.path,
            installation=installation,
            offers=load_offers(),
            clock=self.clock,
            settle=self.settle,
        )

    @contextlib.asynccontextmanager
    async def _opened(self, installation: str) -> AsyncIterator[Provider]:
        yield self.account(installation)

    @property
    def activities(self) -> OrphanActivities:
        return OrphanActivities(
            self.account(),
            self.directory,
            self.watches,
            installation="ours",
            provider_for=self._opened,
            clock=self.clock,
        )

    async def buys(self, owner: str, *, count: int = 1, installation: str = "ours") -> Group:
        bought = await self.account(installation).launch_group(
            GroupRequest(
                token=f"token-{owner}",
                owner=owner,
                uid=f"uid-{owner}",
                name=owner,
                region="sim-a",
                instance_type="p5.48xlarge",
                count=count,
                max_usd_per_node_hour=Decimal(1000),
            )
        )
        assert isinstance(bought, Group)
        return bought

    def passes(self, time: timedelta) -> None:
        self.now += time

    async def listed(self, **query: Any) -> OrphanPage:
        return await ActivityEnvironment().run(self.activities.list_orphans, OrphanQuery(**query))

    async def sweep(self, *owners: str, installation: str | None = None) -> list[SweepResult]:
        return [one.result for one in (await self.answer(*owners, installation=installation)).swept]

    async def answer(self, *owners: str, installation: str | None = None) -> SweepAnswer:
        tokens = tuple(f"token-{owner}" for owner in owners)
        request = SweepRequest(installation=installation, tokens=tokens)
        return await ActivityEnvironment().run(self.activities.sweep_orphans, request)

    def left(self) -> list[str]:
        return [machine["owner"] for machine in self.console.inventory()]

    def fault(self, call: Call, **fields: Any) -> None:
        rule = {"call": call, "what": Fault.ERROR, **fields}
        self.console.add_fault(FaultRule.model_validate(rule))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(module, "LOOK_AGAIN_SECONDS", 0.01)


async def test_only_lives_that_nobody_knows_are_listed(scene: Scene) -> None:
    for owner in ("lost", "runs", "asked", "ended"):
        await scene.buys(owner)
    await scene.buys("foreign", count=3, installation="theirs")
    scene.directory.living = [Owner("runs", "uid-runs", None, 1)]
    scene.directory.lives = {"asked": [Life.LIVING], "ended": [Life.CLOSED]}
    scene.passes(OLD)

    page = await scene.listed()

    assert [orphan.owner for orphan in page.orphans] == ["lost"]
    assert page.orphans[0].age_seconds == OLD.total_seconds()
    assert page.orphans[0].usd_per_hour is not None
    assert page.orphans[0].cost_usd == page.orphans[0].usd_per_hour * 2
    assert page.claimed_machines == 3
    assert page.others == {"theirs": 3}
    assert (page.installation, page.own, page.next_after) == ("ours", True, None)
    assert "runs" not in scene.directory.asked


async def test_a_predecessor_of_a_running_life_is_an_orphan(scene: Scene) -> None:
    await scene.buys("again")
    scene.directory.living = [Owner("again", "another uid", None, 1)]
    scene.passes(OLD)

    assert [orphan.uid for orphan in (await scene.listed()).orphans] == ["uid-again"]


async def test_a_sweep_deletes_what_was_asked_for_and_nothing_else(scene: Scene) -> None:
    await scene.buys("lost", count=2)
    await scene.buys("unseen")
    await scene.buys("foreign", installation="theirs")
    scene.passes(OLD)

    first = await scene.answer("lost", "foreign")
    again = await scene.sweep("lost")

    assert [(one.result, one.machines) for one in first.swept] == [
        (SweepResult.DELETED, 2),
        (SweepResult.GONE, 0),
    ]
    assert again == [SweepResult.GONE]
    assert scene.left() == ["unseen", "foreign"]
    looks = await scene.watches.asks("simulated", since=0)
    assert [ask.owner.partition("/")[0] for ask in looks.asks] == ["orphan-sweep"]


async def test_a_young_purchase_is_listed_and_left_alone(scene: Scene) -> None:
    await scene.buys("young")
    scene.passes(timedelta(minutes=10) - timedelta(microseconds=1))

    page = await scene.listed()
    swept = await scene.answer("young")

    assert [orphan.sweepable for orphan in page.orphans] == [False]
    assert [one.result for one in swept.swept] == [SweepResult.LEFT]
    assert "too young" in (swept.swept[0].message or "")
    assert scene.left() == ["young"]


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param([Life.LIVING], id="it runs by now"),
        pytest.param([Life.UNKNOWN, Life.LIVING], id="it runs once its logs are saved"),
        pytest.param([Life.CLOSED], id="it has ended, which is the watch's to do"),
    ],
)
async def test_a_life_that_is_known_when_it_comes_to_it_keeps_its_machines(
    scene: Scene, lives: list[Life | RPCError]
) -> None:
    await scene.buys("back")
    scene.directory.lives = {"back": lives}
    scene.passes(OLD)

    assert await scene.sweep("back") == [SweepResult.LEFT]
    assert scene.left() == ["back"]


async def test_a_life_that_cannot_be_looked_up_keeps_its_machines(scene: Scene) -> None:
    await scene.buys("dark")
    await scene.buys("lost")
    scene.directory.lives = {"dark": [RPCError("away", RPCStatusCode.UNAVAILABLE, b"")]}
    scene.passes(OLD)

    answer = await scene.answer("dark", "lost")

    assert [one.result for one in answer.swept] == [SweepResult.FAILED, SweepResult.DELETED]
    assert answer.swept[0].code is ErrorCode.SERVICE_UNREACHABLE
    assert scene.left() == ["dark"]


async def test_a_purchase_that_is_not_deleted_is_named_and_the_others_go(scene: Scene) -> None:
    for owner in ("a", "b", "c"):
        await scene.buys(owner)
    scene.fault(Call.TERMINATE, code="AuthFailure", message="not yours", owner="b", times=None)
    scene.passes(OLD)

    answer = await scene.answer("a", "b", "c")

    assert [one.result for one in answer.swept] == [
        SweepResult.DELETED,
        SweepResult.FAILED,
        SweepResult.DELETED,
    ]
    assert answer.swept[1].code is ErrorCode.PROVIDER_AUTH
    assert "not yours" in (answer.swept[1].message or "")
    assert scene.left() == ["b"]


async def test_a_provider_that_asks_for_patience_is_asked_again(scene: Scene) -> None:
    await scene.buys("lost")
    scene.fault(Call.TERMINATE, code="RequestLimitExceeded", times=2)
    scene.passes(OLD)

    assert await scene.sweep("lost") == [SweepResult.DELETED]
    assert scene.left() == []


async def test_a_deletion_that_no_list_can_prove_yet_is_only_accepted(scene: Scene) -> None:
    scene.settle = timedelta(minutes=2)
    await scene.buys("lost")
    scene.passes(OLD)

    assert await scene.sweep("lost") == [SweepResult.DELETING]
    assert scene.left() == []


async def test_a_list_that_fails_after_the_deletion_takes_back_nothing(scene: Scene) -> None:
    await scene.buys("lost")
    scene.fault(Call.LIST, code="ConnectionReset", skip=1, times=None)
    scene.passes(OLD)

    assert await scene.sweep("lost") == [SweepResult.DELETING]


async def test_without_a_list_nothing_is_deleted(scene: Scene) -> None:
    await scene.buys("lost")
    scene.fault(Call.LIST, code="ConnectionReset")
    scene.passes(OLD)

    with pytest.raises(ProviderUnreachable):
        await scene.sweep("lost")
    assert scene.left() == ["lost"]


async def test_another_installation_is_swept_only_by_its_name(scene: Scene) -> None:
    for owner in ("unknown", "ended", "runs"):
        await scene.buys(owner, installation="old")
    await scene.buys("mine")
    scene.directory.lives = {"ended": [Life.CLOSED], "runs": [Life.LIVING]}
    scene.passes(OLD)

    page = await scene.listed(installation="old")
    swept = await scene.sweep("unknown", "ended", "runs", "mine", installation="old")

    assert [orphan.owner for orphan in page.orphans] == ["ended", "unknown"]
    assert (page.installation, page.own, page.claimed_machines) == ("old", False, 1)
    assert page.others is None
    assert swept == [
        SweepResult.DELETED,
        SweepResult.DELETED,
        SweepResult.LEFT,
        SweepResult.GONE,
    ]
    assert scene.left() == ["runs", "mine"]


async def test_our_own_id_given_by_name_is_still_our_own(scene: Scene) -> None:
    await scene.buys("ended")
    scene.directory.lives = {"ended": [Life.CLOSED]}
    scene.passes(OLD)

    page = await scene.listed(installation="ours")

    assert page.own
    assert page.orphans == ()


async def test_pages_together_have_every_orphan_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MACHINES_A_PAGE", 4)
    for owner, count in (("a", 3), ("b", 3), ("c", 6), ("d", 1), ("e", 3), ("f", 1)):
        await scene.buys(owner, count=count)

    pages = [await scene.listed()]
    while pages[-1].next_after is not None:
        pages.append(await scene.listed(after=pages[-1].next_after))

    found = [[orphan.owner for orphan in page.orphans] for page in pages]
    assert found == [["a"], ["b"], ["c"], ["d", "e"], ["f"]]
