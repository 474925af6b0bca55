"""The gate before a provider, on a loop whose time passes at once."""

from __future__ import annotations

import asyncio
import itertools
import logging
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeVar

import pytest

from garrison.errors import GarrisonError, ProviderError, ProviderUnreachable, TooManyRequests
from garrison.failures import as_application_error, retry_after_of
from garrison.models.group import Group, GroupRequest, Refusal, RestartResult
from garrison.models.offer import Offer, OfferQuery
from garrison.models.provider import ProviderFacts
from garrison.providers.pacing import Gate, PacedProvider, behind_gate
from garrison.providers.turns import Kind, Turns

T = TypeVar("T")
ANSWER_TAKES = 0.01


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for its timers: its clock jumps to the next one."""

    def __init__(self) -> None:
        super().__init__(_SkippingSelector(self))
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class _SkippingSelector(selectors.SelectSelector):
    def __init__(self, loop: SkippingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits for something that never comes"
        self._loop.now += timeout
        return super().select(0)


def virtually(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(main)


class Wire:
    """A provider that keeps when it was called, and answers as it is told to."""

    def __init__(self, calls_per_second: float | None = None) -> None:
        self.facts = ProviderFacts(
            name="cloud",
            type="wire",
            calls_per_second=calls_per_second,
            effect_bound=timedelta(seconds=10),
        )
        self.workloads = None
        self.calls: list[tuple[float, str]] = []
        self.errors: dict[int, GarrisonError] = {}
        self.takes = ANSWER_TAKES

    async def list_offers(self, query: OfferQuery) -> Sequence[Offer]:
        return await self._answer("offers", ())

    async def launch_group(self, request: GroupRequest) -> Group | Refusal:
        return await self._answer("launch", Refusal(message="sold out"))

    async def list_groups(self) -> Sequence[Group]:
        return await self._answer("list", ())

    async def restart_node(self, provider_id: str, token: str) -> RestartResult:
        return await self._answer("restart", RestartResult.GONE)

    async def terminate_group(self, token: str) -> None:
        await self._answer("terminate", None)

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.calls]

    async def _answer(self, call: str, answer: T) -> T:
        error = self.errors.get(len(self.calls))
        self.calls.append((asyncio.get_running_loop().time(), call))
        await asyncio.sleep(self.takes)
        if error is not None:
            raise error
        return answer


class Meter:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.results: Counter[tuple[str, str]] = Counter()
        self.seconds: list[float] = []
        self.held: Counter[str] = Counter()

    def called(self, kind: Kind, result: str, seconds: float) -> None:
        self.results[kind, result] += 1
        self.seconds.append(seconds)

    def held_back(self, kind: Kind) -> None:
        self.held[kind] += 1


def order(number: int) -> GroupRequest:
    return GroupRequest(
        token=f"t{number}",
        owner="cluster/c",
        uid="u",
        name="c",
        region="r",
        instance_type="m",
        count=2,
        max_usd_per_node_hour=Decimal(1),
    )


def paced(wire: Wire, meter: Meter | None = None, jitter: float = 0.0) -> PacedProvider:
    gate = Gate("cloud", Turns(wire.facts.calls_per_second), jitter=lambda: jitter)
    return behind_gate(wire, gate=gate, meter=meter)


async def _until_sent(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call as an activity does: again when it is told to."""
    while True:
        try:
            return await call()
        except TooManyRequests as error:
            await asyncio.sleep(error.retry_after_seconds or 0)


def test_calls_of_every_kind_share_one_pace() -> None:
    wire = Wire(calls_per_second=2)

    async def main() -> None:
        provider = paced(wire)
        await asyncio.gather(
            provider.list_groups(),
            provider.launch_group(order(0)),
            provider.terminate_group("t0"),
            provider.restart_node("n", "r"),
            provider.list_offers(OfferQuery()),
        )

    virtually(main())

    gaps = [later - time for time, later in itertools.pairwise(wire.times)]
    assert gaps == pytest.approx([0.5] * 4)
    assert {call for _, call in wire.calls} == {"list", "launch", "terminate", "restart", "offers"}


def test_without_a_limit_no_call_waits() -> None:
    wire = Wire()

    async def main() -> None:
        provider = paced(wire)
        await asyncio.gather(*(provider.launch_group(order(n)) for n in range(200)))

    virtually(main())

    assert len(wire.calls) == 200
    assert len(set(wire.times)) == 1


