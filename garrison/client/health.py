"""What is wrong with a Temporal Service and the workers on it, seen from a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetSystemInfoRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from garrison.errors import GarrisonError, ServiceUnreachable, Unsupported
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

POLLED_WITHIN = timedelta(minutes=2)
"""A poll lasts a minute; the service remembers pollers for longer than they live."""
KEPT_LONG_ENOUGH = timedelta(days=30)
RPC_TIMEOUT = timedelta(seconds=5)
VERSION_TIMEOUT = timedelta(seconds=2)
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
        yield await _watch(client, provider)
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


async def _watch(client: Client, provider: str) -> Check:
    name = f"watch {provider}"
    handle = client.get_workflow_handle(f"watch/{provider}")
    try:
        found = await handle.describe(rpc_timeout=RPC_TIMEOUT)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return fail(name, "nobody observes its machines", START_WORKERS)
    if found.status is not WorkflowExecutionStatus.RUNNING:
        return fail(name, "it has ended", START_WORKERS)
    failure = _trouble(found.raw_description.pending_activities)
    return fail(name, failure, "see `garrison provider list`") if failure else ok(name, "runs")


def _trouble(activities: Iterable[object]) -> str:
    for activity in activities:
        attempt = getattr(activity, "attempt", 1)
        message = getattr(getattr(activity, "last_failure", None), "message", "")
        if attempt > 1 and message:
            return f"attempt {attempt}: {message}"
    return ""


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
