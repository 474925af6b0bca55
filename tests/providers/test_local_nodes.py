"""Local nodes: what survives which death, and what is left at the end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from garrison.errors import (
    GarrisonError,
    InvalidSpec,
    PriceChanged,
    ProviderError,
    QuotaExceeded,
    Unsupported,
)
from garrison.models.group import Group, NodeStatus, RestartResult, WorkloadState
from garrison.models.offer import CapacityType, OfferQuery
from garrison.providers.base import NodeSetup
from garrison.providers.local.addresses import Addresses, AddressTaken, Endpoint, listen
from garrison.providers.local.files import is_held
from garrison.providers.local.machines import Machines, NoRoom
from garrison.providers.local.processes import birth, is_alive, members
from garrison.providers.local.store import GroupRecord, Store
from tests.providers.local_world import (
    LocalWorld,
    eventually,
    order,
    processes_with,
    shell,
    vanishes,
)

STARTER = """
import asyncio, json, os, signal, sys
from pathlib import Path
from garrison.providers.base import NodeSetup
from garrison.providers.local.provider import LocalProvider
from tests.providers.local_world import order, shell

async def main():
    root, key = json.loads(sys.argv[1])
    provider = LocalProvider(Path(root), installation="ours", installation_key=Path(key))
    await provider.launch_group(order(count=2))
    while True:
        (group,) = await provider.list_groups()
        if all(node.status == "running" for node in group.nodes):
            break
        await asyncio.sleep(0.05)
    for node in group.nodes:
        node = await provider.workloads.prepare_node(node, NodeSetup())
        await provider.workloads.start_workload(node, shell("while :; do echo x; sleep 0.05; done"))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
LAUNCHER = """
import asyncio, json, sys
from pathlib import Path
from garrison.providers.local.provider import LocalProvider
from tests.providers.local_world import order

async def main():
    root, key = json.loads(sys.argv[1])
    provider = LocalProvider(Path(root), installation="ours", installation_key=Path(key))
    group = await provider.launch_group(order(count=2))
    print(json.dumps([node.provider_id for node in group.nodes]))
    await provider.aclose()

asyncio.run(main())
"""
# Leaves its session, its environment and its parent; all that marks it is the inherited lock.
ESCAPE = "env -i /usr/bin/setsid /bin/sh -c 'trap \"\" TERM HUP; sleep {}' & sleep 1000"


class RoomForOne(Addresses):
    """Addresses of a machine that runs out of descriptors at the second node."""

    def take_free(self, used: set[Endpoint]) -> tuple[Endpoint, socket.socket]:
        if used:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return Addresses(shared=self.shared).take_free(used)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[LocalWorld]:
    async with LocalWorld.opened(tmp_path) as opened:
        yield opened


def test_trap_a_a_zombie_is_dead_although_its_pid_exists() -> None:
    child = subprocess.Popen(["sleep", "1000"], env={"GARRISON_NODE_ID": "local-zombie"})
    born = birth(child.pid)
    assert born is not None
    alive = is_alive(child.pid, born)

    child.kill()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        pass

    assert alive
    assert psutil.pid_exists(child.pid)
    assert not is_alive(child.pid, born)
    assert members({"local-zombie": Path("/nowhere")}) == []
    child.wait()


def test_a_pid_that_another_process_has_now_is_not_alive() -> None:
    born = birth(os.getpid())
    assert born is not None

    assert is_alive(os.getpid(), born)
    assert not is_alive(os.getpid(), born - 1)


async def test_trap_b_a_stop_is_recorded_at_once(world: LocalWorld) -> None:
    node = await world.prepared()
    await world.on.start_workload(node, shell("sleep 1000"))
    await world.reaches(node, WorkloadState.RUNNING)

    # Waiting for the child inside the signal handler took 5 s, or for ever.
    async with asyncio.timeout(5):
        await world.on.stop_workload(node, "main")
    (status,) = (await world.node()).workloads or ()

    assert (status.state, status.exit_code) == (WorkloadState.STOPPED, -15)


