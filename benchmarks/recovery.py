"""From the death of a node to the start of the activity that brings it back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from benchmarks.arms import GarrisonArm, all_at_once
from benchmarks.figures import Figure, median, percentile, with_unit
from benchmarks.installation import Installation, installed

INTERVAL = 5
SLACK = 0.5
PATIENCE = 60.0


async def measure(*, samples: int, say: Callable[[str], None]) -> list[Figure]:
    """Return the figure of recovery, one node at a time, each in a cluster of its own.

    Args:
        samples: How many nodes die.
        say: Prints progress.
    """
    names = [f"d{i}" for i in range(samples)]
    moments = random.Random(5)
    async with installed(watch_interval=INTERVAL) as installation:
        await installation.worker()
        arm = GarrisonArm(
            installation.client, installation.settings, nodes=2, recovery={"automatic": True}
        )
        await all_at_once(arm.begin, names, at_once=8)
        taken = []
        for name in names:
            # At any moment between two passes of a watch that has nothing else to do.
            await asyncio.sleep(INTERVAL + moments.uniform(0, INTERVAL))
            taken.append(await _lose_a_node(installation, arm, name))
    texts = [with_unit(one, "") for one in (median(taken), percentile(taken, 95))]
    say(f"recovery begins after {texts[0]} s, p95 {texts[1]}, at most {max(taken):.2f} s")
    detail = (
        f"longest of {samples} with a pass every {INTERVAL} s; median {texts[0]}, p95 {texts[1]} s"
    )
    return [
        Figure(
            "node dead -> recovery activity started",
            max(taken),
            "s",
            goal=INTERVAL + SLACK,
            detail=detail,
        )
    ]


async def _lose_a_node(installation: Installation, arm: GarrisonArm, name: str) -> float:
    machines = installation.console.inventory()
    node = next(m for m in machines if m["owner"] == f"cluster/{name}" and m["rank"] == 0)
    died = datetime.now(UTC)
    installation.console.kill(str(node["provider_id"]))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        await asyncio.sleep(0.5)
        started = _restart_started(await arm.handle(name).fetch_history())
        if started is not None:
            return (started - died).total_seconds()
    raise RuntimeError(f"{name} was not recovered within {PATIENCE:g} s")


def _restart_started(history: WorkflowHistory) -> datetime | None:
    """Return when a restart began; the service writes that down once it has ended."""
    asked = {
        event.event_id
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == "restart_node"
    }
    kind = EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    for event in history.events:
        begun = event.activity_task_started_event_attributes
        if event.event_type == kind and begun.scheduled_event_id in asked:
            return event.event_time.ToDatetime(tzinfo=UTC)
    return None
