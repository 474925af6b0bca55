"""The `deployment:` block, key by key, as people write it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from garrison.models.autoscale import PRESETS, AutoscalePreset
from garrison.models.base import Model, Name
from garrison.models.cluster import Text
from garrison.models.deployment import LoadKind, LoadPreset, SchedulingChoice
from garrison.models.elastic_fields import (
    MAX_COUNT,
    ComputeClusterRef,
    Count,
    Description,
    Some,
    Unused,
    VisibilityBlock,
    WholeSeconds,
    at_least,
    check_unique,
    chosen,
)
from garrison.models.problems import shown, suggestion
from garrison.models.worker_file import TemplateFile, url_path

MAX_POOLS = 100

_SCHEDULING_CHOICES: dict[str, SchedulingChoice | None] = {
    "0": None,
    "unknown_scheduling_choice": None,
    **{str(int(choice)): choice for choice in SchedulingChoice},
    **{choice.name.casefold(): choice for choice in SchedulingChoice},
}
_SCHEDULING_WORDS = ", ".join(f"{int(choice)} {choice.name}" for choice in SchedulingChoice)


Choice = Annotated[
    SchedulingChoice | None,
    chosen(_SCHEDULING_CHOICES, f"a number or name of: {_SCHEDULING_WORDS}"),
]
Preset = Annotated[
    AutoscalePreset,
    chosen({str(one): one for one in AutoscalePreset}, f"one of: {', '.join(AutoscalePreset)}"),
]
_PRESET_KNOBS: dict[str, dict[str, Any]] = {
    str(preset): {
        f"{knob}_seconds" if isinstance(value, timedelta) else knob: (
            int(value.total_seconds()) if isinstance(value, timedelta) else value
        )
        for knob, value in knobs.items()
    }
    for preset, knobs in PRESETS.items()
}
_SOURCE_WORDS = ", ".join(LoadKind)
_SERVER_WORDS = ", ".join(LoadPreset)
_MEANT_FOR: dict[str, tuple[LoadKind, ...]] = {
    "preset": (LoadKind.PROMETHEUS, LoadKind.SCRAPE),
    "model": (LoadKind.PROMETHEUS, LoadKind.SCRAPE),
    "job": (LoadKind.PROMETHEUS,),
    "path": (LoadKind.SCRAPE,),
    "queries": (LoadKind.PROMETHEUS,),
}
_NEEDED = ("running", "queued", "arrivals")


def _server(value: Any) -> Any:
    name = value.strip().casefold().replace("-", "_") if isinstance(value, str) else value
    if name in set(LoadPreset):
        return LoadPreset(name)
    but = f"{shown(value)} is not known; " if isinstance(value, str) else ""
    raise ValueError(f"{but}{suggestion(str(value), [str(one) for one in LoadPreset])}")


Source = Annotated[
    LoadKind, chosen({str(one): one for one in LoadKind}, f"one of: {_SOURCE_WORDS}")
]
Server = Annotated[LoadPreset, BeforeValidator(_server)]
Label = Annotated[Text, Field(pattern=r"^\P{Cc}*$")]
Query = Annotated[str, Field(min_length=1, max_length=4000)]
ModelPart = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
"""Of a model's name `user/app/model`."""


class LoadQueriesBlock(Model):
    """Own PromQL, each giving one number or one for each replica."""

    running: Query | None = None
    queued: Query | None = None
    arrivals: Query | None = None
    completions: Query | None = None
    up: Query | None = None

    def named(self) -> dict[str, str]:
        """Return those that are given."""
        return self.model_dump(exclude_none=True)


