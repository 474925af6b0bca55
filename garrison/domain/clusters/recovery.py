"""When to bring lost nodes back, how often, and when to give up.

An episode opens when a whole cluster becomes degraded and closes only after an hour of health: a
cluster that fails again sooner goes on with the same budget. Attempts, manual ones too, count
against it; the first starts at once, the next after 1, 5 and then 15 minutes, +/- 20 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from garrison.errors import RecoveryExhausted
from garrison.models.cluster_state import Attempt, Episode, Recovery
from garrison.models.group import RestartResult

PAUSES = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15))
JITTER = 0.2
HEALTHY_FOR = timedelta(minutes=60)


@dataclass(frozen=True, slots=True)
class Start:
    """Begin an attempt on these ranks now."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing before this time."""

    time: datetime


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The budget is spent; no further call to the provider."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No attempt is wanted."""


RecoveryStep = Start | WaitUntil | Exhausted | Nothing


def open_episode(recovery: Recovery, *, reason: str, now: datetime) -> Recovery:
    """Return the recovery after the cluster became degraded.

    The last episode goes on unless the cluster was healthy for an hour.
    """
    last = close_episode(recovery, now=now).episode
    if last is not None:
        episode = last.model_copy(update={"healthy_since": None, "reason": reason})
        return recovery.model_copy(update={"episode": episode})
    number = recovery.episodes + 1
    episode = Episode(id=number, opened_at=now, reason=reason)
    return recovery.model_copy(update={"episode": episode, "episodes": number})


def note_healthy(recovery: Recovery, *, now: datetime) -> Recovery:
    """Return the recovery once all nodes run again: no attempt, the hour begins."""
    episode = recovery.episode
    if episode is not None:
        since = episode.healthy_since or now
        episode = episode.model_copy(update={"healthy_since": since, "next_attempt_at": None})
    return recovery.model_copy(update={"episode": episode, "attempt": None, "requested": False})


def closes_at(recovery: Recovery) -> datetime | None:
    """Return when the open episode ends if the cluster stays healthy; None if it is not."""
    episode = recovery.episode
    if episode is None or episode.healthy_since is None:
        return None
    return episode.healthy_since + HEALTHY_FOR


def close_episode(recovery: Recovery, *, now: datetime) -> Recovery:
    """Return the recovery without its episode if the hour of health has passed."""
    end = closes_at(recovery)
    if end is None or now < end:
        return recovery
    return recovery.model_copy(update={"episode": None})


def decide_recovery(recovery: Recovery, *, down: tuple[int, ...], now: datetime) -> RecoveryStep:
    """Return what to do about the nodes that are down."""
    episode = recovery.episode
    if not down or episode is None or recovery.attempt is not None:
        return Nothing()
    if episode.attempts >= recovery.max_attempts:
        return Exhausted()
    if not (recovery.automatic or recovery.requested):
        return Nothing()
    if recovery.held:
        return Nothing()
    if recovery.requested:
        return Start(down)
    if episode.next_attempt_at is not None and now < episode.next_attempt_at:
        return WaitUntil(episode.next_attempt_at)
    return Start(down)


def check_recoverable(recovery: Recovery) -> None:
    """Return if a manual attempt may start.

    Raises:
        RecoveryExhausted: The attempts of this episode are spent.
    """
    episode = recovery.episode
    if recovery.attempt is not None:
        return
    if episode is not None and episode.attempts >= recovery.max_attempts:
        raise RecoveryExhausted(
            f"{episode.attempts} of {recovery.max_attempts} attempts of episode {episode.id} are"
            " spent; raise the budget with `recovery --max-attempts`, or terminate"
        )


def begin_attempt(
    recovery: Recovery, *, ranks: tuple[int, ...], now: datetime, timeout: timedelta
) -> Recovery:
    """Return the recovery with a counted attempt under way.

    Args:
        recovery: Has an open episode.
        ranks: Nodes to bring back.
        now: Current time.
        timeout: How long a node may take to run again.
    """
    episode = recovery.episode
    assert episode is not None
    number = episode.attempts + 1
    return recovery.model_copy(
        update={
            "requested": False,
            "episode": episode.model_copy(update={"attempts": number, "next_attempt_at": None}),
            "attempt": Attempt(number=number, started_at=now, deadline=now + timeout, ranks=ranks),
        }
    )


def attempt_over(
    attempt: Attempt, *, down: tuple[int, ...], running: frozenset[int], now: datetime
) -> bool:
    """Return whether an attempt has resolved: each of its nodes runs, is given up or is late."""
    if not attempt.called:
        return False
    waiting = [
        rank
        for rank, result in attempt.results.items()
        if result in {RestartResult.RESTARTED, RestartResult.ALREADY_RUNNING}
        and rank not in running
        and rank not in down
    ]
    return not waiting or now >= attempt.deadline


def end_attempt(recovery: Recovery, *, error: str, now: datetime, jitter: float) -> Recovery:
    """Return the recovery after an attempt that left nodes down.

    Args:
        recovery: Has an attempt under way.
        error: What went wrong, for people.
        now: Current time.
        jitter: Uniform in [-1, 1]; spreads the pauses of many clusters.
    """
    episode = recovery.episode
    assert episode is not None
    spent = episode.attempts >= recovery.max_attempts
    pause = PAUSES[min(episode.attempts, len(PAUSES)) - 1] * (1 + JITTER * jitter)
    update = {
        "next_attempt_at": None if spent or not recovery.automatic else now + pause,
        "last_error": error,
    }
    return recovery.model_copy(
        update={"attempt": None, "episode": episode.model_copy(update=update)}
    )