def test_after_a_retry_after_no_call_of_any_kind_goes_out_until_it_is_over() -> None:
    wire = Wire()
    wire.errors[0] = TooManyRequests("slow down", retry_after_seconds=7)

    async def main() -> float:
        provider = paced(wire)
        with pytest.raises(TooManyRequests):
            await provider.list_groups()
        told_at = asyncio.get_running_loop().time()
        await asyncio.gather(
            provider.terminate_group("t"), provider.launch_group(order(0)), provider.list_groups()
        )
        return told_at

    told_at = virtually(main())

    assert len(wire.calls) == 4
    assert wire.times[1] == pytest.approx(told_at + 7)
    # One by one, as nothing is known of the limit but that it was reached.
    assert min(later - time for time, later in itertools.pairwise(wire.times[1:])) >= 0.5


def test_a_429_without_a_time_keeps_everybody_away_for_a_second() -> None:
    wire = Wire()
    wire.errors[0] = TooManyRequests("slow down")

    async def main() -> None:
        provider = paced(wire)
        with pytest.raises(TooManyRequests):
            await provider.list_groups()
        await provider.list_groups()

    virtually(main())

    assert wire.times[1] - wire.times[0] == pytest.approx(1 + ANSWER_TAKES)


def test_a_retry_after_of_one_thing_keeps_no_other_call_away() -> None:
    wire = Wire()
    wire.errors[0] = ProviderError("IncorrectInstanceState: try again in 60 seconds")
    wire.errors[0].retry_after_seconds = 60

    async def main() -> float | None:
        provider = paced(wire)
        with pytest.raises(ProviderError) as caught:
            await provider.terminate_group("t1")
        await provider.terminate_group("t2")
        return caught.value.retry_after_seconds

    after = virtually(main())

    assert wire.times[1] - wire.times[0] == pytest.approx(ANSWER_TAKES)
    assert after == 60


def test_a_provider_that_is_down_without_a_time_closes_nothing() -> None:
    wire = Wire()
    wire.errors[0] = ProviderUnreachable("connection reset")

    async def main() -> None:
        provider = paced(wire)
        with pytest.raises(ProviderUnreachable):
            await provider.list_groups()
        await provider.list_groups()

    virtually(main())

    assert wire.times[1] - wire.times[0] == pytest.approx(ANSWER_TAKES)


def test_a_misread_retry_after_of_years_is_not_believed() -> None:
    wire = Wire()
    wire.errors[0] = TooManyRequests("slow down", retry_after_seconds=1e9)

    async def main() -> None:
        provider = paced(wire)
        with pytest.raises(TooManyRequests):
            await provider.list_groups()
        await _until_sent(lambda: provider.terminate_group("t"))

    virtually(main())

    assert 900 <= wire.times[1] - wire.times[0] <= 1000


def test_those_who_were_told_to_wait_come_again_at_different_times() -> None:
    async def told(jitter: float) -> float:
        wire = Wire()
        wire.errors[0] = TooManyRequests("slow down", retry_after_seconds=7)
        with pytest.raises(TooManyRequests) as caught:
            await paced(wire, jitter=jitter).list_groups()
        assert caught.value.retry_after_seconds is not None
        return caught.value.retry_after_seconds

    times = [virtually(told(jitter)) for jitter in (0.0, 0.5, 0.99)]

    assert times[0] == 7
    assert times == sorted(set(times))
    assert times[-1] < 9


def test_temporal_makes_a_refused_call_again_when_it_was_told_to() -> None:
    error = TooManyRequests("slow down", retry_after_seconds=7.25)

    failure = as_application_error(error)

    assert failure.next_retry_delay == timedelta(seconds=7.25)
    assert not failure.non_retryable
    assert retry_after_of(failure) == 7.25


def test_a_wait_beyond_patience_is_refused_at_once_and_sends_nothing() -> None:
    wire, meter = Wire(), Meter()
    wire.errors[0] = TooManyRequests("slow down", retry_after_seconds=100)

    async def main() -> tuple[float, float | None]:
        provider = paced(wire, meter)
        with pytest.raises(TooManyRequests):
            await provider.list_groups()
        begun = asyncio.get_running_loop().time()
        with pytest.raises(TooManyRequests) as caught:
            await provider.launch_group(order(0))
        return asyncio.get_running_loop().time() - begun, caught.value.retry_after_seconds

    waited, after = virtually(main())

    assert waited == 0
    assert after is not None
    assert 80 < after <= 100
    assert [call for _, call in wire.calls] == ["list"]
    assert meter.held == {Kind.LAUNCH: 1}


