"""Answers on standard output: tables for people, JSON and YAML for programs.

JSON is exactly the models' own; a table may leave out, round and mark. Off a terminal a table has
no colours and is as wide as it needs to be, so that each row is one line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, TextIO

import typer
import yaml
from pydantic import BaseModel
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from garrison.cli.text import printable

WIDE = 100_000
HIGH = 100
PADDING = 2
SENTENCE = 30
"""Characters that a column of sentences keeps at least, however narrow the terminal is."""


class Output(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="How to write the answer.", show_default=True)
]

Value = BaseModel | Sequence[BaseModel] | dict[str, Any] | Sequence[dict[str, Any]]


def emit(value: Value, output: Output, table: Callable[[], Iterable[RenderableType]]) -> None:
    """Write an answer.

    Args:
        value: A model, or a list of them.
        output: How.
        table: What people read, made only for them.
    """
    if output is Output.TABLE:
        show(table())
    elif output is Output.JSON:
        sys.stdout.write(json.dumps(as_json(value), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(yaml.safe_dump(as_json(value), sort_keys=False, allow_unicode=True))
    sys.stdout.flush()


def as_json(value: Value) -> Any:
    """Return plain data: money as decimal strings, times as RFC 3339, absent as null."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return value
    return [as_json(item) for item in value]


def show(parts: Iterable[RenderableType], stream: TextIO | None = None) -> None:
    """Write what people read."""
    target = sys.stdout if stream is None else stream
    console = console_for(target)
    for part in parts:
        if console.is_terminal:
            console_for(target, width=_width(console, part)).print(part, crop=False)
            continue
        with console.capture() as captured:
            console.print(part, crop=False)
        lines = captured.get().splitlines()
        target.write("".join(f"{line.rstrip()}\n" for line in lines))
    target.flush()


def console_for(stream: TextIO, *, width: int | None = None) -> Console:
    """Return a console that obeys no markup in what it prints.

    Args:
        stream: Where it prints.
        width: Other than the terminal's own.
    """
    terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=terminal,
        no_color=None if terminal else True,
        color_system="auto" if terminal else None,
        width=width if terminal else WIDE,
        # With both given, a terminal that says `dumb` is not taken for 80 columns.
        height=HIGH if width is not None else None,
        markup=False,
        emoji=False,
        highlight=False,
    )


def _width(console: Console, part: RenderableType) -> int:
    """Return the terminal's width, or more where a table has no shorter form.

    A terminal then breaks the line by itself, and no name is cut.
    """
    if not isinstance(part, Table):
        return console.width
    options = console.options.update(max_width=WIDE)
    # A table measures itself without the padding of its last column.
    return max(console.width, Measurement.get(console, options, part).minimum + PADDING)


def table_of(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, wraps: str | None = None
) -> Table:
    """Return a table without lines.

    Args:
        columns: Headings; a `$` or a `#` at the start aligns numbers.
        rows: One text per column.
        wraps: The column of sentences, which may break on a narrow terminal.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, PADDING, 0, 0))
    texts = [[cell(value) for value in row] for row in rows]
    for number, title in enumerate(columns):
        right = title.startswith(("$", "#"))
        # A number that is cut is another number.
        whole = max((row[number].cell_len for row in texts), default=0) if right else None
        table.add_column(
            Text(title.removeprefix("#")),
            justify="right" if right else "left",
            no_wrap=title != wraps,
            overflow="fold",
            min_width=SENTENCE if title == wraps else whole,
        )
    for row in texts:
        table.add_row(*row)
    return table


def facts(pairs: Iterable[tuple[str, str | Text]]) -> Table:
    """Return names and values in two columns; empty values are left out."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, PADDING, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value:
            table.add_row(Text(name), cell(value))
    return table


def cell(value: str | Text) -> Text:
    """Return text as it stands, in one line."""
    return value if isinstance(value, Text) else Text(printable(value))


def line(text: str) -> Text:
    """Return one line that is never broken."""
    return Text(printable(text), no_wrap=True, overflow="ignore")


_COLOURS = {
    "running": "green",
    "succeeded": "green",
    "degraded": "yellow",
    "unreachable": "yellow",
    "terminating": "yellow",
    "lost": "red",
    "failed": "red",
    "stopped": "red",
}


def state(value: str | None) -> Text:
    """Return a phase or status in its colour."""
    text = str(value) if value is not None else "-"
    return Text(printable(text), style=_COLOURS.get(text, ""))


def note(text: str, output: Output) -> None:
    """Say something beside the answer, to people only."""
    if output is Output.TABLE:
        sys.stderr.write(f"note: {printable(text)}\n")
