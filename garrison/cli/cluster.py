"""The noun `cluster`: parse, call the SDK, print."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import RenderableType

from garrison.cli.arguments import (
    ClusterName,
    MaxLifetime,
    MaxPrice,
    Rank,
    Timeout,
    Uid,
    Verbose,
    Wait,
    Yes,
)
from garrison.cli.cluster_tables import (
    connections_table,
    events_table,
    list_table,
    quote_tables,
    status_tables,
)
from garrison.cli.confirm import can_ask, check_can_buy, confirm
from garrison.cli.groups import Group
from garrison.cli.log_output import print_log
from garrison.cli.output import Output, OutputOption, console_for, emit, line, note, show
from garrison.cli.session import Link, connected
from garrison.cli.spec_flags import Wish, takes_wish
from garrison.cli.text import usd, when
from garrison.cli.waiting import For, Goal, check_attempt, wait_for, wants_to_wait, workload_exit
from garrison.errors import InvalidSpec, PriceChanged
from garrison.models.cluster import ClusterSpec
from garrison.models.cluster_messages import ActionAck, TerminateAck
from garrison.models.cluster_state import CLOSED_PHASES, Phase
from garrison.models.cluster_status import ClusterRow, ClusterStatus, QuoteStatus
from garrison.models.problems import shown, suggestion

WATCH_SECONDS = 2.0
RUNNING = Goal(frozenset({Phase.RUNNING}))
CLOSED = Goal(CLOSED_PHASES)

app = typer.Typer(
    cls=Group, add_completion=False, help="Identical machines, bought and given back as one."
)


@app.command()
@takes_wish(priced=True)
def quote(wish: Wish, verbose: Verbose = False, output: OutputOption = Output.TABLE) -> None:
    """Price a whole cluster and lock the rate for a while; nothing is bought."""
    spec = _spec(wish, output)
    with connected() as link, wish.located():
        made = link.run(link.garrison.clusters.quote(spec))
    emit(made, output, lambda: [*quote_tables(made, verbose=verbose), _next_step(made)])


def _spec(wish: Wish, output: Output) -> ClusterSpec:
    for text in wish.notes:
        note(text, output)
    if wish.spec is None:
        raise InvalidSpec("say what is wanted: -f FILE, or flags such as --accelerator H100:8")
    return wish.spec


def _next_step(made: QuoteStatus) -> RenderableType:
    return line(f"buy it with `garrison cluster launch {made.name}`")


@app.command()
@takes_wish(priced=False)
def launch(
    name: ClusterName,
    wish: Wish,
    quote_id: Annotated[
        str | None, typer.Option("--quote-id", help="The accepted quote; by default the current.")
    ] = None,
    uid: Uid = None,
    max_price: MaxPrice = None,
    max_lifetime: MaxLifetime = None,
    failover: Annotated[
        bool | None, typer.Option(help="Try other places when one has no capacity.")
    ] = None,
    yes: Yes = False,
    verbose: Verbose = False,
    wait: Wait = False,
    goal: For = None,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Accept a quote: buy the cluster at its locked rate."""
    waits = wants_to_wait(wait, goal, timeout)
    spec = None if wish.spec is None else _spec(wish, output)
    if spec is not None and spec.name not in {None, name}:
        raise InvalidSpec(f"the file is of cluster {shown(spec.name)}, not of {shown(name)}")
    check_can_buy(yes=yes)
    with connected() as link:
        status = link.run(link.garrison.clusters.get(name, uid=uid))
        # A quote made meanwhile has another id, so what is bought is what was shown.
        accepted = quote_id or status.quote_id
        if status.phase is Phase.QUOTED and accepted is not None:
            shown_quote = link.run(link.garrison.clusters.quoted(name, accepted))
            _accept(shown_quote, yes=yes, verbose=verbose, output=output)
        ack = link.run(
            link.garrison.clusters.launch(
                name,
                quote_id=accepted,
                uid=uid or status.uid,
                spec=spec,
                max_hourly_usd=max_price,
                max_lifetime=max_lifetime,
                failover=failover,
            ),
            goes_on=_unknown(name),
        )
        _finish(link, ack, waits=waits, goal=goal or RUNNING, timeout=timeout, output=output)


