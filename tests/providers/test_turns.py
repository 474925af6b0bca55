"""The rule of turns: even pace, fair shares, and nothing while the provider said no."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.providers.turns import CALM, CAREFUL, SHARES, Kind, Ticket, Turns

ALL_KINDS = st.sampled_from(Kind)
TINY = 1e-9


def _drain(turns: Turns, now: float) -> list[tuple[float, Ticket]]:
    """Let everything out that waits, at the times at which the gate opens."""
    sent = []
    while turns.waiting():
        now = max(now, turns.opens_at(now))
        ticket = turns.take(now)
        assert ticket is not None, "the gate said that it opens now"
        sent.append((now, ticket))
    return sent


def test_without_a_limit_everything_goes_out_at_once() -> None:
    turns = Turns(None)
    for kind in [*Kind] * 10:
        turns.arrive(kind)

    sent = _drain(turns, now=5.0)

    assert {time for time, _ in sent} == {5.0}
    assert len(sent) == 50


def test_calls_are_spaced_evenly_with_no_burst_after_a_pause() -> None:
    turns = Turns(2.0)
    turns.arrive(Kind.LIST)
    first = _drain(turns, now=0.0)
    for _ in range(3):
        turns.arrive(Kind.LIST)

    after_an_hour = _drain(turns, now=3600.0)

    assert [time for time, _ in first] == [0.0]
    assert [time for time, _ in after_an_hour] == [3600.0, 3600.5, 3601.0]


def test_a_terminate_does_not_stand_behind_sixty_launches() -> None:
    turns = Turns(2.0)
    for _ in range(60):
        turns.arrive(Kind.LAUNCH)
    for now in (0.0, 0.5, 1.0):
        turns.take(now)
    terminate = turns.arrive(Kind.TERMINATE)

    sent = _drain(turns, now=1.5)

    assert [ticket for _, ticket in sent[:2]].count(terminate) == 1


def test_launches_get_half_of_the_turns_beside_an_endless_row_of_lists() -> None:
    turns = Turns(1.0)
    for _ in range(30):
        turns.arrive(Kind.LAUNCH)
    counts: Counter[Kind] = Counter()

    for now in range(60):
        if not turns.waiting(Kind.LIST):
            turns.arrive(Kind.LIST)
        ticket = turns.take(float(now))
        assert ticket is not None
        counts[ticket.kind] += 1

    assert counts == {Kind.LAUNCH: 30, Kind.LIST: 30}


def test_a_kind_that_was_silent_has_saved_nothing_up() -> None:
    turns = Turns(1.0)
    for _ in range(40):
        turns.arrive(Kind.LAUNCH)
    for now in range(20):
        turns.take(float(now))
    for _ in range(20):
        turns.arrive(Kind.LIST)

    next_ten = [turns.take(float(now)) for now in range(20, 30)]

    launches = [ticket for ticket in next_ten if ticket and ticket.kind is Kind.LAUNCH]
    assert len(next_ten) - 6 <= len(launches) <= 5


def test_nothing_goes_out_while_the_provider_said_to_wait() -> None:
    turns = Turns(2.0)
    turns.arrive(Kind.LIST)
    turns.take(0.0)
    turns.refused(sent_at=0.0, now=0.1, after=7.0)
    turns.arrive(Kind.TERMINATE)

    early = [turns.take(tenth / 10) for tenth in range(1, 71)]
    late = turns.take(7.1)

    assert early == [None] * 70
    assert late is not None


def test_a_shorter_wait_does_not_open_the_gate_before_a_longer_one() -> None:
    turns = Turns(None)
    turns.refused(sent_at=0.0, now=0.0, after=30.0)

    turns.refused(sent_at=0.0, now=1.0, after=2.0)

    assert turns.opens_at(2.0) == 30.0


@pytest.mark.parametrize(("limit", "pace"), [(8.0, 4.0), (None, CAREFUL / 2)])
def test_a_refusal_halves_the_pace_until_all_was_calm(limit: float | None, pace: float) -> None:
    turns = Turns(limit)

    turns.refused(sent_at=0.0, now=0.1, after=1.0)

    assert turns.pace(1.2) == pace
    assert turns.pace(1.0 + CALM) == pace
    assert turns.pace(1.2 + CALM) == limit


def test_refusals_of_calls_that_were_under_way_together_count_once() -> None:
    turns = Turns(8.0)

    for late in range(5):
        turns.refused(sent_at=0.0, now=0.1 + late / 100, after=1.0)

    assert turns.pace(1.2) == 4.0


def test_the_pace_is_never_slowed_to_a_stop() -> None:
    turns = Turns(8.0)

    for now in range(0, 200, 2):
        turns.refused(sent_at=float(now), now=now + 0.1, after=1.0)

    assert turns.pace(200.0) == 1.0


@pytest.mark.parametrize(
    ("kind", "wait"),
    [
        pytest.param(Kind.LAUNCH, 0.5 + 12 * 0.5, id="alone with those of its kind"),
        pytest.param(Kind.TERMINATE, 0.5, id="first of a more urgent kind"),
        pytest.param(Kind.LIST, 0.5, id="first of another kind"),
    ],
)
def test_a_wait_is_told_before_it_begins(kind: Kind, wait: float) -> None:
    turns = Turns(2.0)
    for _ in range(13):
        turns.arrive(Kind.LAUNCH)
    turns.take(0.0)

    assert turns.expected_wait(kind, 0.0) == wait


def test_a_closed_gate_counts_in_what_is_told_of_a_wait() -> None:
    turns = Turns(2.0)
    turns.refused(sent_at=0.0, now=0.0, after=7.0)

    assert turns.expected_wait(Kind.TERMINATE, 1.0) == 6.0


@given(
    limit=st.sampled_from([0.5, 2.0, 4.0, 10.0]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("arrive"), ALL_KINDS),
            st.tuples(st.just("pass"), st.floats(0.01, 5.0)),
            st.tuples(st.just("refuse"), st.floats(0.0, 20.0)),
            st.tuples(st.just("withdraw"), st.integers(0, 30)),
        ),
        max_size=60,
    ),
)
def test_whatever_happens_pace_order_and_closures_hold_and_everyone_gets_a_turn(
    limit: float, steps: list[tuple[str, object]]
) -> None:
    turns, now = Turns(limit), 0.0
    arrived: list[Ticket] = []
    withdrawn: list[Ticket] = []
    sent: list[tuple[float, Ticket]] = []
    closed_until = 0.0

    for what, value in steps:
        if what == "arrive":
            assert isinstance(value, Kind)
            arrived.append(turns.arrive(value))
        elif what == "refuse":
            assert isinstance(value, float)
            turns.refused(sent_at=sent[-1][0] if sent else now, now=now, after=value)
            closed_until = max(closed_until, now + value)
        elif what == "withdraw" and arrived:
            assert isinstance(value, int)
            ticket = arrived[value % len(arrived)]
            if ticket not in [one for _, one in sent]:
                turns.withdraw(ticket)
                withdrawn.append(ticket)
        elif what == "pass":
            assert isinstance(value, float)
            now += value
        if (taken := turns.take(now)) is not None:
            assert now >= closed_until
            sent.append((now, taken))
    rest = _drain(turns, now)
    sent += rest

    times, order = [time for time, _ in sent], [ticket for _, ticket in sent]
    waited = [ticket for ticket in arrived if ticket not in withdrawn]
    gaps = [later - time for time, later in itertools.pairwise(times)]
    assert all(gap >= 1 / limit - TINY for gap in gaps)
    assert not rest or rest[0][0] >= closed_until
    assert sorted(map(id, order)) == sorted(map(id, waited))
    for kind in Kind:
        of_kind = [ticket for ticket in order if ticket.kind is kind]
        assert of_kind == [ticket for ticket in waited if ticket.kind is kind]


@given(
    crowd=st.lists(ALL_KINDS, max_size=80),
    head_start=st.integers(0, 60),
    kind=ALL_KINDS,
)
def test_a_call_waits_for_no_more_turns_than_the_shares_of_the_others_allow(
    crowd: list[Kind], head_start: int, kind: Kind
) -> None:
    turns = Turns(1.0)
    for one in crowd:
        turns.arrive(one)
    for now in range(min(head_start, len(crowd))):
        turns.take(float(now))
    before = turns.waiting(kind)
    mine = turns.arrive(kind)

    sent = _drain(turns, float(head_start))

    place = next(place for place, (_, ticket) in enumerate(sent) if ticket is mine)
    per_turn = sum(SHARES.values()) / SHARES[kind]
    assert place <= (before + 1) * per_turn + len(Kind)
