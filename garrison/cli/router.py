"""`garrison router`: the process that carries requests to deployments."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr

from garrison.errors import InvalidSpec
from garrison.private_files import open_regular
from garrison.router.config import RouterConfig, check_config, router_config
from garrison.router.directory import TemporalDirectory
from garrison.router.process import keep_what_was_loaded, raise_open_files
from garrison.router.router import Router
from garrison.service import connect_service
from garrison.settings import RouterSettings, Settings, load_settings
from garrison.workers.process_log import log_to_stderr
from garrison.workers.stopping import Stopped, StopRequest

DEFAULTS = RouterSettings()
INTERRUPTED = 130
MOST_TOKEN = 4096

Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help=f"{DEFAULTS.host} by default; one that others reach needs a token.",
    ),
]
Port = Annotated[
    int | None,
    typer.Option("--port", min=1, max=65535, help=f"{DEFAULTS.port} by default."),
]
TokenFile = Annotated[
    str | None,  # a path would take nothing at all for the current directory
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Holds the token that requests must bring; else GARRISON_ROUTER_TOKEN does.",
    ),
]
HoldSeconds = Annotated[
    float | None,
    typer.Option(
        "--hold-seconds",
        help=f"How long a request waits for a replica; {DEFAULTS.hold_seconds.seconds} by default.",
    ),
]


def router(
    host: Host = None,
    port: Port = None,
    token_file: TokenFile = None,
    hold_seconds: HoldSeconds = None,
) -> None:
    """Carry requests to deployments: hold them while replicas start, spread them over replicas."""
    settings = load_settings()
    given: dict[str, Any] = {"host": host, "port": port}
    if hold_seconds is not None:
        given["hold_seconds"] = _seconds(hold_seconds)
    if token_file is not None:
        settings = settings.model_copy(update={"router_token": _token(token_file)})
    config = _config(settings, given)
    log_to_stderr()
    logging.getLogger("garrison.router.access").setLevel(logging.INFO)

    def ready(line: str) -> None:
        keep_what_was_loaded()
        typer.echo(line)

    raise_open_files()
    asyncio.run(_serve(settings, config, ready))


def _config(settings: Settings, given: dict[str, Any]) -> RouterConfig:
    changes = {name: value for name, value in given.items() if value is not None}
    chosen = settings.router.model_copy(update=changes)
    config = router_config(settings.model_copy(update={"router": chosen}))
    check_config(config)
    if not config.port:
        raise InvalidSpec("the settings give the router port 0, which is none; name one: --port")
    return config


async def _serve(settings: Settings, config: RouterConfig, tell: Callable[[str], None]) -> None:
    stop = StopRequest(on_insist=lambda: os._exit(INTERRUPTED))  # nothing of ours is left behind
    with stop.listening(), contextlib.suppress(Stopped):
        client = await stop.unless_asked(connect_service(settings))
        async with Router.serving(config, TemporalDirectory(client)) as serving:
            tell(f"router at {serving.address}/<deployment>/; Ctrl-C ends it")
            await stop.wait()


def _seconds(value: float) -> timedelta:
    if not 0 < value <= 86_400:
        raise InvalidSpec(f"--hold-seconds must be above 0, up to 86400, not {value:g}")
    return timedelta(seconds=value)


def _token(name: str) -> SecretStr:
    """Return the token that a file holds.

    Raises:
        InvalidSpec: It cannot be read; or others can read it, too.
    """
    try:
        with open_regular(Path(name).expanduser()) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MOST_TOKEN + 1).decode("ascii").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it holds no plain text"
        raise InvalidSpec(f"--token-file {name} cannot be read: {why}") from None
    if mode & 0o077:
        raise InvalidSpec(f"--token-file {name} can be read by other users; chmod 600 it")
    if not text or len(text) > MOST_TOKEN:
        raise InvalidSpec(f"--token-file {name} must hold a token of 1 to {MOST_TOKEN} letters")
    return SecretStr(text)
