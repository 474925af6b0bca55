"""The files of compute clusters, nodepools and deployments: one block each, in YAML or JSON.

What can be understood is accepted, and what is ignored or guessed is told in warnings; everything
else is refused with all mistakes at once, before any provider is asked anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from pydantic import Field

from garrison.errors import InvalidSpec, ModelNotConfigured, Problem
from garrison.models.base import Message, Model, Name, Seconds
from garrison.models.cluster import PLAIN_PREFIX, SEALED_PREFIX, SECRET_PREFIX, ClusterSpec
from garrison.models.cluster_file import read_cluster_file
from garrison.models.compute_cluster import PRIVATE, ComputeClusterSpec
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentSpec,
    LoadConfig,
    LoadKind,
    ReplicaTemplate,
    SchedulingChoice,
)
from garrison.models.deployment_fields import AutoscaleBlock, DeploymentBlock
from garrison.models.document import Document, decode, load_document
from garrison.models.elastic_fields import (
    ComputeClusterBlock,
    ComputeInfoBlock,
    NodepoolBlock,
    VisibilityBlock,
)
from garrison.models.elastic_reading import Reading
from garrison.models.nodepool import NodepoolSpec
from garrison.models.problems import field_name, invalid, shown, suggestion
from garrison.models.resources import Resources
from garrison.models.worker_file import TemplateFile

_M = TypeVar("_M", bound=Model)


class ResourceKind(StrEnum):
    """What a file describes: the name of its one block."""

    COMPUTE_CLUSTER = "compute_cluster"
    NODEPOOL = "nodepool"
    DEPLOYMENT = "deployment"
    CLUSTER = "cluster"


class NodepoolFile(Message):
    """A nodepool's file.

    Attributes:
        claims: What the file says that its instance types have, by instance type; 0 and empty
            where it says nothing. To be compared with the catalogue, never believed.
    """

    spec: NodepoolSpec
    claims: dict[str, Resources] = Field(default_factory=dict)


class DeploymentFile(Message):
    """A deployment's file; its model, if it names one, is still to be looked up.

    Attributes:
        template: What it runs, None where the settings' `models:` say it.
        model: `user/app/model`, None with a template of its own.
    """

    id: Name
    description: str = ""
    template: ReplicaTemplate | None = None
    model: str | None = None
    model_version: str | None = None
    autoscale: AutoscaleConfig = AutoscaleConfig()
    drain_timeout: Seconds = timedelta(seconds=30)
    scheduling_choice: SchedulingChoice = SchedulingChoice.PERFORMANCE
    nodepools: tuple[DeploymentPool, ...] = Field(min_length=1)
    visibility: int = PRIVATE

    @classmethod
    def of(cls, spec: DeploymentSpec) -> DeploymentFile:
        """Return the file of a deployment whose template is known."""
        fields = cls.model_fields.keys() & type(spec).model_fields.keys()
        return cls(**{name: getattr(spec, name) for name in fields})

    def spec(self, template: ReplicaTemplate) -> DeploymentSpec:
        """Return what the deployment should be, running a template."""
        return DeploymentSpec(
            template=template,
            **{
                name: getattr(self, name)
                for name in DeploymentSpec.model_fields
                if name != "template"
            },
        )


@dataclass(frozen=True, slots=True)
class ResourceFile:
    """Any file that `apply` takes."""

    kind: ResourceKind
    value: ComputeClusterSpec | NodepoolFile | DeploymentFile | ClusterSpec
    warnings: tuple[str, ...] = ()


def read_compute_cluster_file(
    content: str | bytes, source: str | None = None, id: str | None = None
) -> tuple[ComputeClusterSpec, tuple[str, ...]]:
    """Return what a file with a `compute_cluster:` block asks for, and warnings.

    Args:
        content: The file, as text or as its bytes.
        source: The file's name as the user gave it, for messages.
        id: As given on the command line; it wins over the file's.

    Raises:
        InvalidSpec: With every mistake, each with its line and key.
    """
    reading = Reading.of(content, source, ResourceKind.COMPUTE_CLUSTER)
    reading.identify(id)
    block = reading.bind(ComputeClusterBlock)
    spec = ComputeClusterSpec(
        id=_given(block.id),
        provider=block.cloud_provider.id,
        region=block.region,
        description=block.description,
        cluster_type=block.cluster_type,
        managed_by=block.managed_by,
        visibility=_visibility(reading, block.visibility),
    )
    return spec, reading.warnings()


def read_nodepool_file(
    content: str | bytes,
    source: str | None = None,
    id: str | None = None,
    compute_cluster: str | None = None,
) -> tuple[NodepoolFile, tuple[str, ...]]:
    """Return what a file with a `nodepool:` block asks for, and warnings.

    Args:
        content: The file, as text or as its bytes.
        source: The file's name as the user gave it, for messages.
        id: As given on the command line; it wins over the file's.
        compute_cluster: The same for the compute cluster that it is in.

    Raises:
        InvalidSpec: With every mistake, each with its line and key.
    """
    reading = Reading.of(content, source, ResourceKind.NODEPOOL)
    reading.identify(id)
    reading.identify(compute_cluster, "compute_cluster")
    block = reading.bind(NodepoolBlock)
    _warn_of_bare_types(reading)
    spec = NodepoolSpec(
        id=_given(block.id),
        compute_cluster=_given(block.compute_cluster).id,
        description=block.description,
        instance_types=tuple(kind.id for kind in block.instance_types),
        capacity_types=tuple(dict.fromkeys(block.node_capacity_type.capacity_types)),
        min_instances=block.min_instances,
        max_instances=block.max_instances,
        warm_instances=block.warm_instances,
        on_demand_base=block.on_demand_base,
        on_demand_fallback=block.on_demand_fallback,
        max_usd_per_hour=block.max_price_per_hour,
        release_after=timedelta(seconds=block.release_after_seconds),
        visibility=_visibility(reading, block.visibility),
        ssh_keys=block.ssh_keys,
    )
    claims = {
        kind.id: _claim(kind.compute_info)
        for kind in block.instance_types
        if kind.compute_info is not None
    }
    return NodepoolFile(spec=spec, claims=claims), reading.warnings()


def read_deployment_file(
    content: str | bytes, source: str | None = None, id: str | None = None
) -> tuple[DeploymentFile, tuple[str, ...]]:
    """Return what a file with a `deployment:` block asks for, and warnings.

    Values of `env` are the text as written, not sealed yet.

    Args:
        content: The file, as text or as its bytes.
        source: The file's name as the user gave it, for messages.
        id: As given on the command line; it wins over the file's.

    Raises:
        InvalidSpec: With every mistake, each with its line and key.
    """
    reading = Reading.of(content, source, ResourceKind.DEPLOYMENT)
    reading.identify(id)
    block = reading.bind(DeploymentBlock, verbatim=("worker.env",))
    _warn_of_guesses(reading, block)
    model = block.worker.model
    version = model.model_version if model is not None else None
    file = DeploymentFile(
        id=_given(block.id),
        description=block.description,
        template=None if model is not None else block.worker.template(),
        model=None if model is None else model.full_name(),
        model_version=None if version is None else version.id,
        autoscale=_autoscale(block.autoscale_config),
        drain_timeout=timedelta(seconds=block.drain_timeout_seconds),
        scheduling_choice=block.scheduling_choice or SchedulingChoice.PERFORMANCE,
        nodepools=_pools(block),
        visibility=_visibility(reading, block.visibility),
    )
    return file, reading.warnings()


def read_resource_file(content: str | bytes, source: str | None = None) -> ResourceFile:
    """Return what any one file asks for.

    Raises:
        InvalidSpec: It has none of the known blocks or several, or mistakes in its block.
    """
    text = decode(content, source) if isinstance(content, bytes) else content
    kind = _kind_of(load_document(text, source))
    if kind is ResourceKind.COMPUTE_CLUSTER:
        return ResourceFile(kind, *read_compute_cluster_file(text, source))
    if kind is ResourceKind.NODEPOOL:
        return ResourceFile(kind, *read_nodepool_file(text, source))
    if kind is ResourceKind.DEPLOYMENT:
        return ResourceFile(kind, *read_deployment_file(text, source))
    return ResourceFile(kind, read_cluster_file(text, source))


def resolve(file: DeploymentFile, models: Mapping[str, TemplateFile]) -> DeploymentSpec:
    """Return what a deployment should be, its model looked up.

    A replica of a model is told which one it serves: `GARRISON_MODEL` is its name,
    `GARRISON_MODEL_ID` the last part of it, `GARRISON_MODEL_VERSION` the version, if there is one.

    Args:
        file: What the file says.
        models: The settings' `models:`; a name may have `*`, for any text. The exact name goes
            first, then the longest pattern.

    Raises:
        ModelNotConfigured: No entry matches; the nearest is in the message.
        InvalidSpec: The load is to be scraped, and the entry has no port.
    """
    if file.template is not None:
        return file.spec(file.template)
    name = file.model or ""
    key = _best_match(name, models)
    if key is None:
        raise ModelNotConfigured(
            f"model {shown(name)} is not configured; {suggestion(name, models)}; "
            f"add it to `models:` in the workers' garrison.yaml, with an image or a command"
        )
    template = models[key].template()
    if template.port is None and file.autoscale.load.source is LoadKind.SCRAPE:
        raise InvalidSpec(
            f"load.source scrape needs a port to ask at, and model {shown(name)} has none; "
            f"add `port` to {shown(key)} of `models:` in the workers' garrison.yaml"
        )
    told = {"GARRISON_MODEL": name, "GARRISON_MODEL_ID": name.rpartition("/")[2]}
    if file.model_version is not None:
        told["GARRISON_MODEL_VERSION"] = file.model_version
    env = {key: _readable(value) for key, value in {**told, **template.env}.items()}
    resolved = {"env": env, "model": name, "model_version": file.model_version}
    return file.spec(template.model_copy(update=resolved))


def _best_match(name: str, patterns: Collection[str]) -> str | None:
    if name in patterns:
        return name
    fitting = [pattern for pattern in patterns if _matches(pattern, name)]
    return max(fitting, key=lambda pattern: (len(pattern), pattern), default=None)


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def _readable(value: str) -> str:
    # The settings name secrets by `secret: NAME`; their other values are none, as is documented.
    exempt = (PLAIN_PREFIX, SEALED_PREFIX, SECRET_PREFIX)
    return value if value.startswith(exempt) else f"{PLAIN_PREFIX}{value}"


_T = TypeVar("_T")


def _given(value: _T | None) -> _T:
    # `identify` refuses a file that leaves it out.
    assert value is not None
    return value


def _claim(info: ComputeInfoBlock) -> Resources:
    return Resources(
        cpu_milli=info.cpu_limit,
        memory_bytes=info.cpu_memory,
        accelerators=info.num_accelerators or 0,
        accelerator_memory_bytes=info.accelerator_memory,
        accelerator_types=info.accelerator_type,
    )


def _autoscale(block: AutoscaleBlock) -> AutoscaleConfig:
    apart = block.disable_packing
    if apart is None:
        apart = block.enable_packing is False
    return AutoscaleConfig(
        min_replicas=block.min_replicas,
        max_replicas=block.max_replicas,
        soft_min_replicas=block.soft_min_replicas,
        traffic_history=timedelta(seconds=block.traffic_history_seconds),
        scale_up_delay=timedelta(seconds=block.scale_up_delay_seconds),
        scale_down_delay=timedelta(seconds=block.scale_down_delay_seconds),
        scale_to_zero_delay=timedelta(seconds=block.scale_to_zero_delay_seconds),
        hold_boots=block.hold_boots,
        concurrency=block.concurrency,
        disable_packing=apart,
        load=LoadConfig.model_validate(block.load.model_dump()),
    )


def _pools(block: DeploymentBlock) -> tuple[DeploymentPool, ...]:
    keys = [(pool.key(), pool.priority) for pool in block.deployment_nodepools or ()]
    keys = keys or [(pool.key(), 0) for pool in block.nodepools or ()]
    return tuple(
        DeploymentPool(compute_cluster=cluster, nodepool=pool, priority=priority)
        for (cluster, pool), priority in keys
    )


def _kind_of(document: Document) -> ResourceKind:
    known = [str(kind) for kind in ResourceKind]
    found = [key for key in document.value if key in known]
    if len(found) == 1:
        return ResourceKind(found[0])
    if found:
        message = f"has {' and '.join(f'`{key}:`' for key in found)}; one file holds one block"
        raise invalid("is not valid", [Problem("", message, 1)], document.source)
    problems = [
        Problem(field_name((key,)), f"is not a known key; {suggestion(key, known)}", line)
        for key in document.value
        for line in (document.lines.get((key,)),)
    ]
    blocks = ", ".join(f"`{key}:`" for key in known)
    problems.append(Problem("", f"must have one of the blocks {blocks}", 1))
    raise invalid("is not valid", problems, document.source)


def _visibility(reading: Reading, block: VisibilityBlock) -> int:
    if block.gettable != PRIVATE:
        message = f"{block.gettable} is kept and shown; everybody here can see everything"
        reading.warn(("visibility", "gettable"), message)
    return block.gettable


def _warn_of_bare_types(reading: Reading) -> None:
    for at, kind in enumerate(reading.content["instance_types"]):
        info = kind.get("compute_info")
        if isinstance(info, dict) and isinstance(info.get("accelerator_type"), str):
            path = ("instance_types", at, "compute_info", "accelerator_type")
            reading.warn(path, "should be a list; the one text is taken as one type")


def _warn_of_guesses(reading: Reading, block: DeploymentBlock) -> None:
    if block.scheduling_choice is None:
        message = "is not given; 4 (PERFORMANCE) is used: nodepools in the file's order"
        reading.warn(("scheduling_choice",), message)
    packed = block.autoscale_config.enable_packing
    if packed is not None:
        message = f"is an old name; read as disable_packing: {str(not packed).lower()}"
        reading.warn(("autoscale_config", "enable_packing"), message)
    load = block.autoscale_config.load
    if load.source is not LoadKind.ROUTER and block.autoscale_config.min_replicas == 0:
        message = "nobody counts at zero replicas, where only a request to the router starts one"
        reading.warn(("autoscale_config", "load", "source"), message)
    if load.is_blind_to_parts():
        message = "without `up` or a `job` nobody can tell a replica not scraped from less traffic"
        reading.warn(("autoscale_config", "load", "queries"), message)
