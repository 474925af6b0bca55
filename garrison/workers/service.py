"""Running workers until they are asked to stop: with a server of their own, or beside others'."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

from temporalio.client import Client
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import RPCError, RPCStatusCode

from garrison.errors import NotFound, ServiceUnreachable, Unsupported
from garrison.providers.local.provider import LocalProvider
from garrison.service import (
    ServiceAddress,
    connect,
    connect_service,
    embedded_namespace,
    missing_search_attributes,
    raise_retention,
    register_search_attributes,
)
from garrison.settings import Settings
from garrison.workers.assemble import build_parts
from garrison.workers.data_dir import hold_data_dir, prepare_data_dir
from garrison.workers.embedded import EmbeddedServer, Ports
from garrison.workers.main import Parts, build_worker
from garrison.workers.metrics import MetricsAddress
from garrison.workers.running_costs import check_providers, running_costs
from garrison.workers.server_process import check_port
from garrison.workers.stopping import Stopped, StopRequest
from garrison.workflows.visibility import ALL_KEYS

DRAIN_DEADLINE = timedelta(seconds=25)
FAREWELL_DEADLINE = timedelta(seconds=5)
INTERRUPTED = 130

logger = logging.getLogger(__name__)

Tell = Callable[[str], None]
"""Prints one line to a person."""


@dataclass(frozen=True)
class Beside:
    """Something else that serves in the process for as long as workers do, as the router.

    Attributes:
        serving: Serves for the time of a context.
        check: Raises if it cannot serve, before anything is started.
    """

    serving: Callable[[Client, Parts], contextlib.AbstractAsyncContextManager[object]]
    check: Callable[[], None]


def _nothing(client: Client, parts: Parts) -> contextlib.AbstractAsyncContextManager[object]:
    return contextlib.nullcontext()


NOTHING = Beside(_nothing, lambda: None)


@dataclass(frozen=True)
class Serving:
    """What `up` has to tell when it serves."""

    server: EmbeddedServer
    parts: Parts


async def run_up(
    settings: Settings,
    ports: Ports,
    *,
    metrics: MetricsAddress | None,
    ready: Callable[[Serving], None],
    tell: Tell,
    server_ended: Callable[[ServiceUnreachable], NoReturn],
    beside: Beside = NOTHING,
) -> None:
    """Serve with an embedded server until asked to stop; leave no server behind.

    Args:
        settings: Of this process.
        ports: Of the server.
        metrics: Where Prometheus may scrape, None for nowhere.
        ready: Called once everything runs.
        tell: Called with what is worth knowing: at the end, what goes on costing money.
        server_ended: Called when the server ended by itself. It ends the process: without a
            server the workers cannot drain.
        beside: What else serves in this process.

    Raises:
        ServiceUnreachable: The server did not start.
        PortTaken: A port, or the data directory, is another's.
        InvalidSpec: The data directory or the settings cannot be used.
    """
    if prepare_data_dir(settings.data_dir):
        tell(f"note: {settings.data_dir} was open to other users; its mode is 0700 now")
    server = EmbeddedServer(
        settings.data_dir, ports, namespace=embedded_namespace(settings), attributes=ALL_KEYS
    )
    stop = StopRequest(on_insist=lambda: _leave_at_once(server))
    with hold_data_dir(settings.data_dir), stop.listening():
        try:
            beside.check()
            parts = build_parts(settings)
            runtime = _runtime(metrics)
            await stop.unless_asked(server.start())
            client = await stop.unless_asked(_connect_embedded(server, runtime))
            await stop.unless_asked(check_providers(client, parts.providers))
            async with _working(client, parts), beside.serving(client, parts):
                ready(Serving(server, parts))
                if not await _asked_before_end(stop, server):
                    server_ended(await _death_of(server))
            tell(await _farewell(client, parts.providers))
        except Stopped:
            tell("stopped before anything was served")
        finally:
            await server.stop()


async def run_worker(
    settings: Settings,
    queues: Iterable[str] | None,
    *,
    metrics: MetricsAddress | None = None,
    ready: Callable[[Client, Parts], None],
) -> None:
    """Serve some queues of a service that runs, until asked to stop.

    Args:
        settings: Of this process.
        queues: By name, None for all.
        metrics: Where Prometheus may scrape, None for nowhere.
        ready: Called once everything runs.

    Raises:
        ServiceUnreachable: Nothing answers at the service's address.
        PortTaken: Another program listens where the metrics are to be.
        Unsupported: The service lacks what Garrison needs.
        InvalidSpec: The data directory, the settings or a queue cannot be used.
    """
    stop = StopRequest(on_insist=lambda: os._exit(INTERRUPTED))  # nothing of ours is left behind
    with stop.listening(), contextlib.suppress(Stopped):
        parts = build_parts(settings, queues)
        client = await stop.unless_asked(connect_service(settings, runtime=_runtime(metrics)))
        await stop.unless_asked(check_namespace(client))
        async with _working(client, parts):
            ready(client, parts)
            await stop.wait()


async def check_namespace(client: Client) -> None:
    """Check that the service has what workers need.

    Raises:
        NotFound: There is no such namespace.
        Unsupported: Search attributes are missing, or have another type.
        ServiceUnreachable: It does not answer.
    """
    try:
        missing = await missing_search_attributes(client, ALL_KEYS)
    except RPCError as error:
        where = client.service_client.config.target_host
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NotFound(f"{where} has no namespace {client.namespace}") from error
        raise ServiceUnreachable(f"{where}: {error.message}") from error
    if missing:
        names = ", ".join(key.name for key in missing)
        raise Unsupported(
            f"the namespace {client.namespace} lacks the search attributes {names}; "
            "register them with: garrison doctor --register"
        )


@contextlib.asynccontextmanager
async def _working(client: Client, parts: Parts) -> AsyncIterator[None]:
    worker = build_worker(client, parts)
    await worker.__aenter__()
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(DRAIN_DEADLINE.total_seconds()):
                await worker.__aexit__(None, None, None)
        except TimeoutError:
            logger.warning("workers did not drain in time", extra={"after": str(DRAIN_DEADLINE)})
        for provider in parts.providers.values():
            if isinstance(provider, LocalProvider):
                await provider.aclose()


async def _asked_before_end(stop: StopRequest, server: EmbeddedServer) -> bool:
    try:
        await stop.unless_asked(server.ended())
    except Stopped:
        return True
    return False


async def _death_of(server: EmbeddedServer) -> ServiceUnreachable:
    pid, tail = server.record.server.pid, server.log_tail()
    await server.stop()  # forgets and reaps it
    return ServiceUnreachable(
        f"the Temporal server (pid {pid}) ended by itself. Machines go on; `garrison up` takes "
        f"up everything again. The end of {server.log}:\n{tail}"
    )


async def _connect_embedded(server: EmbeddedServer, runtime: Runtime) -> Client:
    record = server.record
    address = ServiceAddress(record.address, record.namespace, "garrison up")
    client = await connect(address, runtime=runtime)
    try:
        await raise_retention(client)
        await register_search_attributes(client, ALL_KEYS)
    except RPCError as error:
        raise ServiceUnreachable(f"{record.address}: {error.message}") from error
    return client


async def _farewell(client: Client, providers: Iterable[str]) -> str:
    try:
        async with asyncio.timeout(FAREWELL_DEADLINE.total_seconds()):
            return (await running_costs(client, providers)).sentence()
    except (RPCError, TimeoutError):
        return "what goes on costing money is not known; see `garrison cluster list` after `up`"


def _runtime(metrics: MetricsAddress | None) -> Runtime:
    """Return the SDK's runtime; by itself it would log to standard output, with colours."""
    if metrics is not None:
        check_port(metrics.port, "--metrics-port", metrics.host)
    core = LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(logger=logging.getLogger("temporalio.core")),
    )
    return Runtime(
        telemetry=TelemetryConfig(logging=core, metrics=metrics.config if metrics else None)
    )


def _leave_at_once(server: EmbeddedServer) -> None:
    server.kill()
    os._exit(INTERRUPTED)
