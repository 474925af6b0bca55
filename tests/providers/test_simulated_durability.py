"""One file, many processes, any of which may be killed at any instant."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

from garrison.catalog.loader import load_offers
from garrison.models.group import Group, GroupRequest
from garrison.models.offer import Offer, OfferQuery
from garrison.providers.base import WorkloadRequest
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.provider import SimulatedProvider

OFFER = Offer(provider="x", instance_type="m1", usd_per_hour=Decimal(1))
DEADLINE = 60.0
WORKER = textwrap.dedent(
    """
    import asyncio, itertools, sys
    from decimal import Decimal
    from pathlib import Path
    from garrison.models.group import GroupRequest
    from garrison.models.offer import Offer
    from garrison.providers.simulated.provider import SimulatedProvider

    OFFER = Offer(provider="x", instance_type="m1", usd_per_hour=Decimal(1))

    async def main(path, prefix, rounds):
        cloud = SimulatedProvider(Path(path), installation="i", offers=[OFFER])
        for number in itertools.islice(itertools.count(), int(rounds)):
            token = f"{prefix}-{number}"
            await cloud.launch_group(GroupRequest(
                token=token, owner="o", uid=prefix, name="n", region="sim-a",
                instance_type="m1", count=3, max_usd_per_node_hour=Decimal(1)))
            if number % 2:
                await cloud.terminate_group(token)

    asyncio.run(main(*sys.argv[1:]))
    """
)


def request(token: str, count: int = 10) -> GroupRequest:
    return GroupRequest(
        token=token,
        owner=f"cluster/{token}",
        uid=token,
        name=token,
        region="sim-a",
        instance_type="m1",
        count=count,
        max_usd_per_node_hour=Decimal(1),
    )


def start(path: Path, prefix: str, rounds: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), prefix, str(rounds)],
        cwd=Path(__file__).parents[2],  # where the package is, also when it is not installed
    )


def wait_until_it_buys(console: SimulatedConsole, uid: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not console.peak(uid=uid):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_process_killed_at_any_instant_leaves_whole_groups(tmp_path: Path) -> None:
    path = tmp_path / "cloud"
    console = SimulatedConsole(path)

    for number in range(4):
        process = start(path, f"p{number}", 1_000_000)
        wait_until_it_buys(console, f"p{number}")
        time.sleep(0.013 * number)  # another instant each time
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE)

    sizes = Counter(machine["token"] for machine in console.inventory(terminated=True))
    living = Counter(machine["token"] for machine in console.inventory())
    assert set(sizes.values()) == {3}
    assert set(living.values()) == {3}
    assert max(console.peak(token=token) for token in sizes) == 3
    with sqlite3.connect(path) as check:
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


def test_processes_that_open_a_new_file_at_once_share_it(tmp_path: Path) -> None:
    path = tmp_path / "cloud"

    processes = [start(path, f"p{number}", 20) for number in range(3)]
    codes = [process.wait(DEADLINE) for process in processes]

    assert codes == [0, 0, 0]
    living = Counter(m["uid"] for m in SimulatedConsole(path).inventory())
    assert living == {"p0": 30, "p1": 30, "p2": 30}


def test_a_file_held_by_another_process_is_an_unreachable_provider(tmp_path: Path) -> None:
    path = tmp_path / "cloud"
    cloud = SimulatedProvider(path, installation="i", offers=[OFFER])
    console = SimulatedConsole(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    async def launch() -> str:
        try:
            await cloud.launch_group(request("t"))
        except Exception as error:  # the kind of error is what the test is about
            return type(error).__name__
        return "bought"

    answer = asyncio.run(launch())
    holder.execute("ROLLBACK")
    holder.close()

    assert answer == "ProviderUnreachable"
    assert console.inventory() == []


async def test_ten_thousand_nodes_are_listed_with_less_than_a_second_of_work(
    tmp_path: Path,
) -> None:
    cloud = SimulatedProvider(tmp_path / "cloud", installation="i", offers=[OFFER])
    halves = []
    for half in range(2):
        began = time.process_time()
        for number in range(500):
            group = await cloud.launch_group(request(f"t{half}-{number}"))
        halves.append(time.process_time() - began)
    assert isinstance(group, Group)

    times = []
    for _ in range(3):
        began = time.process_time()
        groups = await cloud.list_groups()
        times.append(time.process_time() - began)

    assert sum(len(group.nodes) for group in groups) == 10_000
    assert min(times) < 1.0
    assert halves[1] < 3 * halves[0] + 0.5  # the second half costs no more than the first


async def test_many_tasks_of_one_process_buy_once_each(tmp_path: Path) -> None:
    cloud = SimulatedProvider(tmp_path / "cloud", installation="i", offers=[OFFER])

    await asyncio.gather(*(cloud.launch_group(request(f"t{n % 20}", 2)) for n in range(200)))

    console = SimulatedConsole(tmp_path / "cloud")
    assert len(console.inventory()) == 40
    assert len({machine["private_address"] for machine in console.inventory()}) == 40


async def test_the_shipped_catalogue_is_sold(tmp_path: Path) -> None:
    cloud = SimulatedProvider(tmp_path / "cloud", installation="i", offers=load_offers())

    offers = await cloud.list_offers(OfferQuery(instance_type="p5.48xlarge"))

    assert len(offers) == 6
    assert all(offer.usd_per_hour for offer in offers)


async def test_a_workload_and_its_log_outlive_the_worker(tmp_path: Path) -> None:
    path = tmp_path / "cloud"
    console = SimulatedConsole(path)
    process = start(path, "p0", 1)
    assert process.wait(DEADLINE) == 0
    cloud = SimulatedProvider(path, installation="i", offers=[OFFER])
    deadline = time.monotonic() + DEADLINE
    while any(machine["status"] != "running" for machine in console.inventory()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    node = (await cloud.list_groups())[0].nodes[2]

    await cloud.workloads.start_workload(node, WorkloadRequest(name="w", command=("x", "y")))
    later = SimulatedProvider(path, installation="i", offers=[OFFER])
    chunk = await later.workloads.read_log(node, "w", offset=0, limit=100)

    assert chunk.data == b"[simulated] rank 2: start: x y\n"
    assert not chunk.ended
