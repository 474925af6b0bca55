"""Waking an observer of this process before its pause is over."""

from __future__ import annotations

import asyncio


class Wakes:
    """One bell for each observer, by name."""

    def __init__(self) -> None:
        self._bells: dict[str, asyncio.Event] = {}

    def ring(self, name: str) -> None:
        """End the pause of an observer, or its next one."""
        self._bell(name).set()

    async def rung(self, name: str, *, timeout_seconds: float) -> bool:
        """Wait until somebody rings, or the time is over; return whether somebody did."""
        bell = self._bell(name)
        try:
            await asyncio.wait_for(bell.wait(), timeout_seconds)
        except TimeoutError:
            return False
        bell.clear()
        return True

    def _bell(self, name: str) -> asyncio.Event:
        return self._bells.setdefault(name, asyncio.Event())