async def test_trap_c_an_orphan_is_told_from_a_dead_node(world: LocalWorld) -> None:
    node = await world.prepared()
    await world.on.start_workload(node, shell("sleep 1000"))
    directory = world.directory(node)

    await world.kill_agent(node)
    orphaned = await world.node()
    agent_and_node = (is_held(directory.lock), is_held(directory.node_lock))
    for pid in members({node.provider_id: directory.node_lock}):
        os.kill(pid, signal.SIGKILL)

    async def dead() -> bool:
        return (await world.node()).message == "its agent died"

    await eventually(dead)
    assert agent_and_node == (False, True)
    assert orphaned.status is NodeStatus.STOPPED
    assert orphaned.message == "its agent died; processes of it still run"
    assert [status.state for status in orphaned.workloads or ()] == [WorkloadState.RUNNING]


async def test_nodes_outlive_a_killed_starter_and_are_adopted(world: LocalWorld) -> None:
    with world.elsewhere(STARTER) as starter:
        killed_by = starter.wait(timeout=60)

    again = await world.provider.launch_group(order(count=2))
    group = await world.group()
    assert isinstance(again, Group)
    assert group is not None
    sizes = [world.workload_file(node, "main", "log").stat().st_size for node in group.nodes]

    async def growing() -> bool:
        logs = [world.workload_file(node, "main", "log") for node in group.nodes]
        return all(log.stat().st_size > size for log, size in zip(logs, sizes, strict=True))

    await eventually(growing)
    assert killed_by == -signal.SIGKILL
    assert [node.status for node in group.nodes] == [NodeStatus.RUNNING] * 2
    assert [node.incarnation for node in group.nodes] == [1, 1]
    assert [n.provider_id for n in again.nodes] == [n.provider_id for n in group.nodes]


async def test_starting_an_adopted_workload_again_is_a_no_op(world: LocalWorld) -> None:
    request = shell("echo began; sleep 1000")
    node = await world.prepared()
    await world.on.start_workload(node, request)
    await world.logs(node, "began")
    supervisor = world.supervisor(node)

    await asyncio.gather(*(world.open().workloads.start_workload(node, request) for _ in range(3)))

    assert world.supervisor(node) == supervisor
    assert await world.logs(node, "began") == "began\n"


async def test_launches_of_one_token_in_several_processes_make_one_group(
    world: LocalWorld,
) -> None:
    starters = [world.elsewhere(LAUNCHER) for _ in range(4)]
    answers = [json.loads(starter.communicate(timeout=60)[0]) for starter in starters]

    group = await world.group()

    assert group is not None
    assert all(answer == answers[0] for answer in answers)
    assert [node.provider_id for node in group.nodes] == answers[0]
    assert len(processes_with(str(world.root))) == 2


@pytest.mark.parametrize("seed", range(6))
async def test_a_launch_killed_at_any_instant_is_finished_or_ended(
    world: LocalWorld, seed: int
) -> None:
    delay = random.Random(seed).uniform(0, 0.08)
    with world.elsewhere(LAUNCHER) as launcher:

        async def planned() -> bool:
            return any((world.root / "groups").glob("[0-9a-f]*.json"))

        await eventually(planned)
        await asyncio.sleep(delay)
        launcher.kill()

    nodes = await world.launched(count=2)
    running = {pid for node in nodes for pid in processes_with(node.provider_id)}
    await world.provider.terminate_group("token-1")

    assert [node.rank for node in nodes] == [0, 1]
    assert [node.incarnation for node in nodes] == [1, 1]
    assert len(running) == 2
    assert processes_with(str(world.root)) == []


async def test_a_cancelled_launch_and_its_terminate_leave_nothing(world: LocalWorld) -> None:
    launch = asyncio.create_task(world.provider.launch_group(order(count=2)))
    await asyncio.sleep(0.01)
    launch.cancel()

    await world.open().terminate_group("token-1")
    await asyncio.wait({launch})

    assert processes_with(str(world.root)) == []
    assert list((world.root / "nodes").iterdir()) == []


async def test_a_machine_without_room_for_all_nodes_makes_none(world: LocalWorld) -> None:
    machines = Machines(
        store=Store(world.root, installation="ours"),
        addresses=RoomForOne(shared=False),
        installation_key="ssh-ed25519 AAAA",
        max_nodes=8,
        clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )

    with pytest.raises(NoRoom, match="Too many open files"):
        machines.launch(order(count=2))

    assert processes_with(str(world.root)) == []
    assert await world.provider.list_groups() == []
    assert [node.rank for node in await world.launched(count=2)] == [0, 1]


