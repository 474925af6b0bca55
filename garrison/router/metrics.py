"""What a router tells Prometheus; `docs/router.md` lists every metric.

A deployment is a label only while the router knows it, so that nobody can make series by asking for
names. Gauges are read from what is counted anyway, at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class Gauges:
    """A deployment as it is now."""

    deployment: str
    held: int
    running: int
    ready: int


class RouterMetrics:
    """The metrics of one router, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Requests of deployments that ended, by class of answer.", "code"
        )
        self._retries = self._counter("retries", "Tries of requests after the first.")
        self._wakes = self._counter("wakes", "Wakes sent to deployments at zero.")
        self._seconds = self._histogram("request_seconds", "From a request's arrival to its end.")
        self._held = self._histogram("held_seconds", "How long held requests waited.")
        self._refused = Counter(
            "garrison_router_refused",
            "Requests that were refused before they belonged to a deployment.",
            ["code"],
            registry=self._registry,
        )

    def show(self, read: Callable[[], Iterable[Gauges]]) -> None:
        """Show gauges of all deployments, read at each scrape."""
        self._registry.register(_Shown(read))

    def ended(self, deployment: str, code: str, seconds: float) -> None:
        """Count a request that ended.

        Args:
            deployment: Whose.
            code: `2xx` to `5xx`, `aborted` by the client, or `broken` off by the replica.
            seconds: Since it arrived.
        """
        self._requests.labels(deployment, code).inc()
        self._seconds.labels(deployment).observe(seconds)

    def held(self, deployment: str, seconds: float) -> None:
        """Count a request that waited."""
        self._held.labels(deployment).observe(seconds)

    def retried(self, deployment: str) -> None:
        """Count one more try of a request."""
        self._retries.labels(deployment).inc()

    def woke(self, deployment: str) -> None:
        """Count a wake."""
        self._wakes.labels(deployment).inc()

    def refused(self, code: str) -> None:
        """Count a request that was refused at the door."""
        self._refused.labels(code).inc()

    def forget(self, deployment: str) -> None:
        """Drop all series of a deployment that is gone."""
        for metric in (self._requests, self._retries, self._wakes, self._seconds, self._held):
            metric.remove_by_labels({"deployment": deployment})

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        every = ["deployment", *labels]
        return Counter(f"garrison_router_{name}", help, every, registry=self._registry)

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(
            f"garrison_router_{name}",
            help,
            ["deployment"],
            registry=self._registry,
            buckets=_SECONDS,
        )


class _Shown(Collector):
    def __init__(self, read: Callable[[], Iterable[Gauges]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        held = _gauge("held", "Requests that wait for a replica.")
        running = _gauge("running", "Requests at a replica.")
        ready = _gauge("replicas_ready", "Replicas that get requests.")
        for one in self._read():
            held.add_metric([one.deployment], one.held)
            running.add_metric([one.deployment], one.running)
            ready.add_metric([one.deployment], one.ready)
        yield from (held, running, ready)


def _gauge(name: str, help: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"garrison_router_{name}", help, labels=["deployment"])
