"""What a worker tells Prometheus of Garrison, through the SDK's own meter: one port serves both.

No label has a value that grows with use: no cluster, owner, machine or message is one. A gauge of
something that is gone, or that another worker now reports, is set to 0, as the SDK's meter cannot
take one back. `docs/metrics.md` lists every metric.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.common import MetricAttributes, MetricGauge, MetricMeter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.runtime import PrometheusConfig, Runtime
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from garrison.activities.watches import watch_id
from garrison.errors import ErrorCode, GarrisonError, InvalidSpec
from garrison.models.cluster_state import Phase
from garrison.models.nodepool import PoolPhase
from garrison.models.observation import WatchReport
from garrison.providers.turns import Kind

CALL_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
HISTOGRAMS: dict[str, tuple[float, ...]] = {"garrison_provider_call_seconds": CALL_SECONDS}
"""Bounds of each histogram, for `PrometheusConfig`."""

REFRESH_SECONDS = 5.0
LONGEST_PAUSE = 60.0
"""Seconds between two tries of anything at most, unless a provider asked for more."""
ENDING = frozenset({"purchase_group", "restart_node"})
"""Calls whose refusal is an answer that their entity goes on with, not something to try again."""
QUESTIONS = frozenset({"place_cluster", "list_offers", "read_log", "list_orphans", "sweep_orphans"})
"""Calls that only a person waits for, and is told of."""


Labels = tuple[str, ...]
"""The values of a series' labels."""


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where Prometheus may scrape.

    Attributes:
        host: An IP address of this machine, or one that stands for all of them.
    """

    port: int
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            raise InvalidSpec(
                f"--metrics-host must be an IP address, 0.0.0.0 say, not {self.host!r}"
            ) from None

    @property
    def config(self) -> PrometheusConfig:
        """How the SDK is told of it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return PrometheusConfig(
            bind_address=f"{host}:{self.port}", histogram_bucket_overrides=HISTOGRAMS
        )


def meter_of(client: Client) -> MetricMeter:
    """Return the meter of the runtime that a client runs on."""
    runtime = client.service_client.config.runtime or Runtime.default()
    return runtime.metric_meter


class CountedStates:
    """A gauge with one series for each state; what vanishes goes to 0."""

    def __init__(self, gauge: MetricGauge) -> None:
        self._gauge = gauge
        self._shown: dict[str, dict[Labels, MetricAttributes]] = {}

    def show(self, whose: str, counts: Mapping[Labels, int], *labels: str) -> None:
        """Set the series of one source to these counts, and all its others to 0.

        Args:
            whose: The source.
            counts: By the values of the labels.
            labels: Their names.
        """
        shown = self._shown.setdefault(whose, {})
        shown |= {values: dict(zip(labels, values, strict=True)) for values in counts}
        for values, attributes in shown.items():
            self._gauge.set(counts.get(values, 0), attributes)


@dataclass(frozen=True, slots=True)
class _Trouble:
    kind: str
    activity: str
    code: str
    until: float