async def test_a_restart_fences_orphans_and_keeps_the_place(world: LocalWorld) -> None:
    node = await world.prepared()
    seconds = str(uuid.uuid4().int % 10**12)
    await world.on.start_workload(node, shell(ESCAPE.format(seconds)))
    await eventually_runs(f"sleep {seconds}")
    (world.directory(node).home / "checkpoint").write_text("kept")
    await world.kill_agent(node)
    orphans = processes_with(f"sleep {seconds}")

    result = await world.provider.restart_node(node.provider_id, "restart-1")
    (after,) = await world.launched()

    assert orphans
    assert result is RestartResult.RESTARTED
    assert processes_with(f"sleep {seconds}") == []
    assert (after.provider_id, after.incarnation) == (node.provider_id, 2)
    assert (after.private_address, after.ssh) == (node.private_address, node.ssh)
    assert (world.directory(node).home / "checkpoint").read_text() == "kept"


async def test_after_a_restart_the_workload_is_started_again_on_the_old_connection(
    world: LocalWorld,
) -> None:
    node = await world.prepared()
    await world.on.start_workload(node, shell("echo boot; sleep 1000"))
    await world.logs(node, "boot")
    await world.kill_agent(node)
    await world.provider.restart_node(node.provider_id, "restart-1")
    await world.launched()
    before = await world.on.list_workloads(node)

    await world.on.start_workload(node, shell("echo boot; sleep 1000"))

    assert [status.state for status in before] == [WorkloadState.PENDING]
    assert await world.logs(node, "boot\nboot\n") == "boot\nboot\n"


async def test_a_restart_that_was_cut_off_after_its_record_is_carried_out_once(
    world: LocalWorld,
) -> None:
    (node,) = await world.launched()
    await world.kill_agent(node)
    world.directory(node).write_restarts({"restart-1": 2})

    first = await world.provider.restart_node(node.provider_id, "restart-1")
    (after,) = await world.launched()
    await world.kill_agent(node)
    second = await world.provider.restart_node(node.provider_id, "restart-1")

    assert (first, second) == (RestartResult.RESTARTED, RestartResult.RESTARTED)
    assert after.incarnation == 2
    assert (await world.node()).status is NodeStatus.STOPPED


async def test_a_node_whose_address_is_taken_waits_for_it(world: LocalWorld) -> None:
    (node,) = await world.launched()
    assert node.ssh is not None
    await world.kill_agent(node)

    with listen(Endpoint(node.ssh.host, node.ssh.port)):
        refused = await world.provider.restart_node(node.provider_id, "restart-1")
    restarted = await world.provider.restart_node(node.provider_id, "restart-1")

    assert (refused, restarted) == (RestartResult.NO_CAPACITY, RestartResult.RESTARTED)
    assert (await world.launched())[0].ssh == node.ssh


async def test_a_frozen_node_can_be_restarted(world: LocalWorld) -> None:
    (node,) = await world.launched()
    os.kill(world.agent(node), signal.SIGSTOP)

    result = await world.provider.restart_node(node.provider_id, "restart-1")

    assert result is RestartResult.RESTARTED
    assert (await world.launched())[0].incarnation == 2


async def test_terminate_leaves_no_process_and_no_directory(world: LocalWorld) -> None:
    node = await world.prepared()
    seconds = str(uuid.uuid4().int % 10**12)
    await world.on.start_workload(node, shell(ESCAPE.format(seconds)))
    await eventually_runs(f"sleep {seconds}")
    agent = world.agent(node)

    await world.provider.terminate_group("token-1")

    assert processes_with(f"sleep {seconds}") == []
    assert processes_with(node.provider_id) == []
    assert birth(agent) is None
    assert list((world.root / "nodes").iterdir()) == []
    assert list((world.root / "trash").iterdir()) == []
    assert await world.provider.list_groups() == []


async def test_a_terminate_that_was_cut_off_is_finished_by_the_next(world: LocalWorld) -> None:
    (node,) = await world.launched()
    os.rename(world.directory(node).path, world.root / "trash" / node.provider_id)

    listed = await world.provider.list_groups()
    await world.provider.terminate_group("token-1")

    assert listed == []
    assert list((world.root / "trash").iterdir()) == []
    assert processes_with(node.provider_id) == []


