"""Lists that may go on: drawn anew on a terminal, one line per change elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel
from rich.console import RenderableType

from garrison.cli.live import write_change
from garrison.cli.output import Output, console_for, emit
from garrison.cli.session import Link

WATCH_SECONDS = 2.0

R = TypeVar("R", bound=BaseModel)

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Go on, and show changes.")]


def show_list(
    link: Link,
    read: Callable[[], Coroutine[Any, Any, list[R]]],
    output: Output,
    *,
    watch: bool,
    table: Callable[[Sequence[R]], Iterable[RenderableType]],
    name: Callable[[R], str],
    sentence: Callable[[R], str],
) -> None:
    """Write a list, and go on with its changes if that is wanted.

    Args:
        link: The connection.
        read: Reads the list.
        output: How to write it.
        watch: Go on until Ctrl-C.
        table: The whole list for people.
        name: Of a row, `nodepool gpus/a10g`.
        sentence: A row in one line, for a change.
    """
    rows = link.run(read())
    emit(rows, output, lambda: table(rows))
    while watch:
        link.run(asyncio.sleep(WATCH_SECONDS))
        before, rows = rows, link.run(read())
        if rows == before:
            continue
        if output is Output.TABLE and not sys.stdout.isatty():
            _write_changes(before, rows, name, sentence)
            continue
        if output is Output.YAML:
            sys.stdout.write("---\n")
        if sys.stdout.isatty():
            console_for(sys.stdout).clear()
        emit(rows, output, lambda now=rows: table(now))  # type: ignore[misc]


def _write_changes(
    before: Sequence[R],
    after: Sequence[R],
    name: Callable[[R], str],
    sentence: Callable[[R], str],
) -> None:
    old: dict[Hashable, R] = {name(row): row for row in before}
    for row in after:
        if old.pop(name(row), None) != row:
            write_change(sentence(row))
    for key in old:
        write_change(f"{key}: gone")
