"""Break each rule of autoscaling in turn, and see that the test of its promise fails.

`python -m tests.mutants` copies what is needed to a temporary directory, checks that the tests pass
there, and then runs, for each mutant, the one test that must kill it. The exit status is 1 if one
survives. `python -m tests.mutants WORD ...` takes those whose names have one of the words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROMISES = "test_autoscale_promises.py"
STORIES = "test_autoscale.py"
NEEDED = ("garrison", "tests/__init__.py", "tests/domain", "pyproject.toml")
DECISION = "garrison/domain/autoscaling/decision.py"
NEED = "garrison/domain/autoscaling/need.py"
FIELDS = "garrison/models/deployment_fields.py"
TIME_LIMIT = 300
CONFTEST = """
from hypothesis import Phase, settings

# A failure is all that is asked for, not the smallest one.
phases = (Phase.explicit, Phase.generate)
settings.register_profile("mutants", derandomize=True, deadline=None, database=None, phases=phases)
settings.load_profile("mutants")
"""


@dataclass(frozen=True)
class Mutant:
    """One rule broken: a piece of text, there once, and what stands there instead."""

    name: str
    killer: str
    old: str
    new: str
    file: str = DECISION
    tests: str = PROMISES


MUTANTS = (
    Mutant(
        "the maximum is not held",
        "test_the_target_is_within_its_bounds_whatever_is_seen",
        "level = min(config.max_replicas, need.replicas)",
        "level = min(config.max_replicas + 1, need.replicas)",
    ),
    Mutant(
        "new bounds wait while metrics are missing",
        "test_new_bounds_hold_in_the_next_decision",
        "target = _clip(config, floor_of(config, seen.soft_taken), state.target)",
        "target = state.target",
    ),
    Mutant(
        "new bounds wait",
        "test_new_bounds_hold_in_the_next_decision",
        "target = _clip(levels.config, levels.least, last)",
        "target = last",
    ),
    Mutant(
        "decisions remember one another outside of the state",
        "test_a_decision_depends_on_nothing_but_what_it_is_given",
        "now = seen.now.timestamp()",
        "now = seen.now.timestamp() + globals().setdefault('_looks', [0.0])[0]\n"
        "    globals()['_looks'][0] += 0.5",
    ),
    Mutant(
        "the window is never emptied",
        "test_the_state_stays_small",
        "if bucket[0] > load.now - length",
        "if bucket[0] > load.now - 1e9",
        NEED,
    ),
    Mutant(
        "missing metrics are an idle deployment",
        "test_missing_metrics_and_a_clock_that_went_back_hold",
        "if not seen.complete:",
        "if not seen.complete and not seen.ready:",
    ),
    Mutant(
        "a clock that went back is not noticed",
        "test_missing_metrics_and_a_clock_that_went_back_hold",
        "state.now is not None and now < state.now",
        "state.now is not None and now < state.now - 100",
    ),
    Mutant(
        "the delay up is shorter than it says",
        "test_no_rise_from_one_unless_all_of_the_delay_needed_it",
        "if levels.age(level) >= delay:",
        "if levels.age(level) >= delay / 2:",
    ),
    Mutant(
        "a rise goes to what is needed now",
        "test_no_rise_from_one_unless_all_of_the_delay_needed_it",
        'return level, f"up: {level} needed',
        'return levels.need, f"up: {level} needed',
    ),
    Mutant(
        "a dip of the need does not restart the delay up",
        "test_no_rise_from_one_unless_all_of_the_delay_needed_it",
        "if low < high:",
        "if low < high and need < state.need:",
    ),
    Mutant(
        "a hole is evidence",
        "test_a_gap_in_what_is_seen_restarts_every_clock",
        "or elapsed > HOLE_SECONDS",
        "or elapsed > 10 * HOLE_SECONDS",
    ),
    Mutant(
        "missing metrics are evidence",
        "test_a_gap_in_what_is_seen_restarts_every_clock",
        "state.replace(target=target, blind=True)",
        "state.replace(target=target)",
    ),
    Mutant(
        "one hold lets all levels go",
        "test_each_level_serves_a_hold_of_its_own",
        "idle, hold = levels.age(level), hold_seconds",
        "idle, hold = levels.age(target), hold_seconds",
    ),
    Mutant(
        "the delay down is not held",
        "test_no_level_leaves_before_its_delay_without_need",
        "if idle < hold:",
        "if idle < hold - 20:",
    ),
    Mutant(
        "the last replica leaves like the others",
        "test_the_last_one_leaves_only_after_its_delay_without_traffic",
        "return kept if level >= 2 else",
        "return kept if level >= 1 else",
    ),
    Mutant(
        "idleness counts while a replica starts",
        "test_idleness_counts_only_from_when_a_replica_is_ready",
        "if need == 0 and since and (state.unready or _is_unready(seen)):",
        "if False:",
    ),
    Mutant(
        "running requests are no reason to stay",
        "test_there_is_never_none_while_somebody_is_served_or_waits",
        "return self.new > 0 or self.queued > 0 or self.running > 0",
        "return self.new > 0 or self.queued > 0",
        NEED,
    ),
    Mutant(
        "waiting requests are no reason to wake",
        "test_the_first_request_wakes_at_once_and_wakes_one",
        "if last == 0 and active:",
        "if last == 0 and active and config_is_quick(levels):",
    ),
    Mutant(
        "waking waits for the delay up",
        "test_the_first_request_wakes_at_once_and_wakes_one",
        "if last == 0 and active:",
        "if last == 0 and active and not levels.config.scale_up_delay:",
    ),
    Mutant(
        "hold_boots shortens the delay",
        "test_a_hold_is_never_below_the_delay_and_grows_with_boots",
        "kept = max(config.scale_down_delay.total_seconds(), config.hold_boots",
        "kept = min(config.scale_down_delay.total_seconds(), config.hold_boots",
    ),
    Mutant(
        "a hold is longer than it says",
        "test_each_level_leaves_at_the_first_look_after_its_hold",
        "if idle < hold:",
        "if idle < hold + 20:",
    ),
    Mutant(
        "a step up waits for twice its delay",
        "test_a_step_up_is_followed_when_its_delay_is_over",
        "if levels.age(level) >= delay:",
        "if levels.age(level) >= 2 * delay + 80:",
    ),
    Mutant(
        "a spike is followed",
        "test_a_spike_shorter_than_the_delay_is_ignored",
        "delay = levels.config.scale_up_delay.total_seconds()",
        "delay = min(30.0, levels.config.scale_up_delay.total_seconds())",
    ),
    Mutant(
        "the need rises and falls by itself",
        "test_constant_load_makes_at_most_one_change",
        "demand = _known_demand(config, load, rate, seconds) / config.concurrency",
        "demand = (_known_demand(config, load, rate, seconds)"
        " * (1 + load.now // 600 % 2) / config.concurrency)",
        NEED,
    ),
    Mutant(
        "a queue counts against the arrivals",
        "test_a_longer_queue_never_needs_fewer_once_service_times_are_known",
        "return steady + reserve",
        "return steady + reserve - load.queued",
        NEED,
    ),
    Mutant(
        "running requests need no place",
        "test_more_load_in_one_look_never_gives_fewer_replicas",
        "return load.running + load.queued + joining",
        "return load.queued - load.running + joining",
        NEED,
    ),
    Mutant(
        "before service times are known an idle look guesses",
        "test_more_load_in_one_look_never_gives_fewer_replicas",
        "    if known:\n",
        "    if known or not load.active:\n",
        NEED,
    ),
    Mutant(
        "a counter that begins anew is a flood",
        "test_counters_that_begin_anew_count_only_what_they_say",
        "return value - last if value >= last else value",
        "return abs(value - last)",
    ),
    Mutant(
        "a pause is counted as if it went on",
        "test_pauses_shorter_than_the_hold_never_reach_zero",
        "since = (*since[:low], *[load.now] * (high - low), *since[high:])",
        "since = (*since[:low], *[load.now] * (high - low), *since[high:])"
        " if need > state.need else since",
    ),
    Mutant(
        "a changed delay to zero is compared with the old clock",
        "test_a_changed_delay_restarts_its_own_clock_and_no_other",
        "(to_zero if level == 1 else down)",
        "(False if level == 1 else down)",
    ),
    Mutant(
        "a changed delay up restarts all clocks",
        "test_a_changed_delay_restarts_its_own_clock_and_no_other",
        "up if level <= need else hold or",
        "up or hold or",
    ),
    Mutant(
        "a new maximum restarts all clocks",
        "test_a_changed_knob_that_is_no_delay_restarts_no_clock",
        "since = (*state.since[:most], *[now] * (most - len(state.since)))",
        "since = (now,) * most",
    ),
    Mutant(
        "a delay to zero below the delay down is taken",
        "test_a_delay_to_zero_below_the_delay_down_is_refused_at_the_door",
        'return at_least(value, "scale_down_delay_seconds", info)',
        "return value",
        FIELDS,
    ),
    Mutant(
        "a maximum of zero still wakes",
        "test_a_maximum_of_zero_is_off",
        "    if most == 0:",
        "    if most == 0 and not active:",
    ),
    Mutant(
        "arrivals of a hole are a burst",
        "test_a_hole_between_observations_is_no_evidence_and_no_burst",
        "recent = load.new * min(1.0, length / max(load.elapsed, width))",
        "recent = load.new",
        NEED,
        STORIES,
    ),
    Mutant(
        "what counters had before the first look is traffic",
        "test_the_very_first_look_wakes_if_a_request_waits_but_takes_no_old_total_for_traffic",
        "if last is None or value is None:",
        "if value is None:",
        tests=STORIES,
    ),
    Mutant(
        "a backlog without arrivals is ignored",
        "test_a_backlog_without_arrivals_is_not_worked_off_by_one_replica",
        "left * seconds / DRAIN_SECONDS",
        "0.0",
        NEED,
        STORIES,
    ),
    Mutant(
        "service times are never learned",
        "test_service_times_that_change_are_learned_anew",
        "faded = math.exp(-load.elapsed / FORGET_AFTER)",
        "faded = 1.0",
        NEED,
        STORIES,
    ),
    Mutant(
        "slow knobs keep no more in reserve",
        "test_knobs_that_cannot_react_fast_keep_more_in_reserve",
        "return SLOW_HEADROOM if reaction > SLOW_AFTER else HEADROOM",
        "return HEADROOM",
        NEED,
        STORIES,
    ),
    Mutant(
        "completions that are not told count as none",
        "test_without_completions_nothing_is_learned_and_nothing_forgotten",
        "and load.completed is not None:",
        "and (load.completed is not None or load.__class__):",
        NEED,
        STORIES,
    ),
    Mutant(
        "the soft minimum cannot be taken",
        "test_the_soft_minimum_stands_on_the_minimum_and_can_be_taken",
        "max(0, config.soft_min_replicas - soft_taken)",
        "config.soft_min_replicas",
        tests=STORIES,
    ),
)


def main(words: Sequence[str]) -> int:
    """Return 0 if every mutant was killed by its own test."""
    chosen = [one for one in MUTANTS if not words or any(word in one.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        plain = _copy(Path(folder) / "plain")
        killers = sorted({f"{one.tests}::{one.killer}" for one in chosen})
        if _run(plain, killers) != 0:
            _say("the tests fail without any mutant")
            return 1
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            results = pool.map(lambda one: _survives(one, Path(folder)), chosen)
            survivors = [one for one, left in zip(chosen, results, strict=True) if left]
    for one in survivors:
        _say(f"SURVIVED {one.killer}: {one.name}")
    _say(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    return 1 if survivors else 0


def _survives(mutant: Mutant, folder: Path) -> bool:
    place = _copy(Path(tempfile.mkdtemp(dir=folder)) / "mutant")
    path = place / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.file} does not have once what {mutant.name!r} changes")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    outcome = _run(place, [f"{mutant.tests}::{mutant.killer}"])
    shutil.rmtree(place)
    # 1 is a failed test; anything else, such as no test found, proves nothing.
    _say(f"{'killed' if outcome == 1 else 'SURVIVED'}: {mutant.name}")
    return outcome != 1


def _copy(place: Path) -> Path:
    place.mkdir()
    leave = shutil.ignore_patterns("__pycache__")
    for name in NEEDED:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=leave)
        else:
            shutil.copy2(ROOT / name, place / name)
    (place / "tests" / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    return place


def _run(place: Path, tests: Sequence[str]) -> int:
    found = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
            ),
            *(f"tests/domain/{one}" for one in tests),
        ],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=TIME_LIMIT,
        check=False,
    )
    return found.returncode


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