class Blocked:
    """Which entities cannot go on now, and why.

    An entity is blocked from a failed try of one of its calls until a try works, or is given up.
    A later try may be another worker's, so a failure is forgotten when the longest pause between
    two tries has passed twice.
    """

    def __init__(self, gauge: MetricGauge, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing blocked.

        Args:
            gauge: With the labels `kind`, `activity` and `code`.
            clock: Seconds, never going back.
        """
        self._states = CountedStates(gauge)
        self._clock = clock
        self._troubles: dict[tuple[str, str], _Trouble] = {}

    def failed(
        self,
        entity: str,
        call: str,
        *,
        kind: str,
        activity: str,
        code: str,
        pause: float | None = None,
    ) -> None:
        """Take note of a failed try that will be followed by another.

        Args:
            entity: Its workflow id.
            call: Which of its calls.
            kind: Of the entity.
            activity: The call's name.
            code: Of the error.
            pause: Seconds until the next try, where the provider said.
        """
        until = self._clock() + 2 * max(LONGEST_PAUSE, pause or 0.0)
        self._troubles.pop((entity, call), None)  # so that the newest is the last
        self._troubles[entity, call] = _Trouble(kind, activity, code, until)
        self.refresh()

    def works(self, entity: str, call: str, *, activity: str) -> None:
        """Forget that a call failed, and what the same entity tried before it."""
        left = {
            key: trouble
            for key, trouble in self._troubles.items()
            if key[0] != entity or (trouble.activity == activity and key[1] != call)
        }
        if len(left) != len(self._troubles):
            self._troubles = left
            self.refresh()

    def refresh(self) -> None:
        """Forget what is old, and set the gauge."""
        now = self._clock()
        self._troubles = {key: one for key, one in self._troubles.items() if one.until > now}
        # Of an entity with several calls under way the newest failure counts.
        newest = {entity: trouble for (entity, _), trouble in self._troubles.items()}
        counts: Counter[Labels] = Counter(
            (one.kind, one.activity, one.code) for one in newest.values()
        )
        self._states.show("", counts, "kind", "activity", "code")


class WatchMetrics:
    """What the observers of this process see; implements `WatchMeter`."""

    def __init__(self, meter: MetricMeter, blocked: Blocked, clock: Callable[[], datetime]) -> None:
        self._blocked = blocked
        self._clock = clock
        self._clusters = CountedStates(
            meter.create_gauge("garrison_clusters", "Living clusters of a provider by phase.")
        )
        self._nodepools = CountedStates(
            meter.create_gauge("garrison_nodepools", "Living nodepools of a provider by phase.")
        )
        self._nodes = CountedStates(
            meter.create_gauge("garrison_nodes", "Nodes by the state that the provider tells.")
        )
        self._orphans = meter.create_gauge(
            "garrison_orphan_machines", "Machines whose owner nobody has heard of."
        )
        self._reaped = meter.create_counter(
            "garrison_reaped_groups_total", "Groups of closed lives that were deleted."
        )
        self._active = meter.create_gauge(
            "garrison_watch_active", "1 on the worker that observes the provider, else 0."
        )
        self._passed_at = meter.create_gauge_float(
            "garrison_watch_last_pass_timestamp_seconds", "Unix time of the last complete pass."
        )
        self._age = meter.create_gauge_float(
            "garrison_watch_pass_age_seconds", "Age of the last complete pass."
        )
        self._since: dict[str, datetime] = {}
        self._counted: dict[str, int] = {}

    def began(self, provider: str, report: WatchReport) -> None:
        """See `WatchMeter.began`."""
        self._since[provider] = self._clock()
        self._counted[provider] = report.reaped
        self.reported(provider, report)

    def reported(self, provider: str, report: WatchReport) -> None:
        """See `WatchMeter.reported`."""
        self._active.set(1, _of(provider))
        self._orphans.set(report.orphan_machines, _of(provider))
        self._reaped.add(max(0, report.reaped - self._counted[provider]), _of(provider))
        self._counted[provider] = report.reaped
        if report.passed_at is not None:
            self._passed_at.set(report.passed_at.timestamp(), _of(provider))
        since = report.passed_at or self._since[provider]
        age = (self._clock() - since).total_seconds()
        self._age.set(max(0.0, age), _of(provider))
        self._note_trouble(provider, report)

    def counted(self, provider: str, phases: Mapping[str, int], nodes: Mapping[str, int]) -> None:
        """See `WatchMeter.counted`."""
        clusters: dict[Labels, int] = {
            (provider, phase): count for phase, count in phases.items() if phase in set(Phase)
        }
        self._clusters.show(provider, clusters, "provider", "phase")
        pools: dict[Labels, int] = {(provider, phase): phases.get(phase, 0) for phase in PoolPhase}
        self._nodepools.show(provider, pools, "provider", "phase")
        by_status: dict[Labels, int] = {
            (provider, status): count for status, count in nodes.items()
        }
        self._nodes.show(provider, by_status, "provider", "status")

    def ended(self, provider: str) -> None:
        """See `WatchMeter.ended`."""
        self.counted(provider, {}, {})
        self._active.set(0, _of(provider))
        self._orphans.set(0, _of(provider))
        self._passed_at.set(0.0, _of(provider))
        self._age.set(0.0, _of(provider))
        self._blocked.works(watch_id(provider), "pass", activity="watch_provider")

    def _note_trouble(self, provider: str, report: WatchReport) -> None:
        entity = watch_id(provider)
        if report.error is None:
            self._blocked.works(entity, "pass", activity="watch_provider")
            return
        self._blocked.failed(
            entity,
            "pass",
            kind="provider_watch",
            activity="watch_provider",
            code=str(report.error.code),
        )


class LoadMetrics:
    """What the observers of load of this process see; implements `LoadMeter`."""

    def __init__(self, meter: MetricMeter) -> None:
        self._followed = meter.create_gauge(
            "garrison_load_deployments", "Deployments whose load is looked at."
        )
        self._missing = meter.create_gauge(
            "garrison_load_missing", "Of those the ones whose load is not known."
        )
        self._told = meter.create_counter(
            "garrison_load_targets_total", "Targets that deployments were told."
        )

    def looked(self, source: str, followed: int, missing: int) -> None:
        """See `LoadMeter.looked`."""
        self._followed.set(followed, {"source": source})
        self._missing.set(missing, {"source": source})
        self._told.add(0, {"source": source})  # so that it is there before the first one

    def told(self, source: str) -> None:
        """See `LoadMeter.told`."""
        self._told.add(1, {"source": source})


class CallMetrics:
    """The calls to one provider; implements `CallMeter`."""

    def __init__(self, meter: MetricMeter, provider: str) -> None:
        meter = meter.with_additional_attributes(_of(provider))
        self._calls = meter.create_counter(
            "garrison_provider_calls_total", "Calls to a provider by result."
        )
        self._seconds = meter.create_histogram_float(
            "garrison_provider_call_seconds", "Seconds until a provider answered."
        )
        self._held_back = meter.create_counter(
            "garrison_provider_calls_held_back_total",
            "Calls put off, as too many waited for the provider's rate limit.",
        )

    def called(self, kind: Kind, result: str, seconds: float) -> None:
        """See `CallMeter.called`."""
        self._calls.add(1, {"call": str(kind), "result": result})
        self._seconds.record(max(0.0, seconds), {"call": str(kind)})

    def held_back(self, kind: Kind) -> None:
        """See `CallMeter.held_back`."""
        self._held_back.add(1, {"call": str(kind)})


class Metrics:
    """All metrics of one worker process."""

    def __init__(self, meter: MetricMeter, clock: Callable[[], datetime]) -> None:
        """Prepare; nothing is shown before it happened.

        Args:
            meter: Of the SDK's runtime; one without a port shows nothing.
            clock: The time of this host.
        """
        self._meter = meter
        self._blocked = Blocked(
            meter.create_gauge("garrison_blocked", "Entities that cannot go on now, and why.")
        )
        self.watches = WatchMetrics(meter, self._blocked, clock)
        self.loads = LoadMetrics(meter)
        self.interceptor = BlockedInterceptor(self._blocked)

    def calls(self, provider: str) -> CallMetrics:
        """Return what counts the calls to a provider."""
        return CallMetrics(self._meter, provider)

    @contextlib.asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Forget every few seconds what is old, while the body runs."""

        async def refresh() -> None:
            while True:
                self._blocked.refresh()
                await asyncio.sleep(REFRESH_SECONDS)

        task = asyncio.create_task(refresh())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class BlockedInterceptor(Interceptor):
    """Sees every try of every activity."""

    def __init__(self, blocked: Blocked) -> None:
        self._blocked = blocked

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `Interceptor.intercept_activity`."""
        return _Tries(next, self._blocked)


class _Tries(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, blocked: Blocked) -> None:
        super().__init__(next)
        self._blocked = blocked

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Make the try, and take note of how it ends."""
        info = activity.info()
        entity, call, name = info.workflow_id, info.activity_id, info.activity_type
        if entity is None or info.workflow_type is None or name in QUESTIONS:
            return await super().execute_activity(input)
        try:
            answer = await super().execute_activity(input)
        except BaseException as error:
            if _is_tried_again(name, error):
                kind = _snake(info.workflow_type)
                code = error.code if isinstance(error, GarrisonError) else ErrorCode.INTERNAL
                self._blocked.failed(
                    entity,
                    call,
                    kind=kind,
                    activity=name,
                    code=str(code),
                    pause=getattr(error, "retry_after_seconds", None),
                )
            else:
                self._blocked.works(entity, call, activity=name)
            raise
        self._blocked.works(entity, call, activity=name)
        return answer


def _is_tried_again(name: str, error: BaseException) -> bool:
    if isinstance(error, ApplicationError):
        return error.category is not ApplicationErrorCategory.BENIGN
    if isinstance(error, GarrisonError):
        return error.retryable or name not in ENDING
    return isinstance(error, Exception)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _of(provider: str) -> dict[str, str]:
    return {"provider": provider}
