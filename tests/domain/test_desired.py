"""How many replicas there should be, and the words for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from garrison.domain.deployments.desired import Desired, Wishes, decide_desired
from garrison.models.deployment import AutoscaleConfig

WISHES = Wishes(autoscale=AutoscaleConfig(min_replicas=1, max_replicas=3))


@pytest.mark.parametrize(
    ("wishes", "desired"),
    [
        pytest.param({}, Desired(1, "min_replicas is 1"), id="nobody has decided"),
        pytest.param(
            {"fixed": 2, "fixed_by": "ada"}, Desired(2, "scaled to 2 by ada"), id="a fixed count"
        ),
        pytest.param({"fixed": 0}, Desired(0, "scaled to 0"), id="a fixed count below the least"),
        pytest.param(
            {"fixed": 9, "fixed_by": "ada"},
            Desired(3, "scaled to 9 by ada, but max_replicas is 3"),
            id="a fixed count above the most",
        ),
        pytest.param({"target": 2}, Desired(2, "autoscaling wants 2"), id="a load"),
        pytest.param({"target": 0}, Desired(1, "min_replicas is 1"), id="no load"),
        pytest.param(
            {"target": 5}, Desired(3, "autoscaling wants 5, but max_replicas is 3"), id="overload"
        ),
        pytest.param(
            {"enabled": False, "enabled_by": "bob", "fixed": 2},
            Desired(0, "disabled by bob"),
            id="disabled goes before a count",
        ),
        pytest.param(
            {"deleting": True, "fixed": 2},
            Desired(0, "it is being deleted"),
            id="deleting goes before all",
        ),
    ],
)
def test_the_count_follows_the_strongest_wish(wishes: dict[str, object], desired: Desired) -> None:
    assert decide_desired(replace(WISHES, **wishes)) == desired  # type: ignore[arg-type]