@app.command()
@takes_wish(priced=True)
def up(
    wish: Wish,
    max_price: MaxPrice = None,
    max_lifetime: MaxLifetime = None,
    yes: Yes = False,
    verbose: Verbose = False,
    goal: For = None,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Quote, confirm, launch, and wait until it runs."""
    spec = _spec(wish, output)
    check_can_buy(yes=yes)
    with connected() as link:
        with wish.located():
            made = link.run(link.garrison.clusters.quote(spec))
        if max_price is not None and made.hourly_usd > max_price:
            raise PriceChanged(
                f"{usd(made.hourly_usd)} USD/h exceeds --max-price {usd(max_price)}; nothing was"
                " bought"
            )
        _accept(made, yes=yes, verbose=verbose, output=output)
        ack = link.run(
            link.garrison.clusters.launch(
                made.name,
                quote_id=made.quote_id,
                uid=made.uid,
                max_hourly_usd=max_price,
                max_lifetime=max_lifetime,
            ),
            goes_on=_unknown(made.name),
        )
        _finish(link, ack, waits=True, goal=goal or RUNNING, timeout=timeout, output=output)


def _accept(made: QuoteStatus, *, yes: bool, verbose: bool, output: Output) -> None:
    """Show a price and have it confirmed."""
    if output is Output.TABLE:
        show([*quote_tables(made, verbose=verbose), line("")])
    elif not yes:
        show(quote_tables(made, verbose=verbose), sys.stderr)
    if not yes:
        bound = "at most " if made.at_most else ""
        question = f"Buy {made.name} for {bound}{usd(made.hourly_usd)} USD/h"
        confirm(question, otherwise="nothing was bought")


def _unknown(name: str) -> str:
    return f"the answer was not awaited; `garrison cluster get {name}` tells what became of it"


def _finish(
    link: Link,
    ack: ActionAck,
    *,
    waits: bool,
    goal: Goal,
    timeout: timedelta | None,
    output: Output,
) -> None:
    """Print an acknowledgement, or wait and print what came of it."""
    if not waits:
        emit(ack, output, lambda: [_acknowledged(ack)])
        return
    if output is Output.TABLE:
        show([_acknowledged(ack)])
    status = wait_for(link, ack.name, goal, output=output, uid=ack.uid, timeout=timeout)
    _print_reached(status, goal, output)


def _acknowledged(ack: ActionAck) -> RenderableType:
    phase = f", now {ack.phase}" if ack.phase else ""
    what = ack.message or "accepted"
    return line(f"{ack.name}: {what} at {when(ack.accepted_at)}{phase} (uid {ack.uid})")


def _print_reached(status: ClusterStatus, goal: Goal, output: Output) -> None:
    emit(status, output, lambda: status_tables(status))
    if not goal.phases and workload_exit(status):
        raise typer.Exit(workload_exit(status))


@app.command("list")
def list_clusters(
    include_ended: Annotated[bool, typer.Option("--all", help="Also those that ended.")] = False,
    phase: Annotated[str | None, typer.Option(help="Only those in this phase.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None,
    provider: Annotated[str | None, typer.Option(help="Only those at this provider.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, and show changes.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List clusters, newest first."""
    if phase is not None and phase not in set(Phase):
        raise InvalidSpec(f"--phase {shown(phase)} is no phase; {suggestion(phase, list(Phase))}")
    with connected() as link:

        def rows() -> list[ClusterRow]:
            return link.run(
                link.garrison.clusters.list(
                    include_ended=include_ended, phase=phase, owner=owner, provider=provider
                )
            )

        last: list[ClusterRow] | None = None
        while True:
            found = rows()
            seen = [row.model_copy(update={"cost_usd": None}) for row in found]
            if seen != last:
                _print_list(found, output, again=last is not None)
            if not watch:
                return
            last = seen
            link.run(asyncio.sleep(WATCH_SECONDS))


def _print_list(rows: list[ClusterRow], output: Output, *, again: bool) -> None:
    if again and sys.stdout.isatty():
        console_for(sys.stdout).clear()
    elif again and output is Output.YAML:
        sys.stdout.write("---\n")
    elif again and output is Output.TABLE:
        sys.stdout.write("\n")
    emit(rows, output, lambda: list_table(rows))


@app.command()
def get(name: ClusterName, uid: Uid = None, output: OutputOption = Output.TABLE) -> None:
    """Show one cluster: phase, price, nodes, recovery, last events."""
    status = _status(name, uid)
    emit(status, output, lambda: status_tables(status))


def _status(name: str, uid: str | None) -> ClusterStatus:
    with connected() as link:
        return link.run(link.garrison.clusters.get(name, uid=uid))


@app.command()
def wait(
    name: ClusterName,
    goal: For = None,
    uid: Uid = None,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait for a phase (running by default), or for the end of the workload."""
    with connected() as link:
        status = wait_for(link, name, goal or RUNNING, output=output, uid=uid, timeout=timeout)
    _print_reached(status, goal or RUNNING, output)


@app.command()
def connections(name: ClusterName, output: OutputOption = Output.TABLE) -> None:
    """Show how to log in to each node, and its address among the others."""
    with connected() as link:
        found = list(link.run(link.garrison.clusters.connections(name)))
    emit(found, output, lambda: [connections_table(found)])


@app.command()
def ssh(
    name: ClusterName,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Instead of a shell; one word is a line."),
    ] = None,
    rank: Rank = 0,
) -> None:
    """Log in to a node, or run a command there and exit as it did."""
    words = tuple(command or ())
    if len(words) == 1:
        # As with OpenSSH, a quoted line is a line of shell; several words arrive as they are.
        words = ("/bin/sh", "-c", *words)
    with connected() as link:
        status = link.run(link.garrison.clusters.ssh(name, rank=rank, command=words))
    raise typer.Exit(status)


@app.command()
def logs(
    name: ClusterName,
    rank: Rank = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the command ends.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only the last so many lines.")
    ] = None,
    uid: Uid = None,
) -> None:
    """Print the log of a node's command, also after the node is gone."""
    with connected() as link:
        link.run(print_log(link, name, rank=rank, follow=follow, tail=tail, uid=uid))


@app.command()
def events(name: ClusterName, uid: Uid = None, output: OutputOption = Output.TABLE) -> None:
    """Show what happened to a cluster and its nodes, oldest first."""
    found = _status(name, uid).events
    emit(found, output, lambda: [events_table(found)])


@app.command()
def recover(
    name: ClusterName,
    wait: Wait = False,
    goal: For = None,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start one attempt now to bring lost nodes back in place."""
    waits = wants_to_wait(wait, goal, timeout)
    with connected() as link:
        before = link.run(link.garrison.clusters.get(name)) if waits else None
        ack = link.run(link.garrison.clusters.recover(name), goes_on=_unknown(name))
        if before is None:
            emit(ack, output, lambda: [_acknowledged(ack)])
            return
        status = wait_for(
            link,
            name,
            goal or RUNNING,
            output=output,
            uid=ack.uid,
            timeout=timeout,
            check=lambda now: check_attempt(before, now),
        )
    _print_reached(status, goal or RUNNING, output)


@app.command()
def recovery(
    name: ClusterName,
    switch: Annotated[
        str | None, typer.Argument(metavar="[on|off]", help="Recover without being asked.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=100, help="Attempts per unhealthy episode.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Turn automatic recovery on or off, or change its budget."""
    if switch not in {"on", "off", None}:
        raise InvalidSpec(f"recovery is on or off, not {shown(switch)}")
    if switch is None and max_attempts is None:
        raise InvalidSpec("say on or off, or --max-attempts N")
    automatic = None if switch is None else switch == "on"
    with connected() as link:
        change = link.garrison.clusters.recovery(
            name, automatic=automatic, max_attempts=max_attempts
        )
        ack = link.run(change, goes_on=_unknown(name))
    emit(ack, output, lambda: [_acknowledged(ack)])


@app.command()
def terminate(
    name: ClusterName,
    uid: Uid = None,
    yes: Yes = False,
    wait: Wait = False,
    goal: For = None,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give every machine back; accepted in every phase."""
    waits = wants_to_wait(wait, goal, timeout)
    if not yes and can_ask():
        confirm(f"Terminate {name} and delete its nodes", otherwise=f"{name} was left as it is")
    with connected() as link:
        ack = link.run(link.garrison.clusters.terminate(name, uid=uid), goes_on=_unknown(name))
        if not waits:
            emit(ack, output, lambda: _terminated(ack))
            return
        if output is Output.TABLE:
            show(_terminated(ack))
        reached = wait_for(link, name, goal or CLOSED, output=output, uid=ack.uid, timeout=timeout)
    _print_reached(reached, goal or CLOSED, output)


def _terminated(ack: TerminateAck) -> Iterable[RenderableType]:
    return [line(f"{ack.name}: terminate accepted at {when(ack.accepted_at)} (uid {ack.uid})")]
