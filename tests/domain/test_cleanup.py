"""When a place is proven empty."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.domain.cleanup import (
    Await,
    Delete,
    Look,
    Proven,
    begin_cleanup,
    note_asked,
    note_deleted,
    note_observed,
    plan_cleanup,
)
from garrison.models.cluster_state import Cleanup
from garrison.models.provider import ProviderFacts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTLE = timedelta(minutes=2)
FACTS = ProviderFacts(name="cloud", type="cloud", settle=SETTLE)
PROMPT = ProviderFacts(name="paper", type="paper", settle=timedelta(0))


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def deleted_at_quiet(facts: ProviderFacts = FACTS) -> Cleanup:
    """A proof whose last delete came when nothing could appear behind it."""
    proof = begin_cleanup(effects_until=NOW, now=NOW, facts=facts)
    quiet = proof.quiet_at
    return note_deleted(proof, ended_at=quiet, asked_for=quiet)


def seen(
    proof: Cleanup, seconds: float, machines: int = 0, facts: ProviderFacts = FACTS
) -> Cleanup:
    return note_observed(proof, begun_at=at(seconds), machines=machines, facts=facts)


def test_the_first_step_is_a_delete_at_once() -> None:
    proof = begin_cleanup(effects_until=at(60), now=NOW, facts=FACTS)

    step = plan_cleanup(proof, now=NOW, facts=FACTS)

    assert step == Delete(look_at=at(60) + SETTLE)


def test_deletes_repeat_until_the_last_effect_has_settled() -> None:
    proof = begin_cleanup(effects_until=at(60), now=NOW, facts=FACTS)
    times = []
    while proof.delete_due is not None:
        times.append(proof.delete_due)
        proof = note_deleted(proof, ended_at=proof.delete_due, asked_for=proof.quiet_at)

    assert times[0] == NOW
    assert times[-1] == proof.quiet_at
    assert len(times) > 4
    assert all(b - a <= timedelta(minutes=1) for a, b in itertools.pairwise(times))


def test_an_empty_list_from_before_the_quiet_time_proves_nothing() -> None:
    proof = begin_cleanup(effects_until=at(60), now=NOW, facts=FACTS)
    proof = note_deleted(proof, ended_at=at(1), asked_for=proof.quiet_at)

    proof = seen(seen(proof, 30), 170)

    assert proof.empty_at is None
    assert not proof.proven


@pytest.mark.parametrize(
    ("second", "proven"),
    [
        pytest.param(239.9, False, id="a second list too soon does not count"),
        pytest.param(240, True, id="a settle time apart it does"),
    ],
)
def test_two_empty_lists_a_settle_time_apart_prove_it(second: float, proven: bool) -> None:
    proof = seen(deleted_at_quiet(), 120)

    proof = seen(proof, second)

    assert proof.proven is proven


def test_with_prompt_lists_two_different_passes_are_needed_all_the_same() -> None:
    proof = seen(deleted_at_quiet(PROMPT), 0, facts=PROMPT)

    assert not seen(proof, 0, facts=PROMPT).proven
    assert seen(proof, 0.5, facts=PROMPT).proven


def test_a_sighting_starts_the_proof_anew_and_deletes_again() -> None:
    proof = seen(deleted_at_quiet(), 120)

    proof = seen(proof, 200, machines=1)

    assert proof.empty_at is None
    assert proof.delete_due is not None
    assert plan_cleanup(proof, now=at(300), facts=FACTS) == Delete(look_at=at(300))
    assert not seen(seen(proof, 300), 500).proven


def test_a_list_of_the_time_before_the_last_delete_does_not_count() -> None:
    proof = deleted_at_quiet()
    proof = note_deleted(proof, ended_at=at(400), asked_for=at(400))

    assert seen(proof, 399).empty_at is None
    assert seen(proof, 400).empty_at == at(400)


def test_each_wanted_pass_is_asked_for_once() -> None:
    proof = deleted_at_quiet()
    assert plan_cleanup(proof, now=at(121), facts=FACTS) == Await(until=None)

    proof = seen(proof, 125)
    step = plan_cleanup(proof, now=at(126), facts=FACTS)
    assert step == Look(not_before=at(245))

    proof = note_asked(proof, not_before=at(245))
    assert plan_cleanup(proof, now=at(127), facts=FACTS) == Await(until=None)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["delete", "list", "fail"]),
        st.integers(1, 90),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(effect=st.integers(0, 120), events=EVENTS)
def test_it_is_never_proven_while_something_can_still_appear(
    effect: int, events: list[tuple[str, int, int]]
) -> None:
    proof = begin_cleanup(effects_until=at(effect), now=NOW, facts=FACTS)
    time = 0
    empties: list[int] = []
    deletes: list[int] = []
    for kind, pause, machines in events:
        time += pause
        if kind == "delete" and isinstance(plan_cleanup(proof, now=at(time), facts=FACTS), Delete):
            proof = note_deleted(proof, ended_at=at(time), asked_for=at(time))
            deletes.append(time)
        elif kind == "list":
            proof = seen(proof, time, machines)
            empties = [] if machines else [*empties, time]
        if isinstance(plan_cleanup(proof, now=at(time), facts=FACTS), Proven):
            quiet = effect + SETTLE.total_seconds()
            counted = [t for t in empties if t >= quiet and t >= deletes[-1]]
            assert counted[-1] - counted[0] >= SETTLE.total_seconds()
            assert deletes[-1] >= quiet
            return
