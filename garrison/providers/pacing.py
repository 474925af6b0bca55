"""The gate before a provider: every call of the port passes it, and none when it is closed.

There is one gate per provider and process, shared by all activities and the watch. It paces calls
to the account's rate limit and honours `Retry-After` for all of them, whoever was told. Workers in
other processes have gates of their own, which learn from the answers that they get.

What runs on nodes goes over SSH and does not count against the account, so it passes no gate.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from garrison.errors import (
    ErrorCode,
    GarrisonError,
    ProviderUnreachable,
    TooManyRequests,
)
from garrison.models.group import Group, GroupRequest, Refusal, RestartResult
from garrison.models.offer import Offer, OfferQuery
from garrison.models.provider import ProviderFacts
from garrison.providers.base import Provider, SeesInstallations, Workloads
from garrison.providers.turns import Kind, Ticket, Turns

PATIENCE = 20.0
"""Seconds that a call waits for its turn at most; longer waits are Temporal's, and hold no slot."""
PATIENCE_OF = {Kind.OFFERS: 8.0, Kind.TERMINATE: 60.0}
"""Below what their activities are given; those of the rest are given minutes."""
WAITING_AT_MOST = 25
"""Of each kind; so some of a worker's 100 slots are always left for terminates."""
UNNAMED = 1.0
"""Seconds to keep away after a refusal that does not say how long."""
LONGEST = 900.0
"""A misread `Retry-After` must not keep machines that cost money for days."""
MINUTE = 60.0
HELD_BACK = "held_back"

T = TypeVar("T")

logger = logging.getLogger(__name__)


class CallMeter(Protocol):
    """Is told of every call."""

    def called(self, kind: Kind, result: str, seconds: float) -> None:
        """Count a call that was answered.

        Args:
            kind: Of the call.
            result: `ok`, `refusal`, `cancelled`, a restart's result, or an error's code.
            seconds: From sending to the answer.
        """
        ...

    def held_back(self, kind: Kind) -> None:
        """Count a call that was not sent, as its turn was too far away."""
        ...


class Unmetered:
    """Tells nobody."""

    def called(self, kind: Kind, result: str, seconds: float) -> None:
        """See `CallMeter.called`."""

    def held_back(self, kind: Kind) -> None:
        """See `CallMeter.held_back`."""


