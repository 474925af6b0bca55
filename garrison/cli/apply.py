"""The command `apply`: make everything so as some files say."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from garrison.cli.arguments import Yes
from garrison.cli.confirm import can_ask, confirm
from garrison.cli.output import Output, OutputOption, emit, line, note, show
from garrison.cli.session import Link, connected
from garrison.cli.spec_flags import read_file
from garrison.cli.text import counted, usd
from garrison.errors import InvalidSpec
from garrison.models.apply import ApplyAction, ApplyReport, ApplyStep

if TYPE_CHECKING:
    from garrison.client.apply import ApplyPlan

SUFFIXES = (".yaml", ".yml", ".json")
MARKS = {ApplyAction.CREATE: "+", ApplyAction.UPDATE: "~", ApplyAction.UNCHANGED: "="}
DONE = {
    ApplyAction.CREATE: "created",
    ApplyAction.UPDATE: "updated",
    ApplyAction.UNCHANGED: "unchanged",
}
UNTOUCHED = "nothing was changed"

Files = Annotated[
    list[str],
    typer.Option(
        "--file",
        "-f",
        metavar="FILE|DIR",
        help="A file of one resource, or a directory of them; may be repeated.",
    ),
]


def apply(file: Files, yes: Yes = False, output: OutputOption = Output.TABLE) -> None:
    """Make compute clusters, nodepools and deployments so as files say; show first what differs."""
    contents = {name: read_file(name) for name in found_files(file)}
    with connected() as link:
        plan = link.run(link.garrison.apply.plan(contents))
        _show(plan, output)
        if plan.changes:
            _accept(plan, yes=yes)
        steps = _carry_out(link, plan, output)
    report = ApplyReport(steps=tuple(steps), warnings=_warnings(plan))
    if output is not Output.TABLE:
        emit(report, output, list)


def found_files(names: Sequence[str]) -> list[str]:
    """Return files, and those of directories by name; none twice.

    Raises:
        InvalidSpec: A directory has none.
    """
    found: list[str] = []
    for name in names:
        folder = Path(name)
        if name == "-" or not folder.is_dir():
            found.append(name)
            continue
        inside = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        if not inside:
            raise InvalidSpec(f"has no file that ends with {', '.join(SUFFIXES)}", source=name)
        found += [str(path) for path in inside]
    return list(dict.fromkeys(found))


def _warnings(plan: ApplyPlan) -> tuple[str, ...]:
    told = [f"{one.step.source}: {text}" for one in plan.steps for text in one.step.warnings]
    return (*plan.skipped, *told)


def _show(plan: ApplyPlan, output: Output) -> None:
    for text in _warnings(plan):
        note(text, output)
    if output is Output.TABLE:
        show(line(text) for one in plan.steps for text in step_lines(one.step))


def step_lines(step: ApplyStep) -> Iterator[str]:
    """Yield what a step changes: `~ deployment x: max_replicas 5 -> 7`."""
    changes = "; ".join(f"{one.field} {one.before} -> {one.after}" for one in step.differences)
    ends = {ApplyAction.CREATE: "", ApplyAction.UPDATE: f": {changes}"}
    yield f"{MARKS[step.action]} {step.noun} {step.name}{ends.get(step.action, ': unchanged')}"
    if step.machines:
        price = "an unknown price" if step.hourly_usd is None else f"{usd(step.hourly_usd)} USD/h"
        yield f"    buys {counted(step.machines, 'machine')} at once, for {price}"


def _accept(plan: ApplyPlan, *, yes: bool) -> None:
    """Have a plan confirmed.

    Raises:
        InvalidSpec: Nobody can be asked.
    """
    if yes:
        return
    if not can_ask():
        raise InvalidSpec(
            f"{UNTOUCHED}: it must be confirmed, and there is no terminal to ask on; give --yes"
        )
    confirm(f"Make {counted(len(plan.changes), 'change')}", otherwise=UNTOUCHED)


def _carry_out(link: Link, plan: ApplyPlan, output: Output) -> list[ApplyStep]:
    steps: list[ApplyStep] = []

    async def run() -> None:
        async for step in link.garrison.apply.carry_out(plan):
            steps.append(step)
            if output is Output.TABLE and step.done:
                sys.stdout.write(f"{step.noun} {step.name}: {DONE[step.action]}\n")
                sys.stdout.flush()

    link.run(run(), goes_on="the rest was not applied; the same command goes on with it")
    return steps