def test_a_gate_that_closes_during_a_wait_gives_the_slot_back_in_time() -> None:
    wire, meter = Wire(calls_per_second=2), Meter()
    wire.errors[0] = TooManyRequests("slow down", retry_after_seconds=60)
    wire.takes = 0.7

    async def main() -> float:
        provider = paced(wire, meter)
        first = asyncio.create_task(provider.list_groups())
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(provider.launch_group(order(n))) for n in range(3)]
        begun = asyncio.get_running_loop().time()
        outcomes = await asyncio.gather(first, *waiting, return_exceptions=True)
        assert [type(one) for one in outcomes[2:]] == [TooManyRequests] * 2
        return asyncio.get_running_loop().time() - begun

    took = virtually(main())

    assert took == pytest.approx(20)
    assert [call for _, call in wire.calls] == ["list", "launch"]
    assert meter.held == {Kind.LAUNCH: 2}


def test_a_hundred_launches_hold_no_slot_that_a_terminate_needs() -> None:
    wire = Wire(calls_per_second=2)

    async def main() -> tuple[int, float]:
        provider = paced(wire, jitter=0.5)
        launches = [
            asyncio.create_task(_until_sent(lambda n=n: provider.launch_group(order(n))))  # type: ignore[misc]
            for n in range(100)
        ]
        await asyncio.sleep(3)
        begun = asyncio.get_running_loop().time()
        await provider.terminate_group("t")
        waited = asyncio.get_running_loop().time() - begun
        await asyncio.gather(*launches)
        return len(launches), waited

    launched, waited = virtually(main())

    assert waited < 2
    assert Counter(call for _, call in wire.calls) == {"launch": launched, "terminate": 1}
    # All of them as fast as the limit allows, give or take some who came back a little late.
    assert wire.times[-1] - wire.times[0] < 1.5 * launched / 2


def test_a_cancel_at_the_gate_ends_the_wait_at_once_and_the_purchase_is_never_made() -> None:
    wire, meter = Wire(), Meter()
    wire.errors[0] = TooManyRequests("slow down", retry_after_seconds=15)

    async def main() -> float:
        provider = paced(wire, meter)
        with pytest.raises(TooManyRequests):
            await provider.list_groups()
        purchase = asyncio.create_task(provider.launch_group(order(0)))
        await asyncio.sleep(1)
        begun = asyncio.get_running_loop().time()
        purchase.cancel()
        with pytest.raises(asyncio.CancelledError):
            await purchase
        waited = asyncio.get_running_loop().time() - begun
        await asyncio.sleep(60)
        return waited

    waited = virtually(main())

    assert waited == 0
    assert [call for _, call in wire.calls] == ["list"]
    assert not any(kind is Kind.LAUNCH for kind, _ in meter.results)


def test_a_cancel_in_the_instant_in_which_the_turn_comes_makes_no_purchase_either() -> None:
    wire = Wire(calls_per_second=1)

    async def main() -> None:
        provider = paced(wire)
        await provider.list_groups()
        purchase = asyncio.create_task(provider.launch_group(order(0)))
        loop = asyncio.get_running_loop()
        # Right behind the timer of the gate, before the purchase itself can go on.
        await asyncio.sleep(0)
        loop.call_at(wire.times[0] + 1, purchase.cancel)
        with pytest.raises(asyncio.CancelledError):
            await purchase
        await asyncio.sleep(5)

    virtually(main())

    assert [call for _, call in wire.calls] == ["list"]


def test_a_refusal_in_the_instant_in_which_a_turn_comes_still_holds_the_call_back() -> None:
    wire = Wire(calls_per_second=1)
    gate = Gate("cloud", Turns(1), jitter=lambda: 0.0)

    async def main() -> None:
        provider = behind_gate(wire, gate=gate)
        await provider.list_groups()
        launch = asyncio.create_task(provider.launch_group(order(0)))
        await asyncio.sleep(0)
        # Right behind the timer of the gate, before the launch itself can go on.
        refusal = TooManyRequests("slow down", retry_after_seconds=7)
        loop = asyncio.get_running_loop()
        loop.call_at(wire.times[0] + 1, gate.answered, refusal, wire.times[0])
        await launch

    virtually(main())

    assert wire.times[1] - wire.times[0] == pytest.approx(8)


def test_a_cancel_of_a_purchase_that_was_sent_waits_for_its_outcome() -> None:
    wire = Wire()
    wire.takes = 5

    async def main() -> object:
        purchase = asyncio.create_task(paced(wire).launch_group(order(0)))
        await asyncio.sleep(1)
        purchase.cancel()
        return await purchase

    outcome = virtually(main())

    assert outcome == Refusal(message="sold out")


