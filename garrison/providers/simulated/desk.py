"""The cloud's front desk: every call passes here for limits, scripted faults and the log.

A call is one transaction: due effects of earlier calls, the rate limit, the fault rules, its own
effect and its line in the log are kept together or not at all. Only a call that a rule makes
wait before its effect takes two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Generic, TypeVar

from garrison.errors import GarrisonError, ProviderUnreachable, TooManyRequests
from garrison.models.base import Message
from garrison.models.group import Refusal, RestartResult
from garrison.providers.simulated import machines, orders
from garrison.providers.simulated.faults import (
    RESPONSE_LOST,
    Call,
    Fault,
    Hits,
    Target,
    When,
    take_hits,
)
from garrison.providers.simulated.store import Clock, Store, Tx, micros, span

CALLS_KEPT = 100_000
_PRUNE_EVERY = 1024
_SECOND = 1_000_000
_LIMITED = {Call.LIST_OFFERS, Call.LAUNCH, Call.LIST, Call.RESTART, Call.TERMINATE}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limit:
    """The account's rate limit, and what an answer beyond it says to wait."""

    calls_per_second: float | None
    retry_after: timedelta


@dataclass(frozen=True, slots=True)
class Visit:
    """One call inside its transaction.

    Attributes:
        now: The time at which it takes effect.
        hits: The fault rules that act on it.
    """

    tx: Tx
    now: int
    target: Target
    hits: Hits

    def delay(self, order: Message) -> None:
        """Put an effect off if a rule says so.

        Raises:
            Delayed: It does; the order is on paper.
        """
        seconds = self.hits.seconds(Fault.DELAYED_EFFECT)
        if not seconds:
            return
        effect_at = self.now + span(seconds)
        self.tx.execute(
            'INSERT INTO pending (effect_at, call, "order") VALUES (?, ?, ?)',
            (effect_at, self.target.call, order.model_dump_json()),
        )
        raise Delayed(effect_at)


class Delayed(Exception):
    """The effect comes later, and with it the answer. Never leaves the desk."""

    def __init__(self, effect_at: int) -> None:
        self.effect_at = effect_at


@dataclass(frozen=True, slots=True)
class _Step(Generic[T]):
    """How far a call has come.

    Attributes:
        outcome: The answer, or the error that is the answer; None before the effect.
    """

    number: int
    target: Target
    hits: Hits
    outcome: T | GarrisonError | Delayed | None = None


class Desk:
    """Takes the calls of one provider account."""

    def __init__(self, store: Store, clock: Clock, limit: Limit) -> None:
        self._store = store
        self._clock = clock
        self._limit = limit

    async def call(
        self, describe: Callable[[Tx], tuple[Target, bool]], effect: Callable[[Visit], T]
    ) -> T:
        """Carry out one call with all that is scripted for it.

        Args:
            describe: Returns what the call is about, and whether it repeats a purchase.
            effect: Changes the paper and returns the answer, never None; raises an error as the
                answer. What it wrote before raising is kept.
        """
        step = await asyncio.to_thread(self._receive, describe, effect)
        if step.outcome is None:
            await asyncio.sleep(step.hits.seconds(Fault.LATENCY, When.BEFORE))
            step = await asyncio.to_thread(self._carry_out, step, effect)
        await asyncio.sleep(step.hits.seconds(Fault.LATENCY, When.AFTER))
        if isinstance(step.outcome, Delayed):
            effect_at = step.outcome.effect_at
            step = await asyncio.to_thread(self._look_again, step, effect_at, effect)
        return _answer(step)

    def _receive(
        self, describe: Callable[[Tx], tuple[Target, bool]], effect: Callable[[Visit], T]
    ) -> _Step[T]:
        with self._store.transaction() as tx:
            now = micros(self._clock())
            apply_due(tx, now)
            target, repeated = describe(tx)
            early = _in_window(tx, target, now)
            number = _log_call(tx, target, now, early=early)
            refused = self._throttle(tx, now) if target.call in _LIMITED else None
            if refused is not None:
                _log_result(tx, number, str(refused.code))
                return _Step(number, target, Hits(), refused)
            hits = take_hits(tx, target, now, replayed=repeated)
            step: _Step[T] = _Step(number, target, hits)
            if hits.seconds(Fault.LATENCY, When.BEFORE):
                return step
            return _take_effect(tx, now, step, effect)

    def _carry_out(self, step: _Step[T], effect: Callable[[Visit], T]) -> _Step[T]:
        with self._store.transaction() as tx:
            now = micros(self._clock())
            apply_due(tx, now)
            return _take_effect(tx, now, step, effect)

    def _look_again(self, step: _Step[T], effect_at: int, effect: Callable[[Visit], T]) -> _Step[T]:
        """Answer a caller who waited, if the delayed effect has come by now."""
        with self._store.transaction() as tx:
            now = micros(self._clock())
            apply_due(tx, now)
            if now < effect_at:
                return replace(step, outcome=ProviderUnreachable(RESPONSE_LOST))
            calm = Hits(tuple(r for r in step.hits.rules if r.what is not Fault.DELAYED_EFFECT))
            return _take_effect(tx, now, replace(step, hits=calm), effect)

    def _throttle(self, tx: Tx, now: int) -> TooManyRequests | None:
        """Take one token of the bucket, or say how long to wait."""
        rate = self._limit.calls_per_second
        if rate is None:
            return None
        closed = _window(tx, "", now)
        if closed is None:
            level = _refilled(tx, rate, now)
            if level >= 1:
                _set_level(tx, level - 1, now)
                return None
            closed = now + span(self._limit.retry_after)
            open_window(tx, "", closed, now)
        wait = (closed - now) / _SECOND
        return TooManyRequests(
            f"RequestLimitExceeded: more than {rate:g} calls per second; retry after {wait:g} s",
            retry_after_seconds=wait,
        )


