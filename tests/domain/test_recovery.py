"""Budget, pauses and episodes of recovery."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.domain.clusters.recovery import (
    Exhausted,
    Nothing,
    Start,
    WaitUntil,
    attempt_over,
    begin_attempt,
    check_recoverable,
    close_episode,
    decide_recovery,
    end_attempt,
    note_healthy,
    open_episode,
)
from garrison.errors import RecoveryExhausted
from garrison.models.cluster_state import Attempt, Recovery
from garrison.models.group import RestartResult

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT = timedelta(minutes=20)
DOWN = (2,)


def minutes(count: float) -> datetime:
    return NOW + timedelta(minutes=count)


def degraded(**fields: object) -> Recovery:
    return open_episode(
        Recovery(automatic=True).model_copy(update=fields), reason="node 2 is lost", now=NOW
    )


def failed(recovery: Recovery, now: datetime, jitter: float = 0) -> Recovery:
    begun = begin_attempt(recovery, ranks=DOWN, now=now, timeout=TIMEOUT)
    return end_attempt(begun, error="gone", now=now, jitter=jitter)


def test_the_first_attempt_starts_at_once() -> None:
    assert decide_recovery(degraded(), down=DOWN, now=NOW) == Start(DOWN)


def test_without_being_asked_nothing_is_recovered() -> None:
    assert decide_recovery(degraded(automatic=False), down=DOWN, now=NOW) == Nothing()


def test_an_unconfirmed_observation_starts_nothing() -> None:
    assert decide_recovery(degraded(held=True), down=DOWN, now=NOW) == Nothing()


@pytest.mark.parametrize(
    ("attempts", "pause"),
    [
        pytest.param(1, 1, id="a minute after the first"),
        pytest.param(2, 5, id="five after the second"),
        pytest.param(3, 15, id="fifteen after the third"),
        pytest.param(6, 15, id="and fifteen from then on"),
    ],
)
def test_pauses_grow_between_attempts(attempts: int, pause: float) -> None:
    recovery = degraded(max_attempts=10)
    for _ in range(attempts):
        recovery = failed(recovery, NOW)

    step = decide_recovery(recovery, down=DOWN, now=NOW)

    assert step == WaitUntil(minutes(pause))
    assert decide_recovery(recovery, down=DOWN, now=minutes(pause)) == Start(DOWN)


@given(jitter=st.floats(-1, 1))
def test_the_pause_is_spread_by_a_fifth_either_way(jitter: float) -> None:
    step = decide_recovery(failed(degraded(), NOW, jitter), down=DOWN, now=NOW)

    assert isinstance(step, WaitUntil)
    assert timedelta(seconds=48) <= step.time - NOW <= timedelta(seconds=72)


def test_a_spent_budget_is_exhausted_and_refuses_a_manual_attempt() -> None:
    recovery = degraded(max_attempts=1)
    recovery = failed(recovery, NOW)

    assert decide_recovery(recovery, down=DOWN, now=minutes(999)) == Exhausted()
    with pytest.raises(RecoveryExhausted, match="1 of 1"):
        check_recoverable(recovery)


def test_a_manual_attempt_counts_and_does_not_wait() -> None:
    recovery = failed(degraded(automatic=False, requested=True), NOW)
    recovery = recovery.model_copy(update={"requested": True})

    assert decide_recovery(recovery, down=DOWN, now=NOW) == Start(DOWN)
    assert recovery.episode is not None
    assert recovery.episode.attempts == 1


def test_no_second_attempt_starts_while_one_is_under_way() -> None:
    recovery = begin_attempt(degraded(), ranks=DOWN, now=NOW, timeout=TIMEOUT)

    assert decide_recovery(recovery, down=DOWN, now=NOW) == Nothing()


@pytest.mark.parametrize(
    ("healthy_minutes", "episode", "attempts"),
    [
        pytest.param(59.9, 1, 2, id="failing again within the hour continues the budget"),
        pytest.param(60, 2, 0, id="after an hour of health a new episode begins"),
    ],
)
def test_an_episode_closes_after_an_hour_of_health(
    healthy_minutes: float, episode: int, attempts: int
) -> None:
    recovery = note_healthy(failed(failed(degraded(), NOW), NOW), now=NOW)

    again = open_episode(recovery, reason="node 1 is lost", now=minutes(healthy_minutes))

    assert again.episode is not None
    assert (again.episode.id, again.episode.attempts) == (episode, attempts)


def test_a_closed_episode_is_not_shown_and_its_number_is_not_used_again() -> None:
    recovery = close_episode(note_healthy(degraded(), now=NOW), now=minutes(60))

    again = open_episode(recovery, reason="again", now=minutes(90))

    assert recovery.episode is None
    assert again.episode is not None
    assert again.episode.id == 2


RESTARTED = {0: RestartResult.RESTARTED, 1: RestartResult.GONE}


@pytest.mark.parametrize(
    ("down", "running", "minute", "over"),
    [
        pytest.param((1,), set(), 1, False, id="waits for the node that was restarted"),
        pytest.param((1,), {0}, 1, True, id="resolves on the rest when one is gone"),
        pytest.param((0, 1), set(), 1, True, id="a restarted node that died again is not awaited"),
        pytest.param((1,), set(), 20, True, id="nor is one beyond the start timeout"),
    ],
)
def test_an_attempt_resolves(
    down: tuple[int, ...], running: set[int], minute: float, over: bool
) -> None:
    attempt = Attempt(
        number=1, started_at=NOW, deadline=NOW + TIMEOUT, results=RESTARTED, called=True
    )

    assert attempt_over(attempt, down=down, running=frozenset(running), now=minutes(minute)) is over


@given(
    st.lists(st.tuples(st.sampled_from(["fail", "heal", "break"]), st.integers(0, 90)), max_size=60)
)
def test_an_episode_never_has_more_attempts_than_its_budget(story: list[tuple[str, int]]) -> None:
    recovery, now = degraded(), NOW
    for what, pause in story:
        now += timedelta(minutes=pause)
        if what == "heal":
            recovery = note_healthy(recovery, now=now)
        elif what == "break" and recovery.episode and recovery.episode.healthy_since:
            recovery = open_episode(recovery, reason="again", now=now)
        elif isinstance(decide_recovery(recovery, down=DOWN, now=now), Start):
            recovery = failed(recovery, now)
        assert recovery.episode is None or recovery.episode.attempts <= recovery.max_attempts
