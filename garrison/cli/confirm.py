"""Asking before money is spent or machines are given up."""

from __future__ import annotations

import sys
from typing import TextIO

import typer

from garrison.cli.session import Interrupted
from garrison.cli.text import printable
from garrison.errors import InvalidSpec

DECLINED = 1


def can_ask() -> bool:
    """Return whether a person can see a question and answer it."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)


def check_can_buy(*, yes: bool) -> None:
    """Return if a purchase is confirmed already, or can be.

    Raises:
        InvalidSpec: Nobody can be asked, and `--yes` is not given.
    """
    if not yes and not can_ask():
        raise InvalidSpec(
            "nothing was bought: a price must be confirmed, and there is no terminal to ask on;"
            " give --yes to accept it"
        )


def confirm(question: str, otherwise: str) -> None:
    """Return if the person says yes; end the command otherwise.

    Args:
        question: Without its question mark.
        otherwise: What did not happen.

    Raises:
        typer.Exit: The answer was not yes, or the input ended.
        Interrupted: Ctrl-C.
    """
    sys.stdout.flush()
    sys.stderr.write(f"{printable(question)}? [y/N] ")
    sys.stderr.flush()
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = None
    if answer is None:
        raise Interrupted(otherwise)
    if answer.strip().lower() in {"y", "yes"}:
        return
    newline = "" if answer.endswith("\n") else "\n"
    sys.stderr.write(f"{newline}{printable(otherwise)}\n")
    raise typer.Exit(DECLINED)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False  # closed
