"""What is wrong with a Temporal Service and the workers on it, seen from a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import ApplicationErrorCategory, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetSystemInfoRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from garrison.errors import GarrisonError, ServiceUnreachable, Unsupported
from garrison.models.observation import WatchReport
from garrison.models.queues import TASK_QUEUE, WATCH_QUEUE, provider_queue
from garrison.models.service import Check, fail, note, ok
from garrison.sealing import read_public_key
from garrison.service import (
    connect,
    missing_search_attributes,
    register_search_attributes,
    service_address,
)
from garrison.settings import Settings
from garrison.workflows.visibility import ALL_KEYS
from garrison.workflows.watch_report import report_in

POLLED_WITHIN = timedelta(minutes=2)
"""A poll lasts a minute; the service remembers pollers for longer than they live."""
KEPT_LONG_ENOUGH = timedelta(days=30)
RPC_TIMEOUT = timedelta(seconds=5)
VERSION_TIMEOUT = timedelta(seconds=2)
SEEN_WITHIN = timedelta(minutes=1)
DELETE_ORPHANS = (
    "if Temporal's database was lost or replaced, put it back; else delete them at the provider "
    "itself, in its console say (`garrison simulated inventory` lists those of a simulated cloud): "
    "Garrison never does, and a command `orphan sweep` does not exist yet"
)
START_WORKERS = "run `garrison up`, or `garrison worker` beside this service"


async def check_service(settings: Settings, *, register: bool = False) -> list[Check]:
    """Return what was found of the service, its namespace and its workers.

    Args:
        settings: Of this process; their providers are those that workers should serve.
        register: Register search attributes that are missing.
    """
    try:
        address = service_address(settings)
        client = await connect(address)
    except ServiceUnreachable as error:
        what, _, remedy = str(error).partition("; ")
        return [fail("service", what, remedy, unreachable=True)]
    except GarrisonError as error:
        return [fail("service", str(error), "correct Temporal's own settings")]
    found = [ok("service", f"{address.target} ({address.source})")]
    try:
        found += [check async for check in _checks(client, settings, register=register)]
    except RPCError as error:
        remedy = "look at the log of the service"
        found.append(fail("service", f"a call failed: {error.message}", remedy, unreachable=True))
    return found


async def server_version(settings: Settings) -> str | None:
    """Return the version of the service, None when it does not answer at once."""
    try:
        client = await connect(service_address(settings), timeout=VERSION_TIMEOUT)
        answer = await client.workflow_service.get_system_info(
            GetSystemInfoRequest(), timeout=VERSION_TIMEOUT
        )
    except (GarrisonError, RPCError):
        return None
    return answer.server_version


async def _checks(client: Client, settings: Settings, *, register: bool) -> AsyncIterator[Check]:
    namespace = await _namespace(client)
    yield namespace
    if namespace.remedy and namespace.status == "fail":
        return
    yield await _attributes(client, register=register)
    queues = (TASK_QUEUE, WATCH_QUEUE, *(provider_queue(name) for name in settings.providers))
    for queue in queues:
        yield await _queue(client, queue)
    for provider in settings.providers:
        async for check in _watch(client, provider):
            yield check
    yield await _sealing_key(client, settings)


async def _namespace(client: Client) -> Check:
    try:
        answer = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace), timeout=RPC_TIMEOUT
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        remedy = "create it, or set TEMPORAL_NAMESPACE or `namespace` in the settings"
        return fail("namespace", f"there is no namespace {client.namespace}", remedy)
    kept = answer.config.workflow_execution_retention_ttl.ToTimedelta()
    detail = f"{client.namespace}, closed lives are kept for {kept.days} days"
    if kept < KEPT_LONG_ENOUGH:
        return note("namespace", detail, "raise its retention to 90 days")
    return ok("namespace", detail)


async def _attributes(client: Client, *, register: bool) -> Check:
    name = "search attributes"
    try:
        if register and (made := await register_search_attributes(client, ALL_KEYS)):
            return ok(name, f"registered {', '.join(key.name for key in made)}")
        missing = await missing_search_attributes(client, ALL_KEYS)
    except Unsupported as error:
        return fail(name, str(error), "use another namespace")
    if missing:
        names = ", ".join(key.name for key in missing)
        return fail(name, f"missing: {names}", "garrison doctor --register")
    return ok(name, f"all {len(ALL_KEYS)} are registered")


async def _queue(client: Client, queue: str) -> Check:
    kinds = [TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY]
    if queue == TASK_QUEUE:
        kinds.append(TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)
    fewest = min([await _pollers(client, queue, kind) for kind in kinds])
    if not fewest:
        return fail(f"queue {queue}", "no worker polls it", START_WORKERS)
    return ok(f"queue {queue}", f"{fewest} worker{'s' if fewest > 1 else ''}")


async def _pollers(client: Client, queue: str, kind: TaskQueueType.ValueType) -> int:
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
        ),
        timeout=RPC_TIMEOUT,
    )
    oldest = datetime.now(UTC) - POLLED_WITHIN
    seen = (poller.last_access_time.ToDatetime(UTC) for poller in answer.pollers)
    return sum(time >= oldest for time in seen)


async def _watch(client: Client, provider: str) -> AsyncIterator[Check]:
    name = f"watch {provider}"
    handle = client.get_workflow_handle(f"watch/{provider}")
    try:
        found = await handle.describe(rpc_timeout=RPC_TIMEOUT)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        yield fail(name, "nobody observes its machines", START_WORKERS)
        return
    if found.status is not WorkflowExecutionStatus.RUNNING:
        yield fail(name, "it has ended", START_WORKERS)
        return
    report = await report_in(client, found) or WatchReport()
    pending = next(iter(found.raw_description.pending_activities), None)
    now = datetime.now(UTC)
    begun_at = found.start_time if pending is None else _begun_at(pending)
    yield judge_watch(name, report, now=now, begun_at=begun_at, fault=_fault(pending))
    if report.orphan_machines:
        yield _orphans(provider, report)


def judge_watch(
    name: str, report: WatchReport, *, now: datetime, begun_at: datetime, fault: str = ""
) -> Check:
    """Return whether a watch works, by its last complete pass.

    Args:
        name: Of the check.
        report: The last of its observer.
        now: The time.
        begun_at: When the observer was last started.
        fault: What an observer that broke said, empty when none did.
    """
    limit = max(3 * report.interval, SEEN_WITHIN)
    passed = report.passed_at
    if passed is not None and now - passed < limit:
        return ok(name, f"last complete pass {_seconds(now - passed)} ago")
    last = f"no complete pass since {passed:%Y-%m-%d %H:%M:%S} UTC" if passed else "no pass yet"
    if report.error is not None:
        error = report.error
        since = f"since {error.since:%Y-%m-%d %H:%M:%S} UTC"
        detail = f"{last}; {since}: {error.code}: {error.message}"
        return fail(name, detail, "mend what it names; the watch goes on by itself")
    if fault:
        return fail(name, f"{last}; {fault}", "see the log of the workers")
    if now - begun_at < limit:
        return ok(name, "starting")
    return fail(name, last, START_WORKERS)


def _begun_at(pending: PendingActivityInfo) -> datetime:
    times = (pending.last_started_time, pending.scheduled_time)
    return max(time.ToDatetime(UTC) for time in times)


def _fault(pending: PendingActivityInfo | None) -> str:
    """Return what broke the observer; a worker that stops, or dies, is no fault of it."""
    if pending is None or not pending.last_failure.HasField("application_failure_info"):
        return ""
    info = pending.last_failure.application_failure_info
    benign = ApplicationErrorCategory.APPLICATION_ERROR_CATEGORY_BENIGN
    return "" if info.category == benign else f"{info.type}: {pending.last_failure.message}"


def _seconds(span: timedelta) -> str:
    return f"{max(int(span.total_seconds()), 0)} s"


def _orphans(provider: str, report: WatchReport) -> Check:
    lives = [
        f"{life.owner} uid {life.uid} ({life.machines}: {', '.join(life.provider_ids)}"
        f"{', ...' if life.machines > len(life.provider_ids) else ''})"
        for life in report.orphans
    ]
    if sum(life.machines for life in report.orphans) < report.orphan_machines:
        lives.append("...")
    count = report.orphan_machines
    detail = f"{count} machine{'s' if count > 1 else ''} of lives nobody knows: {'; '.join(lives)}"
    return fail(f"orphans {provider}", detail, DELETE_ORPHANS)


async def _sealing_key(client: Client, settings: Settings) -> Check:
    name = "sealing key"
    if settings.public_key is not None:
        return ok(name, "set in the settings")
    if read_public_key(settings.data_dir) is not None:
        return ok(name, f"published in {settings.data_dir}")
    for provider in settings.providers:
        if await _publishes(client, provider):
            return ok(name, f"published by the watch of {provider}")
    return fail(name, "not published, so that no environment can be sealed", START_WORKERS)


async def _publishes(client: Client, provider: str) -> bool:
    handle = client.get_workflow_handle(f"watch/{provider}")
    try:
        memo = await (await handle.describe(rpc_timeout=RPC_TIMEOUT)).memo()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return bool(memo.get("public_key"))
