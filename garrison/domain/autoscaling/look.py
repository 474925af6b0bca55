"""One look at one deployment's load: what to tell it, and what to remember."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from garrison.domain.autoscaling.decision import FIRST_BOOT, Decision, Observation, decide
from garrison.models.autoscale import AutoscaleState
from garrison.models.deployment import LoadKind
from garrison.models.load import Followed, LoadCounts, LoadMemory, TargetChanged

PARTIAL = "hold: a router is silent, and may have requests"
TELL_AGAIN = timedelta(minutes=1)
"""A target that was told and is still not wanted was lost; it is told again."""


def look(
    followed: Followed, memory: LoadMemory | None, counts: LoadCounts | None, *, now: datetime
) -> tuple[LoadMemory, TargetChanged | None]:
    """Return what to remember, and what to tell the deployment, if anything.

    Args:
        followed: As it last said of itself.
        memory: Of the last look, None before any.
        counts: Its traffic, None where that is missing.
        now: Current time.
    """
    known = _take_over(followed, memory)
    if _is_asleep(followed):
        # Nobody decides; what was seen before says nothing when somebody does again.
        anew = {"blind": True, "arrivals": None, "completions": None}
        return known.replace(state=known.state.replace(**anew)), None
    decision, state = decide(followed.autoscale, known.state, _observe(followed, counts, now))
    if counts is not None and counts.partial and decision.target < followed.desired:
        # What is known asks for fewer; what is not known may not.
        decision = replace(decision, target=followed.desired, reason=PARTIAL)
        state = state.replace(target=followed.desired)
    remembered: LoadMemory = known.replace(state=state)
    if not _is_news(followed, known, decision.target, now):
        return remembered, None
    return remembered.replace(told=decision.target, told_at=now), _tell(followed, decision)


def resume(memory: LoadMemory) -> LoadMemory:
    """Return a memory for another process, whose counters may have begun anew."""
    resumed: LoadMemory = memory.replace(
        state=memory.state.replace(arrivals=None, completions=None)
    )
    return resumed


def _take_over(followed: Followed, memory: LoadMemory | None) -> LoadMemory:
    """Go on from what is wanted, but for a target that is told and was not taken yet.

    What is wanted can be somebody else's word, or this watch's own that was not remembered.
    """
    if memory is None or memory.uid != followed.uid:
        state = AutoscaleState(target=followed.desired)
        return LoadMemory(uid=followed.uid, generation=followed.generation, state=state)
    waits = memory.told is not None and memory.told != followed.desired
    if waits and memory.generation == followed.generation:
        return memory
    known: LoadMemory = memory.replace(
        generation=followed.generation,
        state=memory.state.replace(target=followed.desired),
        told=None,
        told_at=None,
    )
    return known


def _is_asleep(followed: Followed) -> bool:
    """At zero there are no replicas that could tell anything; only a router can wake."""
    if not followed.autoscaled:
        return True
    routed = followed.autoscale.load.source is LoadKind.ROUTER
    return not routed and followed.desired == 0


def _observe(followed: Followed, counts: LoadCounts | None, now: datetime) -> Observation:
    return Observation(
        now=now,
        ready=followed.ready,
        starting=followed.starting,
        queued=None if counts is None else counts.queued,
        running=None if counts is None else counts.running,
        arrivals=None if counts is None else counts.arrivals,
        completions=None if counts is None else counts.completions,
        boot=FIRST_BOOT if followed.boot is None else followed.boot,
    )


def _is_news(followed: Followed, known: LoadMemory, target: int, now: datetime) -> bool:
    if target == followed.desired:
        return False
    lately = known.told_at is not None and now < known.told_at + TELL_AGAIN
    return not (lately and known.told == target)


def _tell(followed: Followed, decision: Decision) -> TargetChanged:
    need = decision.need
    reason = decision.reason if need is None else f"{decision.reason}; demand {need.demand:.1f}"
    return TargetChanged(
        uid=followed.uid,
        generation=followed.generation,
        target=decision.target,
        reason=reason,
        demand=None if need is None else round(need.demand, 3),
    )
