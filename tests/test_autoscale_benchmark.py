"""The simulated world of the autoscaling benchmark: waits, bills, bounds and who is better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.autoscale.__main__ import policies
from benchmarks.autoscale.bounds import bounds
from benchmarks.autoscale.others import Fixed, Knative
from benchmarks.autoscale.results import Result, dominance_table, result_of
from benchmarks.autoscale.shipped import preset
from benchmarks.autoscale.traces import SPECS, Trace, TraceSpec, load_trace
from benchmarks.autoscale.world import AFTER_THE_LAST, Rules, World
from garrison.models.autoscale import AutoscalePreset

SPEC = TraceSpec("made up", concurrency=2, service_seconds=10)


def trace(*arrivals: float, service: float = 10) -> Trace:
    return Trace(SPEC, arrivals, (service,) * len(arrivals))


def lived(policy: Fixed | Knative, *arrivals: float) -> World:
    world = World(trace(*arrivals))
    world.run(policy)
    return world


def result(**fields: float) -> Result:
    numbers = dict.fromkeys(Result.__dataclass_fields__, 0)
    made = Result(**{**numbers, "trace": "t", "policy": "p"})  # type: ignore[arg-type]
    return replace(made, **fields)  # type: ignore[arg-type]


def test_a_cold_replica_takes_a_node_and_a_replica_boot_and_requests_are_served_in_turn() -> None:
    world = lived(Fixed(1), 0, 0, 0, 300)

    assert world.waits == [240, 240, 250, 0]


def test_two_replicas_share_a_node_and_the_third_needs_another() -> None:
    world = lived(Fixed(3), 0)

    end = 1 + AFTER_THE_LAST
    assert world.starts == 3
    assert world.replica_seconds == 3 * end
    assert world.node_seconds == 2 * end


def test_what_is_kept_for_nobody_is_paid_for_and_what_is_let_go_is_not() -> None:
    world = lived(Knative(2), 0)

    # Ready at 240 s, busy to 250 s, and out of the stable window a minute later.
    assert 310 <= world.replica_seconds <= 314
    assert world.node_seconds == world.replica_seconds + Rules().keep_node


def test_a_draining_replica_finishes_what_it_runs_and_is_billed_until_then() -> None:
    class Down(Fixed):
        def tick(self, world: World) -> int:
            return 1 if world.now < 245 else 0

        def pause(self, world: World) -> float:
            return 5

    world = lived(Down(1), 0)

    assert (world.completed, world.replica_seconds) == (1, 250)


def test_who_was_never_served_has_waited_to_the_end() -> None:
    world = lived(Fixed(0), 100)

    assert world.waits == [1 + 100 + AFTER_THE_LAST - 100]


def test_the_optimum_bridges_gaps_shorter_than_a_boot_and_boots_over_longer_ones() -> None:
    near, far = trace(0, 50), trace(0, 500)

    # A boot, ten seconds twice, and the gap of 40 s or another boot.
    assert bounds(near, Rules()).opt_hours * 3600 == 60 + 10 + 40 + 10
    assert bounds(far, Rules()).opt_hours * 3600 == 60 + 10 + 60 + 10
    assert bounds(far, Rules()).work_hours * 3600 == 2 * 10 / 2


def test_to_dominate_is_to_be_no_worse_in_all_and_better_in_one() -> None:
    plain = result(replica_hours=2, over_10=5, mean_wait=1)

    assert replace(plain, mean_wait=0.9).dominates(plain)
    assert not plain.dominates(plain)
    assert not replace(plain, mean_wait=0.5, over_10=6).dominates(plain)


def test_the_table_counts_pairs_and_says_who_loses() -> None:
    ours = result(replica_hours=2, over_10=5, mean_wait=1)
    worse, better = replace(ours, replica_hours=3), replace(ours, replica_hours=1)
    named = [
        replace(one, policy=name)
        for one, name in ((ours, "lean"), (worse, "hpa"), (better, "oracle"))
    ]

    text, counts = dominance_table(named, ["lean"], ["hpa", "oracle"])

    assert counts == {"pairs": 2, "dominated": 1, "losses": 1}
    assert text.splitlines()[-1] == "| t | lean | -; LOSES: lean |"


def test_the_same_requests_come_to_everybody() -> None:
    spec = SPECS[0]

    first, again, other = load_trace(spec), load_trace(spec), load_trace(spec, seed=2)

    assert first == again
    assert first.arrivals != other.arrivals
    assert len(first.arrivals) == 8819
    assert sum(first.services) / 8819 == pytest.approx(spec.service_seconds, rel=0.03)


def test_every_policy_serves_a_short_trace_to_the_end_within_its_bounds() -> None:
    arrivals = tuple(float(second) for second in range(0, 900, 3))
    short = trace(*arrivals)

    for policy in policies(SPEC):
        world = World(short)
        world.run(policy)

        assert world.completed == len(arrivals) == len(world.waits), policy.name
        assert all(0 <= target <= 5 for _, target in world.targets)
        assert result_of(policy.name, world).replica_hours > 0


def test_the_shipped_decision_goes_to_nothing_after_the_last_request() -> None:
    world = World(trace(*range(0, 600, 2)))

    world.run(preset(AutoscalePreset.BALANCED, SPEC.concurrency))

    assert world.targets[-1][1] == 0
    assert not world.replicas
