"""The line with which `up` ends."""

from __future__ import annotations

from decimal import Decimal

import pytest

from garrison.workers.running_costs import RunningCosts


@pytest.mark.parametrize(
    ("costs", "sentence"),
    [
        pytest.param(RunningCosts(), "nothing goes on costing money", id="no cluster"),
        pytest.param(
            RunningCosts(3, Decimal("94.56")),
            "3 clusters go on at 94.56 USD/h; their guards pause until `garrison up`",
            id="several",
        ),
        pytest.param(
            RunningCosts(1, Decimal("2")),
            "1 cluster goes on at 2.00 USD/h; its guard pauses until `garrison up`",
            id="one",
        ),
        pytest.param(
            RunningCosts(2, Decimal("0.00168"), 2),
            "2 clusters go on at 0.00168 USD/h; their guards pause until `garrison up` (simulated)",
            id="on paper, exact",
        ),
        pytest.param(
            RunningCosts(3, Decimal("1E+1"), 1),
            "3 clusters go on at 10.00 USD/h; their guards pause until `garrison up` (1 simulated)",
            id="some on paper",
        ),
        pytest.param(
            RunningCosts(1, Decimal("2"), orphans=2),
            "1 cluster goes on at 2.00 USD/h; its guard pauses until `garrison up`; "
            "2 machines have no owner that Garrison knows (garrison doctor)",
            id="orphans",
        ),
        pytest.param(
            RunningCosts(1, Decimal("3"), nodepools=2),
            "1 cluster and 2 nodepools go on at 3.00 USD/h; their guards pause until `garrison up`",
            id="nodepools too",
        ),
        pytest.param(
            RunningCosts(usd_per_hour=Decimal("3"), simulated=1, nodepools=1),
            "1 nodepool goes on at 3.00 USD/h; its guard pauses until `garrison up` (simulated)",
            id="a nodepool alone",
        ),
        pytest.param(
            RunningCosts(1, Decimal("2"), simulated=1, nodepools=2, local=1),
            "1 cluster and 2 nodepools go on at 2.00 USD/h; their guards pause until `garrison up`"
            " (1 simulated, 1 on this machine)",
            id="some on paper, some here",
        ),
        pytest.param(
            RunningCosts(nodepools=1, local=1),
            "1 nodepool goes on at 0.00 USD/h; its guard pauses until `garrison up`"
            " (on this machine)",
            id="here alone",
        ),
        pytest.param(
            RunningCosts(orphans=1),
            "no cluster goes on; 1 machine has no owner that Garrison knows (garrison doctor)",
            id="only an orphan",
        ),
    ],
)
def test_the_sentence_names_number_and_rate(costs: RunningCosts, sentence: str) -> None:
    assert costs.sentence() == sentence
