"""What is wrong with an input, in words for the person who wrote it.

Text is built from field paths and error types, never from pydantic's own rendering, so that no
secret value gets into a message. A value is shown only where it is a scalar of a harmless field.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from garrison.errors import InvalidSpec, Problem
from garrison.models.base import NAME_PATTERN

KeyPath: TypeAlias = tuple[str | int, ...]
"""Where a value stands in a document: keys and list positions."""

SECRET_FIELDS = frozenset({"env", "command", "setup", "ssh_keys", "provider_options", "git"})
"""Fields whose values are never shown, at whatever depth."""

MAX_SHOWN = 64
MAX_PROBLEMS = 50

_M = TypeVar("_M", bound=BaseModel)


def nearest(word: str, known: Collection[str]) -> str | None:
    """Return the known word that was probably meant, or None."""
    plain = {_simplified(choice): choice for choice in known}
    wanted = _simplified(word)
    close = difflib.get_close_matches(wanted, plain, n=1, cutoff=0.6)
    if close:
        return plain[close[0]]
    parts = [choice for key, choice in plain.items() if len(wanted) > 2 and wanted in key]
    return parts[0] if parts else None


def _simplified(word: str) -> str:
    # Clipped, since comparing takes time in proportion to the length.
    return word[:MAX_SHOWN].lower().replace("-", "_")


def suggestion(word: str, known: Collection[str], *, limit: int = 20) -> str:
    """Return `did you mean X?`, else what is known, as the end of a sentence."""
    match = nearest(word, known)
    if match is not None:
        return f"did you mean {match!r}?"
    names = sorted(known)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"known: {', '.join(names[:limit])}{more}" if names else "none is known"


def shown(value: object) -> str:
    """Return a harmless value for a message: quoted, printable, clipped."""
    text = str(value)
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")


def field_name(path: KeyPath) -> str:
    """Return the dotted form of a path: `cluster.ports[0]`."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{printable_key(part)}" if name else printable_key(part)
    return name


def printable_key(key: str) -> str:
    """Return a key for a message: printable, clipped."""
    # A key may hold what a terminal would obey.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in key[:MAX_SHOWN])


def problems_of(
    error: ValidationError,
    model: type[BaseModel],
    *,
    lines: Mapping[KeyPath, int] | None = None,
    prefix: KeyPath = (),
    secret: Collection[str] = SECRET_FIELDS,
) -> tuple[Problem, ...]:
    """Return every mistake that validation found, one problem each.

    Args:
        error: What validating `model` raised.
        model: The model, whose field names are suggested for unknown keys.
        lines: Lines of the file by path, None when there is no file.
        prefix: Path of the block that was validated.
        secret: Names of fields whose values must not be shown.
    """
    found: list[Problem] = []
    # Looking for the nearest key takes time; nobody reads the mistakes beyond the bound.
    for entry in error.errors(include_url=False)[: 2 * MAX_PROBLEMS]:
        loc = tuple(part for part in entry["loc"] if part != "[key]")
        path = (*prefix, *loc)
        hidden = any(part in secret for part in loc)
        message = _message(dict(entry), loc, model, hidden=hidden)
        problem = Problem(field_name(path), message, line_of(path, lines))
        if problem not in found:
            found.append(problem)
    return tuple(found)


def line_of(path: KeyPath, lines: Mapping[KeyPath, int] | None) -> int | None:
    """Return the line of a path, or of the nearest block around it."""
    if lines is None:
        return None
    ends = range(len(path), 0, -1)
    return next((lines[path[:end]] for end in ends if path[:end] in lines), lines.get(()))


def invalid(what: str, problems: Collection[Problem], source: str | None = None) -> InvalidSpec:
    """Return the error that lists all problems in the order of the file."""
    ordered = sorted(problems, key=lambda problem: problem.line or 0)
    listed = tuple(ordered[:MAX_PROBLEMS])
    if len(ordered) > MAX_PROBLEMS:
        listed = (*listed, Problem("", f"and {len(ordered) - MAX_PROBLEMS} more mistakes"))
    return InvalidSpec(what, problems=listed, source=source)


