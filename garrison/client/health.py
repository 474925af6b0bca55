"""What is wrong with a Temporal Service and the workers on it, seen from a client."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import ApplicationErrorCategory, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, GetSystemInfoRequest
from temporalio.client import ActivityFailureError, Client, WorkflowExecutionStatus
from temporalio.common import RetryPolicy
from temporalio.service import RPCError, RPCStatusCode

from garrison.client.orphans import installations_in
from garrison.errors import GarrisonError, InvalidSpec, NotFound, ServiceUnreachable, Unsupported
from garrison.models.observation import WatchReport
from garrison.models.orphan import OrphanPage, OrphanQuery
from garrison.models.queues import TASK_QUEUE, WATCH_QUEUE, provider_queue
from garrison.models.service import Check, CheckStatus, fail, note, ok
from garrison.sealing import read_public_key
from garrison.service import (
    NAMESPACE_NAMES,
    RETENTION,
    connect,
    create_namespace,
    missing_search_attributes,
    raise_retention,
    register_search_attributes,
    retention_of,
    service_address,
    type_name,
)
from garrison.settings import Settings
from garrison.workflows.visibility import ALL_KEYS
from garrison.workflows.watch_report import report_in

POLLED_WITHIN = timedelta(minutes=2)
"""A poll lasts a minute; the service remembers pollers for longer than they live."""
RPC_TIMEOUT = timedelta(seconds=5)
VERSION_TIMEOUT = timedelta(seconds=2)
SEEN_WITHIN = timedelta(minutes=1)
OTHERS_TIMEOUT = timedelta(seconds=5)
DELETE_ORPHANS = (
    "if Temporal's database was lost or replaced, put it back; else `garrison orphan list` shows "
    "them and `garrison orphan sweep` deletes them: Garrison never does so by itself"
)
START_WORKERS = "run `garrison up`, or `garrison worker` beside this service"
REGISTER = "garrison doctor --register"
REFUSALS = {
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.FAILED_PRECONDITION,
}
"""What a service says that may be asked, and does not let us do something."""


async def check_service(settings: Settings, *, register: bool = False) -> list[Check]:
    """Return what was found of the service, its namespace and its workers.

    Args:
        settings: Of this process; their providers are those that workers should serve.
        register: Set up what the service lacks: the namespace, its retention, its search
            attributes. Workers can start only afterwards, so they are not looked for.
    """
    try:
        address = service_address(settings)
        client = await connect(address)
    except ServiceUnreachable as error:
        what, _, remedy = str(error).partition("; ")
        return [fail("service", what, remedy, unreachable=True)]
    except GarrisonError as error:
        invalid = isinstance(error, InvalidSpec)
        return [fail("service", str(error), "correct Temporal's own settings", invalid=invalid)]
    found = [ok("service", f"{address.target} ({address.source})")]
    try:
        found += [check async for check in _checks(client, settings, register=register)]
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            return [*found, _no_name(client.namespace, error)]
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
    namespace = await _namespace(client, register=register)
    yield namespace
    if namespace.status is CheckStatus.FAIL:
        return
    if register:
        for check in await set_up(client):
            yield check
        return
    yield await _retention(client, register=False)
    yield await _attributes(client, register=False)
    queues = (TASK_QUEUE, WATCH_QUEUE, *(provider_queue(name) for name in settings.providers))
    for queue in queues:
        yield await _queue(client, queue)
    for provider in settings.providers:
        async for check in _watch(client, provider):
            yield check
        async for check in _others(client, provider):
            yield check
    yield await _sealing_key(client, settings)


async def set_up(client: Client) -> tuple[Check, ...]:
    """Set up a namespace for workers, and return what came of its retention and attributes.

    Raises:
        RPCError: The service did not answer.
    """
    retention = await _retention(client, register=True)
    return retention, await _attributes(client, register=True)


async def _namespace(client: Client, *, register: bool) -> Check:
    name = "namespace"
    try:
        await retention_of(client)
        return ok(name, client.namespace)
    except NotFound as error:
        if not register:
            remedy = f"{REGISTER} makes it; another is set by TEMPORAL_NAMESPACE or `namespace`"
            return fail(name, str(error), remedy)
    try:
        await create_namespace(client)
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            return _no_name(client.namespace, error)
        return fail(name, _refused(error, f"to make {client.namespace}"), _by_hand("make it"))
    return ok(name, f"{client.namespace}, made now")


def _no_name(namespace: str, error: RPCError) -> Check:
    detail = f"{namespace[:64]!a} is no name for one here: {error.message}"
    return fail("namespace", detail, f"a name is {NAMESPACE_NAMES}", invalid=True)


async def _retention(client: Client, *, register: bool) -> Check:
    name = "retention"
    try:
        if register and await raise_retention(client):
            return ok(
                name, f"raised: ended clusters are kept for {RETENTION.days} days from now on"
            )
    except RPCError as error:
        refusal = _refused(error, f"to keep ended clusters for {RETENTION.days} days")
        return fail(name, refusal, _by_hand(f"set the retention to {RETENTION.days} days"))
    kept = await retention_of(client)
    if kept < RETENTION:
        detail = f"ended clusters, with names and bills, are forgotten after {_span(kept)}"
        return note(name, detail, f"{REGISTER} raises it to {RETENTION.days} days")
    return ok(name, f"ended clusters are kept for {_span(kept)}")


async def _attributes(client: Client, *, register: bool) -> Check:
    name = "search attributes"
    try:
        if register and (made := await register_search_attributes(client, ALL_KEYS)):
            return ok(name, f"registered {', '.join(key.name for key in made)}")
        missing = await missing_search_attributes(client, ALL_KEYS)
    except Unsupported as error:
        return fail(name, str(error), "use another namespace")
    except RPCError as error:
        if not register:
            raise
        wanted = ", ".join(f"{key.name} ({type_name(key)})" for key in ALL_KEYS)
        return fail(name, _refused(error, "to register them"), _by_hand(f"add {wanted}"))
    if missing:
        names = ", ".join(key.name for key in missing)
        return fail(name, f"missing: {names}", REGISTER)
    return ok(name, f"all {len(ALL_KEYS)} are registered")


def _refused(error: RPCError, wish: str) -> str:
    """Return what a service that answers said no to.

    Raises:
        RPCError: It gave no answer.
    """
    if error.status not in REFUSALS:
        raise error
    return f"the service refused {wish}: {error.message}"


def _by_hand(what: str) -> str:
    return f"{what} as its administrator does; in Temporal Cloud on the page of the namespace"


def _span(time: timedelta) -> str:
    """Return a retention in the largest unit that is exact."""
    hours = time // timedelta(hours=1)
    count, unit = (hours // 24, "day") if hours % 24 == 0 else (hours, "hour")
    return f"{count} {unit}{'' if count == 1 else 's'}"


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


async def _others(client: Client, provider: str) -> AsyncIterator[Check]:
    """Tell of machines of other installations, where a worker runs that can see them."""
    queue = provider_queue(provider)
    if not await _pollers(client, queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
        return
    try:
        page: OrphanPage = await client.execute_activity(
            "list_orphans",
            OrphanQuery(),
            id=f"list-orphans/{provider}/{uuid.uuid4()}",
            task_queue=queue,
            result_type=OrphanPage,
            schedule_to_close_timeout=OTHERS_TIMEOUT,
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=f"other installations at {provider}",
        )
    except (ActivityFailureError, RPCError):
        return  # the provider's watch says what is wrong with it
    for installation, count in installations_in(page).items():
        detail = f"{count} machine{'s' if count > 1 else ''} of the installation {installation}"
        remedy = f"if it was lost: garrison orphan list --installation {installation}"
        yield note(f"others {provider}", detail, remedy)


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
