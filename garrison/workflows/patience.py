"""Waiting inside an entity: on one timer, and for activities that can become pointless.

Temporal's Cancel comes as an exception at whatever is awaited, once. An entity must not end by it,
nor abandon what it started, so all waiting goes through here: the cancel is passed on as a wish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TypeVar

from temporalio import workflow

T = TypeVar("T")

Claim = Callable[[], bool]


def never() -> bool:
    """Say that a step stays worth doing, whatever happens."""
    return False


class Patience:
    """How one workflow waits.

    At most one timer runs. It is kept while the time that it stands for stays the same, so that
    an observation which changes nothing costs no timer events.
    """

    def __init__(self, on_cancel: Callable[[], object]) -> None:
        """Begin without a timer.

        Args:
            on_cancel: Called when somebody cancels the workflow.
        """
        self._on_cancel = on_cancel
        self._at: datetime | None = None
        self._timer: asyncio.Future[None] | None = None

    async def until(self, claim: Claim, time: datetime | None, why: str) -> None:
        """Wait until a claim is true or the time has come.

        Args:
            claim: Looked at whenever something happens.
            time: None waits for the claim alone.
            why: What the time is, for a reader of the timeline.

        Raises:
            asyncio.CancelledError: Somebody cancelled the workflow.
        """
        self._set(time, why)
        await workflow.wait_condition(lambda: claim() or self._over())
        if self._over():
            self._set(None, why)

    async def outcome(self, call: Awaitable[T], pointless: Claim) -> T:
        """Return the outcome of an activity; cancel it, and await that, once it is pointless.

        Raises:
            ActivityError: The activity failed or was cancelled.
        """
        handle = asyncio.ensure_future(call)
        while not handle.done():
            await self._hold(lambda: handle.done() or pointless())
            if not handle.done() and pointless():
                handle.cancel()
                while not handle.done():
                    await self._hold(handle.done)
        return handle.result()

    async def outcome_before(
        self, call: Awaitable[T], pointless: Claim, time: datetime | None, why: str
    ) -> T:
        """Do the same for an activity that also becomes pointless at a time."""
        self._set(time, why)
        return await self.outcome(call, lambda: pointless() or self._over())

    async def _hold(self, claim: Claim) -> None:
        try:
            await workflow.wait_condition(claim)
        except asyncio.CancelledError:
            self._on_cancel()

    def _over(self) -> bool:
        return self._timer is not None and self._timer.done()

    def _set(self, time: datetime | None, why: str) -> None:
        if time == self._at:
            return
        if self._timer is not None and not self._timer.done():
            self._timer.cancel()
        self._at, self._timer = time, None
        if time is not None:
            pause = max(time - workflow.now(), timedelta(0))
            self._timer = asyncio.ensure_future(workflow.sleep(pause, summary=why))