class Gate:
    """Lets the calls to one provider out, one at a time."""

    def __init__(
        self, provider: str, turns: Turns, *, jitter: Callable[[], float] = random.random
    ) -> None:
        """Open the gate.

        Args:
            provider: Its name, for messages.
            turns: The rule.
            jitter: Uniform in [0, 1).
        """
        self._provider = provider
        self._turns = turns
        self._jitter = jitter
        self._granted: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, kind: Kind) -> float:
        """Wait for a turn and return its time by the event loop's clock; the call goes out next.

        A cancel ends the wait at once, and the call must then not be made.

        Raises:
            TooManyRequests: It is too far away; it says when to come again.
        """
        loop = asyncio.get_running_loop()
        patience = PATIENCE_OF.get(kind, PATIENCE)
        wait = self._turns.expected_wait(kind, loop.time())
        full = kind is not Kind.TERMINATE and self._turns.waiting(kind) >= WAITING_AT_MOST
        if full or wait > patience:
            raise self._come_again(wait, patience)
        try:
            async with asyncio.timeout(patience):
                while True:
                    await self._granted_turn(kind, loop)
                    # The provider may have refused another call in this very moment.
                    if not self._turns.closed(loop.time()):
                        return loop.time()
        except TimeoutError:
            wait = self._turns.expected_wait(kind, loop.time())
            raise self._come_again(wait, patience) from None

    def answered(self, error: GarrisonError, sent_at: float) -> None:
        """Learn from a call that failed, and spread those that will come again.

        What the provider says of the account holds for every call; a `Retry-After` in a refusal
        of one thing, a machine that cannot be deleted yet say, is the business of that call.
        """
        if not isinstance(error, TooManyRequests | ProviderUnreachable):
            return
        after = error.retry_after_seconds
        if after is None and not isinstance(error, TooManyRequests):
            return
        after = UNNAMED if after is None else min(max(after, 0.0), LONGEST)
        loop = asyncio.get_running_loop()
        self._turns.refused(sent_at=sent_at, now=loop.time(), after=after)
        error.retry_after_seconds = after + self._jitter() * max(1.0, after / 4)
        self._let_out(loop)

    async def _granted_turn(self, kind: Kind, loop: asyncio.AbstractEventLoop) -> None:
        ticket = self._turns.arrive(kind)
        granted = self._granted[ticket] = loop.create_future()
        self._let_out(loop)
        try:
            await granted
        finally:
            self._granted.pop(ticket, None)
            self._turns.withdraw(ticket)

    def _come_again(self, wait: float, patience: float) -> TooManyRequests:
        # Back when about half a patience is left to wait, each at another time.
        after = max(1.0, wait - patience / 2 * (1 - self._jitter()))
        return TooManyRequests(
            f"calls to {self._provider} wait for its rate limit", retry_after_seconds=after
        )

    def _let_out(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (ticket := self._turns.take(loop.time())) is not None:
            granted = self._granted.get(ticket)
            if granted is not None and not granted.done():
                granted.set_result(None)
        if self._turns.waiting():
            opens = self._turns.opens_at(loop.time())
            self._timer = loop.call_at(opens, self._let_out, loop)


@dataclass(slots=True)
class _Flight:
    """A call that several callers wait for."""

    task: asyncio.Task[Sequence[Offer]]
    waiting: int = 0


class PacedProvider:
    """A provider behind its gate; implements `Provider`.

    A cancel of a call that waits for its turn ends it at once, unsent. A cancel of a launch that
    was sent waits for its outcome, as far as `effect_bound`: an abandoned purchase is a machine
    nobody knows.
    """

    def __init__(self, provider: Provider, *, gate: Gate, meter: CallMeter) -> None:
        self._provider = provider
        self._gate = gate
        self._meter = meter
        self._flights: dict[str, _Flight] = {}
        self._minute: tuple[float, Counter[str]] | None = None

    @property
    def facts(self) -> ProviderFacts:
        """See `Provider.facts`."""
        return self._provider.facts

    @property
    def workloads(self) -> Workloads | None:
        """See `Provider.workloads`; these pass no gate."""
        return self._provider.workloads

    async def list_offers(self, query: OfferQuery) -> Sequence[Offer]:
        """See `Provider.list_offers`; callers who ask the same at the same time share one call.

        What is sold does not depend on who asks. An answer is never kept, so a price is as old as
        its call.
        """
        key = query.model_dump_json()
        flight = self._flights.get(key)
        if flight is None:
            call = self._call(Kind.OFFERS, lambda: self._provider.list_offers(query))
            flight = self._flights[key] = _Flight(asyncio.create_task(call))
            flight.task.add_done_callback(lambda _: self._land(key, flight))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                flight.task.cancel()
                self._land(key, flight)

    async def launch_group(self, request: GroupRequest) -> Group | Refusal:
        """See `Provider.launch_group`."""
        return await self._call(
            Kind.LAUNCH,
            lambda: self._provider.launch_group(request),
            to_the_end_within=self.facts.effect_bound.total_seconds(),
        )

    async def list_groups(self) -> Sequence[Group]:
        """See `Provider.list_groups`."""
        return await self._call(Kind.LIST, self._provider.list_groups)

    async def restart_node(self, provider_id: str, token: str) -> RestartResult:
        """See `Provider.restart_node`."""
        return await self._call(
            Kind.RESTART, lambda: self._provider.restart_node(provider_id, token)
        )

    async def terminate_group(self, token: str) -> None:
        """See `Provider.terminate_group`."""
        await self._call(Kind.TERMINATE, lambda: self._provider.terminate_group(token))

    def beside(self, other: Provider) -> PacedProvider:
        """Return the same account as another adapter sees it, behind the same gate."""
        return behind_gate(other, gate=self._gate, meter=self._meter)

    def _land(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    async def _call(
        self,
        kind: Kind,
        send: Callable[[], Awaitable[T]],
        *,
        to_the_end_within: float | None = None,
    ) -> T:
        try:
            sent_at = await self._gate.turn(kind)
        except TooManyRequests:
            self._meter.held_back(kind)
            self._tally(HELD_BACK)
            raise
        answer = self._answer(kind, sent_at, send)
        if to_the_end_within is None:
            return await answer
        return await to_the_end(answer, bound=to_the_end_within)

    async def _answer(self, kind: Kind, sent_at: float, send: Callable[[], Awaitable[T]]) -> T:
        result = str(ErrorCode.INTERNAL)
        try:
            answer = await send()
            result = _result_of(answer)
        except GarrisonError as error:
            result = str(error.code)
            self._gate.answered(error, sent_at)
            raise
        except asyncio.CancelledError:
            result = "cancelled"
            raise
        finally:
            self._meter.called(kind, result, asyncio.get_running_loop().time() - sent_at)
            self._tally(kind)
            if result == ErrorCode.TOO_MANY_REQUESTS:
                self._tally(result)
        return answer

    def _tally(self, what: str) -> None:
        """Count for the log, and write a line once a minute is over."""
        now = asyncio.get_running_loop().time()
        if self._minute is not None and now - self._minute[0] >= MINUTE:
            _log_minute(self.facts.name, self._minute[1])
            self._minute = None
        if self._minute is None:
            self._minute = (now, Counter())
        self._minute[1][what] += 1


class _PacedSeer(PacedProvider):
    """A provider behind its gate that is also a `SeesInstallations`."""

    def __init__(
        self, seer: SeesInstallations, provider: Provider, gate: Gate, meter: CallMeter
    ) -> None:
        super().__init__(provider, gate=gate, meter=meter)
        self._seer = seer

    async def other_installations(self) -> Mapping[str, int]:
        """See `SeesInstallations.other_installations`."""
        return await self._call(Kind.LIST, self._seer.other_installations)


def behind_gate(
    provider: Provider, *, gate: Gate | None = None, meter: CallMeter | None = None
) -> PacedProvider:
    """Return a provider behind a gate, with all that the adapter itself can do.

    Args:
        provider: The adapter.
        gate: None makes one after the provider's own limit.
        meter: Is told of every call.
    """
    facts = provider.facts
    gate = gate or Gate(facts.name, Turns(facts.calls_per_second))
    meter = meter or Unmetered()
    if isinstance(provider, SeesInstallations):
        return _PacedSeer(provider, provider, gate, meter)
    return PacedProvider(provider, gate=gate, meter=meter)


def _log_minute(provider: str, counts: Counter[str]) -> None:
    over = counts[HELD_BACK] or counts[ErrorCode.TOO_MANY_REQUESTS]
    text = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()) if count)
    level = logging.WARNING if over else logging.INFO
    logger.log(level, "calls to %s in a minute: %s", provider, text)


def _result_of(answer: object) -> str:
    if isinstance(answer, Refusal):
        return "refusal"
    return str(answer) if isinstance(answer, RestartResult) else "ok"


async def to_the_end(call: Awaitable[T], *, bound: float) -> T:
    """Await a call that must not be abandoned half-way: a cancel waits for its outcome.

    Args:
        call: A provider call that may buy something.
        bound: How many seconds to wait after a cancel.

    Raises:
        asyncio.CancelledError: Cancelled, and the outcome did not come within `bound`.
    """
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.done():
            raise
        done, _ = await asyncio.wait({task}, timeout=bound)
        if done:
            return task.result()
        task.cancel()
        raise
