"""A person who asks again while nobody answers, and notes what no client should ever meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from garrison.errors import (
    ErrorCode,
    GarrisonError,
    ServiceUnreachable,
    TooManyRequests,
    WaitTimeout,
)
from tests.chaos.diary import Diary

T = TypeVar("T")

ANSWER_WITHIN = timedelta(seconds=3)
"""A client's patience with one try, short enough that kills make it try again."""

ANSWERED_AT_LAST = 60.0
STEP_WITHIN = 10.0
"""How long a story waits for what it hopes for; then it goes on, as a person would."""

AWAY = (ServiceUnreachable, TooManyRequests, WaitTimeout)


class Asker:
    """One person's questions, all about one name."""

    def __init__(self, name: str, diary: Diary) -> None:
        self.name = name
        self.complaints: list[str] = []
        self._diary = diary

    async def asked(
        self, call: Callable[[], Awaitable[T]], again: tuple[type[GarrisonError], ...] = AWAY
    ) -> T | None:
        """Return an answer, None when it is a refusal; ask again while nobody answers.

        Args:
            call: Asks, with the same request id each time.
            again: Errors after which it is asked again.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + ANSWERED_AT_LAST
        while True:
            try:
                return await call()
            except again as error:
                if loop.time() > end:
                    self.complaints.append(f"{self.name}: nobody answers: {error}")
                    return None
                self._diary.note(self.name, f"asks again after: {error}")
                await asyncio.sleep(0.2)
            except GarrisonError as error:
                self._diary.note(self.name, f"is refused: {error.code}: {error}")
                self.look_into(error)
                return None
            except Exception as error:  # what no client should ever meet
                self.complaints.append(f"{self.name}: {type(error).__name__}: {error}")
                return None

    def look_into(self, error: GarrisonError) -> None:
        """Note an error of our own."""
        text = f"{self.name}: {error.code}: {error}"
        if error.code is ErrorCode.INTERNAL and text not in self.complaints:
            self.complaints.append(text)

    async def until(self, claim: Callable[[], Awaitable[bool]], *, every: float) -> None:
        """Wait until a claim holds, or until patience is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + STEP_WITHIN
        while loop.time() < end and not await claim():
            await asyncio.sleep(every)
