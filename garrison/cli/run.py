"""`garrison up` and `garrison worker`: the processes that serve."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
import threading
from collections.abc import Collection, Coroutine, Mapping
from typing import Annotated, Any, NoReturn

import typer
from temporalio.client import Client

from garrison.cli.text import printable
from garrison.errors import InvalidSpec, ServiceUnreachable, exit_status
from garrison.models.provider import ProviderFacts
from garrison.router.config import check_config, router_config
from garrison.router.directory import TemporalDirectory
from garrison.router.listener import shown_address
from garrison.router.process import keep_what_was_loaded, raise_open_files
from garrison.router.router import Router
from garrison.settings import RouterSettings, Settings, default_data_dir, load_settings
from garrison.workers.assemble import queue_names
from garrison.workers.embedded import PORT, UI_PORT, Ports
from garrison.workers.main import Parts
from garrison.workers.metrics import MetricsAddress
from garrison.workers.process_log import log_to_stderr
from garrison.workers.server_process import check_port
from garrison.workers.service import NOTHING, Beside, Serving, run_up, run_worker

ROUTER_PORT = RouterSettings().port
LAST_PATIENCE = 10.0
"""Seconds that a failed process may take to end by itself."""

DataDir = Annotated[
    str | None,  # a path would take nothing at all for the current directory
    typer.Option("--data-dir", help="Where this installation keeps everything.", metavar="DIR"),
]
Port = Annotated[
    int | None,
    typer.Option("--port", min=1, max=65535, help=f"Of the Temporal server; {PORT} by default."),
]
UiPort = Annotated[
    int | None,
    typer.Option("--ui-port", min=1, max=65535, help=f"Of its web UI; {UI_PORT} by default."),
]
RouterPort = Annotated[
    int | None,
    typer.Option(
        "--router-port",
        min=0,
        max=65535,
        help=f"Of the router of deployments; {ROUTER_PORT} by default, 0 runs none.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", min=1, max=65535, help="Where Prometheus may scrape."),
]
MetricsHost = Annotated[
    str | None,
    typer.Option(
        "--metrics-host",
        metavar="ADDRESS",
        help="Of the metrics port: 127.0.0.1 by default, 0.0.0.0 for every address.",
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="NAME", help="A task queue to serve; all by default."),
]


def up(
    data_dir: DataDir = None,
    port: Port = None,
    ui_port: UiPort = None,
    router_port: RouterPort = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
) -> None:
    """Run Garrison on this machine, in the foreground: Temporal server, UI, workers and router."""
    settings = _routed(_settings(data_dir), router_port)
    _check_ports(
        {
            "--port": port,
            "--ui-port": ui_port,
            "--router-port": settings.router.port or None,
            "--metrics-port": metrics_port,
        }
    )
    log_to_stderr()

    def ready(serving: Serving) -> None:
        typer.echo("\n".join(banner(settings, serving, os.environ)))

    def server_ended(error: ServiceUnreachable) -> NoReturn:
        sys.stderr.write(f"error: {error.code}: {printable(str(error), lines=True)}\n")
        _leave(exit_status(error.code))

    serving = run_up(
        settings,
        Ports(port, ui_port),
        metrics=_metrics(metrics_port, metrics_host),
        ready=ready,
        tell=typer.echo,
        server_ended=server_ended,
        beside=_router(settings) if settings.router.port else NOTHING,
    )
    asyncio.run(_to_the_end(serving))


def worker(
    queue: Queues = None, metrics_port: MetricsPort = None, metrics_host: MetricsHost = None
) -> None:
    """Serve the task queues of a Temporal Service that runs already."""
    settings = load_settings()
    log_to_stderr()

    def ready(client: Client, parts: Parts) -> None:
        served = [name for name in queue_names(settings) if parts.serves(name)]
        where = f"{client.service_client.config.target_host}, namespace {client.namespace}"
        typer.echo(f"serving {', '.join(served)} of {where}; Ctrl-C ends it")

    metrics = _metrics(metrics_port, metrics_host)
    asyncio.run(_to_the_end(run_worker(settings, queue, metrics=metrics, ready=ready)))


def banner(settings: Settings, serving: Serving, environ: Mapping[str, str]) -> list[str]:
    """Return what `up` tells once it serves: where things are, and what to type next."""
    record = serving.server.record
    how = "taken over from an earlier `garrison up`" if serving.server.adopted else "started"
    providers = (_provider_line(p.facts) for p in serving.parts.providers.values())
    lines = [
        f"Temporal   {record.address} ({how}), namespace {record.namespace}",
        f"UI         {record.ui}/namespaces/{record.namespace}/workflows",
        *_router_line(settings),
        f"data       {settings.data_dir}",
        f"providers  {', '.join(providers)}",
    ]
    elsewhere = environ.get("TEMPORAL_ADDRESS")
    if elsewhere:
        lines.append(f"note       TEMPORAL_ADDRESS is set: other commands go to {elsewhere}")
    lines += ["", "In another terminal:"]
    if settings.data_dir != default_data_dir():
        lines.append(f"  export GARRISON_DATA_DIR={shlex.quote(str(settings.data_dir))}")
    lines.append(f"  {_next_command(serving.parts.providers)}")
    return [*lines, "", "Ctrl-C ends workers, router and server; machines go on."]


def _next_command(providers: Collection[str]) -> str:
    if "local" in providers:
        return "garrison cluster up --name hello --provider local --nodes 2 --gpus-per-node 0"
    return "garrison offer list"


def _provider_line(facts: ProviderFacts) -> str:
    marks = [facts.type] if facts.type != facts.name else []
    if facts.simulated:
        marks.append("this machine" if facts.type == "local" else "on paper")
    return f"{facts.name} ({', '.join(marks)})" if marks else facts.name


def _routed(settings: Settings, port: int | None) -> Settings:
    """Return settings in which the router has the port that was asked for."""
    if port is None:
        return settings
    router = settings.router.model_copy(update={"port": port})
    return settings.model_copy(update={"router": router})


def _router(settings: Settings) -> Beside:
    config = router_config(settings)

    def check() -> None:
        check_config(config)
        check_port(config.port, "--router-port", config.host)

    def serving(client: Client, parts: Parts) -> contextlib.AbstractAsyncContextManager[object]:
        raise_open_files()
        keep_what_was_loaded()
        return Router.serving(config, TemporalDirectory(client))

    return Beside(serving, check)


def _router_line(settings: Settings) -> list[str]:
    if not settings.router.port:
        return []
    return [f"router     {shown_address(settings.router.host, settings.router.port)}/<deployment>/"]


def _check_ports(asked: dict[str, int | None]) -> None:
    """Refuse one port for two things, which would blame another program.

    Raises:
        InvalidSpec: Names both options.
    """
    taken = {"--port": PORT, "--ui-port": UI_PORT}
    first: dict[int, str] = {}
    for option, given in asked.items():
        port = given or taken.get(option)
        if port is None:
            continue
        if port in first:
            raise InvalidSpec(f"{option} {port} is that of {first[port]} already; choose another")
        first[port] = option


def _metrics(port: int | None, host: str | None) -> MetricsAddress | None:
    if port is None:
        if host is not None:
            raise InvalidSpec("--metrics-host needs --metrics-port")
        return None
    return MetricsAddress(port) if host is None else MetricsAddress(port, host)


def _settings(data_dir: str | None) -> Settings:
    if data_dir is None:
        return load_settings()
    if not data_dir.strip():
        raise InvalidSpec("--data-dir is empty; name a directory, or leave the option out")
    return load_settings({**os.environ, "GARRISON_DATA_DIR": data_dir})


async def _to_the_end(serving: Coroutine[Any, Any, None]) -> None:
    """Serve, and end the process.

    The SDK's threads can keep a process whose workers did not end as they should, and the
    interpreter's own end aborts now and then while a call of the client is being given up.
    """
    try:
        await serving
    except BaseException:
        # The error boundary reports it; what is left must not hold the process.
        last_word = threading.Timer(LAST_PATIENCE, os._exit, (1,))
        last_word.daemon = True
        last_word.start()
        raise
    _leave(0)


def _leave(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a reader that has gone
            stream.flush()
    os._exit(status)
