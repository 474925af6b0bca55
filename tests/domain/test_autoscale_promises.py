"""Whatever the traffic and whatever is missing, autoscaling keeps its promises.

`python -m tests.mutants` breaks each rule in turn and sees that the test of its promise fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from garrison.domain.autoscaling.decision import (
    Decision,
    Observation,
    decide,
    floor_of,
    hold_seconds,
)
from garrison.errors import InvalidSpec
from garrison.models.autoscale import AutoscaleState
from garrison.models.deployment import AutoscaleConfig
from garrison.models.elastic_file import read_deployment_file
from tests.domain.load_world import START, Deployment, config, warm

story = settings(max_examples=40)
slow = settings(story, max_examples=12)
HOLE = 60


@dataclass(frozen=True)
class Step:
    """What happens between two looks, and what the second one sees."""

    pause: float
    new: int
    completed: int
    queued: int
    running: int
    ready: int
    starting: int
    boot: float
    missing: bool = False


@dataclass(frozen=True)
class Look:
    """One decision, with all that went into it."""

    knobs: AutoscaleConfig
    before: AutoscaleState
    seen: Observation
    decision: Decision
    after: AutoscaleState

    @property
    def active(self) -> bool:
        new = (self.seen.arrivals or 0) - (self.before.arrivals or 0)
        new = 0 if self.before.arrivals is None else new
        return bool(new or self.seen.queued or self.seen.running)

    @property
    def needed(self) -> int:
        assert self.decision.need is not None
        return min(self.decision.need.replicas, self.knobs.max_replicas)


@st.composite
def any_knobs(draw: st.DrawFn, /, **fixed: Any) -> AutoscaleConfig:
    most = draw(st.integers(0, 6))
    down = draw(st.sampled_from([0, 30, 60, 300]))
    drawn = {
        "min_replicas": draw(st.integers(0, min(2, most))),
        "max_replicas": most,
        "soft_min_replicas": draw(st.sampled_from([0, 0, 1])),
        "traffic_history": draw(st.sampled_from([0, 20, 60, 300])),
        "scale_up_delay": draw(st.sampled_from([0, 20, 60, 300])),
        "scale_down_delay": down,
        "scale_to_zero_delay": down + draw(st.sampled_from([0, 60, 240])),
        "hold_boots": draw(st.sampled_from([0, 0.5, 1, 3])),
        "concurrency": draw(st.sampled_from([1, 4])),
    }
    return config(**{**drawn, **fixed})


QUIET = st.builds(
    Step,
    pause=st.sampled_from([1, 10, 20, 50]),
    new=st.just(0),
    completed=st.integers(0, 3),
    queued=st.just(0),
    running=st.just(0),
    ready=st.integers(0, 3),
    starting=st.integers(0, 1),
    boot=st.sampled_from([10, 60, 90]),
)
LONG = st.builds(replace, QUIET, running=st.integers(1, 2))
BUSY = st.builds(
    replace,
    QUIET,
    pause=st.sampled_from([0, 2, 10, 20, 50]),
    new=st.integers(0, 8),
    completed=st.integers(0, 8),
    queued=st.sampled_from([0, 0, 0, 1, 5]),
    running=st.integers(0, 8),
    ready=st.integers(0, 5),
)
FLOOD = st.builds(
    replace, BUSY, new=st.integers(0, 60), queued=st.integers(0, 60), running=st.integers(0, 60)
)
HOLES = st.builds(replace, QUIET, pause=st.sampled_from([10, 61]), missing=st.booleans())
ODD = st.builds(
    replace, BUSY, pause=st.sampled_from([-500, -1, 59, 61, 700]), missing=st.booleans()
)


def phase(steps: st.SearchStrategy[Step], most: int) -> st.SearchStrategy[list[Step]]:
    return st.lists(steps, min_size=1, max_size=most)


def stories(*parts: st.SearchStrategy[list[Step]]) -> st.SearchStrategy[list[Step]]:
    several = st.lists(st.one_of(*parts), min_size=1, max_size=6)
    return several.map(lambda found: [step for part in found for step in part])


traffic = stories(phase(QUIET, 12), phase(BUSY, 8), phase(LONG, 8), phase(FLOOD, 2))
trouble = stories(phase(ODD, 4), phase(BUSY, 8), phase(QUIET, 8))
patchy = stories(phase(QUIET, 12), phase(BUSY, 12), phase(HOLES, 2), phase(FLOOD, 8))


def play(knobs: AutoscaleConfig, steps: list[Step]) -> Iterator[Look]:
    """Lead a deployment through a story."""
    state = AutoscaleState()
    now, arrivals, completions = START, 100, 100
    for step in steps:
        now += timedelta(seconds=step.pause)
        arrivals, completions = arrivals + step.new, completions + step.completed
        seen = Observation(
            now=now,
            ready=step.ready,
            starting=step.starting,
            queued=None if step.missing else step.queued,
            running=step.running,
            arrivals=arrivals,
            completions=completions,
            boot=timedelta(seconds=step.boot),
        )
        decision, after = decide(knobs, state, seen)
        yield Look(knobs, state, seen, decision, after)
        state = after


def lasted(looks: list[Look], seconds: float, *, claim: Any) -> bool:
    """Return whether a claim held in every look for at least that long, up to the last one."""
    last = looks[-1].seen.now
    since = None
    for look in reversed(looks):
        if not claim(look) or (since and (since - look.seen.now).total_seconds() > HOLE):
            break
        since = look.seen.now
    return since is not None and (last - since).total_seconds() >= seconds


@story
@given(any_knobs(), trouble)
def test_the_target_is_within_its_bounds_whatever_is_seen(
    knobs: AutoscaleConfig, steps: list[Step]
) -> None:
    for look in play(knobs, steps):
        assert floor_of(knobs) <= look.decision.target <= knobs.max_replicas
        assert look.after.target == look.decision.target


@story
@given(any_knobs(), any_knobs(), traffic)
def test_new_bounds_hold_in_the_next_decision(
    knobs: AutoscaleConfig, other: AutoscaleConfig, steps: list[Step]
) -> None:
    for look in play(knobs, steps):
        for seen in (look.seen, replace(look.seen, queued=None)):
            decision, _ = decide(other, look.after, seen)
            assert floor_of(other) <= decision.target <= other.max_replicas


@story
@given(any_knobs(), trouble)
def test_a_decision_depends_on_nothing_but_what_it_is_given(
    knobs: AutoscaleConfig, steps: list[Step]
) -> None:
    for look in play(knobs, steps):
        told = AutoscaleState.model_validate_json(look.before.model_dump_json())

        assert told == look.before
        assert decide(knobs, told, look.seen) == (look.decision, look.after)


@slow
@given(any_knobs(), st.lists(BUSY, min_size=5, max_size=20))
def test_the_state_stays_small(knobs: AutoscaleConfig, steps: list[Step]) -> None:
    for look in play(knobs, steps * 8):
        assert len(look.after.window) <= 31
        assert len(look.after.since) <= knobs.max_replicas
        assert len(look.after.model_dump_json()) < 2000


@story
@given(any_knobs(), trouble)
def test_missing_metrics_and_a_clock_that_went_back_hold(
    knobs: AutoscaleConfig, steps: list[Step]
) -> None:
    for look in play(knobs, steps):
        went_back = look.before.now is not None and look.seen.now.timestamp() < look.before.now
        if look.seen.queued is None or went_back:
            held = max(look.before.target, floor_of(knobs))
            assert look.decision.target == held
            assert look.decision.need is None
            assert look.decision.reason in ("hold: metrics missing", "hold: clock went back")


@story
@given(any_knobs(soft_min_replicas=0), st.one_of(patchy, trouble))
def test_no_rise_from_one_unless_all_of_the_delay_needed_it(
    knobs: AutoscaleConfig, steps: list[Step]
) -> None:
    looks: list[Look] = []
    for look in play(knobs, steps):
        looks.append(look)
        level = look.decision.target
        if level > look.before.target >= max(1, knobs.min_replicas):
            delay = knobs.scale_up_delay.total_seconds()
            assert lasted(looks, delay, claim=lambda one, level=level: needs(one, level))


@story
@given(any_knobs(), st.one_of(patchy, trouble))
def test_no_level_leaves_before_its_delay_without_need(
    knobs: AutoscaleConfig, steps: list[Step]
) -> None:
    looks: list[Look] = []
    for look in play(knobs, steps):
        looks.append(look)
        for level in range(look.decision.target + 1, look.before.target + 1):
            boot = look.seen.boot.total_seconds()
            delay = max(knobs.scale_down_delay.total_seconds(), knobs.hold_boots * boot)
            assert lasted(looks, delay, claim=lambda one, level=level: needs_less(one, level))


@story
@given(any_knobs(min_replicas=0, soft_min_replicas=0), st.one_of(patchy, trouble))
def test_the_last_one_leaves_only_after_its_delay_without_traffic(
    knobs: AutoscaleConfig, steps: list[Step]
) -> None:
    looks: list[Look] = []
    for look in play(knobs, steps):
        looks.append(look)
        if look.before.target and not look.decision.target and knobs.max_replicas:
            boot = look.seen.boot.total_seconds()
            delay = max(knobs.scale_to_zero_delay.total_seconds(), knobs.hold_boots * boot)
            assert lasted(looks, delay, claim=lambda one: is_seen(one) and not one.active)


@story
@given(any_knobs(min_replicas=0, soft_min_replicas=0), traffic)
def test_idleness_counts_only_from_when_a_replica_is_ready(
    knobs: AutoscaleConfig, steps: list[Step]
) -> None:
    looks: list[Look] = []
    for look in play(knobs, steps):
        looks.append(look)
        if look.before.target and not look.decision.target and knobs.max_replicas:
            delay = knobs.scale_to_zero_delay.total_seconds()
            assert lasted(looks, delay, claim=is_up)


@story
@given(any_knobs(min_replicas=0, soft_min_replicas=0), traffic)
def test_there_is_never_none_while_somebody_is_served_or_waits(
    knobs: AutoscaleConfig, steps: list[Step]
) -> None:
    assume(knobs.max_replicas > 0)

    for look in play(knobs, steps):
        if is_seen(look) and (look.seen.queued or look.seen.running):
            assert look.decision.target >= 1


@story
@given(any_knobs(min_replicas=0, soft_min_replicas=0), st.integers(1, 50), BUSY)
def test_the_first_request_wakes_at_once_and_wakes_one(
    knobs: AutoscaleConfig, waiting: int, step: Step
) -> None:
    assume(knobs.max_replicas > 0)
    deployment = Deployment(knobs)
    deployment.look()
    deployment.seconds += step.pause

    decision = deployment.look(queued=waiting, arrivals=waiting)

    assert decision.target == 1
    assert decision.reason.startswith("wake")


@story
@given(any_knobs(), st.integers(0, 1000), st.integers(1, 4), st.floats(0, 20), st.floats(0, 20))
def test_a_hold_is_never_below_the_delay_and_grows_with_boots(
    knobs: AutoscaleConfig, seconds: int, level: int, few: float, more: float
) -> None:
    few, more = sorted((few, more))
    boot, longer = timedelta(seconds=seconds), timedelta(seconds=seconds + 30)
    plain, short, long = (config_like(knobs, hold_boots=one) for one in (0, few, more))
    delay = knobs.scale_down_delay if level >= 2 else knobs.scale_to_zero_delay

    assert hold_seconds(plain, level, boot) == delay.total_seconds()
    assert hold_seconds(short, level, boot) >= delay.total_seconds()
    assert hold_seconds(long, level, boot) >= hold_seconds(short, level, boot)
    assert hold_seconds(long, level, longer) >= hold_seconds(long, level, boot)
    assert hold_seconds(long, level, boot) >= more * seconds


@slow
@given(
    st.sampled_from([60, 120, 300, 600]),
    st.sampled_from([60, 240, 480]),
    st.sampled_from([0, 1, 4]),
)
def test_each_level_leaves_at_the_first_look_after_its_hold(
    down: int, zero: int, boots: int
) -> None:
    zero = max(down, zero)
    knobs = config(scale_down_delay=down, scale_to_zero_delay=zero, hold_boots=boots)
    one, several = warm(1, knobs), warm(9, knobs)

    for deployment in (one, several):
        deployment.idle(seconds=2000)

    kept, last = max(down, boots * 60), max(zero, down, boots * 60)
    upper = [several.seconds_until(level) for level in range(1, several.decisions[0].target)]
    assert one.seconds_until(0) == last + 10
    # Of several the first look may still see a need, until arrivals have left the window.
    assert all(kept + 10 <= seconds <= kept + 70 for seconds in upper)


@slow
@given(st.integers(12, 40))
def test_each_level_serves_a_hold_of_its_own(ticks: int) -> None:
    deployment = warm(9, config(scale_down_delay=120))

    deployment.load(4, seconds=ticks * 10)
    deployment.idle(seconds=600)

    assert deployment.seconds_until(2) <= 190
    assert deployment.seconds_until(1) >= ticks * 10 + 120


@slow
@given(st.integers(1, 15), st.booleans(), st.sampled_from([0, 9]))
def test_a_gap_in_what_is_seen_restarts_every_clock(ticks: int, missing: bool, load: int) -> None:
    deployment = warm(1, config(scale_up_delay=240, scale_to_zero_delay=240))
    deployment.load(load, seconds=60 + ticks * 10)

    pause = 10 if missing else 70
    deployment.seconds += pause
    deployment.arrivals += load / 10 * pause
    if missing:
        deployment.look(queued=None)
    deployment.load(load, seconds=240)
    held = deployment.target
    deployment.load(load, seconds=10)

    assert held == 1
    assert deployment.target != 1


@slow
@given(st.sampled_from([0, 20, 60, 120, 300]), st.integers(5, 12))
def test_a_step_up_is_followed_when_its_delay_is_over(delay: int, load: int) -> None:
    knobs = config(scale_up_delay=delay, max_replicas=20, concurrency=2)
    deployment = warm(1, knobs)

    deployment.load(load, seconds=delay + 90)

    assert deployment.target >= load / 2
    assert deployment.target <= load / 2 + 3 * load**0.5


@slow
@given(st.sampled_from([60, 120, 300]), st.integers(5, 60))
def test_a_spike_shorter_than_the_delay_is_ignored(delay: int, load: int) -> None:
    # The window sees a spike for as long as it is itself.
    knobs = config(scale_up_delay=delay, traffic_history=20)
    deployment = warm(1, knobs)

    deployment.load(load, seconds=delay - 30)
    deployment.load(1, seconds=900)

    assert deployment.targets() == [1]


@slow
@given(any_knobs(min_replicas=0, soft_min_replicas=0), st.integers(1, 20))
def test_constant_load_makes_at_most_one_change(knobs: AutoscaleConfig, load: int) -> None:
    knobs = config_like(knobs, max_replicas=6)
    deployment = warm(load, knobs)

    deployment.load(load, seconds=3600)

    assert len(deployment.targets()) <= 2


@story
@given(
    any_knobs(max_replicas=30),
    traffic,
    st.sampled_from(["new", "queued", "running"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_more_load_in_one_look_never_gives_fewer_replicas(
    knobs: AutoscaleConfig, steps: list[Step], what: str, more: int, known: bool
) -> None:
    steps = [replace(step, completed=step.completed + 5 if known else 0) for step in steps]
    *_, less = play(knobs, steps)
    raised = replace(steps[-1], **{what: getattr(steps[-1], what) + more})

    *_, most = play(knobs, [*steps[:-1], raised])

    assert most.decision.target >= less.decision.target
    assert most.needed >= less.needed


@slow
@given(st.integers(1, 20), st.integers(0, 100), st.integers(1, 100))
def test_a_longer_queue_never_needs_fewer_once_service_times_are_known(
    load: int, queued: int, more: int
) -> None:
    deployment = warm(load, config(max_replicas=50))
    known = deployment.state
    deployment.seconds += 10

    short = deployment.look(running=load, queued=queued)
    deployment.state = known
    long = deployment.look(running=load, queued=queued + more)

    assert short.need is not None
    assert long.need is not None
    assert long.need.demand >= short.need.demand
    assert long.target >= short.target


@story
@given(any_knobs(), traffic, st.integers(0, 30))
def test_counters_that_begin_anew_count_only_what_they_say(
    knobs: AutoscaleConfig, steps: list[Step], new: int
) -> None:
    *_, last = play(knobs, steps)
    now = last.seen.now + timedelta(seconds=10)
    arrivals, completions = last.seen.arrivals, last.seen.completions
    assert arrivals is not None
    assert completions is not None

    begun = replace(last.seen, now=now, arrivals=new, completions=new)
    on = replace(begun, arrivals=arrivals + new, completions=completions + new)

    assert decide(knobs, last.after, begun)[0] == decide(knobs, last.after, on)[0]


@slow
@given(st.integers(1, 47), st.integers(1, 10))
def test_pauses_shorter_than_the_hold_never_reach_zero(gap: int, bursts: int) -> None:
    deployment = warm(1, config(scale_to_zero_delay=480))

    for _ in range(bursts):
        deployment.idle(seconds=gap * 10)
        deployment.load(1, seconds=10)

    assert 0 not in deployment.targets()


@story
@given(
    st.sampled_from(["scale_up_delay", "scale_down_delay", "scale_to_zero_delay", "hold_boots"]),
    st.integers(1, 40),
)
def test_a_changed_delay_restarts_its_own_clock_and_no_other(knob: str, ticks: int) -> None:
    knobs = config(scale_up_delay=500, scale_down_delay=500, scale_to_zero_delay=600)
    deployment = Deployment(knobs, target=3)
    # One level is needed by what runs; of those above nothing is.
    deployment.load(1, seconds=10 + ticks * 10)
    busy = deployment.state
    deployment.idle(seconds=20)
    idle = deployment.state

    value: Any = 3 if knob == "hold_boots" else timedelta(seconds=550)
    changed = config_like(knobs, **{knob: value})
    moments = [restarted(deployment, changed, state) for state in (busy, idle)]

    # Levels 1, 2 and 3, while 1 is needed, and while none is.
    expected = {
        "scale_up_delay": [(True, False, False), (False, False, False)],
        "scale_down_delay": [(False, True, True), (False, True, True)],
        "scale_to_zero_delay": [(False, False, False), (True, False, False)],
        "hold_boots": [(False, True, True), (True, True, True)],
    }
    assert moments == expected[knob]


@pytest.mark.parametrize(
    "field", ["min_replicas", "max_replicas", "soft_min_replicas", "traffic_history", "concurrency"]
)
def test_a_changed_knob_that_is_no_delay_restarts_no_clock(field: str) -> None:
    knobs = config(max_replicas=5)
    deployment = Deployment(knobs, target=3)
    deployment.load(1, seconds=60)

    value: Any = timedelta(seconds=50) if field == "traffic_history" else 4
    changed = config_like(knobs, **{field: value})

    assert restarted(deployment, changed, deployment.state) == (False, False, False)


def test_a_delay_to_zero_below_the_delay_down_is_refused_at_the_door() -> None:
    text = """
