"""What the watch of a provider tells, to whom, and when it keeps silent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.service import RPCError, RPCStatusCode

from garrison.activities.log_keeper import LogKeeper
from garrison.activities.owners import Life, Owner
from garrison.activities.saved_logs import SavedLogs
from garrison.activities.watch import Pass, ProviderWatcher
from garrison.activities.watches import ManualWatches
from garrison.errors import ProviderUnreachable
from garrison.models.cluster_state import Phase
from garrison.models.group import (
    Group,
    LogChunk,
    Node,
    NodeStatus,
    WorkloadState,
    WorkloadStatus,
)
from garrison.models.nodepool import PoolPhase
from garrison.models.observation import Observation, WatchAsk
from garrison.models.provider import ProviderFacts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING, STOPPED, STARTING = NodeStatus.RUNNING, NodeStatus.STOPPED, NodeStatus.STARTING


class Cloud:
    """A provider that lists what the test says."""

    def __init__(self) -> None:
        self.facts = ProviderFacts(name="cloud", type="cloud")
        self.groups: list[Group] = []
        self.deleted: list[str] = []
        self.lists = 0
        self.silent = False
        self.workloads: Shells | None = None

    async def list_groups(self) -> Sequence[Group]:
        self.lists += 1
        if self.silent:
            raise ProviderUnreachable("no answer")
        return tuple(self.groups)

    async def terminate_group(self, token: str) -> None:
        self.deleted.append(token)

    def owns(
        self,
        owner: str,
        *statuses: NodeStatus,
        uid: str | None = None,
        work: WorkloadState | None = None,
        notice_at: datetime | None = None,
    ) -> None:
        uid = uid or f"uid-{owner}"
        workloads = None if work is None else (WorkloadStatus(name="main", state=work),)
        nodes = tuple(
            Node(
                rank=rank,
                provider_id=f"{owner}-{rank}",
                status=status,
                workloads=workloads,
                notice_at=notice_at,
            )
            for rank, status in enumerate(statuses)
        )
        self.groups = [group for group in self.groups if (group.owner, group.uid) != (owner, uid)]
        self.groups.append(
            Group(
                token=f"{uid}-0",
                owner=owner,
                uid=uid,
                region="r",
                instance_type="t",
                created_at=NOW,
                nodes=nodes,
            )
        )


class Directory:
    """Owners that the test says, and what they were told."""

    def __init__(self) -> None:
        self.owners: dict[str, Owner] = {}
        self.lives: dict[tuple[str, str], Life] = {}
        self.told: list[Observation] = []
        self.broken: set[str] = set()
        self.gone: set[str] = set()

    def add(self, owner: str, phase: str = Phase.RUNNING, nodes: int = 2) -> None:
        self.owners[owner] = Owner(owner, f"uid-{owner}", phase, nodes)

    async def running(self, provider: str) -> Sequence[Owner]:
        return list(self.owners.values())

    async def life_of(self, workflow_id: str, uid: str) -> Life:
        return self.lives.get((workflow_id, uid), Life.UNKNOWN)

    async def tell(self, observation: Observation) -> bool:
        if observation.owner in self.broken:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        if observation.owner in self.gone:
            return False
        self.told.append(observation)
        return True


class Scene:
    """A watcher with its cloud, directory and clock."""

    def __init__(self) -> None:
        self.cloud = Cloud()
        self.directory = Directory()
        self.watches = ManualWatches()
        self.now = NOW
        self.keeper: LogKeeper | None = None
        self.watcher = self.restarted()

    def restarted(self) -> ProviderWatcher:
        self.watcher = ProviderWatcher(
            self.cloud,  # type: ignore[arg-type]
            self.directory,
            self.watches,
            clock=lambda: self.now,
            keeper=self.keeper,
        )
        return self.watcher

    async def look(self, seconds: float = 15) -> list[str]:
        """One pass later, the owners that were told."""
        return (await self.pass_once(seconds)).told

    async def pass_once(self, seconds: float = 15) -> Pass:
        self.now += timedelta(seconds=seconds)
        return await self.watcher.observe_once()

    async def ask(self, owner: str, not_before: datetime, uid: str | None = None) -> None:
        ask = WatchAsk(owner=owner, uid=uid or f"uid-{owner}", not_before=not_before)
        await self.watches.ask("cloud", ask)


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_healthy_owner_is_not_told_even_by_a_new_watcher(scene: Scene) -> None:
    scene.directory.add("a")
    scene.cloud.owns("a", RUNNING, RUNNING)

    assert await scene.look() == []
    scene.restarted()
    assert await scene.look() == []


async def test_a_change_is_told_once(scene: Scene) -> None:
    scene.directory.add("a")
    scene.cloud.owns("a", RUNNING, RUNNING)
    await scene.look()
    scene.cloud.owns("a", RUNNING, STOPPED)

    told = [await scene.look() for _ in range(3)]

    assert told == [["a"], [], []]
    assert [n.status for n in scene.directory.told[0].groups[0].nodes] == [RUNNING, STOPPED]
    assert scene.directory.told[0].begun_at == NOW + timedelta(seconds=30)


async def test_after_a_restart_only_owners_not_known_to_be_whole_are_told(scene: Scene) -> None:
    for owner, statuses in {"a": (RUNNING, RUNNING), "b": (RUNNING, STOPPED)}.items():
        scene.directory.add(owner)
        scene.cloud.owns(owner, *statuses)
    scene.directory.add("c", Phase.TERMINATING)
    scene.directory.add("q", Phase.QUOTED)
    await scene.look()
    scene.restarted()

    told = await scene.look()

    assert sorted(told) == ["b", "c"]


@pytest.mark.parametrize(
    ("state", "told"), [(WorkloadState.RUNNING, []), (WorkloadState.FAILED, ["a"])]
)
async def test_a_command_that_ended_while_nobody_watched_is_told(
    scene: Scene, state: WorkloadState, told: list[str]
) -> None:
    scene.directory.add("a")
    scene.cloud.owns("a", RUNNING, RUNNING, work=state)

    assert [await scene.look() for _ in range(2)] == [told, []]


async def test_a_notice_is_told_once_and_again_by_a_watcher_that_did_not_see_it_come(
    scene: Scene,
) -> None:
    scene.directory.add("pool", PoolPhase.ACTIVE)
    scene.cloud.owns("pool", RUNNING, RUNNING)
    before = await scene.look()

    scene.cloud.owns("pool", RUNNING, RUNNING, notice_at=NOW)
    told = [await scene.look() for _ in range(2)]
    scene.restarted()
    again = [await scene.look() for _ in range(2)]

    assert (before, told, again) == ([], [["pool"], []], [["pool"], []])
    assert scene.directory.told[0].groups[0].nodes[0].notice_at == NOW


async def test_a_whole_nodepool_is_told_once_of_a_deployment_that_does_not_run(
    scene: Scene,
) -> None:
    scene.cloud.owns("pool", RUNNING, RUNNING)
    scene.directory.add("pool", PoolPhase.ACTIVE)
    calm = scene.directory.owners["pool"]

    told = []
    for gone in ((), ("d",), ("d",), ()):
        scene.directory.owners["pool"] = replace(calm, customers=("d", "e"), gone=gone)
        told.append(await scene.look())
    scene.restarted()
    scene.directory.owners["pool"] = replace(calm, gone=("d",))
    again = await scene.look()

    # That it does run after all is told too, and does no harm.
    assert told == [[], ["pool"], [], ["pool"]]
    assert [one.gone for one in scene.directory.told] == [("d",), (), ("d",)]
    assert again == ["pool"]


async def test_a_nodepool_is_told_what_changed_and_what_it_lacks(scene: Scene) -> None:
    scene.directory.add("whole", PoolPhase.ACTIVE)
    scene.directory.add("short", PoolPhase.ACTIVE)
    scene.cloud.owns("whole", RUNNING, RUNNING)
    scene.cloud.owns("short", RUNNING)

    first = await scene.look()
    scene.cloud.owns("whole", RUNNING, STOPPED)

    assert (first, await scene.look()) == (["short"], ["whole"])


async def test_an_owner_without_machines_gets_an_empty_observation(scene: Scene) -> None:
    scene.directory.add("a", Phase.TERMINATING)

    assert await scene.look() == ["a"]
    assert scene.directory.told[0].groups == ()


async def test_a_failed_pass_tells_nobody_anything(scene: Scene) -> None:
    scene.directory.add("a")
    scene.cloud.owns("a", RUNNING, RUNNING)
    await scene.look()
    scene.cloud.silent = True

    with pytest.raises(ProviderUnreachable):
        await scene.look()

    assert scene.directory.told == []


async def test_an_owner_that_could_not_be_told_is_told_by_the_next_pass(scene: Scene) -> None:
    scene.directory.add("a")
    scene.cloud.owns("a", RUNNING, STOPPED)
    scene.directory.broken = {"a"}
    assert await scene.look() == []
    scene.directory.broken = set()

    assert await scene.look() == ["a"]


async def test_an_ask_is_answered_by_a_pass_that_begins_late_enough(scene: Scene) -> None:
    scene.directory.add("a")
    scene.cloud.owns("a", RUNNING, RUNNING)
    await scene.ask("a", NOW + timedelta(seconds=20))

    told = [await scene.look(10) for _ in range(3)]

    assert told == [[], ["a"], []]
    assert scene.directory.told[0].begun_at == NOW + timedelta(seconds=20)
    assert scene.watcher.next_ask_at is None


async def test_an_open_ask_is_known_with_its_time(scene: Scene) -> None:
    scene.directory.add("a")
    scene.cloud.owns("a", RUNNING, RUNNING)
    await scene.ask("a", NOW + timedelta(seconds=60))

    result = await scene.pass_once()

    assert result.busy
    assert scene.watcher.next_ask_at == NOW + timedelta(seconds=60)


async def test_an_ask_of_an_owner_that_visibility_does_not_show_yet_is_answered(
    scene: Scene,
) -> None:
    scene.cloud.owns("new", STARTING, STARTING)
    await scene.ask("new", NOW)

    assert await scene.look() == ["new"]
    assert len(scene.directory.told[0].groups) == 1


async def test_an_ask_of_a_life_that_is_gone_is_dropped(scene: Scene) -> None:
    scene.directory.gone = {"old"}
    await scene.ask("old", NOW)

    result = await scene.pass_once()

    assert not result.busy
    assert scene.watcher.next_ask_at is None


async def test_machines_of_a_closed_life_are_reaped_until_they_are_gone(scene: Scene) -> None:
    scene.cloud.owns("a", RUNNING, uid="dead")
    scene.directory.lives[("a", "dead")] = Life.CLOSED

    await scene.look()
    await scene.look()
    scene.cloud.owns("a", NodeStatus.TERMINATED, uid="dead")
    await scene.look()

    assert scene.cloud.deleted == ["dead-0", "dead-0"]


async def test_an_unknown_life_is_an_orphan_and_is_not_touched(scene: Scene) -> None:
    scene.cloud.owns("a", RUNNING, uid="unheard-of")

    result = await scene.pass_once()

    assert [(orphan.owner, orphan.uid) for orphan in result.orphans] == [("a", "unheard-of")]
    assert scene.cloud.deleted == []


async def test_the_machines_of_a_predecessor_are_not_told_to_its_successor(scene: Scene) -> None:
    scene.directory.add("a")
    scene.cloud.owns("a", RUNNING, RUNNING)
    scene.cloud.owns("a", RUNNING, uid="dead")
    scene.directory.lives[("a", "dead")] = Life.CLOSED

    assert await scene.look() == []
    assert scene.cloud.deleted == ["dead-0"]


async def test_a_mass_failure_is_not_confirmed_by_its_first_pass(scene: Scene) -> None:
    for number in range(6):
        scene.directory.add(f"c{number}")
        scene.cloud.owns(f"c{number}", RUNNING, RUNNING)
    await scene.look()
    for number in range(5):
        scene.cloud.owns(f"c{number}", RUNNING, STOPPED)

    first = await scene.look()
    second = await scene.look()

    assert len(first) == len(second) == 5
    assert [seen.confirmed for seen in scene.directory.told] == [False] * 5 + [True] * 5


async def test_a_few_failures_among_many_are_confirmed_at_once(scene: Scene) -> None:
    for number in range(30):
        scene.directory.add(f"c{number}")
        scene.cloud.owns(f"c{number}", RUNNING, RUNNING)
    await scene.look()
    for number in range(5):
        scene.cloud.owns(f"c{number}", RUNNING, STOPPED)

    await scene.look()

    assert all(seen.confirmed for seen in scene.directory.told)


async def test_a_pass_over_a_thousand_owners_is_one_list_call(scene: Scene) -> None:
    for number in range(1000):
        scene.directory.add(f"c{number}")
        scene.cloud.owns(f"c{number}", RUNNING, RUNNING)

    await scene.look()

    assert scene.cloud.lists == 1


async def test_passes_are_quick_while_an_owner_is_in_transition(scene: Scene) -> None:
    scene.directory.add("a")
    scene.cloud.owns("a", RUNNING, RUNNING)
    assert not (await scene.pass_once()).busy

    scene.cloud.owns("a", RUNNING, STARTING)
    assert (await scene.pass_once()).busy


class Shells:
    """Nodes whose logs can be read, unless they hang."""

    def __init__(self) -> None:
        self.stopped: list[int] = []
        self.hanging = False

    async def stop_workload(self, node: Node, name: str) -> None:
        self.stopped.append(node.rank)
        if self.hanging:
            await asyncio.Event().wait()

    async def read_log(self, node: Node, name: str, *, offset: int, limit: int) -> LogChunk:
        if self.hanging:
            await asyncio.Event().wait()
        log = b"hello from %d" % node.rank
        start = len(log) + offset if offset < 0 else offset
        return LogChunk(offset=start, data=log[start : start + limit])


async def test_the_logs_of_a_closed_life_are_saved_once_before_it_is_reaped(
    scene: Scene, tmp_path: Path
) -> None:
    shells = Shells()
    scene.cloud.workloads = shells
    scene.keeper = LogKeeper(tmp_path)
    scene.restarted()
    scene.cloud.owns("cluster/train-1", RUNNING, STOPPED, uid="dead")
    scene.directory.lives[("cluster/train-1", "dead")] = Life.CLOSED

    await scene.look()
    await scene.look()

    saved = SavedLogs(tmp_path).read("Train-1", "dead", 0, offset=0, limit=100)
    assert saved is not None
    assert saved.data == b"hello from 0"
    assert shells.stopped == [0]
    assert scene.cloud.deleted == ["dead-0", "dead-0"]


@pytest.mark.parametrize("owner", ["cluster/../../x", "train-1", "cluster/", "cluster/a\n"])
async def test_a_tag_that_is_no_cluster_is_reaped_and_writes_no_file(
    scene: Scene, tmp_path: Path, owner: str
) -> None:
    scene.cloud.workloads = Shells()
    scene.keeper = LogKeeper(tmp_path / "a" / "b" / "logs")
    scene.restarted()
    scene.cloud.owns(owner, RUNNING, uid="dead")
    scene.directory.lives[(owner, "dead")] = Life.CLOSED

    await scene.look()

    assert scene.cloud.deleted == ["dead-0"]
    assert list(tmp_path.rglob("*")) == []


async def test_nodes_that_hang_are_reaped_without_their_logs(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garrison.activities.reaper.KEEP_LOGS_SECONDS", 0.05)
    scene.cloud.workloads = shells = Shells()
    shells.hanging = True
    scene.keeper = LogKeeper(tmp_path)
    scene.restarted()
    scene.cloud.owns("cluster/a", RUNNING, RUNNING, uid="dead")
    scene.directory.lives[("cluster/a", "dead")] = Life.CLOSED

    async with asyncio.timeout(5):
        await scene.look()

    assert scene.cloud.deleted == ["dead-0"]
    assert not list(tmp_path.rglob("*.log"))
