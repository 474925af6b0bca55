"""One resource that lives as a workflow: its kind, its name, what is begun and what is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from garrison.models.base import Message

S = TypeVar("S", bound=Message)
A = TypeVar("A", bound=Message)


@dataclass(frozen=True, slots=True)
class Kind(Generic[S]):
    """A kind of resource.

    Attributes:
        noun: As people write it, `nodepool`.
        workflow: Its workflow type.
        status: What its query `get` answers.
        phase: The memo's field that a life has from its first accepted `create` on.
    """

    noun: str
    workflow: str
    status: type[S]
    phase: str = "phase"


@dataclass(frozen=True, slots=True)
class Entity:
    """One name.

    Attributes:
        name: As people write it.
        workflow_id: Of all its lives.
    """

    name: str
    workflow_id: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a new life is started with.

    Attributes:
        build: Makes the workflow's input for a uid.
        memo: Beside the uid.
        summary: What the Temporal UI shows beside the id.
    """

    build: Callable[[str], Message]
    memo: Mapping[str, Any]
    summary: str


@dataclass(frozen=True, slots=True)
class Reading(Generic[S]):
    """A status, and whether the workflow waited for nothing but time and messages."""

    status: S
    at_rest: bool


@dataclass(frozen=True, slots=True)
class Made(Generic[A]):
    """The answer to a create.

    Attributes:
        began: This call made it; else it was there before, just so.
    """

    answer: A
    began: bool
