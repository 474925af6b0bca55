"""The noun `simulated`: the simulated cloud's own console, to rehearse incidents.

It works on the cloud's file, beside the workers or without any, as a cloud's web console works
whether or not Garrison runs.
"""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer

from garrison.cli.arguments import duration
from garrison.cli.groups import Group
from garrison.cli.output import Output, OutputOption, emit, line, state, table_of
from garrison.cli.text import NONE, number
from garrison.errors import InvalidSpec, NotFound
from garrison.models.problems import build, shown
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.faults import DEFAULT_NOTICE, Call, Fault, FaultRule, When
from garrison.settings import load_settings

ALWAYS = "always"

app = typer.Typer(cls=Group, add_completion=False, help="The simulated cloud's own console.")
_cloud: ContextVar[str] = ContextVar("cloud", default="simulated")


@app.callback()
def choose_cloud(
    provider: Annotated[
        str, typer.Option("--provider", help="Which provider of type simulated.")
    ] = "simulated",
) -> None:
    """Choose the cloud that all verbs work on."""
    _cloud.set(provider)


faults = typer.Typer(cls=Group, help="Scripted incidents.")
app.add_typer(faults, name="faults")

NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="A provider id, or CLUSTER/RANK.")
]


def _file() -> Path:
    return load_settings().simulated_cloud(_cloud.get())


def _existing() -> SimulatedConsole | None:
    """Return the console, or None while nobody has used the cloud: looking creates nothing."""
    path = _file()
    return SimulatedConsole(path) if path.exists() else None


@app.command()
def inventory(
    terminated: Annotated[bool, typer.Option("--all", help="Also machines that are gone.")] = False,
    output: OutputOption = Output.JSON,
) -> None:
    """List every machine that exists, of every installation: the truth, as JSON."""
    console = _existing()
    machines = console.inventory(terminated=terminated) if console is not None else []
    columns = ("ID", "OWNER", "#RANK", "STATUS", "REGION", "INSTANCE TYPE", "$ /h", "CREATED")
    emit(machines, output, lambda: [table_of(columns, [_row(one) for one in machines])])


def _row(machine: dict[str, Any]) -> list[Any]:
    return [
        machine["provider_id"],
        machine["owner"],
        str(machine["rank"]),
        state(machine["status"]),
        machine["region"],
        machine["instance_type"],
        str(machine["usd_per_hour"]),
        machine["created_at"],
    ]


@app.command()
def kill(node: NodeArgument, output: OutputOption = Output.TABLE) -> None:
    """Cut a machine's power: it is stopped until it is restarted or revived."""
    console, machine = _machine(node)
    console.kill(machine["provider_id"])
    _emit_machine(console, machine, output)


@app.command()
def revive(node: NodeArgument, output: OutputOption = Output.TABLE) -> None:
    """Let a machine without power boot by itself."""
    console, machine = _machine(node)
    console.revive(machine["provider_id"])
    _emit_machine(console, machine, output)


