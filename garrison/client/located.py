"""Mistakes that only the service could find, with the lines of the file that they are in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from garrison.errors import (
    ErrorCode,
    Faulty,
    GarrisonError,
    InvalidSpec,
    Problem,
)
from garrison.models.document import decode, load_document
from garrison.models.problems import KeyPath, line_of

_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_FIELDS = {
    ErrorCode.MODEL_NOT_CONFIGURED: "deployment.worker.model",
    ErrorCode.NOT_FOUND: "nodepool.compute_cluster",
    ErrorCode.UNSUPPORTED: "nodepool.node_capacity_type",
}
"""Where a file says what an error without problems of its own is about."""


def problems_in(error: GarrisonError, content: bytes, source: str) -> tuple[Problem, ...]:
    """Return all that an error says as mistakes of a file, with its name and the lines in it."""
    if isinstance(error, Faulty) and error.problems:
        problems = error.problems
    else:
        said = str(error).removeprefix(f"{source}: ")
        code = "" if isinstance(error, InvalidSpec) else f"{error.code}: "
        problems = (Problem(_FIELDS.get(error.code, ""), f"{code}{said}"),)
    lines = _lines(content, source)
    return tuple(replace(_located(problem, lines), file=source) for problem in problems)


def located(error: GarrisonError, content: bytes, source: str) -> GarrisonError:
    """Return the error with the file's name, and lines where it names fields."""
    if not isinstance(error, Faulty) or not error.problems or error.source is not None:
        return error
    lines = _lines(content, source)
    problems = tuple(_located(problem, lines) for problem in error.problems)
    return type(error)(str(error).partition("\n")[0], problems=problems, source=source)


def _lines(content: bytes, source: str) -> Mapping[KeyPath, int]:
    try:
        return load_document(decode(content, source), source).lines
    except InvalidSpec:
        return {}  # its mistakes have their lines already


def _located(problem: Problem, lines: Mapping[KeyPath, int]) -> Problem:
    if problem.line is not None or not problem.field:
        return problem
    path = tuple(int(at) if at else key for key, at in _PART.findall(problem.field))
    return replace(problem, line=line_of(path, lines))
