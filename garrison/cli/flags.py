"""Flags that several commands take: written once, as a function that reads them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

Reader = Callable[..., dict[str, Any]]
"""Its parameters are flags as Typer declares them; it returns what was given, by field."""

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes_flags(reader: Reader) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags that a reader declares; it receives what was given as `flags`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            flags = reader(**{name: values.pop(name) for name in parameters(reader)})
            command(flags=flags, **values)

        own = parameters(command)
        del own["flags"]
        sign(run, [parameters(reader), own])
        return run

    return decorate


def sign(command: Callable[..., None], parts: Iterable[dict[str, inspect.Parameter]]) -> None:
    """Give a command a signature made of parts, from which Typer reads its flags."""
    every = {name: parameter for part in parts for name, parameter in part.items()}
    command.__dict__["__signature__"] = inspect.Signature(list(every.values()))
    command.__annotations__ = {name: p.annotation for name, p in every.items()}


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return a function's parameters by name, each to be given by name."""
    signature = inspect.signature(function, eval_str=True)
    return {name: p.replace(kind=_KEYWORD) for name, p in signature.parameters.items()}
