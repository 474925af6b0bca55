"""What compute clusters refuse, and say before there is anything to say."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from garrison.domain.compute_cluster import check_delete, check_empty, report
from garrison.errors import ConflictPhase, NotFound
from garrison.models.compute_cluster import ComputeClusterState, DeleteRequested, NodepoolMember

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MEMBERS = {name: NodepoolMember(owner=f"nodepool/gpus/{name}", uid="u") for name in ("b", "a")}


def state(**fields: object) -> ComputeClusterState:
    return ComputeClusterState.model_validate({"uid": "uid", "created_at": NOW, **fields})


def test_one_that_was_never_created_is_not_found() -> None:
    with pytest.raises(NotFound, match="there is no compute cluster gpus"):
        report("gpus", state())


def test_a_delete_without_cascade_names_the_nodepools() -> None:
    with pytest.raises(ConflictPhase, match="gpus has nodepools: a, b; delete them first"):
        check_delete("gpus", state(members=MEMBERS), DeleteRequested(request_id="1"))


@pytest.mark.parametrize(
    ("nodepools", "cascade"),
    [pytest.param((), False, id="it is empty"), pytest.param(("a",), True, id="all goes")],
)
def test_nothing_is_in_the_way_of_a_delete(nodepools: tuple[str, ...], cascade: bool) -> None:
    check_empty("gpus", nodepools, cascade=cascade)


def test_a_delete_that_was_accepted_is_accepted_again() -> None:
    going = state(members=MEMBERS, delete_accepted_at=NOW)

    check_delete("gpus", going, DeleteRequested(request_id="2"))
