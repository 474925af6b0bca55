"""What the SDK refuses by itself, before anybody is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from garrison.client.nodepools import Nodepools
from garrison.errors import InvalidSpec
from garrison.models.nodepool import NodepoolSpec
from garrison.settings import load_settings

POOL = NodepoolSpec(id="a10g", compute_cluster="gpus", instance_types=("g5.2xlarge",))


@pytest.mark.parametrize("verb", ["preview", "create", "update"])
@pytest.mark.parametrize("field", ["min_instances", "warm_instances"])
async def test_more_machines_than_the_most_are_refused_with_both_names(
    tmp_path: Path, verb: str, field: str
) -> None:
    nobody: Any = None
    settings = load_settings({"GARRISON_DATA_DIR": str(tmp_path)})
    nodepools = Nodepools(nobody, settings, nobody, nobody)

    with pytest.raises(InvalidSpec, match="nodepool gpus/a10g is not valid") as refused:
        await getattr(nodepools, verb)(POOL.replace(max_instances=2, **{field: 5}))

    assert [str(problem) for problem in refused.value.problems] == [
        f"{field}: 5 is more than max_instances, which is 2; lower the one or raise the other"
    ]
