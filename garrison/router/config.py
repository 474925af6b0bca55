"""How a router serves: where it listens, whom it answers, and its bounds."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field

from garrison.errors import InvalidSpec, Problem
from garrison.settings import Settings, router_secret

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Pace:
    """When the router asks again; all in seconds.

    Attributes:
        stale: What was heard longer ago is read anew, beside the request that needs it.
        held: Pauses between two looks at a deployment while requests wait; the last one repeats.
        wake: Between two wakes of a deployment that stays at zero.
        missing: How long a deployment that does not exist is not asked for again.
        aside: How long a replica that takes no connection gets nothing; the last one repeats.
        retry: Before a request goes to the same replica again.
    """

    stale: float = 30.0
    held: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0)
    wake: float = 10.0
    missing: float = 2.0
    aside: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 10.0)
    retry: float = 0.2


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Everything that is set of one router.

    Attributes:
        host: An IP address of this machine, or `localhost`.
        port: 0 takes a free one.
        token: What requests must bring, None for nothing.
        secret: What workers bring beside it before they may tell and ask anything; None is for
            tests alone.
        hold_seconds: How long a request waits for a replica.
        held_each: How many requests may wait for one deployment, `held_all` for all together.
        replay_bytes: So much of a body is kept to send it again, of all bodies `replay_bytes_all`.
        stall_seconds: How long a client may neither send what it began nor take what it is sent.
        connect_seconds: How long a replica may take to accept a connection.
        grace_seconds: How long requests may go on after the router was asked to stop.
        header_seconds: How long a client may take to send a request's headers.
        idle_seconds: How long a connection without a request is kept.
        max_connections: Of clients; another one is answered 503 and closed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    hold_seconds: float = 300.0
    held_each: int = 1000
    held_all: int = 5000
    replay_bytes: int = MIB
    replay_bytes_all: int = 64 * MIB
    stall_seconds: float = 300.0
    connect_seconds: float = 5.0
    grace_seconds: float = 30.0
    header_seconds: float = 30.0
    idle_seconds: float = 75.0
    max_connections: int = 10_000
    pace: Pace = Pace()


def router_config(settings: Settings) -> RouterConfig:
    """Return how a router serves by the settings' block `router`."""
    token = settings.router_token
    return RouterConfig(
        host=settings.router.host,
        port=settings.router.port,
        token=None if token is None else token.get_secret_value(),
        secret=router_secret(settings),
        hold_seconds=settings.router.hold_seconds.total_seconds(),
    )


def check_config(config: RouterConfig) -> None:
    """Check that a router may serve so.

    Raises:
        InvalidSpec: With every mistake.
    """
    problems = tuple(_problems(config))
    if problems:
        raise InvalidSpec("the router cannot serve so", problems=problems)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _problems(config: RouterConfig) -> Iterator[Problem]:
    if config.host != "localhost" and not _is_address(config.host):
        yield Problem("host", f"must be an IP address or localhost, not {config.host!r}")
    elif config.token is None and not is_loopback(config.host):
        yield Problem(
            "token",
            f"others reach {config.host}, so a token is needed: set GARRISON_ROUTER_TOKEN or "
            "--token-file, or listen on 127.0.0.1",
        )
    if config.token is not None and not _is_token(config.token):
        yield Problem("token", "must be printable ASCII without spaces, and not empty")
    if not 0 <= config.port <= 65535:
        yield Problem("port", f"must be from 0 to 65535, not {config.port}")
    if not 0 < config.hold_seconds <= 86_400:
        yield Problem("hold_seconds", f"must be above 0, up to 86400, not {config.hold_seconds:g}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_token(token: str) -> bool:
    return bool(token) and all("!" <= letter <= "~" for letter in token)
