"""Steps of an entity that are under way at the same time, at most one for each thing.

What a step does to the state happens between two awaits, so the workflow is still its single
writer; the key keeps two steps from working on one machine or replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

Work = Coroutine[Any, Any, None]


class Crew:
    """The steps under way."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def busy(self) -> frozenset[str]:
        """Keys of all steps that were begun and not collected yet."""
        return frozenset(self._tasks)

    @property
    def has_news(self) -> bool:
        """Whether a step has ended since the last `collect`."""
        return any(task.done() for task in self._tasks.values())

    def begin(self, key: str, work: Work) -> None:
        """Begin a step.

        Args:
            key: What it works on; nothing else may be under way there.
            work: Handles the failures that it expects. Any other is raised by `collect`, and so
                fails the workflow task, which is tried again.
        """
        assert key not in self._tasks
        self._tasks[key] = asyncio.create_task(work)

    def cancel(self, key: str) -> None:
        """Have a step break off; it stays busy until it has."""
        task = self._tasks.get(key)
        if task is not None and not task.done():
            task.cancel()

    def collect(self) -> None:
        """Forget the steps that have ended.

        Raises:
            Exception: What a step raised.
        """
        for key in [key for key, task in self._tasks.items() if task.done()]:
            task = self._tasks.pop(key)
            if not task.cancelled():
                task.result()
