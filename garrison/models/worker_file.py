"""How people write what a replica is: in a deployment's file and in the settings' `models:`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from garrison.models.base import Model
from garrison.models.cluster import Command, EnvName, EnvValue, Port, Text
from garrison.models.deployment import HealthProbe, ReplicaTemplate
from garrison.models.group import RestartPolicy
from garrison.models.problems import shown
from garrison.models.resources import Resources
from garrison.models.units import read_bytes, read_cores

MAX_ACCELERATORS = 1024


def _read_cores(value: Any) -> Any:
    return read_cores(value) if isinstance(value, str) else value


def _read_bytes(value: Any) -> Any:
    return read_bytes(value) if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def url_path(value: str) -> str:
    """Return a path of an address, refusing what is none."""
    if not _PATH.fullmatch(value):
        raise ValueError(f"must be a path such as /health, not {shown(value)}")
    return value


_PATH = re.compile(r"/[!-~]{0,1023}")

Cores = Annotated[int, BeforeValidator(_read_cores), Field(ge=0)]
"""Thousandths of a core, written `8`, `0.5` or `500m`."""

Bytes = Annotated[int, BeforeValidator(_read_bytes), Field(ge=0)]
"""Written `28Gi`."""

AcceleratorTypes = Annotated[tuple[Text, ...], BeforeValidator(_as_list)]
"""Names or patterns such as `NVIDIA-*`; one alone needs no list."""


class ResourcesFile(Model):
    """What one replica needs of a machine.

    Attributes:
        accelerator_memory: Of each single accelerator.
    """

    other_words: ClassVar[Mapping[str, str]] = {
        "gpu": "accelerators",
        "gpus": "accelerators",
        "num_gpus": "accelerators",
        "num_accelerators": "accelerators",
        "gpu_memory": "accelerator_memory",
        "vram": "accelerator_memory",
        "gpu_type": "accelerator_type",
        "cores": "cpu",
        "cpu_limit": "cpu",
        "ram": "memory",
        "cpu_memory": "memory",
    }

    cpu: Cores = 0
    memory: Bytes = 0
    accelerators: int = Field(default=0, ge=0, le=MAX_ACCELERATORS)
    accelerator_memory: Bytes = 0
    accelerator_type: AcceleratorTypes = ()

    @field_validator("accelerator_memory", "accelerator_type")
    @classmethod
    def _needs_accelerators(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("accelerators") == 0:
            raise ValueError("needs accelerators; say how many in `accelerators`")
        return value

    def resources(self) -> Resources:
        """Return the same in exact integers."""
        return Resources(
            cpu_milli=self.cpu,
            memory_bytes=self.memory,
            accelerators=self.accelerators,
            accelerator_memory_bytes=self.accelerator_memory,
            accelerator_types=self.accelerator_type,
        )


class HealthFile(Model):
    """When a replica counts as ready; times in seconds."""

    path: Annotated[str, AfterValidator(url_path)] | None = None
    start_timeout: float = Field(default=600, ge=1, le=86_400, allow_inf_nan=False)
    interval: float = Field(default=1, ge=0.1, le=3600, allow_inf_nan=False)
    timeout: float = Field(default=5, ge=0.1, le=300, allow_inf_nan=False)

    def probe(self) -> HealthProbe:
        """Return the same as durations."""
        return HealthProbe(
            path=self.path,
            start_timeout=timedelta(seconds=self.start_timeout),
            interval=timedelta(seconds=self.interval),
            timeout=timedelta(seconds=self.timeout),
        )


class TemplateFile(Model):
    """What one replica is.

    Attributes:
        command: Argument vector; a single text is a shell line.
        port: Where it listens.
        max_restarts: How often a node's supervisor starts a failed command again.
    """

    command: Command | None = None
    image: Text | None = None
    env: dict[EnvName, EnvValue] = Field(default_factory=dict)
    port: Port | None = None
    resources: ResourcesFile = ResourcesFile()
    health: HealthFile | None = None
    restart: RestartPolicy = RestartPolicy.ALWAYS
    max_restarts: int = Field(default=3, ge=0, le=1_000_000)

    @field_validator("health")
    @classmethod
    def _needs_port(cls, value: HealthFile | None, info: ValidationInfo) -> HealthFile | None:
        if value is not None and "port" in info.data and info.data["port"] is None:
            raise ValueError("needs the `port` to ask at")
        return value

    def template(self) -> ReplicaTemplate:
        """Return the same as it travels; values of `env` are not sealed yet."""
        return ReplicaTemplate(
            command=self.command,
            image=self.image,
            env=self.env,
            port=self.port,
            resources=self.resources.resources(),
            health=None if self.health is None else self.health.probe(),
            restart=self.restart,
            max_restarts=self.max_restarts,
        )


class ModelSettings(TemplateFile):
    """How a model is served: an entry of the settings' `models:`."""

    @model_validator(mode="after")
    def _runs_something(self) -> Self:
        if self.command is None and self.image is None:
            raise ValueError("needs a `command` or an `image`")
        return self


def _model_pattern(value: str) -> str:
    if not _MODEL_PATTERN.fullmatch(value):
        raise ValueError(
            f"{value[:64]!r} is no model: letters, digits and . _ - between slashes, "
            "such as meta/Llama-3/my-model; * stands for any text"
        )
    return value


_MODEL_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,128}(/[A-Za-z0-9._*-]{1,128}){0,4}")

Models = dict[Annotated[str, AfterValidator(_model_pattern)], ModelSettings]
"""How models are served, by `user/app/model`; `*` in a name stands for any text."""
