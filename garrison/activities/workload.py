"""Running commands on nodes, and their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from temporalio import activity

from garrison.activities.heartbeat import beating
from garrison.activities.log_keeper import LOG_CHUNK, LogKeeper
from garrison.activities.saved_logs import SavedLogs
from garrison.activities.watches import Watches
from garrison.errors import GarrisonError, InvalidSpec, NotFound, Unsupported
from garrison.models.cluster_messages import (
    NodeWorkload,
    ReadLogRequest,
    SaveLogsAnswer,
    SaveLogsRequest,
    StartWorkloadsAnswer,
    StartWorkloadsRequest,
)
from garrison.models.group import LogChunk
from garrison.models.observation import WatchAsk
from garrison.providers.base import Provider, WorkloadRequest, Workloads

OpenEnv = Callable[[dict[str, str]], dict[str, str]]
"""Opens a sealed environment; raises `InvalidSpec` naming what cannot be opened."""


class WorkloadActivities:
    """Bound to one provider and to the key that opens secrets."""

    def __init__(
        self,
        provider: Provider,
        watches: Watches,
        *,
        open_env: OpenEnv,
        log_dir: Path,
        clock: Callable[[], datetime],
    ) -> None:
        """Bind to a provider.

        Args:
            provider: The account.
            watches: Asked for a look once a command was started.
            open_env: Opens what clients sealed.
            log_dir: Where logs of deleted nodes are kept.
            clock: The time of this host.
        """
        self._provider = provider
        self._watches = watches
        self._clock = clock
        self._open_env = open_env
        self._keeper = LogKeeper(log_dir)
        self._saved = SavedLogs(log_dir)

    @activity.defn(name="start_workloads")
    async def start_workloads(self, request: StartWorkloadsRequest) -> StartWorkloadsAnswer:
        """Start the command on some nodes; what cannot work on a node is a value.

        The environment is opened here and goes nowhere but to the nodes.

        Raises:
            InvalidSpec: A secret is missing or cannot be opened; tried again until it can.
            ProviderUnreachable: A node does not answer; nothing is lost by calling again.
        """
        workloads = self._workloads()
        try:
            secret_env = self._open_env(request.sealed_env)
        except InvalidSpec as error:
            error.retryable = True  # a secret that is missing today may be put there tomorrow
            raise

        async def start(target: NodeWorkload) -> tuple[int, str | None]:
            return target.node.rank, await self._start(workloads, request, target, secret_env)

        async with beating():
            outcomes = await asyncio.gather(*map(start, request.nodes))
            ask = WatchAsk(owner=request.owner, uid=request.uid, not_before=self._clock())
            await self._watches.ask(request.provider, ask)
        failed = {rank: text for rank, text in outcomes if text is not None}
        started = tuple(rank for rank, text in outcomes if text is None)
        return StartWorkloadsAnswer(started=started, failed=failed)

    async def _start(
        self,
        workloads: Workloads,
        request: StartWorkloadsRequest,
        target: NodeWorkload,
        secret_env: dict[str, str],
    ) -> str | None:
        work = WorkloadRequest(
            name=request.name,
            generation=request.generation,
            command=request.command,
            image=request.image,
            env={**secret_env, **target.env},
            hostfile=request.hostfile,
            restart=request.restart,
            max_restarts=request.max_restarts,
        )
        try:
            await workloads.start_workload(target.node, work)
        except GarrisonError as error:
            if error.retryable:
                raise
            return str(error)
        return None

    @activity.defn(name="save_logs")
    async def save_logs(self, request: SaveLogsRequest) -> SaveLogsAnswer:
        """Copy each node's log into the log directory: at most 10 s and the last 64 MB a node.

        The workload is stopped first, so that the log is complete to its last line.
        """
        workloads = self._workloads()
        async with beating():
            outcomes = await self._keeper.keep(
                workloads,
                request.nodes,
                cluster=request.cluster,
                uid=request.uid,
                workload=request.workload,
            )
        return SaveLogsAnswer(
            saved={rank: size for rank, size in outcomes.items() if isinstance(size, int)},
            failed={rank: text for rank, text in outcomes.items() if isinstance(text, str)},
        )

    @activity.defn(name="read_log")
    async def read_log(self, request: ReadLogRequest) -> LogChunk:
        """Return part of a node's log, or of its saved copy once the node is gone.

        Raises:
            NotFound: There is no such log.
            ProviderUnreachable: The node does not answer.
        """
        saved = self._saved.read(
            request.cluster,
            request.uid,
            request.rank,
            offset=request.offset,
            limit=min(request.limit, LOG_CHUNK),
        )
        if saved is not None:
            return saved
        if request.node is None:
            raise NotFound(f"no log of node {request.rank} of {request.cluster} was kept")
        return await self._workloads().read_log(
            request.node,
            request.workload,
            offset=request.offset,
            limit=min(request.limit, LOG_CHUNK),
        )

    def _workloads(self) -> Workloads:
        if self._provider.workloads is None:
            raise Unsupported(f"{self._provider.facts.name} runs no workloads")
        return self._provider.workloads
