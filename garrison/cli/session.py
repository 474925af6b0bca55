"""One connection for the time of one command, used from plain, blocking code.

Between two calls the command runs outside the event loop: a question to the person can then be
interrupted like any other, and the loop's connection is still there for the next call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from garrison.client.garrison import Garrison

T = TypeVar("T")


class Interrupted(Exception):
    """Ctrl-C, with a word on what goes on without us."""


def _connect() -> AbstractAsyncContextManager[Garrison]:
    # Imported late: the Temporal client takes longer to load than most commands to parse.
    from garrison.client.garrison import Garrison

    return Garrison.connect()


CONNECT: ContextVar[Callable[[], AbstractAsyncContextManager[Garrison]]] = ContextVar(
    "connect", default=_connect
)
"""How commands reach the service; tests set a fake."""


class Link:
    """A connection.

    Attributes:
        garrison: The SDK; its coroutines are given to `run`.
    """

    def __init__(self, runner: asyncio.Runner, garrison: Garrison) -> None:
        self._runner = runner
        self.garrison = garrison

    def run(self, call: Coroutine[Any, Any, T], *, goes_on: str | None = None) -> T:
        """Return the answer of one call.

        Args:
            call: Of the SDK.
            goes_on: What to tell whoever interrupts it.

        Raises:
            Interrupted: Ctrl-C, where `goes_on` says something.
        """
        try:
            return self._runner.run(call)
        except KeyboardInterrupt:
            if goes_on is None:
                raise
        raise Interrupted(goes_on)


@contextlib.contextmanager
def connected() -> Iterator[Link]:
    """Yield a connection to the service and close it afterwards."""
    for name in ("temporalio", "garrison", "asyncio", "asyncssh"):
        # What matters is said by the error boundary; a log line beside it is noise.
        logging.getLogger(name).addHandler(logging.NullHandler())
    with asyncio.Runner() as runner:
        opened = CONNECT.get()()
        garrison = runner.run(opened.__aenter__())
        try:
            yield Link(runner, garrison)
        finally:
            runner.run(opened.__aexit__(None, None, None))
