"""When a place is proven empty.

A purchase that was cancelled, lost or half done can still take effect for a while, and a list can
be late. So deletes repeat until the last possible effect has settled into the lists (`quiet_at`);
only then do two empty lists count, of passes that began a settle time apart. Any machine seen
starts the proof anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from garrison.models.cluster_state import Cleanup
from garrison.models.provider import ProviderFacts

FIRST_PAUSE = timedelta(seconds=2)
LONGEST_PAUSE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete by every token, then look at a pass that begins at or after `look_at`."""

    look_at: datetime


@dataclass(frozen=True, slots=True)
class Look:
    """Ask for a pass that begins at or after a time."""

    not_before: datetime


@dataclass(frozen=True, slots=True)
class Await:
    """Nothing to do until an observation arrives or this time comes."""

    until: datetime | None


@dataclass(frozen=True, slots=True)
class Proven:
    """Nothing is left, and nothing can appear any more."""


CleanupStep = Delete | Look | Await | Proven


def begin_cleanup(*, effects_until: datetime, now: datetime, facts: ProviderFacts) -> Cleanup:
    """Return a new proof that starts with a delete now.

    Args:
        effects_until: When the last call that could buy something can no longer have an effect.
        now: Current time.
        facts: Of the provider to be emptied.
    """
    return Cleanup(quiet_at=max(effects_until, now) + facts.settle, delete_due=now)


def plan_cleanup(cleanup: Cleanup, *, now: datetime, facts: ProviderFacts) -> CleanupStep:
    """Return the next step of the proof."""
    if cleanup.proven:
        return Proven()
    if cleanup.delete_due is not None and cleanup.delete_due <= now:
        return Delete(look_at=max(now, cleanup.quiet_at))
    wanted = _wanted_pass(cleanup, facts)
    if cleanup.asked_for is None or cleanup.asked_for < wanted:
        return Look(not_before=wanted)
    return Await(until=cleanup.delete_due)


def _wanted_pass(cleanup: Cleanup, facts: ProviderFacts) -> datetime:
    if cleanup.empty_at is not None:
        return cleanup.empty_at + max(facts.settle, timedelta(microseconds=1))
    return max(cleanup.quiet_at, cleanup.last_deleted_at or cleanup.quiet_at)


def note_deleted(cleanup: Cleanup, *, ended_at: datetime, asked_for: datetime) -> Cleanup:
    """Return the proof after a delete that succeeded.

    Before `quiet_at` the next delete is due after a doubling pause, and the last one at
    `quiet_at` itself, when nothing can appear behind it any more.
    """
    deletes = cleanup.deletes + 1
    due = None
    if ended_at < cleanup.quiet_at:
        due = min(ended_at + _pause(deletes), cleanup.quiet_at)
    return cleanup.model_copy(
        update={
            "deletes": deletes,
            "delete_due": due,
            "last_deleted_at": ended_at,
            "asked_for": asked_for,
            "empty_at": None,
        }
    )


def note_asked(cleanup: Cleanup, *, not_before: datetime) -> Cleanup:
    """Return the proof after a look was asked for."""
    return cleanup.model_copy(update={"asked_for": not_before})


def note_observed(
    cleanup: Cleanup, *, begun_at: datetime, machines: int, facts: ProviderFacts
) -> Cleanup:
    """Return the proof after a complete list that showed so many machines of ours."""
    if machines:
        return _seen(cleanup, begun_at)
    if cleanup.delete_due is not None or begun_at < cleanup.quiet_at:
        return cleanup
    if cleanup.last_deleted_at is None or begun_at < cleanup.last_deleted_at:
        return cleanup
    if cleanup.empty_at is None:
        return cleanup.model_copy(update={"empty_at": begun_at})
    if begun_at > cleanup.empty_at and begun_at - cleanup.empty_at >= facts.settle:
        return cleanup.model_copy(update={"proven": True})
    return cleanup


def _seen(cleanup: Cleanup, begun_at: datetime) -> Cleanup:
    if cleanup.delete_due is not None:
        return cleanup.model_copy(update={"empty_at": None})
    pause = _pause(cleanup.deletes)
    return cleanup.model_copy(update={"empty_at": None, "delete_due": begun_at + pause})


def _pause(deletes: int) -> timedelta:
    doublings = min(max(deletes - 1, 0), 10)
    return min(FIRST_PAUSE * (1 << doublings), LONGEST_PAUSE)
