"""What Prometheus gets to see of a worker, and that the document says the same."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from temporalio.client import Client
from temporalio.common import MetricAttributes, MetricGauge
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.testing import WorkflowEnvironment

from garrison.activities.owners import Owner
from garrison.activities.watch_meter import count_nodes, count_phases
from garrison.cli.app import run
from garrison.errors import InvalidSpec
from garrison.failures import DATA_CONVERTER
from garrison.models.cluster_state import Phase
from garrison.models.deployment import LoadKind
from garrison.models.group import Group, GroupRequest, Node, NodeStatus
from garrison.providers.simulated.faults import Call, Fault
from garrison.workers.metrics import Blocked, CountedStates, MetricsAddress
from garrison.workers.server_process import check_port
from tests.workers.installation import Installation, eventually, free_ports
from tests.workflows.conftest import SOON, Story, in_phase

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]+) \|", re.MULTILINE)
SDK_LABELS = {"service_name", "namespace", "task_queue", "workflow_type", "le"}
SUFFIXES = re.compile(r"(_bucket|_sum|_count)$")

Claim = Callable[["Scrape"], bool]


class Scrape:
    """One answer of `/metrics`."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))

    def value(self, metric: str, **labels: str) -> float | None:
        """The sum of all series that have these labels, None when there is none."""
        found = [
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == metric and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None

    def values(self, metric: str, label: str) -> dict[str, float]:
        """The series of a metric that are not 0, by one label."""
        return {
            sample.labels[label]: sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == metric and sample.value
        }

    def ours(self) -> dict[str, tuple[str, set[str]]]:
        """Type and labels of each of Garrison's metrics."""
        found: dict[str, tuple[str, set[str]]] = {}
        for family in self.families:
            for sample in family.samples:
                name = sample.name
                if family.type == "histogram":
                    name = SUFFIXES.sub("", name)
                if name.startswith("garrison_"):
                    labels = set(sample.labels) - SDK_LABELS
                    found.setdefault(name, (family.type, set()))[1].update(labels)
        return found


class Scraped:
    """A story of which Prometheus can see everything."""

    def __init__(self, story: Story, port: int) -> None:
        self.story = story
        self._url = f"http://127.0.0.1:{port}/metrics"

    async def scrape(self) -> Scrape:
        async with httpx.AsyncClient() as client:
            return Scrape((await client.get(self._url)).text)

    async def until(self, what: str, claim: Claim) -> Scrape:
        """Return the first answer of which a claim is true."""
        end = datetime.now(UTC) + SOON
        while not claim(scrape := await self.scrape()):
            assert datetime.now(UTC) < end, f"{what}: {scrape.ours()}"
            await asyncio.sleep(0.1)
        return scrape


@pytest.fixture
async def scraped(dev_server: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Scraped]:
    (port,) = free_ports(1)
    runtime = Runtime(telemetry=TelemetryConfig(metrics=MetricsAddress(port).config))
    client = await Client.connect(
        dev_server.client.service_client.config.target_host,
        data_converter=DATA_CONVERTER,
        runtime=runtime,
    )
    story = Story(client, tmp_path)
    yield Scraped(story, port)
    await story.end()


async def test_every_metric_of_the_document_is_served_and_tells_what_happened(
    scraped: Scraped,
) -> None:
    story, name = scraped.story, scraped.story.name

    async with story.worker() as worker:
        await worker.traffic.loads.start(LoadKind.ROUTER)
        hurt = await story.running()
        dead = await story.running()
        mended = await story.running(recovery={"automatic": True})
        await _kill(story, mended.uid)
        await story.until(mended.name, lambda one: one.recovery.attempts == 1)
        await story.until(mended.name, in_phase(Phase.RUNNING))
        await _kill(story, hurt.uid)
        await story.until(hurt.name, in_phase(Phase.DEGRADED))
        await _buy_for_nobody(story)
        await story.handle(dead.name).terminate("by hand")
        story.fault(Call.LAUNCH, Fault.REFUSAL)
        refused = await story.launched()
        await story.until(refused.name, in_phase(Phase.FAILED))
        counted = await scraped.until("all is counted", lambda one: _all_is_counted(one, name))

        blocked = await _scrape_while_blocked(scraped)
        closed = await _scrape_while_closed(scraped, hurt.name)
    ended = await scraped.scrape()

    assert counted.values("garrison_clusters", "phase") == {"running": 1, "degraded": 1}
    nodes = counted.values("garrison_nodes", "status")
    assert (nodes["running"], nodes["stopped"]) == (4, 1)
    assert counted.value("garrison_recovery_attempts_total", provider=name) == 1
    calls = "garrison_provider_calls_total"
    assert counted.value(calls, provider=name, call="restart", result="restarted") == 1
    assert counted.value(calls, provider=name, call="launch", result="ok") == 3
    assert counted.value(calls, provider=name, call="launch", result="refusal") == 1
    lists = len(story.calls(Call.LIST))
    assert 0 < (counted.value("garrison_provider_call_seconds_count", call="list") or 0) <= lists
    assert (counted.value("garrison_watch_pass_age_seconds", provider=name) or 0) < 15
    passed_at = counted.value("garrison_watch_last_pass_timestamp_seconds", provider=name)
    assert abs((passed_at or 0) - datetime.now(UTC).timestamp()) < 60
    assert blocked.value("garrison_blocked", code="provider_unreachable") == 1
    assert closed.value("garrison_provider_calls_held_back_total", call="terminate") == 1
    assert ended.value("garrison_watch_active", provider=name) == 0
    assert ended.value("garrison_watch_last_pass_timestamp_seconds", provider=name) == 0
    assert ended.value("garrison_orphan_machines", provider=name) == 0
    assert ended.value("garrison_load_deployments", source="router") == 0
    assert ended.values("garrison_clusters", "phase") == {}
    assert ended.values("garrison_nodes", "status") == {}
    assert ended.ours() == _documented()
    assert any(family.name.startswith("temporal_") for family in ended.families)


async def _kill(story: Story, uid: str) -> None:
    story.console.kill(str(story.machines(uid)[1]["provider_id"]))


async def _buy_for_nobody(story: Story) -> None:
    """Make a machine of a life that was never heard of."""
    await story.provider.launch_group(
        GroupRequest(
            token="ghost-0",
            owner="cluster/ghost",
            uid="ghost",
            name="ghost",
            region="sim-a",
            instance_type="p5.48xlarge",
            count=1,
            max_usd_per_node_hour=Decimal(1000),
        )
    )


def _all_is_counted(scrape: Scrape, name: str) -> bool:
    return (
        scrape.value("garrison_orphan_machines", provider=name) == 1
        and scrape.value("garrison_reaped_groups_total", provider=name) == 1
        and scrape.value("garrison_watch_active", provider=name) == 1
        and scrape.values("garrison_clusters", "phase") == {"running": 1, "degraded": 1}
        and scrape.values("garrison_nodes", "status").get("running") == 4
    )


async def _scrape_while_blocked(scraped: Scraped) -> Scrape:
    """Return what is seen while a purchase does not work, and see that it goes by."""
    rule = scraped.story.fault(Call.LAUNCH, code="InternalError", times=None)
    labels = {"kind": "cluster", "activity": "purchase_group"}
    quote = await scraped.story.launched()
    blocked = await scraped.until(
        "a cluster is blocked", lambda one: one.value("garrison_blocked", **labels) == 1
    )
    assert scraped.story.console.clear_faults(rule.id) == 1
    await scraped.story.until(quote.name, in_phase(Phase.RUNNING))
    await scraped.until(
        "no cluster is blocked", lambda one: one.value("garrison_blocked", **labels) == 0
    )
    return blocked


async def _scrape_while_closed(scraped: Scraped, name: str) -> Scrape:
    """Return what is seen while the provider wants to be left alone, and a cluster terminates."""
    scraped.story.fault(Call.LIST, code="RequestLimitExceeded", retry_after_seconds=100)
    labels = {"code": "too_many_requests"}
    await scraped.until(
        "the watch is blocked",
        lambda one: one.value("garrison_blocked", kind="provider_watch", **labels) == 1,
    )
    await scraped.story.clusters.terminate(name)
    return await scraped.until(
        "the deletion is blocked",
        lambda one: one.value("garrison_blocked", activity="delete_groups", **labels) == 1,
    )


def _documented() -> dict[str, tuple[str, set[str]]]:
    rows = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    return {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in rows}


class Gauge(MetricGauge):
    """Keeps its series."""

    def __init__(self) -> None:
        self.series: dict[tuple[object, ...], int] = {}

    @property
    def name(self) -> str:
        return "gauge"

    @property
    def description(self) -> str | None:
        return None

    @property
    def unit(self) -> str | None:
        return None

    def set(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        self.series[tuple((additional_attributes or {}).values())] = value

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> Gauge:
        raise NotImplementedError


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def blocked(gauge: Gauge, clock: Clock) -> Blocked:
    return Blocked(gauge, clock)


UNREACHABLE = ("cluster", "purchase_group", "provider_unreachable")


def _fail(blocked: Blocked, entity: str, code: str, *, pause: float | None = None) -> None:
    blocked.failed(entity, "1", kind="cluster", activity="purchase_group", code=code, pause=pause)


def test_entities_are_counted_once_however_often_they_fail(blocked: Blocked, gauge: Gauge) -> None:
    for entity in ("cluster/a", "cluster/b", "cluster/a"):
        _fail(blocked, entity, "provider_unreachable")

    assert gauge.series == {UNREACHABLE: 2}


def test_the_newest_reason_counts(blocked: Blocked, gauge: Gauge) -> None:
    _fail(blocked, "cluster/a", "provider_unreachable")
    _fail(blocked, "cluster/a", "provider_auth")

    assert gauge.series == {UNREACHABLE: 0, ("cluster", "purchase_group", "provider_auth"): 1}


def test_a_call_that_works_unblocks_its_entity_and_no_other(blocked: Blocked, gauge: Gauge) -> None:
    _fail(blocked, "cluster/a", "provider_unreachable")
    _fail(blocked, "cluster/b", "provider_unreachable")

    blocked.works("cluster/a", "2", activity="delete_groups")

    assert gauge.series == {UNREACHABLE: 1}


def test_one_of_several_restarts_that_works_does_not_unblock_the_others(
    blocked: Blocked, gauge: Gauge
) -> None:
    blocked.failed("cluster/a", "1", kind="cluster", activity="restart_node", code="internal")

    blocked.works("cluster/a", "2", activity="restart_node")

    assert list(gauge.series.values()) == [1]


@pytest.mark.parametrize(
    ("pause", "forgotten_after"),
    [
        pytest.param(None, 120, id="twice the longest pause of ours"),
        pytest.param(5.0, 120, id="a shorter one does not count"),
        pytest.param(300.0, 600, id="twice the provider's Retry-After"),
    ],
)
def test_a_failure_that_another_worker_may_have_mended_is_forgotten(
    blocked: Blocked, gauge: Gauge, clock: Clock, pause: float | None, forgotten_after: float
) -> None:
    _fail(blocked, "cluster/a", "provider_unreachable", pause=pause)

    clock.now = forgotten_after - 1
    blocked.refresh()
    before = dict(gauge.series)
    clock.now = forgotten_after
    blocked.refresh()

    assert before == {UNREACHABLE: 1}
    assert gauge.series == {UNREACHABLE: 0}


def test_a_state_that_vanished_is_shown_as_0_and_another_source_is_left_alone(gauge: Gauge) -> None:
    states = CountedStates(gauge)
    states.show("a", {("a", "running"): 3, ("a", "quoted"): 1}, "provider", "phase")
    states.show("b", {("b", "running"): 2}, "provider", "phase")

    states.show("a", {("a", "degraded"): 3}, "provider", "phase")

    assert gauge.series == {
        ("a", "running"): 0,
        ("a", "quoted"): 0,
        ("a", "degraded"): 3,
        ("b", "running"): 2,
    }


def test_nodes_are_counted_by_the_word_of_the_provider_and_missing_ones_too() -> None:
    listed = [_group("cluster/a", NodeStatus.RUNNING, NodeStatus.STOPPED), _group("cluster/x")]
    owners = [
        _owner("cluster/a", Phase.DEGRADED, 4),
        _owner("cluster/b", Phase.RUNNING, 2),
        _owner("cluster/c", Phase.QUOTED, 8),
        _owner("cluster/d", Phase.LAUNCHING, 8),
        _owner("cluster/e", None, 8),
    ]

    assert count_nodes(listed, owners) == {"running": 1, "stopped": 1, "missing": 4}
    assert count_phases(owners) == {"degraded": 1, "running": 1, "quoted": 1, "launching": 1}


def _group(owner: str, *statuses: NodeStatus) -> Group:
    nodes = tuple(
        Node(rank=rank, provider_id=f"{owner}-{rank}", status=status)
        for rank, status in enumerate(statuses)
    )
    return Group(
        token="t",
        owner=owner,
        uid="u",
        region="sim-a",
        instance_type="p5.48xlarge",
        created_at=datetime.now(UTC),
        nodes=nodes,
    )


def _owner(workflow_id: str, phase: Phase | None, nodes: int) -> Owner:
    return Owner(workflow_id=workflow_id, uid="u", phase=phase, nodes=nodes)


@pytest.mark.parametrize("host", ["localhost", "", "10.0.0", "0.0.0.0:9464"])
def test_what_is_no_address_is_refused_before_anything_starts(host: str) -> None:
    with pytest.raises(InvalidSpec, match="must be an IP address"):
        MetricsAddress(9464, host)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"no address 192\.0\.2\.1"):
        check_port(9464, "--metrics-port", "192.0.2.1")


def test_an_address_of_version_6_is_bound_as_such() -> None:
    assert MetricsAddress(9464, "::").config.bind_address == "[::]:9464"


def test_a_host_without_a_port_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["worker", "--metrics-host", "0.0.0.0"]) == 2
    assert capsys.readouterr().err == "error: invalid_spec: --metrics-host needs --metrics-port\n"


def test_a_worker_of_one_queue_serves_its_metrics_on_every_address(
    dev_server: WorkflowEnvironment, installation: Installation
) -> None:
    (port,) = free_ports(1)
    address = dev_server.client.service_client.config.target_host
    worker = installation.start(
        *("worker", "--queue", "provider-simulated"),
        *("--metrics-port", str(port), "--metrics-host", "0.0.0.0"),
        env={**installation.environment, "TEMPORAL_ADDRESS": address},
    )
    eventually("the worker serves", lambda: "Ctrl-C" in worker.out or worker.ended)

    def started() -> bool:
        scrape = Scrape(httpx.get(f"http://127.0.0.2:{port}/metrics").text)
        return bool(scrape.value("temporal_num_pollers", task_queue="provider-simulated"))

    eventually("the metrics tell of the worker", started)
    worker.signal(signal.SIGTERM)

    assert worker.status() == 0
    assert worker.err == ""
