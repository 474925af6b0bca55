"""Rollouts and draining nodes, minute by minute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.domain.deployments.rollout import (
    LAST_CALL,
    SURGE_PATIENCE,
    Changes,
    Goal,
    Member,
    plan_members,
    victims,
)

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GOAL = Goal(desired=2, max_replicas=5, revision=1)


def member(number: int, **fields: Any) -> Member:
    return replace(Member(key=f"r{number}", number=number, revision=1, ready=True), **fields)


def removed(changes: Changes) -> list[str]:
    return [key for key, _ in changes.remove]


def test_what_is_missing_is_made() -> None:
    changes = plan_members([member(1)], GOAL, now=NOW)

    assert changes == Changes(create=1)


def test_as_many_as_wanted_are_left_alone() -> None:
    assert plan_members([member(1), member(2)], GOAL, now=NOW) == Changes()


def test_one_that_is_being_stopped_still_counts_against_the_limit() -> None:
    goal = replace(GOAL, max_replicas=2, leaving=1)

    assert plan_members([member(1)], goal, now=NOW).create == 0


def test_not_ready_ones_go_first_then_older_revisions_then_the_youngest() -> None:
    members = [
        member(1),
        member(2, revision=0),
        member(3),
        member(4, ready=False),
    ]

    assert [one.key for one in victims(members)] == ["r4", "r2", "r3", "r1"]


def test_scaling_down_takes_what_serves_least() -> None:
    changes = plan_members([member(1), member(2, ready=False), member(3)], GOAL, now=NOW)

    assert changes.remove == (("r2", "only 2 wanted"),)


def test_nothing_wanted_takes_all_away() -> None:
    members = [member(1), member(2, ready=False, draining=True)]

    changes = plan_members(members, replace(GOAL, desired=0), now=NOW)

    assert removed(changes) == ["r1", "r2"]


@dataclass
class Timeline:
    """Replicas that become ready or not as a test says, a step at a time."""

    goal: Goal
    members: list[Member]

    def step(self, now: datetime = NOW) -> str:
        """Apply one decision, and show revisions: ready ones as digits, others in brackets."""
        changes = plan_members(self.members, self.goal, now=now)
        self.members = [one for one in self.members if one.key not in removed(changes)]
        first = max((one.number for one in self.members), default=0) + 1
        made = range(first, first + changes.create)
        revision = self.goal.revision
        self.members += [
            member(number, revision=revision, ready=False, waiting_since=now) for number in made
        ]
        return self.picture()

    def become_ready(self) -> str:
        self.members = [replace(one, ready=True, waiting_since=None) for one in self.members]
        return self.picture()

    def picture(self) -> str:
        return " ".join(str(m.revision) if m.ready else f"({m.revision})" for m in self.members)


def test_a_rollout_replaces_one_at_a_time_and_keeps_the_count() -> None:
    story = Timeline(replace(GOAL, revision=2), [member(1), member(2)])

    seen = [story.step(), story.step(), story.become_ready(), story.step(), story.step()]
    seen += [story.become_ready(), story.step(), story.step()]

    assert seen == ["1 1 (2)", "1 1 (2)", "1 1 2", "1 2", "1 2 (2)", "1 2 2", "2 2", "2 2"]


def test_a_surge_that_finds_no_place_gets_that_of_an_old_one_after_five_minutes() -> None:
    story = Timeline(replace(GOAL, revision=2), [member(1), member(2)])
    story.step()

    waits = plan_members(story.members, story.goal, now=NOW)
    early = story.step(NOW + SURGE_PATIENCE - timedelta(seconds=1))
    late = story.step(NOW + SURGE_PATIENCE)
    later = [story.step(NOW + times * SURGE_PATIENCE) for times in (2, 4, 6)]

    assert waits.again_at == NOW + SURGE_PATIENCE
    assert (early, late) == ("1 1 (2)", "1 (2)")
    assert later == ["1 (2) (2)"] * 3, "no more than one below the count is given up"


def test_nothing_more_is_taken_away_early_while_something_is_still_being_stopped() -> None:
    goal = replace(GOAL, revision=2, leaving=1)
    waits = member(3, revision=2, ready=False, waiting_since=NOW - SURGE_PATIENCE)

    changes = plan_members([member(1), member(2), waits], goal, now=NOW)

    assert removed(changes) == []


def test_old_ones_that_do_not_answer_are_not_waited_for() -> None:
    members = [member(1, ready=False), member(2, ready=False)]

    changes = plan_members(members, replace(GOAL, revision=2), now=NOW)

    assert removed(changes) == ["r1", "r2"]


def test_a_stopped_rollout_keeps_old_ones_and_leaves_what_failed_to_be_looked_at() -> None:
    goal = replace(GOAL, revision=2, stopped=True)
    members = [member(1), member(2), member(3, revision=2, ready=False)]

    assert plan_members(members, goal, now=NOW) == Changes()


def test_a_stopped_rollout_still_follows_the_count() -> None:
    goal = replace(GOAL, revision=2, stopped=True)
    members = [member(1), member(2), member(3, revision=2, ready=False)]

    fewer = plan_members(members, replace(goal, desired=1), now=NOW)
    more = plan_members(members, replace(goal, desired=3), now=NOW)

    assert (removed(fewer), more.create) == (["r2"], 1)


def test_a_draining_node_gets_a_successor_first_even_at_the_maximum() -> None:
    goal = replace(GOAL, max_replicas=2)
    leaving = member(1, draining=True)

    first = plan_members([leaving, member(2)], goal, now=NOW)
    starting = plan_members([leaving, member(2), member(3, ready=False)], goal, now=NOW)
    ready = plan_members([leaving, member(2), member(3)], goal, now=NOW)

    assert first == Changes(create=1)
    assert starting == Changes()
    assert ready.remove == (("r1", "its node will go"),)


def test_a_replica_goes_half_a_minute_before_its_node_is_taken_though_no_successor_answers() -> (
    None
):
    end = NOW + timedelta(minutes=2)
    members = [member(1, draining=True, gone_at=end), member(2), member(3, ready=False)]

    before = plan_members(members, GOAL, now=end - LAST_CALL - timedelta(seconds=1))
    after = plan_members(members, GOAL, now=end - LAST_CALL)

    assert (before.remove, before.again_at) == ((), end - LAST_CALL)
    assert after.remove == (("r1", "its node is about to be taken"),)


def test_only_a_node_that_will_go_has_a_last_call() -> None:
    members = [member(1, gone_at=NOW), member(2)]

    assert plan_members(members, GOAL, now=NOW) == Changes()


@given(
    st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans(), st.booleans()), max_size=8),
    st.integers(0, 4),
    st.integers(0, 3),
    st.booleans(),
)
def test_no_decision_passes_the_limit_or_takes_an_answer_away_that_is_needed(
    given_members: list[tuple[int, bool, bool, bool]], desired: int, leaving: int, stopped: bool
) -> None:
    goal = Goal(desired=desired, max_replicas=4, revision=3, stopped=stopped, leaving=leaving)
    members = [
        member(
            number,
            revision=revision,
            ready=ready,
            draining=draining,
            waiting_since=NOW if waits and not ready else None,
        )
        for number, (revision, ready, draining, waits) in enumerate(given_members)
    ]

    changes = plan_members(members, goal, now=NOW)

    before = sum(one.ready for one in members)
    after = sum(one.ready for one in members if one.key not in removed(changes))
    assert changes.create == 0 or len(members) + leaving + changes.create <= 4 + 1
    assert after >= min(before, desired)
    assert len(removed(changes)) == len(set(removed(changes)))


@pytest.mark.parametrize("desired", [1, 3])
def test_a_rollout_never_has_more_than_one_above_the_count(desired: int) -> None:
    story = Timeline(
        replace(GOAL, desired=desired, max_replicas=3, revision=2),
        [member(number) for number in range(desired)],
    )
    most = 0
    for _ in range(4 * desired):
        story.step()
        most = max(most, len(story.members))
        story.become_ready()

    assert most == desired + 1
    assert story.step() == " ".join(["2"] * desired)


DOOMED = {"draining": True, "doomed": True}


def test_who_has_no_other_nodepool_leaves_one_that_is_being_deleted_at_once() -> None:
    members = [member(1, **DOOMED), member(2, **DOOMED)]

    changes = plan_members(members, replace(GOAL, homeless=True), now=NOW)

    assert changes.remove == (
        ("r1", "its node must go"),
        ("r2", "its node must go"),
    )


def test_a_nodepool_that_is_being_deleted_is_left_when_successors_find_no_place_for_too_long() -> (
    None
):
    waiting = {"ready": False, "waiting_since": NOW}
    members = [member(1, **DOOMED), member(2, **DOOMED), member(3, **waiting), member(4, **waiting)]

    before = plan_members(members, GOAL, now=NOW + SURGE_PATIENCE - timedelta(seconds=1))
    after = plan_members(members, GOAL, now=NOW + SURGE_PATIENCE)

    assert (removed(before), before.again_at) == ([], NOW + SURGE_PATIENCE)
    assert removed(after) == ["r1", "r2"]
