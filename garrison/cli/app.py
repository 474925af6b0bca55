"""The root of the command line: nouns, the error boundary, exit statuses.

A noun's module is imported only when the noun is used, so that help and mistakes answer at once.
No exception leaves `run`: each becomes one `error: <code>: <message>` and an exit status.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand
from typer.main import get_command

from garrison.cli.groups import Group
from garrison.cli.session import Interrupted
from garrison.cli.text import printable
from garrison.errors import ErrorCode, Faulty, GarrisonError, InvalidSpec, Problem, exit_status

INTERRUPTED = 130

COMMANDS: dict[str, tuple[str, str]] = {
    "cluster": ("garrison.cli.cluster:app", "Identical machines, bought and given back as one."),
    "computecluster": (
        "garrison.cli.computecluster:app",
        "Providers and regions in which nodepools live.",
    ),
    "nodepool": ("garrison.cli.nodepool:app", "Elastic sets of like machines."),
    "deployment": (
        "garrison.cli.deployment:app",
        "Replicas of one workload, on machines of nodepools.",
    ),
    "offer": ("garrison.cli.offer:app", "What providers sell, with prices."),
    "provider": ("garrison.cli.provider:app", "Where machines come from."),
    "orphan": ("garrison.cli.orphan:app", "Machines that nobody answers for."),
    "simulated": ("garrison.cli.simulated:app", "The simulated cloud's own console."),
    "apply": ("garrison.cli.apply:apply", "Make everything so as files say."),
    "tree": ("garrison.cli.tree:tree", "Show what deployments run on, and what it costs."),
    "up": ("garrison.cli.run:up", "Run Garrison on this machine, in the foreground."),
    "worker": ("garrison.cli.run:worker", "Run a worker against an existing Temporal Service."),
    "router": ("garrison.cli.router:router", "Run the HTTP proxy in front of deployments."),
    "doctor": ("garrison.cli.doctor:doctor", "Look for what is wrong with this installation."),
    "version": ("garrison.cli.doctor:version", "Print the version."),
}


class Root(Group):
    """The top level: help is printed from `COMMANDS`, without importing any of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in that knows its help."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the real command.

        Raises:
            InvalidSpec: There is none of this name; says which was probably meant.
        """
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, stand_in and _load(args[0]), rest


def _load(name: str) -> Any:
    module, attribute = COMMANDS[name][0].split(":")
    target = getattr(importlib.import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name)(target)
        target = single
    command = get_command(target)
    command.name = name
    return command


app = typer.Typer(name="garrison", cls=Root, help="Durable orchestrator of GPU compute.")


@app.callback()
def _root() -> None:
    """Durable orchestrator of GPU compute."""


def main() -> NoReturn:
    """Run this process's command line and end the process."""
    status = run(sys.argv[1:])
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Not by unwinding: threads of the Temporal client that still run then abort the interpreter.
    os._exit(status)


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit status.

    Args:
        argv: Without the program's name.
    """
    arguments = ["version", *argv[1:]] if argv[:1] == ["--version"] else list(argv)
    _make_streams_safe()
    as_json = _wants_json(arguments)
    try:
        status = _invoke(arguments)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as ended:
        # Who read our output has gone; nothing is left to say, not even at interpreter exit.
        status = ended.code if isinstance(ended, SystemExit) else 1
        _forget_output()
    except (Interrupted, KeyboardInterrupt) as interrupt:
        sys.stderr.write(f"\n{printable(str(interrupt) or 'interrupted')}\n")
        status = INTERRUPTED
    except Exception as error:  # The boundary: whatever it is, a person reads no traceback.
        status = _report(_output_fault(error), as_json=as_json)
    return status if isinstance(status, int) else 0


def _invoke(arguments: list[str]) -> Any:
    _check_text(arguments)
    # Typer reports usage errors by itself unless it is embedded.
    return get_command(app).main(arguments, prog_name="garrison", standalone_mode=False)


_RAW = ("--env", "--file", "-f", "--config", "--ssh-key")
"""Options whose values may be any bytes: file names, and values that are sealed."""


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse what is no text, naming where it stands.

    Raises:
        InvalidSpec: An argument has bytes that are no UTF-8.
    """
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for at, (before, text) in enumerate(pairwise(["", *ours]), start=1):
        option = text.partition("=")[0] if text.startswith("-") else before
        if text.isascii() or option.startswith(_RAW):
            continue
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            where = option if option.startswith("-") else f"argument {at}"
            raise InvalidSpec(f"{where}: has bytes that are no valid UTF-8") from None


def _make_streams_safe() -> None:
    """Let any text be written: a name in any script to an ASCII terminal, a damaged argument."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def _output_fault(error: Exception) -> Exception:
    """Return an error, in plain words if it says that standard output takes no more."""
    # A file that we opened ourselves is named in the error.
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _FULL:
        return error
    _forget_output()
    return InvalidSpec(f"standard output cannot be written: {error.strerror}")


def _forget_output() -> None:
    with contextlib.suppress(OSError, ValueError):
        number = os.open(os.devnull, os.O_WRONLY)
        os.dup2(number, sys.stdout.fileno())
        os.close(number)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether errors are wanted as JSON, also where parsing itself fails."""
    ours = list(arguments)
    ours = ours[: ours.index("--")] if "--" in ours else ours
    apart = any(a in {"-o", "--output"} and b == "json" for a, b in pairwise(ours))
    return apart or not {"-ojson", "--output=json"}.isdisjoint(ours)


def _report(error: Exception, *, as_json: bool) -> int:
    code, message, problems = _described(error)
    if as_json:
        listed = [_as_data(problem) for problem in problems]
        head = message.partition("\n")[0] if problems else message
        told = {"error": {"code": str(code), "message": head, "problems": listed}}
        text = json.dumps(told)
    else:
        text = f"error: {code}: {printable(message, lines=True)}"
    # Without a reader the exit status must do.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    return exit_status(code)


def _as_data(problem: Problem) -> dict[str, Any]:
    told = {"field": problem.field, "message": problem.message, "line": problem.line}
    return told if problem.file is None else {**told, "file": problem.file}


def _described(error: Exception) -> tuple[ErrorCode, str, tuple[Problem, ...]]:
    if isinstance(error, Faulty):
        return error.code, str(error), error.problems
    if isinstance(error, GarrisonError):
        return error.code, str(error), ()
    if isinstance(error, typer.TyperException):
        message = (
            error.format_message().replace("Value error, ", "").strip()
            or "the arguments are not valid"
        )
        return ErrorCode.INVALID_SPEC, message, ()
    if isinstance(error, typer.Abort):
        return ErrorCode.INVALID_SPEC, "the input ended before an answer", ()
    # A bug's own text may hold anything, secrets too; the system's words for a fault do not.
    words = error.strerror if isinstance(error, OSError) else None
    what = ": ".join(part for part in (type(error).__name__, words) if part)
    return ErrorCode.INTERNAL, f"{what}; {_keep_details(error)}", ()


def _keep_details(error: Exception) -> str:
    """Append the traceback to a file that only this user can read; say where it is."""
    path = _details_folder() / "cli-errors.log"
    # Without the arguments: they may hold secrets.
    text = "".join(traceback.format_exception(error))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(number, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now(UTC).isoformat()}\n{text}\n")
    except OSError as unwritable:
        return f"the details could not be kept: {unwritable.strerror}"
    return f"the details are in {path}"


def _details_folder() -> Path:
    from garrison.settings import load_settings

    try:
        return load_settings().data_dir
    except GarrisonError:
        return Path(tempfile.mkdtemp(prefix="garrison-"))


if __name__ == "__main__":
    main()
