"""The noun `deployment`: parse, call the SDK, print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from garrison.cli.arguments import Timeout, Uid, Wait, Yes
from garrison.cli.deletion import confirm_delete, print_deleted, print_gone
from garrison.cli.elastic_arguments import (
    Config,
    ConfigFile,
    DeploymentId,
    in_file,
    print_ack,
    read_config,
    unknown,
)
from garrison.cli.elastic_tables import (
    deployment_line,
    deployment_list,
    deployment_summary,
    deployment_tables,
    pool_events_table,
    replica_table,
)
from garrison.cli.groups import Group
from garrison.cli.listing import Watch, show_list
from garrison.cli.live import live_view
from garrison.cli.output import Output, OutputOption, emit, note
from garrison.cli.session import Link, connected
from garrison.cli.waiting import wants_to_wait
from garrison.errors import InvalidSpec
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentAck,
    DeploymentSpec,
    DeploymentStatus,
)
from garrison.models.elastic_file import DeploymentFile, read_deployment_file
from garrison.models.problems import build

NOUN = "deployment"

app = typer.Typer(
    cls=Group, add_completion=False, help="Replicas of one workload, on machines of nodepools."
)


@app.command()
def create(
    name: DeploymentId,
    config: Config = None,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a deployment; its nodepools buy what its replicas need."""
    waits = wants_to_wait(wait, None, timeout)
    if config is None:
        raise InvalidSpec("say what it runs: --config FILE")
    file = _read(name, config, output)
    with connected() as link, in_file(file):
        deployments = link.garrison.deployments
        _tell_missing(link, file.value, output)
        ack = link.run(deployments.create(file.value), goes_on=unknown(NOUN, name))
        _finish(link, ack, waits=waits, timeout=timeout, output=output)