async def test_a_launch_after_its_terminate_buys_nothing(world: LocalWorld) -> None:
    await world.provider.terminate_group("token-1")

    late = await world.provider.launch_group(order(count=2))

    assert isinstance(late, Group)
    assert late.nodes == ()
    assert list((world.root / "nodes").iterdir()) == []


async def test_a_half_made_group_is_listed_and_finished_by_the_same_token(
    world: LocalWorld,
) -> None:
    ids = half_made(world)

    listed = await world.group()
    nodes = await world.launched(count=2)

    assert listed is not None
    assert [node.status for node in listed.nodes] == [NodeStatus.PENDING] * 2
    assert tuple(node.provider_id for node in nodes) == ids


async def test_a_half_made_group_is_ended_by_its_token(world: LocalWorld) -> None:
    half_made(world)

    await world.provider.terminate_group("token-1")

    assert await world.provider.list_groups() == []
    assert list((world.root / "nodes").iterdir()) == []


async def test_a_node_whose_directory_was_removed_is_absent_and_ends_itself(
    world: LocalWorld,
) -> None:
    nodes = await world.launched(count=2)
    node = await world.on.prepare_node(nodes[1], NodeSetup())
    seconds = str(uuid.uuid4().int % 10**12)
    await world.on.start_workload(node, shell(f"sleep {seconds}"))
    await eventually_runs(f"sleep {seconds}")

    shutil.rmtree(world.directory(node).path)
    group = await world.group()

    assert group is not None
    assert [n.rank for n in group.nodes] == [0]
    await vanishes(f"sleep {seconds}")
    await vanishes(node.provider_id)


async def test_starting_nodes_leaves_no_child_behind(world: LocalWorld) -> None:
    before = {child.pid for child in psutil.Process().children()}

    await world.launched(count=2)

    assert {child.pid for child in psutil.Process().children()} <= before


async def test_two_nodes_reach_each_other_over_their_private_addresses(
    world: LocalWorld,
) -> None:
    nodes = await world.launched(count=2)
    first, second = [await world.on.prepare_node(n, NodeSetup()) for n in nodes]
    serve = f"exec python3 -u -m http.server 29500 --bind {first.private_address}"
    fetch = (
        f"until python3 -c 'import urllib.request as u; "
        f'u.urlopen("http://{first.private_address}:29500")\'; do sleep 0.1; done'
    )

    await world.on.start_workload(first, shell(serve))
    await world.on.start_workload(second, shell(fetch))

    await world.reaches(second, WorkloadState.SUCCEEDED)
    assert first.private_address != second.private_address
    assert '"GET / HTTP/1.1" 200' in await world.logs(first, "200")


async def test_nodes_that_share_an_address_have_ports_of_their_own(world: LocalWorld) -> None:
    provider = world.open(shared_address=True)
    await provider.launch_group(order(count=2))

    nodes = await world.launched(count=2)

    assert {node.private_address for node in nodes} == {"127.0.0.1"}
    ports = [set(range(node.first_port or 0, (node.first_port or 0) + 99)) for node in nodes]
    assert not ports[0] & ports[1]
    assert all(node.ssh and node.ssh.port - (node.first_port or 0) == 99 for node in nodes)
    await world.on.prepare_node(nodes[1], NodeSetup())


async def test_two_installations_can_use_one_folder_and_one_machine(
    world: LocalWorld, tmp_path: Path
) -> None:
    theirs = world.open(installation="theirs")
    await world.launched(count=2)

    await theirs.launch_group(order(count=2))

    (group,) = await theirs.list_groups()
    ours = await world.group()
    assert ours is not None
    assert len({node.private_address for node in group.nodes + ours.nodes}) == 4


def test_an_address_in_use_is_not_given_out() -> None:
    endpoint, sock = Addresses(shared=False).take_free(set())

    with sock, pytest.raises(AddressTaken):
        listen(endpoint)
    taken = {Endpoint("127.0.0.1", 20_099 + 100 * n, 20_000 + 100 * n) for n in range(120)}

    with pytest.raises(ProviderError, match=r"127\.0\.0\.1 is taken"):
        Addresses(shared=True).take_free(taken)


