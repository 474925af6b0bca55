"""Answers are kept by request id, so that a repeated request gets the first one."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from garrison.models.base import Message

KEPT = 200

M = TypeVar("M", bound=Message)


class Answering(Protocol):
    """The state of an entity that keeps its answers, by request id."""

    @property
    def answers(self) -> dict[str, dict[str, Any]]:
        """The answers so far, oldest first."""
        ...


def recall(state: Answering, request_id: str, kind: type[M]) -> M | None:
    """Return the answer that this request got before, or None."""
    answer = state.answers.get(request_id)
    return None if answer is None else kind.model_validate(answer)


def remember(state: Answering, request_id: str, answer: M) -> M:
    """Keep an answer, forgetting the oldest beyond the last 200; return it."""
    state.answers[request_id] = answer.model_dump(mode="json")
    while len(state.answers) > KEPT:
        del state.answers[next(iter(state.answers))]
    return answer