def apply_due(tx: Tx, now: int) -> None:
    """Let every delayed effect happen whose time has come, each at its own time."""
    # One after the other: an effect may bring another one that is due before the rest.
    while row := tx.execute(
        'SELECT id, effect_at, call, "order" FROM pending WHERE effect_at <= ?'
        " ORDER BY effect_at, id LIMIT 1",
        (now,),
    ).fetchone():
        number, effect_at, call, order = row
        tx.execute("DELETE FROM pending WHERE id = ?", (number,))
        _EFFECTS[call](tx, order, effect_at)


def open_window(tx: Tx, scope: str, until: int, now: int) -> None:
    """Note until when a caller was told to keep away."""
    tx.execute("DELETE FROM windows WHERE until <= ?", (now,))
    tx.execute("INSERT OR REPLACE INTO windows (scope, until) VALUES (?, ?)", (scope, until))


def _buy_late(tx: Tx, order: str, at: int) -> None:
    wanted = orders.LaunchOrder.model_validate_json(order)
    if machines.find_purchase(tx, wanted.request.token) is None:
        orders.buy(tx, wanted, at)


def _restart_late(tx: Tx, order: str, at: int) -> None:
    orders.restart(tx, orders.RestartOrder.model_validate_json(order), at)


def _terminate_late(tx: Tx, order: str, at: int) -> None:
    orders.terminate(tx, orders.TerminateOrder.model_validate_json(order), at)


def _reclaim(tx: Tx, order: str, at: int) -> None:
    orders.reclaim(tx, orders.ReclaimOrder.model_validate_json(order), at)


_EFFECTS: dict[str, Callable[[Tx, str, int], None]] = {
    Call.LAUNCH: _buy_late,
    Call.RESTART: _restart_late,
    Call.TERMINATE: _terminate_late,
    orders.RECLAIM: _reclaim,
}


def _take_effect(tx: Tx, now: int, step: _Step[T], effect: Callable[[Visit], T]) -> _Step[T]:
    outcome: T | GarrisonError | Delayed
    try:
        outcome = effect(Visit(tx, now, step.target, step.hits))
    except Delayed as delayed:
        outcome = delayed
    except GarrisonError as error:
        outcome = error
        _note_retry_after(tx, step.target, error, now)
    _log_result(tx, step.number, _result(outcome, step.hits))
    return replace(step, outcome=outcome)


def _answer(step: _Step[T]) -> T:
    spoiled = step.hits.failing_after()
    if isinstance(step.outcome, GarrisonError):
        raise step.outcome
    if spoiled is not None:
        raise spoiled.error()
    if step.outcome is None or isinstance(step.outcome, Delayed):
        raise AssertionError("a call was answered before its effect")
    return step.outcome


def _result(outcome: object, hits: Hits) -> str:
    if isinstance(outcome, Delayed):
        return "delayed"
    if isinstance(outcome, GarrisonError | Refusal):
        return str(outcome.code)
    answer = str(outcome) if isinstance(outcome, RestartResult) else "ok"
    spoiled = hits.failing_after()
    return answer if spoiled is None else f"{answer}, then {spoiled.error().code}"


def _log_call(tx: Tx, target: Target, now: int, *, early: bool) -> int:
    cursor = tx.execute(
        "INSERT INTO calls (at, call, token, owner, result, early) VALUES (?, ?, ?, ?, ?, ?)",
        (now, target.call, target.token, target.owner, "received", early),
    )
    number = int(cursor.lastrowid or 0)
    if number % _PRUNE_EVERY == 0:
        tx.execute("DELETE FROM calls WHERE id <= ?", (number - CALLS_KEPT,))
    return number


def _log_result(tx: Tx, number: int, result: str) -> None:
    tx.execute("UPDATE calls SET result = ? WHERE id = ?", (result, number))


def _note_retry_after(tx: Tx, target: Target, error: GarrisonError, now: int) -> None:
    if error.retry_after_seconds:
        open_window(tx, _scope(target), now + span(error.retry_after_seconds), now)


def _in_window(tx: Tx, target: Target, now: int) -> bool:
    limited = target.call in _LIMITED and _window(tx, "", now) is not None
    return limited or _window(tx, _scope(target), now) is not None


def _window(tx: Tx, scope: str, now: int) -> int | None:
    row = tx.execute(
        "SELECT until FROM windows WHERE scope = ? AND until > ?", (scope, now)
    ).fetchone()
    return int(row[0]) if row else None


def _scope(target: Target) -> str:
    return f"{target.call} {target.token}"


def _refilled(tx: Tx, rate: float, now: int) -> float:
    full = max(1.0, rate)
    row = tx.execute("SELECT level, at FROM bucket").fetchone()
    if row is None:
        return full
    level, at = float(row[0]), int(row[1])
    return min(full, level + max(0, now - at) / _SECOND * rate)


def _set_level(tx: Tx, level: float, now: int) -> None:
    tx.execute("INSERT OR REPLACE INTO bucket (only, level, at) VALUES (1, ?, ?)", (level, now))
