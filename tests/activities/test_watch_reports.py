"""What a watching activity says of itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter

from garrison.activities.watch_reports import Reporter
from garrison.errors import ProviderUnreachable
from garrison.models.group import Group, Node, NodeStatus
from garrison.models.observation import WatchReport

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Desk:
    """A reporter with its clock and what it sent."""

    def __init__(self, *before: Any) -> None:
        self.now = NOW
        self.sent: list[WatchReport] = []
        self.reporter = Reporter(
            before,
            interval=timedelta(seconds=15),
            clock=lambda: self.now,
            send=self.sent.append,
        )


def _group(owner: str, *ids: str, status: NodeStatus = NodeStatus.RUNNING) -> Group:
    nodes = tuple(Node(rank=n, provider_id=one, status=status) for n, one in enumerate(ids))
    return Group(
        token="t", owner=owner, uid="u", region="r", instance_type="t", created_at=NOW, nodes=nodes
    )


def test_trouble_keeps_its_beginning_until_a_pass_is_complete() -> None:
    desk = Desk()

    desk.reporter.failed(ProviderUnreachable("no answer"))
    desk.now += timedelta(minutes=3)
    desk.reporter.failed(ProviderUnreachable("still none"))
    desk.reporter.passed([], 0)

    first, second, last = desk.sent
    assert first.error is not None
    assert second.error is not None
    assert (second.error.code, second.error.message) == ("provider_unreachable", "still none")
    assert second.error.since == NOW
    assert last.error is None
    assert last.passed_at == desk.now


def test_orphans_are_counted_without_machines_that_are_gone() -> None:
    desk = Desk()
    gone = _group("cluster/a", "i-9", status=NodeStatus.TERMINATED)

    desk.reporter.passed([("cluster/a", "u", (_group("cluster/a", "i-1", "i-2"), gone))], 1)
    desk.reporter.passed([], 2)

    assert desk.sent[0].orphan_machines == 2
    assert desk.sent[0].orphans[0].provider_ids == ("i-1", "i-2")
    assert (desk.sent[1].orphan_machines, desk.sent[1].orphans) == (0, ())
    assert [report.reaped for report in desk.sent] == [1, 3]


def test_a_new_observer_goes_on_from_the_last_report() -> None:
    before = WatchReport(passed_at=NOW, orphan_machines=2, reaped=5).model_dump(mode="json")

    desk = Desk(before)

    assert desk.reporter.report.passed_at == NOW
    assert (desk.reporter.report.orphan_machines, desk.reporter.report.reaped) == (2, 5)


@pytest.mark.parametrize("before", [(), ("local",), (None,), ({"passed_at": "yesterday"},)])
def test_details_that_are_no_report_are_passed_over(before: tuple[Any, ...]) -> None:
    assert Desk(*before).reporter.report.passed_at is None


@pytest.mark.parametrize("character", ["x", '"', "\\", "\0", "\x1b", "\n", "é", "😀", "\ud800"])
async def test_a_report_stays_small_whatever_a_provider_says(character: str) -> None:
    desk = Desk()
    text = character * 50_000
    lives = [(f"{n}{text}", text, (_group(text, *[text] * 500),)) for n in range(50)]

    desk.reporter.passed(lives, 0)
    desk.reporter.failed(ProviderUnreachable(text))

    [payload] = await pydantic_data_converter.encode([desk.sent[-1]])
    assert len(payload.data) < 2048
    assert desk.sent[-1].orphan_machines == 25_000
