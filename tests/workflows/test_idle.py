"""What a healthy cluster costs while nothing happens."""

from __future__ import annotations

from datetime import timedelta

from tests.workflows.conftest import VirtualStory


async def test_a_healthy_cluster_is_idle_for_a_day_but_for_its_deadman_probes(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        running = await virtual.running()
        before = await virtual.history(running.name)
        await virtual.watch(timedelta(hours=24), every=timedelta(minutes=5))
        after = await virtual.history(running.name)

    grown = after - before
    print(grown)
    assert virtual.console.peak(uid=running.uid) == 2
