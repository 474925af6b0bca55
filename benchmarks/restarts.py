"""A worker ends, another begins, and every life of a fleet is sent an update at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.arms import Arm, GarrisonArm, all_at_once
from benchmarks.figures import Figure, median, with_unit
from benchmarks.installation import Installation, installed, raw_arm
from garrison.workers.main import STICKY_TIMEOUT

STUCK_AFTER = 60.0
AT_ONCE = 24
AFTER_STICKY = STICKY_TIMEOUT.total_seconds() + 3


@dataclass(frozen=True, slots=True)
class Recovery:
    """Answers after a restart.

    Attributes:
        ended: Seconds that the old worker took to end.
        started: Seconds until the new one polled; the updates are sent then.
        answers: Seconds from then on, in order; those that came.
        stuck: How many did not come within a minute.
    """

    ended: float
    started: float
    answers: list[float]
    stuck: int

    @property
    def text(self) -> str:
        """For the table."""
        if not self.answers:
            return f"none of {self.stuck} answered"
        first, middle, last = (
            with_unit(one, "") for one in (self.answers[0], median(self.answers), self.answers[-1])
        )
        return f"first {first}, median {middle}, last {last} s"


async def measure(*, after_term: int, after_kill: int, say: Callable[[str], None]) -> list[Figure]:
    """Return the figures of restarts.

    Args:
        after_term: Clusters that are sent an update after a SIGTERM, and after a SIGKILL.
        after_kill: The same after another SIGKILL, to see that none is stuck.
        say: Prints progress.
    """
    names = [f"k{i}" for i in range(max(after_term, after_kill))]
    async with installed() as installation:
        fleets = await _fleets(installation, names, say)
        term, kill, flood = {}, {}, {}
        for fleet in fleets:
            term[fleet.arm.name] = await fleet.restart(names[:after_term], kill=False)
            say(f"SIGTERM, {fleet.arm.name}: {term[fleet.arm.name].text}")
        for fleet in fleets:
            kill[fleet.arm.name] = await fleet.restart(names[:after_term], kill=True)
            say(f"SIGKILL, {fleet.arm.name}: {kill[fleet.arm.name].text}")
        for fleet in fleets:
            flood[fleet.arm.name] = await fleet.restart(names[:after_kill], kill=True)
            say(f"SIGKILL, all, {fleet.arm.name}: {flood[fleet.arm.name].text}")
    return [
        *_term_figures(term, after_term),
        *_kill_figures(kill, after_term),
        _flood_figure(flood, after_kill),
    ]


class Fleet:
    """Running lives of one arm and their worker."""

    def __init__(self, installation: Installation, arm: Arm) -> None:
        self._installation = installation
        self.arm = arm

    async def start(self) -> None:
        """Start the worker."""
        self._worker = await self._installation.worker(self.arm.name)

    async def restart(self, names: list[str], *, kill: bool) -> Recovery:
        """Replace the worker by another, and see how soon lives answer again."""
        # Each was in the memory of the worker that ends, as in a fleet that is in use.
        await all_at_once(self.arm.touch, names, at_once=AT_ONCE)
        began = time.monotonic()
        if kill:
            self._worker.kill()
        else:
            await self._worker.stop()
        ended = time.monotonic() - began
        self._worker = await self._installation.worker(self.arm.name)
        answers = await asyncio.gather(*map(self._answer, names))
        came = sorted(one for one in answers if one is not None)
        return Recovery(ended, self._worker.start_seconds, came, len(names) - len(came))

    async def _answer(self, name: str) -> float | None:
        try:
            return await asyncio.wait_for(self.arm.touch(name), STUCK_AFTER)
        except TimeoutError:
            return None


async def _fleets(
    installation: Installation, names: list[str], say: Callable[[str], None]
) -> list[Fleet]:
    ours = GarrisonArm(installation.client, installation.settings, nodes=2)
    fleets = [Fleet(installation, ours)]
    await fleets[0].start()
    await installation.take_sample(ours)
    fleets.append(Fleet(installation, raw_arm(installation, ours)))
    await fleets[1].start()
    for fleet in fleets:
        began = time.monotonic()
        await all_at_once(fleet.arm.begin, names, at_once=AT_ONCE)
        say(f"{len(names)} {fleet.arm.name} lives run after {time.monotonic() - began:.0f} s")
    return fleets


def _term_figures(term: dict[str, Recovery], lives: int) -> list[Figure]:
    ours, raw = term["garrison"], term["raw"]
    detail = f"{ours.text}; raw {raw.text}; ended in {ours.ended:.1f} s"
    return [
        Figure("restart with SIGTERM: first answer", _first(ours), "s", goal=1, detail=detail),
        Figure(f"the same: all {lives} clusters", _last(ours), "s", goal=3),
        Figure("the same: start of the new worker process", ours.started, "s"),
    ]


def _kill_figures(kill: dict[str, Recovery], lives: int) -> list[Figure]:
    ours, raw = kill["garrison"], kill["raw"]
    detail = f"{ours.text}; raw {raw.text}"
    return [
        Figure("restart with SIGKILL: first answer", _first(ours), "s", detail=detail),
        Figure(f"the same: all {lives} clusters", _last(ours), "s", goal=AFTER_STICKY),
    ]


def _flood_figure(flood: dict[str, Recovery], lives: int) -> Figure:
    ours, raw = flood["garrison"], flood["raw"]
    detail = f"not answered within {STUCK_AFTER:g} s; {ours.text}; raw {raw.stuck}, {raw.text}"
    return Figure(f"restart with SIGKILL: stuck of {lives}", ours.stuck, goal=0, detail=detail)


def _first(recovery: Recovery) -> float:
    return recovery.answers[0] if recovery.answers else float("nan")


def _last(recovery: Recovery) -> float:
    return recovery.answers[-1] if recovery.answers and not recovery.stuck else float("nan")
