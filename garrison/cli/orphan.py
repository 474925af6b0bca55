"""The noun `orphan`: machines that nobody answers for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import RenderableType

from garrison.cli.arguments import Yes
from garrison.cli.cluster_tables import marked
from garrison.cli.confirm import can_ask, confirm
from garrison.cli.groups import Group
from garrison.cli.output import Output, OutputOption, emit, line, note, show, table_of
from garrison.cli.session import connected
from garrison.cli.text import NONE, cost, counted, span, usd
from garrison.errors import ErrorCode, InvalidSpec, error_of
from garrison.models.orphan import Orphan, OrphanReport, SweepResult, Swept

UNTOUCHED = "nothing was deleted"
IDS_SHOWN = 3

app = typer.Typer(cls=Group, add_completion=False, help="Machines that nobody answers for.")

Provider = Annotated[
    str | None, typer.Option("--provider", metavar="NAME", help="Only at this provider.")
]
Installation = Annotated[
    str | None,
    typer.Option(
        "--installation",
        metavar="ID",
        help="Machines of another installation, whose data directory was lost say.",
    ),
]


@app.callback()
def _orphan() -> None:
    """Machines that nobody answers for."""


@app.command("list")
def list_orphans(
    provider: Provider = None,
    installation: Installation = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List machines of this installation whose life is unknown, with age and cost."""
    with connected() as link:
        report = link.run(link.garrison.orphans.list(provider=provider, installation=installation))
    emit(report.orphans, output, lambda: _tables(report))
    _hint(report, output)
    _check_answered(report)


@app.command()
def sweep(
    provider: Provider = None,
    installation: Installation = None,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete the machines that `orphan list` shows as orphans."""
    if not yes and not can_ask():
        raise InvalidSpec(
            f"{UNTOUCHED}: it must be confirmed, and there is no terminal to ask on; give --yes,"
            " after a look at `garrison orphan list`"
        )
    with connected() as link:
        report = link.run(link.garrison.orphans.list(provider=provider, installation=installation))
        _preview(report, output, yes=yes)
        swept = link.run(
            link.garrison.orphans.sweep(report.orphans),
            goes_on="the answer was not awaited; `garrison orphan list` tells what is left",
        )
    emit(swept, output, lambda: [_swept_table(swept)] if swept else [])
    _check_answered(report)
    _check_swept(swept)


def _preview(report: OrphanReport, output: Output, *, yes: bool) -> None:
    """Show what goes and have it confirmed, where there is anything."""
    going = [orphan for orphan in report.orphans if orphan.sweepable]
    asks = bool(going) and not yes
    shown = [*_tables(report), *([line("")] if report.orphans else [])]
    if output is Output.TABLE:
        show(shown)
    elif asks:
        show(shown, sys.stderr)
    if asks:
        confirm(_question(report, going), otherwise=UNTOUCHED)


def _question(report: OrphanReport, going: Sequence[Orphan]) -> str:
    count = sum(len(orphan.machines) for orphan in going)
    if report.own:
        return (
            f"Delete {counted(count, 'machine')} for good (if Temporal's database was lost or"
            " replaced, putting it back saves them)"
        )
    whose = ", ".join(report.installations)
    return (
        f"Delete {counted(count, 'machine')} of ANOTHER installation, {whose}, for good (it may be"
        " alive, on another Temporal Service that this one knows nothing of)"
    )


def _tables(report: OrphanReport) -> list[RenderableType]:
    if not report.orphans:
        whose = "" if report.own else f" of the installation {', '.join(report.installations)}"
        return [] if report.problems else [line(f"there are no orphans{whose}")]
    columns = (
        *("PROVIDER", "OWNER", "UID", "#MACHINES", "AGE", "$ /h", "#COST", "STATE"),
        *("MACHINE IDS", "WHY"),
    )
    return [table_of(columns, [_row(orphan) for orphan in report.orphans], wraps="WHY")]


def _row(orphan: Orphan) -> list[str]:
    return [
        marked(orphan.provider, orphan.simulated, orphan.provider_type),
        orphan.owner or NONE,
        orphan.uid or NONE,
        str(len(orphan.machines)),
        span(timedelta(seconds=orphan.age_seconds)),
        usd(orphan.usd_per_hour),
        "unknown" if orphan.cost_usd is None else cost(orphan.cost_usd),
        "orphan" if orphan.sweepable else "too young",
        _some([machine.provider_id for machine in orphan.machines]),
        orphan.reason,
    ]


def _some(ids: Sequence[str]) -> str:
    rest = len(ids) - IDS_SHOWN
    return ", ".join([*ids[:IDS_SHOWN], *([f"and {rest} more"] if rest > 0 else [])])


def _hint(report: OrphanReport, output: Output) -> None:
    if report.claimed_machines and not report.own:
        claimed = counted(report.claimed_machines, "machine")
        note(f"{claimed} of that installation: known lives of this Temporal Service", output)
    for installation, count in report.others.items():
        note(
            f"the installation {installation} has {counted(count, 'machine')} there;"
            f" `garrison orphan list --installation {installation}` shows them",
            output,
        )


def _swept_table(swept: Iterable[Swept]) -> RenderableType:
    columns = ("PROVIDER", "OWNER", "UID", "#MACHINES", "RESULT", "WHY")
    rows = [
        [
            one.provider,
            one.owner or NONE,
            one.uid or NONE,
            str(one.machines),
            str(one.result),
            ": ".join(part for part in (one.code, one.message) if part) or NONE,
        ]
        for one in swept
    ]
    return table_of(columns, rows, wraps="WHY")


def _check_answered(report: OrphanReport) -> None:
    """Return if every provider answered.

    Raises:
        GarrisonError: The first one's error; all are named.
    """
    if report.problems:
        words = "; ".join(f"{one.provider}: {one.message}" for one in report.problems)
        raise error_of(report.problems[0].code, f"not all providers answered: {words}")


def _check_swept(swept: Sequence[Swept]) -> None:
    """Return if nothing is left that should go.

    Raises:
        GarrisonError: The first failure.
    """
    failed = [one for one in swept if one.result is SweepResult.FAILED]
    if failed:
        first = failed[0]
        raise error_of(
            first.code or ErrorCode.INTERNAL,
            f"{len(failed)} of {counted(len(swept), 'purchase')} could not be deleted:"
            f" {first.owner} at {first.provider}: {first.message};"
            " run `garrison orphan sweep` again",
        )