def build(model: type[_M], values: Mapping[str, Any], *, what: str) -> _M:
    """Return the model of some values that stand in no file: flags, arguments.

    Args:
        model: What to build.
        values: Field values by name.
        what: What was being read, for the message.

    Raises:
        InvalidSpec: With every mistake.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        problems = problems_of(error, model)
    # Raised outside the handler: pydantic's error would be chained, and it holds the input.
    raise invalid(what, problems)


_FIXED = {
    "missing": "is missing",
    "model_type": "must be a block of keys",
    "model_attributes_type": "must be a block of keys",
    "dict_type": "must be a block of keys",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "string_type": "must be text",
    "int_parsing_size": "is too large a number",
    "string_too_short": "must not be empty",
    "string_unicode": "has characters that are no valid UTF-8",
}
_WANTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "decimal_parsing": "a number",
    "decimal_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def _message(entry: dict[str, Any], loc: KeyPath, model: type[BaseModel], *, hidden: bool) -> str:
    kind, value = str(entry["type"]), entry.get("input")
    if kind == "extra_forbidden":
        return f"is not a known key; {_meant(str(loc[-1]), _model_at(model, loc[:-1]))}"
    if value is None and kind != "missing":
        return "is empty; give a value or remove the key"
    if kind in _FIXED:
        return _FIXED[kind]
    return _message_with_value(kind, entry, _not(value, hidden=hidden), hidden=hidden)


def _message_with_value(kind: str, entry: dict[str, Any], but: str, *, hidden: bool) -> str:
    context: dict[str, Any] = entry.get("ctx", {})
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}{but}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        bound = context[key]
        return f"must be {words} {f'{bound:g}' if isinstance(bound, float) else bound}{but}"
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(context, but)
    return "is not valid" if hidden else f"is not valid: {entry['msg']}"


def _enum(context: dict[str, Any], but: str) -> str:
    return f"must be {context['expected']}{but}"


def _pattern(context: dict[str, Any], but: str) -> str:
    if context["pattern"] == NAME_PATTERN:
        return f"must be 1 to 63 letters, digits, '-' or '_', first a letter or digit{but}"
    return f"must match {context['pattern']}{but}"


def _too_long(context: dict[str, Any], _but: str) -> str:
    return f"must have at most {context['max_length']} {_unit(context)}"


def _too_short(context: dict[str, Any], _but: str) -> str:
    return f"must have at least {context['min_length']} {_unit(context)}"


def _unit(context: dict[str, Any]) -> str:
    return "items" if "field_type" in context else "characters"


def _own_words(context: dict[str, Any], _but: str) -> str:
    return str(context["error"])


_SPECIAL: dict[str, Callable[[dict[str, Any], str], str]] = {
    "enum": _enum,
    "literal_error": _enum,
    "string_pattern_mismatch": _pattern,
    "string_too_long": _too_long,
    "too_long": _too_long,
    "too_short": _too_short,
    "value_error": _own_words,
}


def _not(value: object, *, hidden: bool) -> str:
    scalar = isinstance(value, str | int | float | bool)
    return f", not {shown(value)}" if scalar and not hidden else ""


def _meant(key: str, model: type[BaseModel] | None) -> str:
    """Return which key was probably meant: what means the same, else what looks alike."""
    if model is None:
        return suggestion(key, ())
    other_words: Mapping[str, str] = getattr(model, "other_words", {})
    same = other_words.get(key.lower().replace("-", "_"))
    return suggestion(key, model.model_fields) if same is None else f"did you mean {same!r}?"


def _model_at(model: type[BaseModel], loc: KeyPath) -> type[BaseModel] | None:
    current = model
    for part in loc:
        field = current.model_fields.get(str(part))
        # A part that is no field is a key or position inside a map or list of models.
        inner = _model_in(field.annotation) if field is not None else current
        if inner is None:
            return None
        current = inner
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in inner if model is not None), None)
