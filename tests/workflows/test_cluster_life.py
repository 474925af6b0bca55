"""A cluster's life on a real server, with the shipped worker and its watch."""

from __future__ import annotations

from datetime import timedelta

from garrison.models.cluster_state import Phase
from tests.workflows.conftest import Story

SOON = timedelta(seconds=20)


async def test_a_cluster_is_quoted_launched_runs_and_gives_everything_back(story: Story) -> None:
    spec = story.spec(command=["python", "train.py"])

    async with story.worker():
        quote = await story.clusters.quote(spec)
        assert spec.name is not None
        await story.clusters.launch(spec.name, quote_id=quote.quote_id)
        running = await story.clusters.wait(spec.name, phases={Phase.RUNNING}, timeout=SOON)
        bought = story.machines(running.uid)
        await story.clusters.terminate(spec.name)
        ended = await story.clusters.wait(spec.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert len(bought) == 2
    assert running.hourly_usd == quote.hourly_usd
    assert story.machines(running.uid) == []
    assert story.console.peak(uid=running.uid) == 2
    assert ended.billed_until is not None
    assert ended.cost_usd > 0
