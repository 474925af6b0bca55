"""The metrics of servers whose names for them are known, looked up in November 2026.

Sources: docs.vllm.ai (design/metrics), docs.sglang.io (production metrics) and its
`metrics_collector.py`, TGI's reference of metrics and its `router`, Triton's
`docs/user_guide/metrics.md`, docs.ray.io (serve/monitoring). What a server counts when a request
arrives is taken as arrivals; what it counts when one ends, whatever documents call it, as
completions.

- SGLang's `num_requests_total` counts requests that ended. Those aborted while they waited are not
  in it; the counter of aborted ones also has some that are, so it is left out.
- Triton tells no running requests: they are taken from how long completed ones took.
- Ray Serve's router tells what it gave to replicas, older ones what replicas work on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from garrison.domain.autoscaling.series import Role, Sample
from garrison.models.deployment import LoadPreset

Names = tuple[tuple[str, ...], ...]
"""Metrics that are added up; of each, names in different versions, the first that is there goes."""


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """How one kind of server names its metrics.

    Attributes:
        label: Whose value is the model or application, None where there is none.
    """

    label: str | None
    names: Mapping[Role, Names] = field(default_factory=dict)

    def all_names(self) -> Iterator[str]:
        """Yield each name once, in order."""
        yield from dict.fromkeys(
            name for groups in self.names.values() for group in groups for name in group
        )


PRESETS: Mapping[LoadPreset, ServerMetrics] = {
    LoadPreset.VLLM: ServerMetrics(
        "model_name",
        {
            Role.RUNNING: (("vllm:num_requests_running",),),
            Role.QUEUED: (("vllm:num_requests_waiting",),),
            Role.COMPLETIONS: (("vllm:request_success_total",),),
        },
    ),
    LoadPreset.SGLANG: ServerMetrics(
        "model_name",
        {
            Role.RUNNING: (("sglang:num_running_reqs",),),
            Role.QUEUED: (("sglang:num_queue_reqs",),),
            Role.COMPLETIONS: (("sglang:num_requests_total",),),
        },
    ),
    LoadPreset.TGI: ServerMetrics(
        None,
        {
            Role.RUNNING: (("tgi_batch_current_size",),),
            Role.QUEUED: (("tgi_queue_size",),),
            Role.ARRIVALS: (("tgi_request_count", "tgi_request_count_total"),),
            Role.COMPLETIONS: (
                ("tgi_request_success", "tgi_request_success_total"),
                ("tgi_request_failure", "tgi_request_failure_total"),
            ),
        },
    ),
    LoadPreset.TRITON: ServerMetrics(
        "model",
        {
            Role.QUEUED: (("nv_inference_pending_request_count",),),
            Role.COMPLETIONS: (
                ("nv_inference_request_success",),
                ("nv_inference_request_failure",),
            ),
            Role.BUSY_US: (("nv_inference_request_duration_us",),),
            Role.WAITED_US: (("nv_inference_queue_duration_us",),),
        },
    ),
    LoadPreset.RAY_SERVE: ServerMetrics(
        "application",
        {
            Role.RUNNING: (
                (
                    "ray_serve_num_ongoing_requests_at_replicas",
                    "ray_serve_replica_processing_queries",
                ),
            ),
            Role.QUEUED: (("ray_serve_deployment_queued_queries",),),
            Role.ARRIVALS: (
                ("ray_serve_num_router_requests_total", "ray_serve_num_router_requests"),
            ),
            Role.COMPLETIONS: (
                (
                    "ray_serve_deployment_request_counter_total",
                    "ray_serve_deployment_request_counter",
                ),
            ),
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Named:
    """One number under the name that its server gave it."""

    metric: str
    sample: Sample


def assign_roles(metrics: ServerMetrics, found: Iterable[Named]) -> dict[Role, list[Sample]]:
    """Return what the numbers of one deployment say, by role; one without any is empty."""
    by_name: dict[str, list[Sample]] = {}
    for one in found:
        by_name.setdefault(one.metric, []).append(one.sample)
    return {
        role: [sample for names in groups for sample in _first_of(names, by_name)]
        for role, groups in metrics.names.items()
    }


def _first_of(names: tuple[str, ...], by_name: Mapping[str, list[Sample]]) -> Iterator[Sample]:
    """Yield each replica's numbers under the first name that it has any under."""
    told: set[str] = set()
    for name in names:
        samples = by_name.get(name, ())
        yield from (one for one in samples if one.replica not in told)
        told |= {one.replica for one in samples}
