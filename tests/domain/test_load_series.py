"""What replicas' numbers add up to, from look to look: no replica that goes brings requests."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.domain.autoscaling.series import (
    REMEMBERED_SECONDS,
    LoadSeries,
    Role,
    Sample,
    count_load,
    find_missing,
)
from garrison.models.load import LoadCounts

Numbers = Mapping[str, tuple[float, float, float]]
"""Running, queued and counted requests of each replica."""


def look(numbers: Numbers, counter: Role) -> dict[Role, list[Sample]]:
    return {
        role: [Sample(replica, "s", three[at]) for replica, three in numbers.items()]
        for at, role in enumerate((Role.RUNNING, Role.QUEUED, counter))
    }


class World:
    """Looks at a deployment, ten seconds apart."""

    def __init__(self, counter: Role) -> None:
        self.series = LoadSeries()
        self.at = 1000.0
        self._counter = counter

    def see(self, *, after: float = 10, **numbers: tuple[float, float, float]) -> LoadCounts:
        return self.look(look(numbers, self._counter), after=after)

    def look(self, seen: Mapping[Role, list[Sample]], *, after: float = 10) -> LoadCounts:
        self.at += after
        counts, self.series = count_load(self.series, seen, self.at)
        assert counts is not None
        return counts


def test_gauges_are_added_up_and_rises_are_counted() -> None:
    world = World(Role.ARRIVALS)

    first = world.see(a=(1, 2, 100), b=(3, 4, 50))
    second = world.see(a=(0, 0, 110), b=(1, 0, 55))

    assert first == LoadCounts(running=4, queued=6, arrivals=0)
    assert second == LoadCounts(running=1, queued=0, arrivals=15)


def test_a_replica_that_goes_brings_no_requests() -> None:
    world = World(Role.ARRIVALS)
    world.see(a=(0, 0, 100), b=(0, 0, 5000))

    assert world.see(a=(0, 0, 101)).arrivals == 1
    assert world.see(a=(0, 0, 103)).arrivals == 3


def test_a_replica_that_comes_back_counts_on_from_where_it_was() -> None:
    world = World(Role.ARRIVALS)
    world.see(a=(0, 0, 100), b=(0, 0, 5000))
    world.see(a=(0, 0, 100))

    assert world.see(a=(0, 0, 100), b=(0, 0, 5002)).arrivals == 2


def test_a_replica_that_was_started_anew_brings_what_it_has_counted_since() -> None:
    world = World(Role.ARRIVALS)
    world.see(a=(0, 0, 100), b=(0, 0, 5000))

    assert world.see(a=(0, 0, 100), b=(0, 0, 3)).arrivals == 3
    assert world.see(a=(0, 0, 100), b=(0, 0, 4)).arrivals == 4


def test_a_replica_that_came_since_the_look_before_brings_all_that_it_counted() -> None:
    world = World(Role.ARRIVALS)
    world.see(a=(0, 0, 100))

    assert world.see(a=(0, 0, 100), b=(0, 0, 7)).arrivals == 7


@pytest.mark.parametrize(("after", "arrivals"), [(60, 500), (60.1, 0), (-1, 0)])
def test_after_a_hole_nobody_knows_what_came(after: float, arrivals: float) -> None:
    world = World(Role.ARRIVALS)
    world.see(a=(0, 0, 100))

    assert world.see(after=after, a=(0, 0, 600)).arrivals == arrivals
    assert world.see(a=(0, 0, 601)).arrivals == arrivals + 1


def test_a_new_label_of_a_known_replica_brings_all_that_it_counted() -> None:
    world = World(Role.ARRIVALS)
    world.see(a=(0, 0, 100))
    seen = look({"a": (0, 0, 100)}, Role.ARRIVALS)
    seen[Role.ARRIVALS].append(Sample("a", "aborted", 2))

    assert world.look(seen).arrivals == 2


def test_a_restart_is_seen_by_any_counter_of_the_replica_and_only_once() -> None:
    world = World(Role.ARRIVALS)
    gauges = look({"a": (0, 0, 0)}, Role.ARRIVALS)

    def arrivals(**counters: float) -> float:
        samples = [Sample("a", name, value) for name, value in counters.items()]
        return world.look({**gauges, Role.ARRIVALS: samples}).arrivals

    arrivals(stop=100, abort=5)

    # Six stops are more than the five aborts that were: only the fall of `stop` tells.
    assert arrivals(stop=6) == 6
    assert arrivals(stop=20, abort=1) == 21
    assert arrivals(stop=20, abort=2) == 22


def test_a_sum_over_replicas_that_falls_brings_nothing() -> None:
    world = World(Role.ARRIVALS)
    sums = {role: [Sample("", "sum", 1)] for role in (Role.RUNNING, Role.QUEUED)}

    def arrivals(value: float) -> float:
        return world.look({**sums, Role.ARRIVALS: [Sample("", "sum", value)]}).arrivals

    arrivals(5000)

    assert arrivals(5010) == 10
    assert arrivals(2000) == 10
    assert arrivals(2004) == 14


def test_arrivals_follow_from_what_is_completed_and_what_is_there() -> None:
    world = World(Role.COMPLETIONS)

    assert world.see(a=(2, 1, 100)) == LoadCounts(running=2, queued=1, arrivals=0, completions=0)
    assert world.see(a=(4, 3, 100)).arrivals == 4
    assert world.see(a=(4, 0, 103)).arrivals == 4
    assert world.see(a=(0, 0, 110)) == LoadCounts(running=0, queued=0, arrivals=7, completions=10)


def test_a_gauge_that_lags_behind_counts_no_request_twice() -> None:
    world = World(Role.COMPLETIONS)
    world.see(a=(5, 0, 100))

    # Three completed, and three came: the gauge says so one look later, and then lags again.
    assert world.see(a=(5, 0, 103)).arrivals == 3
    assert world.see(a=(2, 0, 103)).arrivals == 3
    assert world.see(a=(5, 0, 103)).arrivals == 3


def test_requests_lost_with_a_replica_do_not_arrive_again() -> None:
    world = World(Role.COMPLETIONS)
    world.see(a=(0, 0, 100), b=(8, 4, 100))

    assert world.see(a=(0, 0, 100)).arrivals == 0
    assert world.see(a=(12, 0, 100)).arrivals == 12


def test_requests_of_a_replica_that_was_not_seen_for_a_while_do_not_arrive_again() -> None:
    world = World(Role.COMPLETIONS)
    world.see(a=(0, 0, 100), b=(3, 0, 10))
    world.see(a=(0, 0, 100))

    assert world.see(a=(0, 0, 100), b=(2, 0, 11)).arrivals == 0


def test_a_restarted_replica_has_had_what_it_completed_and_what_it_has() -> None:
    world = World(Role.COMPLETIONS)
    world.see(a=(8, 4, 100))

    assert world.see(a=(3, 1, 2)) == LoadCounts(running=3, queued=1, arrivals=6, completions=2)
    assert world.see(a=(0, 0, 6)).arrivals == 6


def test_a_new_replica_has_had_what_it_completed_and_what_it_has() -> None:
    world = World(Role.COMPLETIONS)
    world.see(a=(0, 0, 100))

    assert world.see(a=(0, 0, 100), b=(2, 0, 5)).arrivals == 7


def test_own_sums_are_set_against_all_completions_together() -> None:
    world = World(Role.COMPLETIONS)
    completed = [Sample("a", "s", 100), Sample("b", "s", 100)]
    queued = [Sample("", "q", 0)]
    world.look(
        {Role.RUNNING: [Sample("", "r", 4)], Role.QUEUED: queued, Role.COMPLETIONS: completed}
    )
    completed = [Sample("a", "s", 102), Sample("b", "s", 103)]

    counts = world.look(
        {Role.RUNNING: [Sample("", "r", 0)], Role.QUEUED: queued, Role.COMPLETIONS: completed}
    )

    # Four of the five are those that were there.
    assert counts.arrivals == 1


def busy(
    spent: float, waited: float, completed: float, queued: float = 0
) -> dict[Role, list[Sample]]:
    return {
        Role.QUEUED: [Sample("a", "q", queued)],
        Role.COMPLETIONS: [Sample("a", "c", completed)],
        Role.BUSY_US: [Sample("a", "b", spent * 1e6)],
        Role.WAITED_US: [Sample("a", "w", waited * 1e6)],
    }


def test_running_follows_from_how_long_completed_requests_took() -> None:
    series, at = LoadSeries(), 0.0
    told = []
    for step in range(8):
        # Every ten seconds ten requests complete, each after 4 s, one of which it waited.
        counts, series = count_load(series, busy(40 * step, 10 * step, 10 * step), at)
        told.append(None if counts is None else counts.running)
        at += 10

    assert told == [None, None, None, 3, 3, 3, 3, 3]


def test_running_falls_to_nothing_within_a_minute_after_the_last_completion() -> None:
    series = LoadSeries()
    for step in range(8):
        _, series = count_load(series, busy(30 * step, 0, step), 10.0 * step)

    told = []
    for step in range(8, 15):
        counts, series = count_load(series, busy(210, 0, 7), 10.0 * step)
        assert counts is not None
        told.append(round(counts.running, 2))

    assert told == [2.5, 2, 1.5, 1, 0.5, 0, 0]


def test_a_waiting_request_that_is_taken_up_is_no_second_arrival() -> None:
    series = LoadSeries()
    for step in range(5):
        _, series = count_load(series, busy(0, 0, 10), 10.0 * step)

    arrivals = []
    for queued, completed in ((3, 10), (0, 10), (0, 13)):
        counts, series = count_load(series, busy(0, 0, completed, queued), series.at or 0)
        assert counts is not None
        arrivals.append(counts.arrivals)

    assert arrivals == [3, 3, 3]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("role", Role)
def test_a_number_that_is_none_is_missing(role: Role, value: float) -> None:
    seen = {**look({"a": (0, 0, 0)}, Role.ARRIVALS), role: [Sample("a", "s", value)]}

    missing = find_missing(seen, ready=1, up=None)

    assert missing == f"{role} is {value:g}"


@pytest.mark.parametrize(
    ("ready", "up", "missing"),
    [
        (0, None, "no replica is ready"),
        (1, None, None),
        (2, None, None),
        (3, None, "running is told by 2 of 3 ready replicas"),
        (2, 2, None),
        (2, 3, None),
        (2, 1, "1 of 2 ready replicas are read"),
        (2, math.nan, "nan of 2 ready replicas are read"),
    ],
)
def test_numbers_of_some_replicas_only_are_missing(
    ready: int, up: float | None, missing: str | None
) -> None:
    seen = look({"a": (0, 0, 0), "b": (0, 0, 0)}, Role.ARRIVALS)

    assert find_missing(seen, ready=ready, up=up) == missing


def test_a_sum_stands_for_all_replicas() -> None:
    seen = {role: [Sample("", "sum", 1)] for role in (Role.RUNNING, Role.QUEUED, Role.ARRIVALS)}

    assert find_missing(seen, ready=9, up=None) is None


def test_time_spent_that_some_replicas_only_tell_is_missing() -> None:
    seen = busy(1, 0, 1)
    seen[Role.QUEUED].append(Sample("b", "q", 0))

    assert find_missing(seen, ready=2, up=None) == "busy_us is told by 1 of 2 ready replicas"


@pytest.mark.parametrize("role", [Role.RUNNING, Role.QUEUED])
def test_a_gauge_that_nobody_tells_is_missing(role: Role) -> None:
    seen = {**look({"a": (0, 0, 5)}, Role.ARRIVALS), role: []}

    assert find_missing(seen, ready=1, up=1) == f"{role} is told by no replica"


@pytest.mark.parametrize("counter", [Role.ARRIVALS, Role.COMPLETIONS])
def test_a_counter_that_nobody_has_is_missing_once_there_are_requests(counter: Role) -> None:
    counted = look({"a": (0, 1, 0)}, counter)
    idle = {**look({"a": (0, 0, 0)}, counter), counter: []}
    working = {**counted, counter: []}

    assert find_missing(counted, ready=1, up=None) is None
    assert find_missing(idle, ready=1, up=None) is None
    assert find_missing(working, ready=1, up=None) == (
        f"{counter} are counted by no replica, and there are requests"
    )


def test_a_replica_is_forgotten_after_a_day() -> None:
    world = World(Role.COMPLETIONS)
    world.see(a=(0, 0, 1), b=(1, 0, 1))
    while world.at < 1020 + REMEMBERED_SECONDS:
        world.see(after=60, a=(0, 0, 1))

    assert {replica for _, replica, _ in world.series.last} == {"a"}
    assert set(world.series.ahead) == {"a"}


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Events at replicas: requests arrive, complete, or the replica is started anew or gone."""
    kinds = st.sampled_from(["arrive", "complete", "restart", "go", "look"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 2), st.integers(1, 5)), max_size=40))


@given(lives())
def test_totals_never_fall_and_never_pass_what_really_came(
    events: list[tuple[str, int, int]],
) -> None:
    world, truth = World(Role.COMPLETIONS), 0
    replicas = {0: [0, 0]}  # in flight, completed
    before = world.see(r0=(0, 0, 0))
    for kind, which, count in events:
        there = replicas.setdefault(which, [0, 0])
        if kind == "arrive":
            there[0] += count
            truth += count
        elif kind == "complete":
            done = min(count, there[0])
            replicas[which] = [there[0] - done, there[1] + done]
        elif kind == "restart":
            replicas[which] = [0, 0]
        elif kind == "go" and which:
            # A name is used once.
            del replicas[which]
            replicas[which + 10 * len(events) + truth] = [0, 0]
        else:
            seen = {f"r{name}": (n, 0, done) for name, (n, done) in replicas.items()}
            counts = world.look(look(seen, Role.COMPLETIONS))
            assert before.arrivals <= counts.arrivals <= truth
            assert (before.completions or 0) <= (counts.completions or 0) <= truth
            before = counts