async def test_a_node_gets_nothing_of_the_workers_environment(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GARRISON_PRIVATE_KEY", "TEMPORAL_API_KEY", "AWS_SECRET_ACCESS_KEY", "ANY_TOKEN"):
        monkeypatch.setenv(name, "s3cret-of-the-worker")
    node = await world.prepared()

    await world.on.start_workload(node, shell("env; echo end"))
    log = await world.logs(node, "end\n")

    agent = psutil.Process(world.agent(node)).environ()
    assert "s3cret-of-the-worker" not in log
    assert "s3cret-of-the-worker" not in agent.values()
    assert f"HOME={world.directory(node).home}\n" in log
    assert f"GARRISON_NODE_ID={node.provider_id}\n" in log
    assert "PYTHONPATH=" not in log
    assert "PYTHONUNBUFFERED" not in log


async def test_more_nodes_than_the_quota_are_refused_and_none_is_made(world: LocalWorld) -> None:
    provider = world.open(max_nodes=3)
    await world.launched(count=2)

    with pytest.raises(QuotaExceeded, match="2 of 3 local nodes exist, 2 more"):
        await provider.launch_group(order(token="token-2", count=2))
    one_more = await provider.launch_group(order(token="token-3", count=1))

    assert isinstance(one_more, Group)
    assert len(list((world.root / "nodes").iterdir())) == 3


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        pytest.param({"gpus_per_node": 1}, Unsupported, id="GPUs"),
        pytest.param({"capacity_type": CapacityType.SPOT}, Unsupported, id="spot"),
        pytest.param({"zone": "local-a"}, InvalidSpec, id="a zone"),
        pytest.param({"token": ""}, InvalidSpec, id="an empty token"),
        pytest.param({"token": "a\n"}, InvalidSpec, id="a token with a line feed"),
        pytest.param({"max_usd_per_node_hour": Decimal("0.009")}, PriceChanged, id="too cheap"),
    ],
)
async def test_what_is_not_sold_is_refused(
    world: LocalWorld, changes: dict[str, object], error: type[GarrisonError]
) -> None:
    with pytest.raises(error):
        await world.provider.launch_group(order(**changes))

    assert await world.provider.list_groups() == []


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({}, 1),
        ({"cpu_only": True}, 1),
        ({"search": "LOCAL"}, 1),
        ({"max_usd_per_hour": Decimal("0.01")}, 1),
        ({"max_usd_per_hour": Decimal("0.0099")}, 0),
        ({"accelerator": "H100"}, 0),
        ({"min_gpus": Decimal(1)}, 0),
        ({"min_memory_gib": Decimal(10**6)}, 0),
        ({"capacity_type": CapacityType.SPOT}, 0),
        ({"provider": "aws"}, 0),
    ],
)
async def test_one_offer_matches_or_not(
    world: LocalWorld, query: dict[str, object], count: int
) -> None:
    offers = await world.provider.list_offers(OfferQuery.model_validate(query))

    assert len(offers) == count
    assert all(offer.simulated and offer.usd_per_hour == Decimal("0.01") for offer in offers)


async def test_a_damaged_record_is_an_error_and_never_an_empty_list(world: LocalWorld) -> None:
    await world.launched()
    (record,) = (world.root / "groups").glob("*.json")
    whole = record.read_bytes()
    record.write_bytes(whole[:20])

    with pytest.raises(ProviderError, match="is damaged"):
        await world.provider.list_groups()
    record.write_bytes(whole)

    assert await world.group() is not None


async def test_a_node_that_cannot_start_says_why(world: LocalWorld) -> None:
    (node,) = await world.launched()
    await world.kill_agent(node)
    world.directory(node).host_key.write_text("not a key")

    await world.provider.restart_node(node.provider_id, "restart-1")

    async def failed() -> str | None:
        found = await world.node()
        return found.message if found.status is NodeStatus.FAILED else None

    assert "KeyImportError" in await eventually(failed)


def half_made(world: LocalWorld) -> tuple[str, ...]:
    """Leave what a launch leaves that is killed right after it chose its nodes' ids."""
    ids = tuple(f"local-{uuid.uuid4().hex[:16]}" for _ in range(2))
    record = GroupRecord(
        installation="ours",
        token="token-1",
        owner="cluster/train-1",
        uid="uid-1",
        created_at="2026-01-01T00:00:00Z",
        node_ids=ids,
    )
    Store(world.root, installation="ours").save(record)
    return ids


async def eventually_runs(text: str) -> None:
    async def runs() -> bool:
        return bool(processes_with(text))

    await eventually(runs)
