"""The decision how many replicas there should be, told as stories."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from garrison.domain.autoscaling.decision import Decision, blend_boot, floor_of, hold_seconds
from garrison.errors import InvalidSpec
from garrison.models.autoscale import PRESETS, AutoscalePreset, AutoscaleState
from garrison.models.deployment import AutoscaleConfig
from garrison.models.elastic_file import read_deployment_file
from tests.domain.load_world import Deployment, config, warm

FILE = """
deployment:
  id: chat
  worker: {{command: serve}}
  autoscale_config: {{{knobs}}}
  scheduling_choice: 3
  nodepools: [{{id: pool, compute_cluster: {{id: home}}}}]
"""
MISSING: dict[str, Any] = {"queued": None, "running": None, "arrivals": None}


@pytest.mark.parametrize(
    "seen",
    [{"queued": 1}, {"running": 1}, {"arrivals": 1}],
    ids=["it waits", "it runs", "it came and went"],
)
def test_the_first_request_wakes_in_the_very_decision_that_sees_it(seen: dict[str, int]) -> None:
    deployment = Deployment(config(scale_up_delay=300))
    deployment.look()
    deployment.seconds += 0.001

    decision = deployment.look(**seen)

    assert decision.target == 1
    assert decision.reason == "wake: a request is waiting and nothing runs"


def test_the_very_first_look_wakes_if_a_request_waits_but_takes_no_old_total_for_traffic() -> None:
    old, waiting = Deployment(config()), Deployment(config())

    assert old.look(arrivals=9000, completions=9000).target == 0
    assert waiting.look(arrivals=1, queued=1).target == 1


def test_a_step_up_is_followed_once_it_has_lasted() -> None:
    deployment = warm(3, config(scale_up_delay=60))

    early = deployment.load(9, seconds=60)
    late = deployment.load(9, seconds=120)

    assert early.target == 1
    assert early.reason.startswith("hold: 2 needed for ")
    assert early.reason.endswith(" of 60 s")
    assert late.target == 3
    assert any(one.reason.startswith("up: 2 needed for 60 s") for one in deployment.decisions)


def test_a_spike_shorter_than_the_delay_is_ignored() -> None:
    deployment = warm(1, config(scale_up_delay=300))

    deployment.load(20, seconds=200)
    deployment.load(1, seconds=1200)

    assert deployment.targets() == [1]


def test_constant_load_changes_nothing_once_it_is_known() -> None:
    deployment = warm(9, config())

    deployment.load(9, seconds=7200)

    assert deployment.targets() == [3]


def test_an_unneeded_replica_is_kept_for_its_hold_and_the_reason_counts() -> None:
    deployment = warm(9, config(hold_boots=5, scale_to_zero_delay=900))

    deployment.load(3, seconds=120)
    held = deployment.decisions[-1]
    deployment.load(3, seconds=600)

    assert held.target == 3
    assert held.reason.startswith("hold: replica 3 unneeded for ")
    assert held.reason.endswith(" of 300 s")
    assert deployment.targets() == [3, 2, 1]
    down = [one.reason for one in deployment.decisions if one.reason.startswith("down")]
    assert down[0] == "down: replica 3 unneeded for 300 s"
    assert deployment.decisions[-1].reason == "steady"


def test_one_quiet_minute_does_not_end_what_was_busy_for_hours() -> None:
    deployment = warm(9, config(scale_down_delay=300, scale_to_zero_delay=1800))

    deployment.idle(seconds=60)
    deployment.load(9, seconds=600)

    assert deployment.targets() == [3]


def test_a_queue_that_a_boot_would_not_clear_starts_more_than_the_arrivals_need() -> None:
    calm, behind = warm(3, config()), warm(3, config())

    calm.load(3, seconds=10)
    behind.load(3, seconds=10, queued=200)

    assert (calm.target, behind.target) == (1, 3)


def test_a_backlog_without_arrivals_is_not_worked_off_by_one_replica() -> None:
    deployment = warm(3, config())
    deployment.idle(seconds=200)

    deployment.seconds += 10
    decision = deployment.look(queued=1000, running=4)

    assert decision.target == 5


def test_before_service_times_are_known_what_is_there_counts() -> None:
    deployment = Deployment(config())
    deployment.look()
    deployment.seconds += 10

    deployment.look(queued=9, arrivals=9)
    deployment.seconds += 2
    decision = deployment.look(queued=9, arrivals=9, ready=0, starting=1)

    assert decision.target == 4
    assert decision.need is not None
    assert not decision.need.known
    assert decision.need.demand == pytest.approx((9 + 8 / 60 * 30) / 4)


def test_the_decision_carries_demand_rate_and_service_time() -> None:
    deployment = warm(9, config())

    need = deployment.load(9, seconds=10).need

    assert need is not None
    assert need.known
    assert need.rate == pytest.approx(0.9, rel=0.05)
    assert need.service_seconds == pytest.approx(10, rel=0.05)
    assert need.demand == pytest.approx((9 + 0.5 * 9**0.5) / 4, rel=0.05)


def test_knobs_that_cannot_react_fast_keep_more_in_reserve() -> None:
    fast = warm(9, config()).load(9, seconds=10)
    slow = warm(9, config(traffic_history=121)).load(9, seconds=10)

    assert fast.need is not None
    assert slow.need is not None
    assert slow.need.demand > 1.1 * fast.need.demand


def test_service_times_that_change_are_learned_anew() -> None:
    deployment = warm(4, config())

    need = deployment.load(4, seconds=3600, service=40).need

    assert need is not None
    assert need.service_seconds == pytest.approx(40, rel=0.1)


def test_without_completions_nothing_is_learned_and_nothing_forgotten() -> None:
    deployment = warm(9, config())

    blind = deployment.load(9, seconds=600, completions=None)
    back = deployment.load(9, seconds=600)

    assert deployment.targets() == [3]
    for decision in (blind, back):
        assert decision.need is not None
        assert decision.need.service_seconds == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("name", ["queued", "running", "arrivals"])
@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -1])
def test_a_missing_metric_holds_however_long_it_is_missing(name: str, value: float) -> None:
    deployment = warm(9, config())

    decision = deployment.idle(seconds=3600, **{name: value})

    assert deployment.targets() == [3]
    assert decision == Decision(3, "hold: metrics missing")


def test_after_missing_metrics_a_hold_is_served_from_the_beginning() -> None:
    deployment = warm(3, config(scale_to_zero_delay=240))
    deployment.idle(seconds=230)
    deployment.idle(seconds=600, **MISSING)

    deployment.idle(seconds=240)
    before = deployment.target
    deployment.idle(seconds=10)

    assert (before, deployment.target) == (1, 0)


def test_after_missing_metrics_a_delay_up_is_served_from_the_beginning() -> None:
    deployment = warm(1, config(scale_up_delay=100))
    deployment.load(9, seconds=90)
    deployment.load(9, seconds=30, **MISSING)

    deployment.load(9, seconds=100)
    before = deployment.target
    deployment.load(9, seconds=10)

    assert (before, deployment.target) == (1, 4)


def test_a_hole_between_observations_is_no_evidence_and_no_burst() -> None:
    deployment = warm(3, config(scale_to_zero_delay=240))

    deployment.seconds += 3600
    deployment.arrivals += 0.3 * 3600
    busy = deployment.look(running=3)
    deployment.seconds += 3600
    idle = deployment.look()

    assert (busy.target, idle.target) == (1, 1)


def test_a_clock_that_went_back_holds_and_counts_anew() -> None:
    deployment = warm(9, config())

    deployment.seconds -= 5000
    back = deployment.look(running=9)
    deployment.load(9, seconds=1200)

    assert back == Decision(3, "hold: clock went back")
    assert deployment.targets() == [3]


def test_counters_that_begin_anew_are_no_traffic_but_what_they_count() -> None:
    deployment = warm(3, config())
    rate = deployment.load(3, seconds=10).need

    deployment.arrivals = deployment.completions = 0
    after = deployment.load(3, seconds=10).need

    assert rate is not None
    assert after is not None
    assert after.rate == pytest.approx(rate.rate, rel=0.05)


def test_counters_that_begin_anew_at_zero_wake_nothing() -> None:
    deployment = Deployment(config())
    deployment.look(arrivals=500, completions=500)

    decision = deployment.idle(seconds=10)

    assert decision.target == 0


def test_minimum_and_maximum_hold_at_once_whatever_the_delays() -> None:
    deployment = warm(9, config(scale_up_delay=300))

    deployment.knobs = config(scale_up_delay=300, max_replicas=2)
    lowered = deployment.load(9, seconds=10)
    deployment.knobs = config(scale_up_delay=300, min_replicas=4)
    raised = deployment.load(9, seconds=10)

    assert lowered == Decision(2, "bounds: 0 to 2 replicas", lowered.need)
    assert raised == Decision(4, "bounds: 4 to 5 replicas", raised.need)


def test_a_maximum_of_zero_is_off_whatever_waits() -> None:
    deployment = warm(9, config())

    deployment.knobs = config(max_replicas=0)
    decision = deployment.load(9, seconds=10, queued=99)
    missing = deployment.look(**MISSING)

    assert (decision.target, decision.reason) == (0, "off: max_replicas is 0")
    assert missing.target == 0


@pytest.mark.parametrize(
    ("taken", "floor"),
    [(0, 3), (1, 2), (2, 1), (9, 1)],
    ids=["all there", "one taken", "both taken", "no more than there are"],
)
def test_the_soft_minimum_stands_on_the_minimum_and_can_be_taken(taken: int, floor: int) -> None:
    knobs = config(min_replicas=1, soft_min_replicas=2)
    deployment = Deployment(knobs, target=3)

    deployment.idle(seconds=3600, soft_taken=taken)

    assert deployment.target == floor == floor_of(knobs, taken)


def test_the_soft_minimum_never_passes_the_maximum() -> None:
    assert floor_of(config(min_replicas=2, soft_min_replicas=9, max_replicas=4)) == 4


def test_the_soft_minimum_wakes_with_as_many_as_it_is() -> None:
    deployment = Deployment(config(soft_min_replicas=2), target=0)

    assert deployment.look(queued=1).target == 2


def test_idleness_begins_when_a_replica_is_ready_not_while_it_starts() -> None:
    deployment = Deployment(config(scale_to_zero_delay=240))
    deployment.look()
    deployment.seconds += 10
    deployment.look(queued=1, arrivals=1)
    deployment.arrivals = 1

    deployment.idle(seconds=3600, ready=0, starting=1)
    starting = deployment.target
    deployment.idle(seconds=240)
    ready = deployment.target
    deployment.idle(seconds=10)

    assert (starting, ready, deployment.target) == (1, 1, 0)


def test_what_never_starts_and_no_longer_tries_goes_to_zero_all_the_same() -> None:
    deployment = Deployment(config(), target=1)

    deployment.idle(seconds=600, ready=0, starting=0)

    assert deployment.target == 0


# Case A13: a service in use is given a minimum of zero.
def test_a_minimum_of_zero_under_traffic_takes_the_last_replica_only_after_the_delay() -> None:
    deployment = warm(2, config(min_replicas=1, max_replicas=1, scale_to_zero_delay=1800))

    deployment.knobs = config(min_replicas=0, max_replicas=1, scale_to_zero_delay=1800)
    deployment.load(2, seconds=7200)
    deployment.idle(seconds=1790)
    before = deployment.target
    deployment.idle(seconds=20)
    asleep = deployment.target
    deployment.arrivals += 1
    woken = deployment.look(queued=1)

    assert (before, asleep, woken.target) == (1, 0, 1)


# Case A14: a day without a request.
def test_a_day_without_traffic_is_one_step_to_zero_and_no_create() -> None:
    deployment = warm(8, config(max_replicas=3, scale_to_zero_delay=600))

    deployment.idle(seconds=24 * 3600)

    assert deployment.targets() == [3, 2, 1, 0] or deployment.targets() == [2, 1, 0]
    assert [one.reason for one in deployment.decisions].count("steady") > 8000


# Case A21: the delay to zero is changed while it runs.
@pytest.mark.parametrize(
    ("idle", "before", "after", "expected"),
    [(600, 1800, 480, 480), (470, 480, 1800, 1800)],
    ids=["shortened", "lengthened"],
)
def test_a_changed_delay_runs_from_its_change(
    idle: int, before: int, after: int, expected: int
) -> None:
    deployment = warm(3, config(scale_to_zero_delay=before))
    deployment.idle(seconds=idle)

    deployment.knobs = config(scale_to_zero_delay=after)
    deployment.idle(seconds=10)
    deployment.idle(seconds=expected - 10)
    held = deployment.target
    deployment.idle(seconds=10)

    assert (held, deployment.target) == (1, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"scale_up_delay": 30},
        {"scale_down_delay": 120},
        {"max_replicas": 9},
        {"max_replicas": 2},
        {"min_replicas": 0, "disable_packing": True},
        {"traffic_history": 90},
    ],
    ids=lambda change: " ".join(change),
)
def test_an_unrelated_change_restarts_nothing(change: dict[str, Any]) -> None:
    plain, changed = (warm(3, config(scale_to_zero_delay=480)) for _ in range(2))
    for deployment in (plain, changed):
        deployment.idle(seconds=300)

    changed.knobs = config(**{"scale_to_zero_delay": 480, **change})
    for deployment in (plain, changed):
        deployment.idle(seconds=300)

    assert [one.target for one in changed.decisions] == [one.target for one in plain.decisions]


def test_a_changed_delay_down_restarts_the_upper_levels_only() -> None:
    deployment = warm(9, config(scale_down_delay=200, scale_to_zero_delay=300))
    deployment.idle(seconds=150)

    deployment.knobs = config(scale_down_delay=190, scale_to_zero_delay=300)
    deployment.idle(seconds=190)
    held = deployment.target
    deployment.idle(seconds=20)

    assert (held, deployment.target) == (3, 0)


def test_a_changed_delay_up_runs_from_its_change() -> None:
    deployment = warm(1, config(scale_up_delay=300))
    deployment.load(9, seconds=250)

    deployment.knobs = config(scale_up_delay=100)
    deployment.load(9, seconds=100)
    held = deployment.target
    deployment.load(9, seconds=10)

    assert (held, deployment.target) == (1, 4)


def test_a_knob_changed_while_metrics_are_missing_counts_too() -> None:
    deployment = warm(3, config(scale_to_zero_delay=480))
    deployment.idle(seconds=470)

    deployment.knobs = config(scale_to_zero_delay=240, max_replicas=7)
    deployment.look(**MISSING)
    deployment.idle(seconds=240)

    assert deployment.target == 1


def test_boots_are_remembered_and_fade() -> None:
    first = blend_boot(None, timedelta(seconds=100))
    second = blend_boot(first, timedelta(seconds=200))

    assert (first, second) == (timedelta(seconds=100), timedelta(seconds=130))


def test_the_state_stays_about_a_kilobyte_and_survives_json() -> None:
    deployment = warm(9.7, config())

    text = deployment.state.model_dump_json()

    assert len(text) < 1500
    assert len(deployment.state.window) <= 32
    assert AutoscaleState.model_validate_json(text) == deployment.state
    assert json.loads(text)["target"] == 3


@pytest.mark.parametrize("preset", AutoscalePreset)
def test_a_preset_is_a_legal_config_with_its_own_hold(preset: AutoscalePreset) -> None:
    knobs = AutoscaleConfig(**PRESETS[preset])

    assert knobs.scale_to_zero_delay >= knobs.scale_down_delay
    assert knobs.hold_boots > 0


@pytest.mark.parametrize("preset", AutoscalePreset)
def test_a_file_names_a_preset_and_what_it_says_beside_it_goes_over_that(
    preset: AutoscalePreset,
) -> None:
    file, _ = read_deployment_file(FILE.format(knobs=f"preset: {preset.upper()}, hold_boots: 7"))

    said = file.autoscale
    assert said == AutoscaleConfig(**{**PRESETS[preset], "hold_boots": 7})


def test_a_file_without_a_preset_has_the_documented_delays() -> None:
    file, _ = read_deployment_file(FILE.format(knobs="concurrency: 3"))

    assert file.autoscale == AutoscaleConfig(concurrency=3)
    assert file.autoscale.scale_to_zero_delay == timedelta(seconds=1800)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ("preset: lena", "must be one of: lean, balanced, interactive, not 'lena'"),
        ("hold_boots: -1", "hold_boots"),
        ("hold_boots: .nan", "hold_boots"),
        ("concurrency: 0", "concurrency"),
        ("preset: lean, scale_to_zero_delay_seconds: 10", "scale_down_delay_seconds"),
    ],
)
def test_knobs_that_cannot_be_are_refused_with_their_name(knobs: str, message: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_deployment_file(FILE.format(knobs=knobs))

    assert message in str(refused.value)


def test_presets_keep_longer_from_lean_to_interactive() -> None:
    holds = [
        hold_seconds(AutoscaleConfig(**PRESETS[one]), 2, timedelta(seconds=240))
        for one in (AutoscalePreset.LEAN, AutoscalePreset.BALANCED, AutoscalePreset.INTERACTIVE)
    ]

    assert holds == sorted(set(holds))
