"""What reading a cluster costs its worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from garrison.errors import WaitTimeout
from garrison.models.cluster_state import Phase
from tests.workflows.conftest import SOON, Story


@pytest.fixture
def queries(story: Story, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The workflows that were asked anything, in order."""
    asked: list[str] = []
    service = story.client.workflow_service
    send = service.query_workflow

    async def counting(request: Any, **options: Any) -> Any:
        asked.append(request.execution.workflow_id)
        return await send(request, **options)

    monkeypatch.setattr(service, "query_workflow", counting)
    return asked


async def test_a_wait_that_nobody_looks_at_asks_the_worker_once_and_an_end_not_at_all(
    story: Story, queries: list[str]
) -> None:
    async with story.worker():
        quote = await story.launched()
        queries.clear()

        status = await story.clusters.wait(quote.name, phases={Phase.RUNNING}, timeout=SOON)
        asked_until_running = [one for one in queries if one.startswith("cluster/")]
        await story.clusters.terminate(quote.name)
        ended = await story.clusters.wait(quote.name, phases={Phase.TERMINATED}, timeout=SOON)

    assert status.phase is Phase.RUNNING
    assert asked_until_running == [f"cluster/{quote.name}"]
    assert ended.phase is Phase.TERMINATED
    assert [one for one in queries if one.startswith("cluster/")] == asked_until_running


async def test_an_ended_cluster_can_be_read_when_no_worker_runs(story: Story) -> None:
    async with story.worker():
        quote = await story.launched()
        await story.clusters.terminate(quote.name)
        last = await story.clusters.wait(quote.name, phases={Phase.TERMINATED}, timeout=SOON)

    found = await story.clusters.get(quote.name)

    assert found == last
    assert found.ended_at is not None


async def test_a_wait_that_is_over_says_how_long_it_was_and_where_the_cluster_is(
    story: Story,
) -> None:
    async with story.worker():
        quote = await story.quote()

        with pytest.raises(WaitTimeout, match=f"{quote.name} is quoted after 0.5 s; it goes on"):
            await story.clusters.wait(
                quote.name, phases={Phase.RUNNING}, timeout=timedelta(seconds=0.5)
            )
