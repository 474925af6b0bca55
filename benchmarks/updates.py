"""How long an update of a running life takes to be acknowledged."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.arms import GarrisonArm, all_at_once
from benchmarks.figures import Figure, percentile, with_unit
from benchmarks.installation import installed, raw_arm

LIVES = 10
GOAL = 1.5


async def measure(*, blocks: int, updates: int, say: Callable[[str], None]) -> list[Figure]:
    """Return the figure of acknowledgements, one update at a time.

    Args:
        blocks: How often each arm has its turn.
        updates: Updates in a turn.
        say: Prints progress.
    """
    names = [f"u{i}" for i in range(LIVES)]
    async with installed() as installation:
        await installation.worker()
        ours = GarrisonArm(installation.client, installation.settings, nodes=2)
        await installation.take_sample(ours)
        raw = raw_arm(installation, ours)
        await installation.worker(raw.name)
        taken: dict[str, list[float]] = {ours.name: [], raw.name: []}
        for arm in (ours, raw):
            await all_at_once(arm.begin, names, at_once=LIVES)
        for _ in range(blocks):
            for arm in (ours, raw):
                taken[arm.name] += [await arm.touch(names[i % LIVES]) for i in range(updates)]
        said = {name: _spread(times) for name, times in taken.items()}
        for name, text in said.items():
            say(f"{name}: an update takes {text}")
    value = percentile(taken[ours.name], 95) / percentile(taken[raw.name], 95)
    detail = f"{said[ours.name]}, raw {said[raw.name]}; {blocks * updates} each"
    return [Figure("update acknowledgement p95", value, "x", goal=GOAL, detail=detail)]


def _spread(seconds: list[float]) -> str:
    p50, p95 = (with_unit(percentile(seconds, one) * 1000, "") for one in (50, 95))
    return f"p50 {p50}, p95 {p95} ms"
