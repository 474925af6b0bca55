"""Arguments and small steps that compute clusters, nodepools and deployments share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Generic, TypeVar

import typer

from garrison.cli.arguments import resource_name
from garrison.cli.confirm import check_can_buy, confirm
from garrison.cli.output import Output, emit, line, note
from garrison.cli.spec_flags import read_file
from garrison.cli.text import counted, usd, when
from garrison.errors import Faulty, GarrisonError
from garrison.models.deployment import DeploymentAck
from garrison.models.nodepool import NodepoolAck

T = TypeVar("T")

Config = Annotated[
    str | None,
    typer.Option(
        "--config", "--file", "-f", metavar="FILE", help="A YAML file; - reads standard input."
    ),
]
ComputeClusterId = Annotated[
    str,
    typer.Argument(
        metavar="COMPUTECLUSTER", parser=resource_name, help="The compute cluster's id."
    ),
]
NodepoolId = Annotated[
    str, typer.Argument(metavar="ID", parser=resource_name, help="The nodepool's id.")
]
DeploymentId = Annotated[
    str, typer.Argument(metavar="ID", parser=resource_name, help="The deployment's id.")
]
Description = Annotated[str | None, typer.Option("--description", help="For people.")]

NOTHING_BOUGHT = "nothing was bought"


@dataclass(frozen=True, slots=True)
class ConfigFile(Generic[T]):
    """A file that was read: what it asks for, its name and its bytes."""

    value: T
    source: str
    content: bytes


def read_config(
    file: str, read: Callable[[bytes, str], tuple[T, tuple[str, ...]]], output: Output
) -> ConfigFile[T]:
    """Return what a file asks for, after telling its warnings.

    Raises:
        InvalidSpec: It cannot be read, or has mistakes.
    """
    content = read_file(file)
    value, warnings = read(content, file)
    tell(warnings, output)
    return ConfigFile(value, file, content)


@contextlib.contextmanager
def in_file(file: ConfigFile[Any] | None) -> Iterator[None]:
    """Give the mistakes that the body is told of their lines in a file, if there is one."""
    try:
        yield
    except Faulty as error:
        if file is None:
            raise
        found = _located(error, file)
    else:
        return
    raise found


def _located(error: Faulty, file: ConfigFile[Any]) -> GarrisonError:
    # Imported late: only a mistake needs it.
    from garrison.client.located import located

    return located(error, file.content, file.source)


def tell(warnings: tuple[str, ...], output: Output) -> None:
    """Say what is strange, to people only."""
    for text in warnings:
        note(text, output)


def accept_machines(
    what: str, machines: int, usd_per_hour: Decimal | None, *, yes: bool, output: Output
) -> None:
    """Have a purchase confirmed that follows at once, if there is one.

    Args:
        what: Which machines, `g5.2xlarge`.
        machines: How many are bought whatever the demand.
        usd_per_hour: Of one, None where it is not known.
        yes: It is confirmed already.
        output: How the command answers.

    Raises:
        InvalidSpec: Nobody can be asked.
    """
    if not machines:
        return
    check_can_buy(yes=yes)
    price = "an unknown price" if usd_per_hour is None else f"{usd(machines * usd_per_hour)} USD/h"
    bought = f"{counted(machines, 'machine')} ({what}) for {price}"
    note(f"this buys {bought} at once and holds them, whatever the demand", output)
    if not yes:
        confirm(f"Buy {bought}", otherwise=NOTHING_BOUGHT)


def print_ack(noun: str, name: str, ack: NodepoolAck | DeploymentAck, output: Output) -> None:
    """Write what was accepted."""
    said = getattr(ack, "message", "") or "accepted"
    text = f"{noun} {name}: {said} at {when(ack.accepted_at)} (uid {ack.uid})"
    emit(ack, output, lambda: [line(text)])


def unknown(noun: str, name: str) -> str:
    """Return what to tell who did not await an answer."""
    return f"the answer was not awaited; `garrison {noun} get {name}` tells what became of it"