@app.command()
def notice(
    node: NodeArgument,
    seconds: Annotated[
        Any,
        typer.Option(parser=duration, metavar="DURATION", help="How long until it is taken."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give notice that a machine is taken back, two minutes from now unless told otherwise."""
    console, machine = _machine(node)
    length = _in_seconds(seconds)
    console.notice(machine["provider_id"], DEFAULT_NOTICE if length is None else length)
    _emit_machine(console, machine, output)


def _machine(node: str) -> tuple[SimulatedConsole, dict[str, Any]]:
    console = _existing()
    if console is not None:
        machines = console.inventory()
        matching = [m for m in machines if m["provider_id"] == node] or _of_cluster(machines, node)
        if matching:
            return console, matching[-1]
    raise NotFound(f"there is no simulated machine {shown(node)}")


def _of_cluster(machines: list[dict[str, Any]], node: str) -> list[dict[str, Any]]:
    """Return the machines of `CLUSTER/RANK`, those that are being deleted first."""
    owner, rank = _place(node)
    mine = [m for m in machines if rank is not None and _is_of(m, owner, rank)]
    return sorted(mine, key=lambda m: (m["status"] != "terminating", m["created_at"]))


def _is_of(machine: dict[str, Any], owner: str, rank: int) -> bool:
    named = machine["owner"].lower() in {owner.lower(), f"cluster/{owner.lower()}"}
    return named and machine["rank"] == rank


def _place(node: str) -> tuple[str, int | None]:
    owner, slash, rank = node.rpartition("/")
    known = bool(slash) and rank.isascii() and rank.isdigit() and len(rank) <= 9
    return (owner, int(rank)) if known else (node, None)


def _emit_machine(console: SimulatedConsole, machine: dict[str, Any], output: Output) -> None:
    wanted = machine["provider_id"]
    now = next((m for m in console.inventory() if m["provider_id"] == wanted), machine)
    text = f"{wanted} ({now['owner']} rank {now['rank']}) is {now['status']}"
    if now["notice_ends_at"] is not None:
        text += f" and will be taken at {now['notice_ends_at']}"
    emit(now, output, lambda: [line(text)])


@faults.command("add")
def add_fault(
    call: Annotated[Call, typer.Argument(help="The provider call that goes wrong.")],
    what: Annotated[Fault, typer.Argument(help="How it goes wrong.")] = Fault.ERROR,
    when: Annotated[When | None, typer.Option(help="Before or after the call's effect.")] = None,
    code: Annotated[str | None, typer.Option(help="The cloud's own error code.")] = None,
    message: Annotated[str | None, typer.Option(help="The cloud's own words.")] = None,
    seconds: Annotated[
        Any, typer.Option(parser=duration, metavar="DURATION", help="How long, or how late.")
    ] = None,
    notice_length: Annotated[
        Any,
        typer.Option(
            "--notice",
            parser=duration,
            metavar="DURATION",
            help="How long before a reclaim its notice comes.",
        ),
    ] = None,
    retry_after: Annotated[
        Any, typer.Option(parser=duration, metavar="DURATION", help="What the error asks to wait.")
    ] = None,
    times: Annotated[str, typer.Option(metavar="N|always", help="How many calls it hits.")] = "1",
    skip: Annotated[int, typer.Option(min=0, help="Calls that pass unharmed first.")] = 0,
    lasts: Annotated[
        Any, typer.Option(parser=duration, metavar="DURATION", help="The rule ends after so long.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Only for this cluster.")] = None,
    region: Annotated[str | None, typer.Option(help="Only in this place.")] = None,
    node: Annotated[
        str | None, typer.Option(help="Only for this node: a provider id, or CLUSTER/RANK.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only for nodes of this rank.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Script an incident: the next matching call goes wrong."""
    given = {
        "call": call,
        "what": what,
        "when": when,
        "code": code,
        "message": message,
        "seconds": _in_seconds(seconds),
        "notice_seconds": _in_seconds(notice_length),
        "retry_after_seconds": _in_seconds(retry_after),
        "skip": skip,
        "lasts_seconds": _in_seconds(lasts),
        "region": region,
        **_target(cluster, node, rank),
    }
    values = {name: value for name, value in given.items() if value is not None}
    rule = build(FaultRule, {**values, "times": _times(times)}, what="the fault is not valid")
    path = _file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    added = SimulatedConsole(path).add_fault(rule)
    emit(added, output, lambda: [_rules_table([added])])


def _in_seconds(length: Any) -> float | None:
    return None if length is None else float(length.total_seconds())


def _times(text: str) -> int | None:
    if text == ALWAYS:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 9 and int(text)):
        raise InvalidSpec(f"--times {shown(text)} is neither a number from 1 nor {ALWAYS}")
    return int(text)


def _target(cluster: str | None, node: str | None, rank: int | None) -> dict[str, Any]:
    """Return whom a rule concerns; `CLUSTER/RANK` also names a node that is not bought yet."""
    owner, place = _place(node) if node is not None else ("", None)
    if place is None:
        return {"owner": cluster, "node": node, "rank": rank}
    if cluster is not None or rank is not None:
        raise InvalidSpec("--node CLUSTER/RANK names the cluster and the rank already")
    return {"owner": owner, "rank": place}


@faults.command("list")
def list_faults(output: OutputOption = Output.TABLE) -> None:
    """List the incidents in force, with what is left of their counts."""
    console = _existing()
    rules = console.list_faults() if console is not None else []
    emit(rules, output, lambda: [_rules_table(rules) if rules else line("no faults")])


@faults.command("clear")
def clear_faults(
    rule_id: Annotated[int | None, typer.Argument(metavar="[ID]", help="Only this one.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove one incident, or all."""
    console = _existing()
    if console is None and rule_id is not None:
        raise NotFound(f"there is no fault rule {rule_id}")
    removed = console.clear_faults(rule_id) if console is not None else 0
    emit({"cleared": removed}, output, lambda: [line(f"{removed} cleared")])


def _rules_table(rules: list[FaultRule]) -> Any:
    columns = ("#ID", "CALL", "WHAT", "WHEN", "CODE", "#SECONDS", "TIMES", "#SKIP", "FOR")
    rows = [
        [
            str(rule.id),
            str(rule.call),
            str(rule.what),
            str(rule.side),
            rule.code or NONE,
            f"{rule.seconds:g}",
            ALWAYS if rule.times is None else number(rule.times),
            str(rule.skip),
            _concerns(rule),
        ]
        for rule in rules
    ]
    return table_of(columns, rows)


def _concerns(rule: FaultRule) -> str:
    named = {
        "cluster": rule.owner,
        "region": rule.region,
        "node": rule.node,
        "rank": None if rule.rank is None else str(rule.rank),
    }
    return ", ".join(f"{name} {value}" for name, value in named.items() if value) or "everyone"
