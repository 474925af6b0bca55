"""Which replicas a deployment makes and takes away, to have as many good ones as it should.

A replica is to be replaced when it runs an older revision, or its node will go. Its successor is
made first, beyond the count if need be: one more than desired in a rollout, one more than
`max_replicas` for a node that will go. Only when the successor answers is the old one taken away;
or when it found no place for 5 minutes, so that the old one's place becomes free. One that does
not answer serves nobody and is not waited for. Where a person decided that the node goes, as its
nodepool is deleted or its limit lowered, all of them go after those 5 minutes, or at once where no
nodepool is left that could take a successor. Where the provider takes the node, they go half a
minute before it does, so that their last requests can end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

SURGE = 1
SURGE_PATIENCE = timedelta(minutes=5)

LAST_CALL = timedelta(seconds=30)
"""How long before its node is taken a replica goes, whether its successor answers or not."""


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that is wanted so far.

    Attributes:
        number: Rises with age's opposite: a younger one has a higher number.
        ready: It answers.
        draining: Its node will go.
        doomed: A person decided that its node goes, which its staying on would only put off.
        gone_at: When its node is taken, None where that is not known.
        waiting_since: Since when it has no node, None while it has one.
    """

    key: str
    number: int
    revision: int
    ready: bool = False
    draining: bool = False
    doomed: bool = False
    gone_at: datetime | None = None
    waiting_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """What there should be.

    Attributes:
        revision: The newest one.
        stopped: The rollout goes no further; older ones are as good as new ones.
        leaving: How many more may still run, as they are being stopped.
        homeless: No nodepool is there in which a successor could be.
    """

    desired: int
    max_replicas: int
    revision: int
    stopped: bool = False
    leaving: int = 0
    homeless: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do now.

    Attributes:
        create: How many new ones.
        remove: Which ones go, and why.
        again_at: When time alone will change the answer.
    """

    create: int = 0
    remove: tuple[tuple[str, str], ...] = ()
    again_at: datetime | None = None


def plan_members(members: Sequence[Member], goal: Goal, *, now: datetime) -> Changes:
    """Return what to make and what to take away."""
    if goal.desired == 0:
        return Changes(remove=tuple((member.key, "none is wanted") for member in members))
    old = [member for member in members if _is_old(member, goal)]
    stuck = [member for member in members if _is_stuck(member, goal)]
    good = [member for member in members if member not in old and member not in stuck]
    surplus = victims(good)[: max(0, len(good) - goal.desired)]
    good = [member for member in good if member not in surplus]
    replaced = _replaced(old, good, goal)
    evicted = [member for member in _evicted(old, good, goal, now) if member not in replaced]
    last = [m for m in old if _is_last_call(m, now) and m not in (*replaced, *evicted)]
    early = [] if replaced or evicted or last else _made_room(old, good, goal, now)
    room = _limit(old, goal) - len(members) - goal.leaving
    return Changes(
        create=max(0, min(goal.desired - len(good), room)),
        remove=(
            *((member.key, f"only {goal.desired} wanted") for member in surplus),
            *((member.key, _why_replaced(member)) for member in replaced),
            *((member.key, "its node must go") for member in evicted),
            *((member.key, "its node is about to be taken") for member in last),
            *((member.key, "its successor finds no place") for member in early),
        ),
        again_at=_again_at(old, good, goal, now),
    )


def victims(members: Iterable[Member]) -> list[Member]:
    """Return replicas in the order in which they go: not ready, older revision, youngest."""
    return sorted(members, key=lambda member: (member.ready, member.revision, -member.number))


def _is_old(member: Member, goal: Goal) -> bool:
    if member.draining:
        return True
    return member.revision < goal.revision and not goal.stopped


def _is_stuck(member: Member, goal: Goal) -> bool:
    """What a stopped rollout had begun is left for people to look at, and counts for nothing."""
    newest = member.revision == goal.revision
    return goal.stopped and newest and not member.ready and not member.draining


def _replaced(old: Sequence[Member], good: Sequence[Member], goal: Goal) -> list[Member]:
    idle = [member for member in old if not member.ready]
    serving = victims(member for member in old if member.ready)
    answering = sum(member.ready for member in good)
    return idle + serving[: max(0, len(serving) + answering - goal.desired)]


def _why_replaced(member: Member) -> str:
    return "its node will go" if member.draining else f"revision {member.revision} is replaced"


def _limit(old: Sequence[Member], goal: Goal) -> int:
    if any(member.draining for member in old):
        return goal.max_replicas + SURGE
    return min(goal.desired, goal.max_replicas) + SURGE if old else goal.max_replicas


def _evicted(
    old: Sequence[Member], good: Sequence[Member], goal: Goal, now: datetime
) -> list[Member]:
    since = _waits_since(old, good)
    late = since is not None and now >= since + SURGE_PATIENCE
    return [member for member in old if member.doomed and (late or goal.homeless)]


def _is_last_call(member: Member, now: datetime) -> bool:
    return member.gone_at is not None and now >= member.gone_at - LAST_CALL


def _made_room(
    old: Sequence[Member], good: Sequence[Member], goal: Goal, now: datetime
) -> list[Member]:
    """Return one old replica to take away early, at most one below the count at any time."""
    since = _waits_since(old, good)
    if since is None or now < since + SURGE_PATIENCE or goal.leaving:
        return []
    serving = victims(member for member in old if member.ready)
    answering = sum(member.ready for member in good)
    return serving[:1] if len(serving) + answering >= goal.desired else []


def _waits_since(old: Sequence[Member], good: Sequence[Member]) -> datetime | None:
    if not any(member.ready for member in old):
        return None
    return min((m.waiting_since for m in good if m.waiting_since is not None), default=None)


def _again_at(
    old: Sequence[Member], good: Sequence[Member], goal: Goal, now: datetime
) -> datetime | None:
    times = [one.gone_at - LAST_CALL for one in old if one.gone_at is not None]
    since = _waits_since(old, good)
    times += [] if since is None else [since + SURGE_PATIENCE]
    return min((time for time in times if time > now), default=None)
