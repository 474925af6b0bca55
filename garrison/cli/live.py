"""What is shown while something is waited for: a picture on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Generic, TypeVar

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from garrison.cli.output import Output, console_for
from garrison.cli.text import printable, span, when

S = TypeVar("S")


@contextlib.contextmanager
def live_view(
    title: str,
    output: Output,
    *,
    summary: Callable[[S], str],
    parts: Callable[[S], Iterable[RenderableType]],
) -> Iterator[Callable[[S], None]]:
    """Yield what takes each new status and shows it.

    Args:
        title: What is waited for.
        output: Programs see nothing of it, unless standard error is a terminal.
        summary: A status in one line.
        parts: What a terminal shows below it.
    """
    stream = sys.stdout if output is Output.TABLE else sys.stderr
    if stream.isatty():
        board = _Board(title, summary, parts)
        console = console_for(stream)
        with Live(console=console, get_renderable=board.render, transient=True):
            yield board.take
    elif output is Output.TABLE:
        yield _Lines(summary).take
    else:
        # Standard error stays one JSON object, if anything goes wrong.
        yield lambda status: None


def write_change(text: str) -> None:
    """Write one line about a change, with the time."""
    sys.stdout.write(f"{when(datetime.now(UTC))} {printable(text)}\n")
    sys.stdout.flush()


class _Lines(Generic[S]):
    """Writes a line whenever it would differ from the last one."""

    def __init__(self, summary: Callable[[S], str]) -> None:
        self._summary = summary
        self._last = ""

    def take(self, status: S) -> None:
        text = self._summary(status)
        if text != self._last:
            write_change(text)
        self._last = text


class _Board(Generic[S]):
    """A picture of the newest status."""

    def __init__(
        self,
        title: str,
        summary: Callable[[S], str],
        parts: Callable[[S], Iterable[RenderableType]],
    ) -> None:
        self._title = title
        self._summary = summary
        self._parts = parts
        self._since = datetime.now(UTC)
        self._status: S | None = None
        self._spinner = Spinner("dots")

    def take(self, status: S) -> None:
        self._status = status

    def render(self) -> RenderableType:
        waited = span(datetime.now(UTC) - self._since)
        self._spinner.update(text=Text(f"{self._title} ({waited})"))
        if self._status is None:
            return self._spinner
        line = Text(printable(self._summary(self._status)))
        return Group(line, *self._parts(self._status), self._spinner)