@app.command()
def update(
    name: DeploymentId,
    config: Config = None,
    min_replicas: Annotated[
        int | None, typer.Option("--min", min=0, help="Replicas that there always are.")
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option("--max", min=0, help="Replicas that it never passes.")
    ] = None,
    uid: Uid = None,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a deployment; another workload replaces its replicas one after the other."""
    waits = wants_to_wait(wait, None, timeout)
    flags = {"min_replicas": min_replicas, "max_replicas": max_replicas}
    given = {key: value for key, value in flags.items() if value is not None}
    if config is None and not given:
        raise InvalidSpec("say what to change: --config FILE, --min N or --max N")
    file = None if config is None else _read(name, config, output)
    with connected() as link, in_file(file):
        deployments = link.garrison.deployments
        wanted: DeploymentFile | DeploymentSpec
        if file is not None:
            wanted = file.value
            _tell_missing(link, file.value, output)
        else:
            now = link.run(deployments.get(name, uid=uid))
            wanted, uid = now.spec, now.uid
        scale = build(
            AutoscaleConfig,
            {**wanted.autoscale.model_dump(), **given},
            what="the flags are not valid",
        )
        wanted = wanted.replace(autoscale=scale)
        ack = link.run(deployments.update(wanted, uid=uid), goes_on=unknown(NOUN, name))
        _finish(link, ack, waits=waits, timeout=timeout, output=output)


def _read(name: str, config: str, output: Output) -> ConfigFile[DeploymentFile]:
    return read_config(
        config, lambda data, source: read_deployment_file(data, source, name), output
    )


def _tell_missing(link: Link, file: DeploymentFile, output: Output) -> None:
    for pool in link.run(link.garrison.deployments.missing_nodepools(file)):
        note(f"there is no nodepool {pool} yet; replicas wait until there is", output)


@app.command("list")
def list_deployments(watch: Watch = False, output: OutputOption = Output.TABLE) -> None:
    """List deployments, newest first."""
    with connected() as link:
        show_list(
            link,
            link.garrison.deployments.list,
            output,
            watch=watch,
            table=deployment_list,
            name=lambda row: f"deployment {row.id}",
            sentence=deployment_line,
        )


@app.command()
def get(name: DeploymentId, uid: Uid = None, output: OutputOption = Output.TABLE) -> None:
    """Show one deployment: replicas, where they are and why, rollout, last events."""
    with connected() as link:
        found = link.run(link.garrison.deployments.get(name, uid=uid))
    emit(found, output, lambda: deployment_tables(found))


@app.command()
def scale(
    name: DeploymentId,
    replicas: Annotated[
        int | None, typer.Argument(metavar="[N]", min=0, help="Replicas to hold; 0 costs nothing.")
    ] = None,
    auto: Annotated[
        bool, typer.Option("--auto", help="Give the count back to autoscaling.")
    ] = False,
    uid: Uid = None,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Hold a fixed count of replicas, whatever the load."""
    waits = wants_to_wait(wait, None, timeout)
    if auto is (replicas is not None):
        raise InvalidSpec(f"say how many: `garrison deployment scale {name} N`, or --auto")
    with connected() as link:
        call = link.garrison.deployments.scale(name, replicas, uid=uid)
        _change(link, name, call, waits=waits, timeout=timeout, output=output)


@app.command()
def enable(
    name: DeploymentId,
    uid: Uid = None,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a deployment run again, and try again what was given up."""
    _switch(name, uid, wait, timeout, output, on=True)


@app.command()
def disable(
    name: DeploymentId,
    uid: Uid = None,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop all replicas and take no traffic; everything else is kept."""
    _switch(name, uid, wait, timeout, output, on=False)


def _switch(
    name: str,
    uid: str | None,
    wait: bool,
    timeout: timedelta | None,
    output: Output,
    *,
    on: bool,
) -> None:
    waits = wants_to_wait(wait, None, timeout)
    with connected() as link:
        deployments = link.garrison.deployments
        call = (deployments.enable if on else deployments.disable)(name, uid=uid)
        _change(link, name, call, waits=waits, timeout=timeout, output=output)


def _change(
    link: Link,
    name: str,
    call: Coroutine[Any, Any, DeploymentAck],
    *,
    waits: bool,
    timeout: timedelta | None,
    output: Output,
) -> None:
    ack = link.run(call, goes_on=unknown(NOUN, name))
    _finish(link, ack, waits=waits, timeout=timeout, output=output)


def _finish(
    link: Link, ack: DeploymentAck, *, waits: bool, timeout: timedelta | None, output: Output
) -> None:
    """Print an acknowledgement, or wait and print what came of it."""
    if not waits or output is Output.TABLE:
        print_ack(NOUN, ack.id, ack, output)
    if not waits:
        return
    with _view(f"waiting until {ack.id} has its replicas", output) as view:
        call = link.garrison.deployments.wait(
            ack.id, uid=ack.uid, generation=ack.generation, timeout=timeout, on_change=view
        )
        status = link.run(call, goes_on=f"deployment {ack.id} goes on")
    emit(status, output, lambda: deployment_tables(status))


def _view(title: str, output: Output) -> AbstractContextManager[Callable[[DeploymentStatus], None]]:
    return live_view(title, output, summary=deployment_summary, parts=_parts)


def _parts(status: DeploymentStatus) -> Iterator[RenderableType]:
    if status.replicas:
        yield replica_table(status.replicas)


@app.command()
def logs(
    name: DeploymentId,
    replica: Annotated[
        str | None, typer.Option("--replica", help="Which one; by default the first with a node.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Until the replica is gone.")
    ] = False,
) -> None:
    """Print a replica's log; of one that is gone, what was saved when it was stopped."""
    with connected() as link:
        link.run(_print_log(link, name, replica, follow))


async def _print_log(link: Link, name: str, replica: str | None, follow: bool) -> None:
    def say(gone: str) -> None:
        note(f"replica {gone} was stopped; this is the end of its log, saved then", Output.TABLE)

    logs = link.garrison.deployments.logs(name, replica=replica, follow=follow, on_saved=say)
    async for data in logs:
        # A log is bytes: whatever the command wrote goes out as it is.
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@app.command()
def events(name: DeploymentId, uid: Uid = None, output: OutputOption = Output.TABLE) -> None:
    """Show what happened to a deployment and its replicas, oldest first."""
    with connected() as link:
        found = link.run(link.garrison.deployments.events(name, uid=uid))
    emit(found, output, lambda: [pool_events_table(found)])


@app.command()
def delete(
    name: DeploymentId,
    uid: Uid = None,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a deployment: every replica is stopped."""
    waits = wants_to_wait(wait, None, timeout)
    question = f"Delete deployment {name} and stop its replicas"
    with connected() as link:
        goes = link.run(link.garrison.deletions.deployment(name, uid=uid))
        confirm_delete(question, name, goes, yes=yes, output=output)
        call = link.garrison.deployments.delete(name, uid=uid or goes.uid)
        ack = link.run(call, goes_on=unknown(NOUN, name))
        print_deleted(NOUN, name, ack, goes, output)
        if not waits:
            return
        with _view(f"waiting until {name} has stopped its replicas", output) as view:
            gone = link.garrison.deployments.wait_deleted(
                name, uid=ack.uid, timeout=timeout, on_change=view
            )
            link.run(gone, goes_on=f"the deletion of {name} goes on")
    print_gone(f"deployment {name}", output)
