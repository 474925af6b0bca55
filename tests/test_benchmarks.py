"""The pure parts of the benchmarks: ratios, verdicts, the table and where it goes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import elastic
from benchmarks.elastic import End, Rest, Scaled, Size, Story
from benchmarks.figures import (
    BEGIN,
    END,
    Figure,
    markdown,
    median,
    percentile,
    ratio,
    spread,
    with_results,
    with_unit,
)
from benchmarks.idle import Window

README = Path(__file__).parents[1] / "benchmarks" / "README.md"


def test_a_ratio_is_of_medians_so_that_one_bad_round_does_not_count() -> None:
    ours, raw = [2.0, 2.0, 90.0], [4.0, 4.0, 1.0]

    found = ratio(ours, raw)

    assert found == 0.5


def test_a_ratio_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="raw arm took nothing"):
        ratio([1.0], [0.0, 0.0, 3.0])


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, 1), (5, 1), (50, 10), (95, 19), (95.1, 20), (100, 20)],
)
def test_a_percentile_is_a_sample_at_its_nearest_rank(percent: float, expected: int) -> None:
    values = [float(n) for n in range(20, 0, -1)]

    assert percentile(values, percent) == expected


@pytest.mark.parametrize("percent", [-1, 101])
def test_a_percentile_outside_of_a_hundred_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="no percentage"):
        percentile([1.0], percent)


def test_no_samples_are_no_figure() -> None:
    for of in (median, lambda values: percentile(values, 95)):
        with pytest.raises(ValueError, match="no sample"):
            of([])


@pytest.mark.parametrize(
    ("value", "at_least", "met"),
    [(1.3, False, True), (1.31, False, False), (1.3, True, True), (1.29, True, False)],
    ids=["at the bound", "above it", "at the lower bound", "below it"],
)
def test_a_goal_is_met_up_to_and_at_its_bound(value: float, at_least: bool, met: bool) -> None:
    figure = Figure("x", value, "x", goal=1.3, at_least=at_least)

    assert figure.met is met
    assert figure.verdict == ("met" if met else "MISSED")


def test_what_was_not_measured_misses_its_goal_and_is_null_for_programs() -> None:
    figure = Figure("x", math.nan, "s", goal=5)

    assert figure.met is False
    assert figure.as_json()["value"] is None


def test_a_figure_without_a_goal_has_no_verdict() -> None:
    figure = Figure("x", 7.0)

    assert figure.met is None
    assert (figure.goal_text, figure.verdict) == ("", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8512, "0.851 s"), (60, "60 s"), (1234.5, "1234 s"), (0, "0 s"), (math.nan, "none s")],
)
def test_numbers_have_as_many_digits_as_are_worth_reading(value: float, text: str) -> None:
    assert with_unit(value, "s") == text


def test_a_spread_shows_the_median_and_both_ends() -> None:
    assert spread([5.0, 1.0, 3.0], "/s") == "3 (1-5) /s"


def test_the_table_has_one_row_a_figure_and_keeps_its_columns() -> None:
    figures = [
        Figure("lives/s", 0.9, "x", goal=0.85, at_least=True, detail="9 /s | raw 10 /s"),
        Figure("memory", 413.2, "kB", goal=80),
    ]

    lines = markdown(figures).splitlines()

    assert lines[0].startswith("| figure | measured | goal |")
    assert lines[2:] == [
        r"| lives/s | 0.9 x | >= 0.85 x | met | 9 /s \| raw 10 /s |",
        "| memory | 413 kB | <= 80 kB | MISSED |  |",
    ]


def test_results_replace_those_of_before_and_nothing_else() -> None:
    readme = f"# Title\n{BEGIN}\nold\n{END}\nrest\n"

    new = with_results(with_results(readme, "newer\n"), "newest\n")

    assert new == f"# Title\n{BEGIN}\nnewest\n{END}\nrest\n"


@pytest.mark.parametrize(
    "readme",
    [
        "no marks",
        f"{BEGIN} only",
        f"{END} {BEGIN}",
        f"{BEGIN} {BEGIN} {END}",
        f"{BEGIN} {END} {END}",
    ],
)
def test_a_file_without_exactly_one_place_for_results_is_left_alone(readme: str) -> None:
    with pytest.raises(ValueError, match="needs one"):
        with_results(readme, "results")


def test_the_readme_has_a_place_for_the_results() -> None:
    text = README.read_text(encoding="utf-8")

    assert "\nresults\n" in with_results(text, "results\n")


def story() -> Story:
    """Deployments on nodepools of which all is as it should be."""
    idle = Window(server=2.0, worker=0.2, passes=4, lists=4)
    scaled = Scaled(acked=1, ready=2, machines=3, cpu=(1, 2))
    kinds = Counter({"WORKFLOW_TASK_COMPLETED": 90, "WORKFLOW_TASK_TIMED_OUT": 2})
    return Story(
        size=Size(pools=2, deployments=10),
        created=1,
        up=scaled,
        rest=Rest(empty=idle, full=idle, kilobytes=100, events=0, machines=20),
        down=scaled,
        again=scaled,
        peaks=(20, 10),
        end=End(
            seconds=5, stuck=0, machines=0, kinds=kinds, failures=Counter(), activities=Counter()
        ),
    )


def missed(found: Story) -> list[str]:
    return [one.what.rpartition(": ")[2] for one in elastic.figures(found) if one.met is False]


def test_deployments_that_do_as_promised_miss_no_goal() -> None:
    assert missed(story()) == []


def test_one_machine_too_many_at_any_instant_misses_the_goal() -> None:
    assert missed(replace(story(), peaks=(21, 11))) == ["machines at once, at most"]


def test_an_estate_at_rest_may_write_no_event_and_look_no_more_often_than_an_empty_one() -> None:
    calm = story().rest
    window = replace(calm.full, server=5.1, lists=5)

    found = missed(replace(story(), rest=replace(calm, events=1, full=window)))

    assert found == [
        "server CPU above an idle server",
        "history events in the window",
        "provider list calls per watch pass",
    ]


def test_what_is_left_at_the_end_and_a_failed_workflow_task_miss_their_goals() -> None:
    end = story().end
    kinds = end.kinds + Counter({"WORKFLOW_TASK_FAILED": 1})

    found = missed(replace(story(), end=replace(end, machines=1, kinds=kinds)))

    assert found == ["stuck, or machines left", "workflow task failures, in all histories"]
