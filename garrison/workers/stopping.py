"""SIGINT, SIGTERM and SIGHUP: the first asks a process to stop, a second one insists."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """The process was asked to stop before it had come to serve."""


class StopRequest:
    """Whether this process was asked to stop.

    Attributes:
        on_insist: Called at the second signal; it is expected not to return.
    """

    def __init__(self, on_insist: Callable[[], None]) -> None:
        self.on_insist = on_insist
        self._asked = asyncio.Event()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals.

        A hang-up that is ignored stays so: that is how `nohup` works. An ignored SIGINT does not;
        every shell script ignores it for what it starts in the background.
        """
        loop = asyncio.get_running_loop()
        nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        taken = [sig for sig in SIGNALS if not (nohup and sig is signal.SIGHUP)]
        for sig in taken:
            loop.add_signal_handler(sig, self.ask)
        try:
            yield
        finally:
            for sig in taken:
                loop.remove_signal_handler(sig)

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Note a signal."""
        if self._asked.is_set():
            self.on_insist()
        self._asked.set()

    async def wait(self) -> None:
        """Return when the process is asked to stop."""
        await self._asked.wait()

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what a piece of work returns; cancel it when the process is asked to stop.

        Raises:
            Stopped: It was cancelled, and has cleaned up.
        """
        task = asyncio.ensure_future(work)
        waiter = asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            raise Stopped
        return task.result()