deployment:
  id: chat
  worker: {command: serve}
  autoscale_config: {scale_down_delay_seconds: 300, scale_to_zero_delay_seconds: 299}
  scheduling_choice: 3
  nodepools: [{id: pool, compute_cluster: {id: home}}]
"""

    with pytest.raises(InvalidSpec, match="scale_down_delay_seconds") as refused:
        read_deployment_file(text)
    file, _ = read_deployment_file(text.replace("299", "300"))

    assert "scale_to_zero_delay_seconds" in str(refused.value)
    assert file.autoscale.scale_to_zero_delay == timedelta(seconds=300)


@story
@given(any_knobs(max_replicas=0, min_replicas=0), trouble)
def test_a_maximum_of_zero_is_off(knobs: AutoscaleConfig, steps: list[Step]) -> None:
    assert {look.decision.target for look in play(knobs, steps)} == {0}


def is_seen(look: Look) -> bool:
    return look.decision.need is not None


def is_up(look: Look) -> bool:
    return is_seen(look) and (look.seen.ready > 0 or look.seen.starting == 0)


def needs(look: Look, level: int) -> bool:
    return is_seen(look) and look.needed >= level


def needs_less(look: Look, level: int) -> bool:
    return is_seen(look) and look.needed < level


def config_like(knobs: AutoscaleConfig, **changes: Any) -> AutoscaleConfig:
    changed: AutoscaleConfig = knobs.replace(**changes)
    return changed


def restarted(
    deployment: Deployment, knobs: AutoscaleConfig, state: AutoscaleState
) -> tuple[bool, ...]:
    """Return of which levels the clock begins anew when knobs change between two like looks."""
    deployment.state, deployment.knobs = state, knobs
    assert state.now is not None
    deployment.seconds = state.now - START.timestamp() + 10
    deployment.look(running=state.running, arrivals=state.arrivals, completions=state.completions)
    clocks = zip(state.since[:3], deployment.state.since[:3], strict=True)
    return tuple(after != before for before, after in clocks)
