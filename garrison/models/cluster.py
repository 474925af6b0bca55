"""What a person asks for: the cluster file, field by field."""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from garrison.models.base import Model, Name
from garrison.models.group import RestartPolicy
from garrison.models.offer import CapacityType

DEFAULT_ACCOUNT = "default"
MAX_RECOVERY_ATTEMPTS = 100
MAX_ENV_BYTES = 131_072 - 258
"""Of a value: a process receives at most 128 KiB with the name, the `=` and the end."""

MAX_SEALED_CHARACTERS = 180_000
"""Of a sealed value: the longest plain one, grown by the seal and its base64."""

ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,255}$")
SEALED_PREFIX = "sealed:"
PLAIN_PREFIX = "plain:"
SECRET_PREFIX = "secret:"


class Orchestrator(StrEnum):
    """What schedules work inside the cluster; only `none` for now."""

    NONE = "none"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


class WhenDone(StrEnum):
    """What becomes of the cluster when the workload has ended on every node."""

    KEEP = "keep"
    TERMINATE = "terminate"


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("has a NUL character, which no process can receive")
    return value


def _utf8(value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("has bytes that are no valid UTF-8") from None
    return value


def _as_command(value: Any) -> Any:
    # A single string is a shell line, as in Docker's and Kubernetes' files.
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("must not be empty: give a shell line, or a list of words")
        return ("/bin/sh", "-c", value)
    if not isinstance(value, list | tuple):
        raise ValueError("must be text, a shell line, or a list of words")
    return value


def _env_name(value: str) -> str:
    if not ENV_NAME.fullmatch(value):
        raise ValueError(f"{value[:64]!r} is no environment variable name")
    return value


def _env_value(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"secret"} and isinstance(value["secret"], str):
        return f"{SECRET_PREFIX}{value['secret']}"
    return value


def _fits_process(value: str) -> str:
    if value.startswith(SEALED_PREFIX):
        if len(value) > MAX_SEALED_CHARACTERS:
            raise ValueError(f"must have at most {MAX_SEALED_CHARACTERS} characters when sealed")
        return value
    # A value to be sealed need not be UTF-8; one that travels as it is must be.
    if value.startswith((PLAIN_PREFIX, SECRET_PREFIX)):
        _utf8(value)
    size = len(value.encode("utf-8", "surrogateescape").removeprefix(PLAIN_PREFIX.encode()))
    if size > MAX_ENV_BYTES:
        raise ValueError(
            f"has {size} bytes; a process can receive at most {MAX_ENV_BYTES} in one variable"
        )
    return value


def _cidr(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError:
        raise ValueError(f"{value[:64]!r} is no CIDR such as 203.0.113.0/24") from None


_KEY = re.compile(r"^(ssh-(ed25519|rsa)|ecdsa-sha2-nistp\d+|sk-\S+) [A-Za-z0-9+/=]+( .*)?$")


def _public_key(value: str) -> str:
    key = value.strip()
    if not _KEY.match(key) or "\n" in key:
        raise ValueError("is no OpenSSH public key such as 'ssh-ed25519 AAAA... me'")
    return key


Text = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_no_nul)]
EnvName = Annotated[str, AfterValidator(_env_name)]
EnvValue = Annotated[
    str, BeforeValidator(_env_value), AfterValidator(_no_nul), AfterValidator(_fits_process)
]
"""Text exactly as written; `plain:`, `sealed:` and `secret:` prefixes have a meaning."""

Port = Annotated[int, Field(ge=1, le=65_535)]
Cidr = Annotated[str, AfterValidator(_cidr)]
PublicKey = Annotated[str, AfterValidator(_public_key)]
Command = Annotated[
    tuple[Annotated[str, AfterValidator(_no_nul), AfterValidator(_utf8)], ...],
    BeforeValidator(_as_command),
    Field(min_length=1, max_length=1024),
]


class RecoverySpec(Model):
    """Whether lost nodes are brought back without being asked, and how often.

    Attributes:
        max_attempts: Attempts per unhealthy episode, manual ones included.
    """

    automatic: bool = False
    max_attempts: int = Field(default=3, ge=1, le=MAX_RECOVERY_ATTEMPTS)


class ClusterShape(Model):
    """The part of a cluster that its price depends on, and where it may be bought.

    Attributes:
        nodes: Number of identical machines.
        gpus_per_node: Accelerators in each machine, exactly; 0 is a CPU machine. None takes what
            `accelerator: H100:8` or the instance type says.
        accelerator: Name as people write it, `H100`, `H100:8`, `NVIDIA-A10G`.
        root_disk_gb: Size of each node's disk; None is the provider's default, with the rate.
        provider_options: Provider-native wishes by adapter name, `{aws: {...}}`.
    """

    name: Name | None = None
    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int | None = Field(default=None, ge=0)
    accelerator: Text | None = None
    instance_type: Text | None = None
    provider: Text | None = None
    region: Text | None = None
    zone: Text | None = None
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    root_disk_gb: int | None = Field(default=None, ge=1, le=1_000_000)
    account: Name = DEFAULT_ACCOUNT
    orchestrator: Orchestrator = Orchestrator.NONE
    provider_options: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    recovery: RecoverySpec = RecoverySpec()
    failover: bool = False


class WorkloadSettings(Model):
    """What runs on the nodes and who may log in; never part of the price.

    Attributes:
        command: Argument vector; a single string is a shell line.
        ports: Open between the nodes, and to `expose` from outside.
        max_restarts: How often a node's supervisor starts a failed command again.
        max_lifetime: The cluster is terminated so many seconds after it was ready.
    """

    command: Command | None = None
    image: Text | None = None
    env: dict[EnvName, EnvValue] = Field(default_factory=dict)
    ports: tuple[Port, ...] = ()
    expose: tuple[Cidr, ...] = ()
    ssh_keys: tuple[PublicKey, ...] = Field(default=(), max_length=100)
    restart: RestartPolicy = RestartPolicy.ON_FAILURE
    max_restarts: int = Field(default=3, ge=0, le=1_000_000)
    when_done: WhenDone = WhenDone.KEEP
    max_lifetime: int | None = Field(default=None, ge=1, description="Seconds.")


class ClusterSpec(ClusterShape, WorkloadSettings):
    """A whole `cluster:` file."""

    def shape(self) -> ClusterShape:
        """Return the priced part, keeping which fields were set."""
        return ClusterShape.model_construct(
            _fields_set=self.model_fields_set & set(ClusterShape.model_fields),
            **{name: getattr(self, name) for name in ClusterShape.model_fields},
        )

    def workload(self) -> WorkloadSettings:
        """Return the workload settings, keeping which fields were set."""
        return WorkloadSettings.model_construct(
            _fields_set=self.model_fields_set & set(WorkloadSettings.model_fields),
            **{name: getattr(self, name) for name in WorkloadSettings.model_fields},
        )


class ShapeLimits(Model):
    """The operator's bounds on a cluster's shape."""

    max_nodes: int = Field(default=8, ge=1)
    max_gpus_per_node: int = Field(default=8, ge=0)
