"""One file of a compute cluster, nodepool or deployment on its way, and what to tell about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from garrison.errors import Problem
from garrison.models.base import Model
from garrison.models.document import Document, bind, decode, load_document
from garrison.models.elastic_fields import UNUSED
from garrison.models.problems import KeyPath, field_name, line_of, shown

_M = TypeVar("_M", bound=Model)


class Reading:
    """One file on its way: the document, and what is to be told about it."""

    def __init__(self, document: Document, block: str) -> None:
        self._document = document
        self._block = block
        self._warnings: list[Problem] = []

    @classmethod
    def of(cls, content: str | bytes, source: str | None, block: str) -> Reading:
        """Begin with a file that should have the block."""
        text = decode(content, source) if isinstance(content, bytes) else content
        return cls(load_document(text, source), block)

    @property
    def content(self) -> Any:
        """The block as written."""
        return self._document.value[self._block]

    def identify(self, id: str | None, block: str = "") -> None:
        """Put the command line's id into the document, or see that it has one.

        Args:
            id: As given on the command line.
            block: The key of an inner block that has the id, empty for the outer one.
        """
        outer = self._document.value.get(self._block)
        if not isinstance(outer, dict) or not outer:
            return  # told when it is bound
        inner = outer.get(block) if block else outer
        path: KeyPath = (self._block, block, "id") if block else (self._block, "id")
        said = inner.get("id") if isinstance(inner, dict) else None
        said = None if path in self._document.nulls else said
        if id is None:
            # An inner block that is there says itself that its id is missing.
            there = bool(block) and inner is not None and path[:-1] not in self._document.nulls
            self._check_identified(path, said, told=there)
            return
        if said not in (None, id):
            self.warn(
                path[1:], f"the file says {shown(said)}; {shown(id)} of the command line is used"
            )
        changed = {**outer, block: {"id": id}} if block else {**outer, "id": id}
        value = {**self._document.value, self._block: changed}
        nulls = self._document.nulls - {path, path[:-1]}
        self._document = replace(self._document, value=value, nulls=nulls)

    def _check_identified(self, path: KeyPath, said: object, *, told: bool) -> None:
        if told:
            return
        if path in self._document.nulls:
            message = "is empty; if its text is meant, put it in quotes"
        elif said is None:
            message = "is missing; give it in the file or on the command line"
        else:
            return
        problem = Problem(field_name(path), message, line_of(path, self._document.lines))
        problems = (*self._document.problems, problem)
        self._document = replace(self._document, problems=problems)

    def bind(self, model: type[_M], verbatim: Collection[str] = ()) -> _M:
        """Return what the block says; raises `InvalidSpec` with every mistake."""
        value = bind(self._document, model, self._block, verbatim=verbatim)
        self._warn_of_unused(value, ())
        return value

    def warn(self, path: KeyPath, message: str) -> None:
        """Tell something about a key of the block."""
        path = (self._block, *path)
        line = line_of(path, self._document.lines)
        self._warnings.append(Problem(field_name(path), message, line))

    def warnings(self) -> tuple[str, ...]:
        """Return them in the order of the file."""
        return tuple(map(str, sorted(self._warnings, key=lambda told: told.line or 0)))

    def _warn_of_unused(self, value: Model, path: KeyPath) -> None:
        for name, field in type(value).model_fields.items():
            if name not in value.model_fields_set:
                continue
            if UNUSED in field.metadata:
                self.warn((*path, name), "means nothing here and is ignored")
                continue
            for key, inner in _inner_models(getattr(value, name)):
                self._warn_of_unused(inner, (*path, name, *key))


def _inner_models(value: Any) -> Iterable[tuple[KeyPath, Model]]:
    if isinstance(value, Model):
        yield (), value
    elif isinstance(value, tuple):
        yield from (((at,), item) for at, item in enumerate(value) if isinstance(item, Model))
