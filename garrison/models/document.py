"""User files: YAML read without guessing, so that a value stays what was written.

YAML 1.1 turns `00000122` into 82, `no` into False and `12:30:45` into 45045. Here every scalar
stays text, and the model that the text is bound to decides what it means. What could hide a
mistake or cost unbounded work is refused: duplicate keys, aliases, tags, several documents,
great depth and size. JSON files are read by the same code, as JSON is YAML.

The builder works on the parser's events with a stack of its own: no recursion to exhaust.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.reader import Reader, ReaderError

from garrison.errors import InvalidSpec, Problem
from garrison.models.problems import (
    SECRET_FIELDS,
    KeyPath,
    field_name,
    invalid,
    line_of,
    problems_of,
    suggestion,
)

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_VALUES = 20_000

_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Document:
    """A file's content before anyone said what it means.

    Attributes:
        value: Maps, lists and texts; every scalar exactly as written.
        lines: 1-based line of each key and list item by its path.
        nulls: Paths of unquoted `null`, `~` and empty values, whose text is kept in `value`.
        problems: Mistakes that do not stop the reading, such as a key given twice.
    """

    value: dict[str, Any]
    lines: dict[KeyPath, int]
    nulls: frozenset[KeyPath]
    problems: tuple[Problem, ...] = ()
    source: str | None = None


def decode(data: bytes, source: str | None = None) -> str:
    """Return the text of a file: UTF-8, or UTF-16 with its mark as Windows shells write it.

    Raises:
        InvalidSpec: It is larger than `MAX_BYTES`, or in another encoding.
    """
    if len(data) > MAX_BYTES:
        raise _unreadable(f"is larger than {MAX_BYTES // 1024} KiB", None, source)
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
    raise _unreadable("is not UTF-8 text; save the file as UTF-8", line, source)


def load_document(text: str, source: str | None = None) -> Document:
    """Return the content of one YAML or JSON file.

    Args:
        text: The whole file.
        source: The file's name as the user gave it, for messages.

    Raises:
        InvalidSpec: It is not readable; with the line, without any of its content.
    """
    # Counted in characters: a text that came through `decode` is below the bound already.
    if len(text) > MAX_BYTES:
        raise _unreadable(f"is larger than {MAX_BYTES // 1024} KiB", None, source)
    text = _prepared(text)
    _check_characters(text, source)
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
        root = builder.finished()
    except _UnreadableError as error:
        message, line = str(error), error.line
    except ReaderError:
        message, line = "has a character that YAML does not allow", None
    except yaml.MarkedYAMLError as error:
        message, line = _in_words(error), _line(error.problem_mark or error.context_mark)
    else:
        return Document(
            root, builder.lines, frozenset(builder.nulls), tuple(builder.problems), source
        )
    raise _unreadable(message, line, source, builder.problems)


def bind(
    document: Document,
    model: type[_M],
    block: str = "",
    *,
    verbatim: Collection[str | KeyPath] = (),
    secret: Collection[str] = SECRET_FIELDS,
) -> _M:
    """Return the model that a document describes.

    Args:
        document: What `load_document` returned.
        model: What to build.
        block: The one top-level key under which the fields stand; empty for the top level itself.
        verbatim: Dotted names or paths, from the block, of maps of texts: in them an empty value
            is the empty text, and `null` and `~` are texts too.
        secret: Names of fields whose values must not be shown.

    Raises:
        InvalidSpec: With every mistake at once.
    """
    problems = list(document.problems)
    prefix: KeyPath = (block,) if block else ()
    problems += _block_problems(document, block) if block else []
    data = document.value.get(block) if block else document.value
    if isinstance(data, dict) and (data or not block):
        meant = _meaning(data, prefix, document.nulls, _paths(prefix, verbatim))
        try:
            value = model.model_validate(meant)
        except ValidationError as error:
            problems += problems_of(
                error, model, lines=document.lines, prefix=prefix, secret=secret
            )
        else:
            if not problems:
                return value
    # Raised outside the handler: pydantic's error would be chained, and it holds the input.
    raise invalid("is not valid", problems, document.source)


def _block_problems(document: Document, block: str) -> list[Problem]:
    known = {block}
    problems = [
        Problem(
            field_name((key,)),
            f"is not a known key; {suggestion(key, known)}",
            document.lines.get((key,)),
        )
        for key in document.value
        if key not in known
    ]
    content = document.value.get(block)
    if block not in document.value:
        problems.append(Problem(block, f"the block `{block}:` is missing", 1))
    elif not isinstance(content, dict) or not content:
        empty = (block,) in document.nulls or content == {}
        message = "is empty" if empty else "must be a block of keys"
        problems.append(Problem(block, message, line_of((block,), document.lines)))
    return problems


def _paths(prefix: KeyPath, names: Collection[str | KeyPath]) -> frozenset[KeyPath]:
    split = (tuple(name.split(".")) if isinstance(name, str) else name for name in names)
    return frozenset((*prefix, *name) for name in split)


def _meaning(
    value: Any, path: KeyPath, nulls: frozenset[KeyPath], verbatim: frozenset[KeyPath]
) -> Any:
    if path in nulls:
        return value if path[:-1] in verbatim else None
    if isinstance(value, dict):
        return {key: _meaning(item, (*path, key), nulls, verbatim) for key, item in value.items()}
    if isinstance(value, list):
        return [_meaning(item, (*path, at), nulls, verbatim) for at, item in enumerate(value)]
    return value


class _UnreadableError(Exception):
    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class _Frame:
    """A map or list being filled; a map has a `key` between its key and the value."""

    container: dict[str, Any] | list[Any]
    path: KeyPath
    key: str | None = None
    repeated: bool = False


@dataclass(slots=True)
class _Builder:
    lines: dict[KeyPath, int] = field(default_factory=dict)
    nulls: set[KeyPath] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    _root: Any = None
    _stack: list[_Frame] = field(default_factory=list)
    _documents: int = 0
    _values: int = 0

    def take(self, event: yaml.Event) -> None:
        line = _line(event.start_mark)
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _UnreadableError("has several documents ('---'); one file holds one", line)
        elif isinstance(event, yaml.NodeEvent):
            self._take_value(event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._stack.pop()

    def finished(self) -> dict[str, Any]:
        """Return the top level, which must be a map."""
        if self._root is None or () in self.nulls:
            raise _UnreadableError("is empty", None)
        if not isinstance(self._root, dict):
            raise _UnreadableError("must be keys with values, such as 'cluster:'", 1)
        return self._root

    def _take_value(self, event: yaml.NodeEvent, line: int | None) -> None:
        self._check(event, line)
        if isinstance(event, yaml.ScalarEvent):
            self._add_scalar(event, line)
            return
        container: dict[str, Any] | list[Any]
        container = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self._add(container, line)
        self._stack.append(_Frame(container, path))
        if len(self._stack) > MAX_DEPTH:
            raise _UnreadableError(f"is nested deeper than {MAX_DEPTH} levels", line)

    def _check(self, event: yaml.NodeEvent, line: int | None) -> None:
        # None of these messages names the anchor or tag: it may be an unquoted secret.
        self._values += 1
        if self._values > MAX_VALUES:
            raise _UnreadableError(f"has more than {MAX_VALUES} values", line)
        if event.anchor is not None:
            message = "anchors and aliases are not supported; quote a value that begins with & or *"
            raise _UnreadableError(message, line)
        if getattr(event, "tag", None) is not None:
            message = "tags are not supported; quote a value that begins with !"
            raise _UnreadableError(message, line)

    def _add_scalar(self, event: yaml.ScalarEvent, line: int | None) -> None:
        text = _joined_surrogates(event.value, line)
        if "\0" in text:
            raise _UnreadableError("has a NUL character", line)
        frame = self._stack[-1] if self._stack else None
        if frame is not None and isinstance(frame.container, dict) and frame.key is None:
            self._open_key(frame, text, line)
            return
        path = self._add(text, line)
        null = event.style is None and text in ("", "~", "null", "Null", "NULL")
        if null and not (frame is not None and frame.repeated):
            self.nulls.add(path)

    def _open_key(self, frame: _Frame, key: str, line: int | None) -> None:
        path = (*frame.path, key)
        frame.key = key
        frame.repeated = key in frame.container
        if frame.repeated:
            first = self.lines.get(path)
            self.problems.append(
                Problem(field_name(path), f"is given twice, first on line {first}", line)
            )
        elif line is not None:
            self.lines.setdefault(path, line)

    def _add(self, value: Any, line: int | None) -> KeyPath:
        """Put a value where it belongs, and return its path."""
        if not self._stack:
            self._root = value
            return ()
        frame = self._stack[-1]
        if isinstance(frame.container, list):
            path: KeyPath = (*frame.path, len(frame.container))
            frame.container.append(value)
            if line is not None:
                self.lines.setdefault(path, line)
            return path
        if frame.key is None:
            message = "a key must be text; quote a template such as '{{ name }}'"
            raise _UnreadableError(message, line)
        path = (*frame.path, frame.key)
        if not frame.repeated:
            frame.container[frame.key] = value
        frame.key = None
        return path


_LEADING_TABS = re.compile(r"^[ \t]*\t[ \t]*", re.MULTILINE)


def _prepared(text: str) -> str:
    text = text.removeprefix("\ufeff")
    # JSON may be indented with tabs, which YAML forbids; inside braces indentation means nothing.
    return _LEADING_TABS.sub(" ", text) if text.lstrip().startswith("{") else text


def _check_characters(text: str, source: str | None) -> None:
    bad = Reader.NON_PRINTABLE.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        name = f"U+{ord(bad.group()):04X}"
        raise _unreadable(f"has the character {name}, which YAML does not allow", line, source)


def _joined_surrogates(text: str, line: int | None) -> str:
    """Return text in which a character that JSON escapes as two halves is one again."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise _UnreadableError("has half of a surrogate pair", line) from None


_WORDS = (
    ("'\\t'", "has a tab where only spaces may stand"),
    ("mapping values are not allowed", "':' cannot stand here; check the indentation or quote"),
    ("could not find expected ':'", "a key has no ':' after it"),
    ("expected <block end>", "the indentation does not fit the lines above"),
    ("unexpected end of stream", "a quote is not closed"),
    ("expected ',' or", "a bracket is not closed, or a comma is missing"),
    ("cannot start any token", "a value cannot begin with this character unless it is quoted"),
    ("escape", "has a backslash escape that YAML does not know; use single quotes"),
    ("undefined tag handle", "tags are not supported; quote a value that begins with !"),
)


def _in_words(error: yaml.MarkedYAMLError) -> str:
    # The parser's own text may quote the file, which may hold secrets.
    said = f"{error.problem} {error.context}"
    return next((words for mark, words in _WORDS if mark in said), "is not valid YAML")


def _line(mark: Any) -> int | None:
    return mark.line + 1 if mark is not None else None


def _unreadable(
    message: str, line: int | None, source: str | None, others: Collection[Problem] = ()
) -> InvalidSpec:
    return invalid("cannot be read", [*others, Problem("", message, line)], source)
