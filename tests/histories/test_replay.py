"""Workflows that run now go on as they began: every kept history replays with today's code."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.worker import Replayer

from garrison.failures import DATA_CONVERTER
from garrison.models.cluster_messages import ClusterInput
from garrison.workers.main import WORKFLOWS, workflow_runner
from garrison.workflows.cluster import ClusterWorkflow
from tests.histories.kept import CHANGED, FILES, FIRST, claim_in, file_of, history_of

LAUNCHED = "cluster-is-launched-and-given-back"


async def _replay(file: Path, *workflows: type) -> Exception | None:
    """Replay as a worker does; return why it did not work."""
    replayer = Replayer(
        workflows=workflows,
        workflow_runner=workflow_runner(),
        data_converter=DATA_CONVERTER,
    )
    result = await replayer.replay_workflow(history_of(file), raise_on_replay_failure=False)
    return result.replay_failure


@pytest.mark.parametrize("file", FILES, ids=claim_in)
async def test_a_kept_history_replays_with_the_code_of_today(file: Path) -> None:
    failure = await _replay(file, *WORKFLOWS)

    assert failure is None


@workflow.defn(name="Cluster")
class HastyCluster(ClusterWorkflow):
    """Changed as no running workflow can bear: a timer before all else."""

    @workflow.run
    async def run(self, life: ClusterInput) -> Any:
        await workflow.sleep(timedelta(seconds=1))
        return await super().run(life)


async def test_a_change_that_running_workflows_cannot_bear_is_noticed() -> None:
    failure = await _replay(file_of(FIRST, LAUNCHED), HastyCluster)

    assert isinstance(failure, workflow.NondeterminismError)


@pytest.mark.parametrize(
    ("folder", "claim", "answer"),
    [
        (FIRST, "cluster-spends-its-recovery-budget", True),
        (FIRST, "cluster-continues-as-new.after", True),
        (FIRST, "cluster-hears-of-its-nodes-before-its-purchase-is-answered", True),
        (CHANGED, LAUNCHED, False),
    ],
)
async def test_no_change_could_have_done_without_its_marker(
    folder: str, claim: str, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "patched", lambda _: answer)

    failure = await _replay(file_of(folder, claim), ClusterWorkflow)

    assert isinstance(failure, workflow.NondeterminismError)