class LoadBlock(Model):
    """Who counts a deployment's requests; `source` alone is Garrison's router."""

    source: Source = LoadKind.ROUTER
    preset: Server | None = None
    model: Label | None = None
    job: Label | None = None
    path: Annotated[str, AfterValidator(url_path)] = "/metrics"
    queries: LoadQueriesBlock = LoadQueriesBlock()

    @field_validator("preset", "model", "job", "path", "queries")
    @classmethod
    def _of_source(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        source, wanted = info.data.get("source"), _MEANT_FOR[name]
        is_given = value != cls.model_fields[name].get_default()
        if is_given and source is not None and source not in wanted:
            raise ValueError(f"is for source {' or '.join(wanted)}, not {source}")
        return value

    @field_validator("model")
    @classmethod
    def _has_label(cls, value: str | None, info: ValidationInfo) -> str | None:
        preset = info.data.get("preset")
        if value is not None and preset is LoadPreset.TGI:
            raise ValueError("means nothing to tgi, whose metrics name no model; give a `job`")
        if value is not None and preset is None and "preset" in info.data:
            raise ValueError("needs a `preset`, which says what its label is called")
        return value

    @model_validator(mode="after")
    def _tells_the_load(self) -> Self:
        if self.source is LoadKind.SCRAPE and self.preset is LoadPreset.TRITON:
            raise ValueError("cannot scrape triton, whose metrics have a port of their own")
        if self.source is LoadKind.SCRAPE and self.preset is None:
            raise ValueError(f"needs a `preset` to be scraped: {_SERVER_WORDS}")
        missing = [name for name in _NEEDED if name not in self.queries.named()]
        if self.source is LoadKind.PROMETHEUS and self.preset is None and missing:
            raise ValueError(
                f"needs a `preset` ({_SERVER_WORDS}), or own `queries`: {', '.join(missing)}"
            )
        return self

    def is_blind_to_parts(self) -> bool:
        """Whether a scrape of some replicas only may pass for less traffic."""
        own = self.queries.named()
        return self.job is None and "up" not in own and any(name in own for name in _NEEDED)


class AutoscaleBlock(Model):
    """How many replicas there may be, and how they follow the load.

    A preset sets the delays and the hold, and what is written beside it goes over that.
    """

    preset: Preset | None = None
    min_replicas: Count = 0
    max_replicas: Count = 5
    soft_min_replicas: Count = 0
    traffic_history_seconds: WholeSeconds = 300
    scale_up_delay_seconds: WholeSeconds = 300
    scale_down_delay_seconds: WholeSeconds = 300
    scale_to_zero_delay_seconds: WholeSeconds = 1800
    hold_boots: float = Field(default=0, ge=0, le=1000, allow_inf_nan=False)
    concurrency: int = Field(default=16, ge=1, le=MAX_COUNT)
    disable_packing: bool | None = None
    enable_packing: bool | None = None
    load: LoadBlock = LoadBlock()

    @model_validator(mode="before")
    @classmethod
    def _preset_first(cls, value: Any) -> Any:
        name = value.get("preset") if isinstance(value, dict) else None
        knobs = _PRESET_KNOBS.get(name.strip().casefold()) if isinstance(name, str) else None
        return value if knobs is None else {**knobs, **value}

    @field_validator("max_replicas")
    @classmethod
    def _above_min(cls, value: int, info: ValidationInfo) -> int:
        return at_least(value, "min_replicas", info)

    @field_validator("scale_to_zero_delay_seconds")
    @classmethod
    def _after_scale_down(cls, value: int, info: ValidationInfo) -> int:
        return at_least(value, "scale_down_delay_seconds", info)

    @field_validator("enable_packing")
    @classmethod
    def _agrees(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value is not None and info.data.get("disable_packing") is value:
            raise ValueError("contradicts disable_packing; remove it")
        return value


class NodepoolRef(Model):
    """A nodepool that a deployment may use; only the two ids count."""

    id: Name
    compute_cluster: ComputeClusterRef
    description: Unused = None
    instance_types: Unused = None
    node_capacity_type: Unused = None
    min_instances: Unused = None
    max_instances: Unused = None
    warm_instances: Unused = None
    visibility: Unused = None
    created_at: Unused = None
    modified_at: Unused = None
    enforced_min_instances: Unused = None
    enforced_max_instances: Unused = None
    metadata: Unused = None
    special_handling: Unused = None
    node_count: Unused = None
    status: Unused = None
    status_description: Unused = None

    def key(self) -> tuple[str, str]:
        """Return compute cluster and id."""
        return self.compute_cluster.id, self.id


class PoolChoiceBlock(Model):
    """A nodepool with a priority: named by `nodepool`, or by `id` and `compute_cluster`."""

    id: Name | None = None
    compute_cluster: ComputeClusterRef | None = None
    nodepool: NodepoolRef | None = None
    priority: int = Field(default=0, ge=0, le=9)

    @model_validator(mode="after")
    def _names_a_pool(self) -> Self:
        if self.nodepool is None and (self.id is None or self.compute_cluster is None):
            raise ValueError("needs `id` and `compute_cluster: {id: ...}` of a nodepool")
        return self

    def key(self) -> tuple[str, str]:
        """Return compute cluster and id."""
        if self.nodepool is not None:
            return self.nodepool.key()
        assert self.compute_cluster is not None, "validated"
        assert self.id is not None, "validated"
        return self.compute_cluster.id, self.id


class ModelVersionBlock(Model):
    """Which version of a model."""

    id: ModelPart
    user_id: Unused = None
    app_id: Unused = None
    model_id: Unused = None
    created_at: Unused = None
    modified_at: Unused = None


class ModelBlock(Model):
    """A model of the settings' `models:`, by the parts of its name."""

    id: ModelPart
    user_id: ModelPart | None = None
    app_id: ModelPart | None = None
    model_version: ModelVersionBlock | None = None
    name: Unused = None
    description: Unused = None
    model_type_id: Unused = None
    created_at: Unused = None
    modified_at: Unused = None
    visibility: Unused = None

    @model_validator(mode="after")
    def _whole_name(self) -> Self:
        if (self.user_id is None) != (self.app_id is None):
            raise ValueError("needs both `user_id` and `app_id`, or neither")
        return self

    def full_name(self) -> str:
        """Return `user/app/model`, or the model alone."""
        return "/".join(part for part in (self.user_id, self.app_id, self.id) if part is not None)


class WorkerBlock(TemplateFile):
    """What a deployment runs: a configured model, or a command or image of its own."""

    model: ModelBlock | None = None
    workflow: Unused = None
    user: Unused = None

    @field_validator("model")
    @classmethod
    def _model_alone(cls, value: ModelBlock | None, info: ValidationInfo) -> ModelBlock | None:
        fields = TemplateFile.model_fields.items()
        own = [
            name
            for name, field in fields
            if name in info.data and info.data[name] != field.get_default(call_default_factory=True)
        ]
        if value is not None and own:
            raise ValueError(
                f"goes without {', '.join(own)}: for a model the settings' `models:` say these"
            )
        return value

    @model_validator(mode="after")
    def _runs_something(self) -> Self:
        if self.workflow is not None:
            raise ValueError("`workflow` cannot be run here; give a `model`, `command` or `image`")
        if self.model is None and self.command is None and self.image is None:
            raise ValueError("needs a `model`, a `command` or an `image`")
        return self


class DeploymentBlock(Model):
    """What stands under `deployment:`."""

    id: Name | None = None
    description: Description = ""
    worker: WorkerBlock
    autoscale_config: AutoscaleBlock = AutoscaleBlock()
    scheduling_choice: Choice = None
    drain_timeout_seconds: int = Field(default=30, ge=0, le=86_400)
    nodepools: Annotated[tuple[NodepoolRef, ...] | None, Some] = Field(
        default=None, max_length=MAX_POOLS
    )
    deployment_nodepools: Annotated[tuple[PoolChoiceBlock, ...] | None, Some] = Field(
        default=None, max_length=MAX_POOLS
    )
    visibility: VisibilityBlock = VisibilityBlock()
    user_id: Unused = None
    metadata: Unused = None
    created_at: Unused = None
    modified_at: Unused = None
    deploy_latest_version: Unused = None
    special_handling: Unused = None
    desired_worker: Unused = None
    email_reminder_after: Unused = None
    graceful_deploy: Unused = None
    deployment_metrics: Unused = None
    status: Unused = None

    @field_validator("nodepools", "deployment_nodepools")
    @classmethod
    def _each_pool_once(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            check_unique(["/".join(pool.key()) for pool in value])
        return value

    @field_validator("deployment_nodepools")
    @classmethod
    def _same_pools(cls, value: Any, info: ValidationInfo) -> Any:
        plain = info.data.get("nodepools")
        if value and plain and {p.key() for p in plain} != {p.key() for p in value}:
            raise ValueError("names other nodepools than `nodepools`; give one of the two")
        return value

    @field_validator("status")
    @classmethod
    def _enabled(cls, value: Any) -> Any:
        if isinstance(value, str) and value.casefold() in ("1", "disabled"):
            raise ValueError("cannot be DISABLED in a file; use `garrison deployment disable`")
        return value

    @field_validator("autoscale_config")
    @classmethod
    def _can_be_scraped(cls, value: AutoscaleBlock, info: ValidationInfo) -> AutoscaleBlock:
        worker = info.data.get("worker")
        is_scraped = value.load.source is LoadKind.SCRAPE
        if is_scraped and worker is not None and worker.model is None and worker.port is None:
            raise ValueError("load.source scrape needs the `port` of the worker, to ask at")
        return value

    @model_validator(mode="after")
    def _has_pools(self) -> Self:
        if self.nodepools is None and self.deployment_nodepools is None:
            raise ValueError("needs `nodepools`, each with `id` and `compute_cluster: {id: ...}`")
        return self
