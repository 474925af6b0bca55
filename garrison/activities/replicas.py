"""Starting replicas on nodes, waiting until they answer, stopping them, and their logs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import httpx
from temporalio import activity

from garrison.activities.heartbeat import beating
from garrison.activities.log_keeper import LOG_CHUNK, LogKeeper
from garrison.activities.saved_logs import SavedLogs
from garrison.activities.workload import OpenEnv
from garrison.errors import GarrisonError, InvalidSpec, NotFound, Unsupported
from garrison.models.deployment import HealthProbe
from garrison.models.group import LogChunk, Node, WorkloadState, WorkloadStatus
from garrison.models.replica import (
    AwaitReplicaAnswer,
    AwaitReplicaRequest,
    ReadReplicaLogRequest,
    StartReplicaAnswer,
    StartReplicaRequest,
    StopReplicaAnswer,
    StopReplicaRequest,
)
from garrison.providers.base import Provider, WorkloadRequest, Workloads

FIRST_LOOK = timedelta(milliseconds=200)
LONGEST_LOOK = timedelta(seconds=10)
"""Pauses between two looks at a process that is starting; they double."""

ENDED = frozenset({WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.STOPPED})


class ReplicaActivities:
    """Bound to one provider and to the key that opens secrets."""

    def __init__(
        self,
        provider: Provider,
        *,
        open_env: OpenEnv,
        clock: Callable[[], datetime],
        log_dir: Path,
    ) -> None:
        """Bind to a provider.

        Args:
            provider: The account.
            open_env: Opens what clients sealed.
            clock: The time of this host.
            log_dir: Where logs of replicas that were stopped are kept.
        """
        self._provider = provider
        self._keeper = LogKeeper(log_dir)
        self._saved = SavedLogs(log_dir)
        self._open_env = open_env
        self._clock = clock

    @activity.defn(name="start_replica")
    async def start_replica(self, request: StartReplicaRequest) -> StartReplicaAnswer:
        """Start a replica's process; what cannot work on its node is a value.

        The environment is opened here and goes nowhere but to the node.

        Raises:
            InvalidSpec: A secret is missing or cannot be opened; tried again until it can.
            ProviderUnreachable: The node does not answer; nothing is lost by calling again.
        """
        try:
            secret_env = self._open_env(request.sealed_env)
        except InvalidSpec as error:
            error.retryable = True  # a secret that is missing today may be put there tomorrow
            raise
        work = WorkloadRequest(
            name=request.replica,
            generation=request.generation,
            command=request.command or (),
            image=request.image,
            env={**secret_env, **request.env},
            restart=request.restart,
            max_restarts=request.max_restarts,
        )
        async with beating():
            try:
                await self._workloads().start_workload(request.node, work)
            except GarrisonError as error:
                if error.retryable:
                    raise
                return StartReplicaAnswer(failed=str(error))
        return StartReplicaAnswer()

    @activity.defn(name="await_replica")
    async def await_replica(self, request: AwaitReplicaRequest) -> AwaitReplicaAnswer:
        """Return once a replica is ready, has failed, or its time is over.

        Machines on paper have no network, so there a replica is ready once its process runs.
        """
        async with beating():
            if request.health is None or request.port is None or self._is_on_paper():
                return await self._until_running(request)
            return await self._until_answering(request, request.health, request.port)

    @activity.defn(name="stop_replica")
    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaAnswer:
        """Stop a replica's process, and save its log; one that is not there counts as stopped.

        Its node may go once this is done, so that a log which cannot be had soon is not waited for.

        Raises:
            ProviderUnreachable: The node does not answer; it may be gone, which its pool says.
        """
        workloads = self._workloads()
        async with beating():
            await workloads.stop_workload(request.node, request.replica)
            kept = await self._keeper.keep_replica(workloads, request.node, request.replica)
        if isinstance(kept, str):
            extra = {"replica": request.replica, "error": kept}
            activity.logger.warning("log was not saved", extra=extra)
        return StopReplicaAnswer()

    @activity.defn(name="read_replica_log")
    async def read_replica_log(self, request: ReadReplicaLogRequest) -> LogChunk:
        """Return part of a replica's log, or of its saved copy once it was stopped.

        Raises:
            NotFound: The node has no such replica, or no log of it was kept.
            ProviderUnreachable: The node does not answer.
        """
        offset, limit = request.offset, min(request.limit, LOG_CHUNK)
        saved = self._saved.read_replica(request.replica, offset=offset, limit=limit)
        if saved is not None:
            return saved
        if request.node is None:
            raise NotFound(f"no log of replica {request.replica} was kept")
        return await self._workloads().read_log(
            request.node, request.replica, offset=offset, limit=limit
        )

    async def _until_running(self, request: AwaitReplicaRequest) -> AwaitReplicaAnswer:
        pause = FIRST_LOOK
        while True:
            work = await self._look(request)
            if work is not None and work.state is WorkloadState.RUNNING:
                return AwaitReplicaAnswer(ready=True)
            if work is not None and work.state in ENDED:
                return AwaitReplicaAnswer(ready=False, reason=_ended(work))
            if self._clock() >= request.give_up_at:
                return AwaitReplicaAnswer(ready=False, reason=_late(request.health, "not running"))
            await asyncio.sleep(pause.total_seconds())
            pause = min(2 * pause, LONGEST_LOOK)

    async def _until_answering(
        self, request: AwaitReplicaRequest, health: HealthProbe, port: int
    ) -> AwaitReplicaAnswer:
        watching = asyncio.create_task(self._until_ended(request))
        client = httpx.AsyncClient(trust_env=False)
        try:
            while True:
                said = await _probe(client, request.node, port, health)
                if said is None:
                    return AwaitReplicaAnswer(ready=True)
                if watching.done():
                    return AwaitReplicaAnswer(ready=False, reason=watching.result())
                if self._clock() >= request.give_up_at:
                    return AwaitReplicaAnswer(ready=False, reason=_late(health, said))
                await asyncio.wait({watching}, timeout=health.interval.total_seconds())
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            await client.aclose()

    async def _until_ended(self, request: AwaitReplicaRequest) -> str:
        pause = FIRST_LOOK
        while True:
            work = await self._look(request)
            if work is not None and work.state in ENDED:
                return _ended(work)
            await asyncio.sleep(pause.total_seconds())
            pause = min(2 * pause, LONGEST_LOOK)

    async def _look(self, request: AwaitReplicaRequest) -> WorkloadStatus | None:
        try:
            found = await self._workloads().list_workloads(request.node)
        except GarrisonError as error:
            if not error.retryable:
                raise
            return None  # no answer says nothing about the process
        return next((work for work in found if work.name == request.replica), None)

    def _is_on_paper(self) -> bool:
        return self._provider.facts.simulated and self._provider.facts.type != "local"

    def _workloads(self) -> Workloads:
        if self._provider.workloads is None:
            raise Unsupported(f"{self._provider.facts.name} runs no workloads")
        return self._provider.workloads


async def _probe(
    client: httpx.AsyncClient, node: Node, port: int, health: HealthProbe
) -> str | None:
    """Return why a replica does not answer as it should, None when it does."""
    host = node.private_address or node.public_address
    if host is None:
        return "its node has no address"
    seconds = health.timeout.total_seconds()
    if health.path is None:
        return await _connect(host, port, seconds)
    return await _get(client, host, port, health.path, seconds)


async def _connect(host: str, port: int, seconds: float) -> str | None:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), seconds)
    except (OSError, TimeoutError) as error:
        return f"port {port} accepts no connection ({type(error).__name__})"
    writer.close()
    with contextlib.suppress(OSError):  # it has accepted, which is all that was asked
        await writer.wait_closed()
    return None


async def _get(
    client: httpx.AsyncClient, host: str, port: int, path: str, seconds: float
) -> str | None:
    where = f"[{host}]" if ":" in host else host
    url = f"http://{where}:{port}/{path.removeprefix('/')}"
    try:
        async with asyncio.timeout(seconds), client.stream("GET", url) as answer:
            status = answer.status_code
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        return f"GET {path} gets no answer ({type(error).__name__})"
    return None if 200 <= status < 400 else f"GET {path} answers {status}"


def _ended(work: WorkloadStatus) -> str:
    code = "" if work.exit_code is None else f"exit code {work.exit_code}"
    said = work.message or code
    return f"its process has {work.state}" + (f": {said}" if said else "")


def _late(health: HealthProbe | None, said: str) -> str:
    limit = (health or HealthProbe()).start_timeout.total_seconds()
    return f"not ready {limit:g} s after its start: {said}"
