"""Case A22: a provider that allows few calls a second gets no more, and everything still works.

`GARRISON_A22=literal` plays it with the very numbers of the case, which takes minutes.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

import pytest

from garrison.client.clusters import Clusters
from garrison.errors import GarrisonError, TooManyRequests
from garrison.models.cluster_state import Phase
from garrison.models.group import Group, GroupRequest, Refusal, RestartResult
from garrison.models.offer import Offer, OfferQuery
from garrison.models.provider import ProviderFacts
from garrison.providers.base import Workloads
from garrison.providers.simulated.faults import Call
from garrison.providers.simulated.provider import SimulatedProvider
from garrison.workers.main import build_worker
from tests.workflows.conftest import SOON, Story, in_phase

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """How fast the provider is, how long it wants to be left alone, how much is asked of it."""

    calls_per_second: float
    retry_after: timedelta
    launched: int
    polled: int
    patience: timedelta


CASE = Case(6, timedelta(seconds=2), launched=20, polled=20, patience=timedelta(seconds=60))
LITERAL = Case(2, timedelta(seconds=7), launched=30, polled=200, patience=timedelta(minutes=8))


@pytest.mark.timeout(900)
async def test_a22_many_launches_at_once_stay_within_the_limit_and_all_succeed(
    story: Story,
) -> None:
    case = LITERAL if os.environ.get("GARRISON_A22") == "literal" else CASE
    story.use(calls_per_second=case.calls_per_second, retry_after=case.retry_after)
    # The calls of so many clients at once are slow on a small machine, which is not the case here.
    story.clusters = Clusters(story.client, story.settings, call_timeout=case.patience)

    async with story.worker():
        uids = await _running_at_once(story, case.launched, case.patience)
        begun = story.clock()
        launching = story.calls()
        while len(uids) < case.polled:
            more = min(case.launched, case.polled - len(uids))
            uids += await _running_at_once(story, more, case.patience)
        seen, polling = await _calm_calls(story, passes=5)

    log = story.calls()
    kinds = Counter(call.call for call in launching)
    _tell(case, begun - log[0].at, kinds)
    assert [call for call in log if call.early] == []
    assert {call.result for call in log} == {"ok"}
    assert {story.console.peak(uid=uid) for uid in uids} == {2}
    assert len(story.machines()) == 2 * case.polled
    assert kinds[Call.LAUNCH] == case.launched
    # Quotes that come together share a call (how many do is a matter of how busy the machine is),
    # and nobody polls a node.
    assert kinds[Call.LIST_OFFERS] < case.launched
    assert set(polling) == {Call.LIST}
    assert polling[Call.LIST] <= seen / story.settings.watch_interval + 1


async def _running_at_once(story: Story, count: int, patience: timedelta) -> list[str]:
    async def one() -> str:
        quote = await story.launched()
        status = await story.clusters.wait(quote.name, phases={Phase.RUNNING}, timeout=patience)
        return status.uid

    return await asyncio.gather(*(one() for _ in range(count)))


async def _calm_calls(story: Story, *, passes: int) -> tuple[timedelta, Counter[str]]:
    """Return the calls that nothing but the watch has a reason to make, and in what time."""
    await _no_node_asked_about(story)
    begun, before = story.clock(), len(story.calls())
    while len(story.calls()) < before + passes:
        await asyncio.sleep(0.05)
    return story.clock() - begun, Counter(call.call for call in story.calls(after=before))


async def _no_node_asked_about(story: Story) -> None:
    """Wait until the watch goes at its calm pace."""
    end = story.clock() + SOON
    calm = story.settings.watch_interval * 0.8
    while True:
        last, newest = story.calls(Call.LIST)[-2:]
        if newest.at - last.at >= calm:
            return
        assert story.clock() < end, "the watch does not come to rest"
        await asyncio.sleep(0.1)


def _tell(case: Case, took: timedelta, kinds: Mapping[str, int]) -> None:
    if case is LITERAL:
        calls = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        print(f"\n{case.launched} clusters run after {took.total_seconds():.1f} s: {calls}")  # noqa: T201


class Overheard:
    """A provider that tells nobody its limit, and remembers who called in spite of a 429.

    What counts is what was sent after an answer had come: a call that is under way by then
    cannot be called back.
    """

    def __init__(self, provider: SimulatedProvider, clock: Callable[[], datetime]) -> None:
        self._provider = provider
        self._clock = clock
        self._closed_until: datetime | None = None
        self.refused = 0
        self.too_early: list[str] = []

    @property
    def facts(self) -> ProviderFacts:
        return self._provider.facts.model_copy(update={"calls_per_second": None})

    @property
    def workloads(self) -> Workloads | None:
        return self._provider.workloads

    async def list_offers(self, query: OfferQuery) -> Sequence[Offer]:
        return await self._listen("offers", self._provider.list_offers(query))

    async def launch_group(self, request: GroupRequest) -> Group | Refusal:
        return await self._listen("launch", self._provider.launch_group(request))

    async def list_groups(self) -> Sequence[Group]:
        return await self._listen("list", self._provider.list_groups())

    async def restart_node(self, provider_id: str, token: str) -> RestartResult:
        return await self._listen("restart", self._provider.restart_node(provider_id, token))

    async def terminate_group(self, token: str) -> None:
        await self._listen("terminate", self._provider.terminate_group(token))

    async def _listen(self, call: str, answer: Awaitable[T]) -> T:
        if self._closed_until is not None and self._clock() < self._closed_until:
            self.too_early.append(call)
        try:
            return await answer
        except GarrisonError as error:
            if isinstance(error, TooManyRequests):
                self.refused += 1
                # A little less, for the answer was some time on its way.
                pause = timedelta(seconds=(error.retry_after_seconds or 0) * 0.9)
                self._closed_until = self._clock() + pause
            raise


async def test_a22_an_unknown_limit_is_learnt_and_every_retry_after_is_honoured(
    story: Story,
) -> None:
    story.use(calls_per_second=2, retry_after=timedelta(seconds=2))
    cloud = Overheard(story.provider, story.clock)
    parts = replace(story.parts, providers={story.name: cloud})

    async with build_worker(story.client, parts):
        uids = await _running_at_once(story, 3, timedelta(seconds=60))

    assert cloud.refused > 0
    assert cloud.too_early == []
    assert {story.console.peak(uid=uid) for uid in uids} == {2}
    assert len(story.machines()) == 6


async def test_a_quote_that_must_wait_too_long_for_the_provider_says_so_at_once(
    story: Story,
) -> None:
    async with story.worker():
        await _close_the_gate(story, seconds=100)
        begun = story.clock()
        with pytest.raises(TooManyRequests, match="rate limit"):
            await story.quote()

    assert story.clock() - begun < timedelta(seconds=20)
    assert story.calls(Call.LIST_OFFERS) == []


async def test_a_terminate_while_the_purchase_waits_for_its_turn_buys_nothing(
    story: Story,
) -> None:
    async with story.worker():
        quote = await story.quote()
        await _close_the_gate(story, seconds=6)
        told = len(story.calls())
        await story.clusters.launch(quote.name, quote_id=quote.quote_id)
        await story.until(quote.name, in_phase(Phase.LAUNCHING))
        await story.clusters.terminate(quote.name)
        ended = await story.until(quote.name, in_phase(Phase.TERMINATED))

    after = story.calls(after=told)
    assert story.calls(Call.LAUNCH) == []
    assert story.console.peak(uid=quote.uid) == 0
    assert ended.cost_usd == 0
    assert after[0].at - story.calls()[told - 1].at >= timedelta(seconds=6)


async def _close_the_gate(story: Story, *, seconds: float) -> None:
    """Have the provider refuse the watch's next list, for so long."""
    story.fault(Call.LIST, code="RequestLimitExceeded", retry_after_seconds=seconds)
    while not any(call.result == "too_many_requests" for call in story.calls()):
        await asyncio.sleep(0.02)