def test_a_cancel_of_a_purchase_without_an_outcome_ends_after_its_effect_bound() -> None:
    wire, meter = Wire(), Meter()
    wire.takes = 500

    async def main() -> float:
        purchase = asyncio.create_task(paced(wire, meter).launch_group(order(0)))
        await asyncio.sleep(1)
        begun = asyncio.get_running_loop().time()
        purchase.cancel()
        with pytest.raises(asyncio.CancelledError):
            await purchase
        return asyncio.get_running_loop().time() - begun

    waited = virtually(main())

    assert waited == pytest.approx(10)


def test_those_who_ask_for_the_same_offers_at_once_share_one_call() -> None:
    wire = Wire(calls_per_second=2)

    async def main() -> None:
        provider = paced(wire)
        await provider.list_groups()  # the next call waits for its turn
        await asyncio.gather(*(provider.list_offers(OfferQuery()) for _ in range(30)))
        await provider.list_offers(OfferQuery())

    virtually(main())

    assert [call for _, call in wire.calls] == ["list", "offers", "offers"]


def test_those_who_ask_for_other_offers_get_their_own() -> None:
    wire = Wire()

    async def main() -> None:
        provider = paced(wire)
        here, there = OfferQuery(region="here"), OfferQuery(region="there")
        await asyncio.gather(provider.list_offers(here), provider.list_offers(there))

    virtually(main())

    assert len(wire.calls) == 2


def test_one_who_gives_up_takes_the_offers_from_nobody_else() -> None:
    wire = Wire()
    wire.takes = 2

    async def main() -> tuple[object, object]:
        provider = paced(wire)
        first, second = (asyncio.create_task(provider.list_offers(OfferQuery())) for _ in range(2))
        await asyncio.sleep(1)
        first.cancel()
        return tuple(await asyncio.gather(first, second, return_exceptions=True))  # type: ignore[return-value]

    first, second = virtually(main())

    assert isinstance(first, asyncio.CancelledError)
    assert second == ()


def test_offers_that_nobody_waits_for_any_more_are_not_asked_for() -> None:
    wire = Wire(calls_per_second=1)

    async def main() -> None:
        provider = paced(wire)
        await provider.list_groups()
        asking = asyncio.create_task(provider.list_offers(OfferQuery()))
        await asyncio.sleep(0.5)
        asking.cancel()
        await asyncio.sleep(0.1)
        await provider.list_offers(OfferQuery())

    virtually(main())

    assert [call for _, call in wire.calls] == ["list", "offers"]


def test_an_error_of_the_offers_reaches_everybody_who_asked() -> None:
    wire = Wire()
    wire.errors[0] = ProviderUnreachable("connection reset")

    async def main() -> list[object]:
        provider = paced(wire)
        asking = (provider.list_offers(OfferQuery()) for _ in range(3))
        return await asyncio.gather(*asking, return_exceptions=True)

    outcomes = virtually(main())

    assert [type(one) for one in outcomes] == [ProviderUnreachable] * 3


def test_an_adapter_beside_another_stands_behind_the_same_gate() -> None:
    wire, other = Wire(calls_per_second=2), Wire(calls_per_second=2)

    async def main() -> None:
        provider = paced(wire)
        beside = provider.beside(other)
        await asyncio.gather(provider.list_groups(), beside.list_groups())

    virtually(main())

    assert abs(other.times[0] - wire.times[0]) == pytest.approx(0.5)


def test_every_call_is_metered_by_its_result() -> None:
    wire, meter = Wire(), Meter()
    wire.errors[4] = ProviderError("gremlins")

    async def main() -> None:
        provider = paced(wire, meter)
        await provider.list_groups()
        await provider.launch_group(order(0))
        await provider.restart_node("n", "r")
        await provider.terminate_group("t")
        with pytest.raises(ProviderError):
            await provider.list_offers(OfferQuery())

    virtually(main())

    assert meter.results == {
        (Kind.LIST, "ok"): 1,
        (Kind.LAUNCH, "refusal"): 1,
        (Kind.RESTART, "gone"): 1,
        (Kind.TERMINATE, "ok"): 1,
        (Kind.OFFERS, "provider_error"): 1,
    }
    assert meter.seconds == pytest.approx([ANSWER_TAKES] * 5)


def test_calls_per_minute_are_logged_and_a_reached_limit_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wire = Wire()
    wire.errors[5] = TooManyRequests("slow down", retry_after_seconds=1)
    caplog.set_level(logging.INFO, logger="garrison.providers.pacing")

    async def main() -> None:
        provider = paced(wire)
        for _ in range(10):
            await _until_sent(provider.list_groups)
            await asyncio.sleep(15)

    virtually(main())

    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        ("INFO", "calls to cloud in a minute: 4 list"),
        ("WARNING", "calls to cloud in a minute: 5 list, 1 too_many_requests"),
    ]
