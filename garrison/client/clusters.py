"""Clusters, for programs: the same surface as the command line's."""

from __future__ import annotations

import asyncio
import re
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from garrison.client.cluster_rows import cluster_row, list_query
from garrison.client.keys import ClientKeys
from garrison.client.lives import CALL_TIMEOUT, ended_error, latest_life
from garrison.client.logs import read_log, stream_log
from garrison.client.nodes import connections_of, log_request, rank_ended, ssh_endpoint
from garrison.client.reading import LifeReader, is_at_rest
from garrison.client.sealer import Sealer
from garrison.client.ssh import run_ssh
from garrison.client.translation import translated
from garrison.client.updates import is_between_runs, send_update, starting_with
from garrison.client.waiting import OnChange, polling, wait_for, workload_ended
from garrison.domain.clusters.call import cluster_workflow_id
from garrison.errors import (
    ConflictPhase,
    InvalidSpec,
    NotFound,
    WaitTimeout,
    error_of,
)
from garrison.models.base import NAME_PATTERN
from garrison.models.cluster import ClusterShape, ClusterSpec, WorkloadSettings
from garrison.models.cluster_messages import (
    ActionAck,
    ClusterInput,
    LaunchRequest,
    QuoteAck,
    QuoteAnswer,
    QuoteQuery,
    QuoteRequest,
    ReadLogRequest,
    RecoverRequest,
    RecoverySwitch,
    TerminateAck,
    TerminateRequest,
)
from garrison.models.cluster_state import CLOSED_PHASES, Phase
from garrison.models.cluster_status import (
    ClusterRow,
    ClusterStatus,
    Connection,
    QuoteStatus,
)
from garrison.models.queues import TASK_QUEUE
from garrison.settings import Settings
from garrison.workflows.cluster import REVISION, ClusterWorkflow

TERMINATE_TIMEOUT = timedelta(seconds=5)
NO_UPDATE_NOW = {RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.FAILED_PRECONDITION}
"""Too many updates, or a workflow task that keeps failing; a signal waits until it works."""

QUOTE_WITHIN = timedelta(seconds=60)
TRIES = 5


class Clusters:
    """All clusters of a Temporal namespace. Every method raises `GarrisonError`s only."""

    def __init__(
        self, client: Client, settings: Settings, *, call_timeout: timedelta = CALL_TIMEOUT
    ) -> None:
        """Wrap a connected client.

        Args:
            client: Connected with `garrison.failures.DATA_CONVERTER`.
            settings: Of this process.
            call_timeout: How long a worker may take to answer.
        """
        self._client = client
        self._call_timeout = call_timeout
        self._settings = settings
        self._keys = ClientKeys(settings.data_dir)
        self._sealer = Sealer(client, settings)

    # Life

    async def quote(self, spec: ClusterSpec, *, request_id: str | None = None) -> QuoteStatus:
        """Return the price of a cluster, locked for a while; nothing is bought.

        Args:
            spec: What is wanted; env values are sealed here, before they leave this process.
            request_id: The same id gets the same answer.

        Raises:
            NameInUse: A launched cluster has this name.
            InvalidSpec, InvalidShape, PriceUnavailable, Unsupported: Nothing fits; says why.
        """
        name = spec.name or f"cluster-{secrets.token_hex(4)}"
        sealed = await self._sealer.sealed(spec.model_copy(update={"name": name}))
        sealed = sealed.model_copy(update={"ssh_keys": self._keys.with_own(spec.ssh_keys)})
        quote_id = request_id or uuid.uuid4().hex
        request = QuoteRequest(request_id=quote_id, quote_id=quote_id, spec=sealed)
        with translated(f"cluster {name}"):
            ack = await self._start_quote(name, request)
            return await self._quote_made(ack)

    async def _start_quote(self, name: str, request: QuoteRequest) -> QuoteAck:
        for left in reversed(range(TRIES)):
            uid = str(uuid.uuid4())
            owner = self._settings.owner
            start = WithStartWorkflowOperation(
                ClusterWorkflow.run,
                ClusterInput(name=name, uid=uid, owner=owner, revision=REVISION),
                id=cluster_workflow_id(name),
                task_queue=TASK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                memo={"uid": uid, "name": name, "owner": owner},
                static_summary=static_summary(request.spec),
            )
            try:
                async with starting_with(start):
                    return await self._client.execute_update_with_start_workflow(
                        ClusterWorkflow.quote,
                        request,
                        start_workflow_operation=start,
                        rpc_timeout=self._call_timeout,
                    )
            except RPCError as error:
                # The life that was found ended in that moment: the next try begins a new one.
                ended = error.status is RPCStatusCode.NOT_FOUND
                if not left or not (ended or is_between_runs(error)):
                    raise
        raise AssertionError("unreachable")

    async def quoted(self, name: str, quote_id: str) -> QuoteStatus:
        """Return a quote that was made before, as `quote` returned it.

        Raises:
            NotFound: There is no such cluster, or no such quote.
        """
        with translated(f"cluster {name}"):
            return await self._quote_made(QuoteAck(name=name, uid="", quote_id=quote_id))

    async def _quote_made(self, ack: QuoteAck) -> QuoteStatus:
        handle = self._handle(ack.name)
        query = QuoteQuery(quote_id=ack.quote_id)
        async for _ in polling(QUOTE_WITHIN):
            if not await is_at_rest(handle, self._call_timeout):
                continue
            answer: QuoteAnswer = await handle.query(
                ClusterWorkflow.get_quote, query, rpc_timeout=self._call_timeout
            )
            if answer.quote is not None:
                return answer.quote
            if answer.refusal is not None:
                said = answer.refusal
                raise error_of(said.code, said.message, problems=said.problems)
        limit = f"{QUOTE_WITHIN.total_seconds():g} s"
        raise WaitTimeout(f"the quote of {ack.name} was not made within {limit}")

    async def launch(
        self,
        name: str,
        *,
        quote_id: str | None = None,
        uid: str | None = None,
        spec: ClusterSpec | None = None,
        max_hourly_usd: Decimal | None = None,
        max_lifetime: timedelta | None = None,
        failover: bool | None = None,
        request_id: str | None = None,
    ) -> ActionAck:
        """Accept a quote: the cluster is bought at its locked rate.

        Args:
            name: Of the quoted cluster.
            quote_id: The accepted quote; None accepts the current one.
            uid: Pins the life.
            spec: Only its set fields count: priced ones are compared, others replace.
            max_hourly_usd: Refuse a quote above it.
            max_lifetime: Terminate so long after it was ready.
            failover: Go on to other places when one has no capacity.
            request_id: The same id gets the same answer.

        Raises:
            PriceChanged, QuoteExpired, NameInUse, NotFound, InvalidSpec: Nothing is bought.
        """
        priced, workload = await self._launch_fields(spec)
        lifetime = max_lifetime
        if lifetime is None and spec is not None and spec.max_lifetime is not None:
            lifetime = timedelta(seconds=spec.max_lifetime)
        request = LaunchRequest(
            request_id=request_id or uuid.uuid4().hex,
            quote_id=quote_id,
            uid=uid,
            priced=priced,
            workload=workload,
            max_hourly_usd=max_hourly_usd,
            max_lifetime=lifetime,
            failover=failover,
            by=self._settings.owner,
        )
        return await self._update(name, ClusterWorkflow.launch, request)

    async def _launch_fields(
        self, spec: ClusterSpec | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if spec is None:
            return {}, {}
        sealed = await self._sealer.sealed(spec)
        given = sealed.model_dump(mode="json", include=spec.model_fields_set)
        skipped = {"name", "recovery", "failover", "account"}
        priced = {k: v for k, v in given.items() if k in ClusterShape.model_fields}
        workload = {k: v for k, v in given.items() if k in WorkloadSettings.model_fields}
        if "ssh_keys" in workload:
            workload["ssh_keys"] = [*self._keys.with_own(spec.ssh_keys)]
        return {k: v for k, v in priced.items() if k not in skipped}, workload

    async def terminate(
        self, name: str, *, uid: str | None = None, request_id: str | None = None
    ) -> TerminateAck:
        """Give every machine back; accepted in every phase, and the same answer each time.

        Raises:
            NotFound: There never was such a cluster, or `uid` names another life.
        """
        request = TerminateRequest(
            request_id=request_id or uuid.uuid4().hex, uid=uid, by=self._settings.owner
        )
        with translated(f"cluster {name}"):
            handle = self._handle(name)
            try:
                patience = min(TERMINATE_TIMEOUT, self._call_timeout)
                # The RPC's own timeout bounds one try; that of all tries together is ours.
                async with asyncio.timeout(patience.total_seconds()):
                    return await send_update(
                        lambda: handle.execute_update(
                            ClusterWorkflow.terminate, request, rpc_timeout=patience
                        ),
                        within=patience,
                    )
            except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
                return await self._terminate_by_signal(name, request)
            except RPCError as error:
                if error.status in NO_UPDATE_NOW or is_between_runs(error):
                    return await self._terminate_by_signal(name, request)
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            return await self._terminated_before(name, uid)

    async def _terminate_by_signal(self, name: str, request: TerminateRequest) -> TerminateAck:
        described = await self._handle(name).describe(rpc_timeout=self._call_timeout)
        life = (await described.memo()).get("uid", "")
        if request.uid not in {None, life}:
            return await self._terminated_before(name, request.uid)
        await self._handle(name).signal("terminate", request, rpc_timeout=self._call_timeout)
        return TerminateAck(name=name, uid=life, accepted_at=_now())

    async def _terminated_before(self, name: str, uid: str | None) -> TerminateAck:
        ended = await latest_life(self._client, name, uid)
        memo = await ended.memo()
        if memo.get("phase") is None:
            raise NotFound(f"there is no cluster {name}")
        time = memo.get("terminate_accepted_at") or memo.get("ended_at") or ended.close_time
        return TerminateAck(name=memo["name"], uid=memo["uid"], accepted_at=time)

    async def recover(self, name: str, *, request_id: str | None = None) -> ActionAck:
        """Start one recovery attempt on the nodes that are not running.

        Raises:
            ConflictPhase: It is not degraded.
            RecoveryExhausted: The budget of this episode is spent.
        """
        request = RecoverRequest(request_id=request_id or uuid.uuid4().hex, by=self._settings.owner)
        return await self._update(name, ClusterWorkflow.recover, request)

    async def recovery(
        self,
        name: str,
        *,
        automatic: bool | None = None,
        max_attempts: int | None = None,
        request_id: str | None = None,
    ) -> ActionAck:
        """Turn automatic recovery on or off, or change the attempts of an episode."""
        request = RecoverySwitch(
            request_id=request_id or uuid.uuid4().hex,
            automatic=automatic,
            max_attempts=max_attempts,
            by=self._settings.owner,
        )
        return await self._update(name, ClusterWorkflow.recovery, request)

    async def _update(self, name: str, update: Any, request: Any) -> ActionAck:
        with translated(f"cluster {name}"):
            try:
                answer: ActionAck = await send_update(
                    lambda: self._handle(name).execute_update(
                        update, request, rpc_timeout=self._call_timeout
                    ),
                    within=self._call_timeout,
                )
                return answer
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            ended = await latest_life(self._client, name, getattr(request, "uid", None))
            raise await ended_error(name, ended)

    # Reading

    async def get(self, name: str, *, uid: str | None = None) -> ClusterStatus:
        """Return a cluster, also one that has ended, as long as it is remembered.

        Raises:
            NotFound: There is none of this name, or no such life.
        """
        with translated(f"cluster {name}"):
            return await self._reader(name).read(uid)

    async def list(
        self,
        *,
        include_ended: bool = False,
        phase: str | None = None,
        owner: str | None = None,
        provider: str | None = None,
    ) -> list[ClusterRow]:
        """Return clusters, newest first; one visibility query, no workflow is asked.

        Args:
            include_ended: Also those that have ended.
            phase: Only those in this phase.
            owner: Only those of this owner.
            provider: Only those at this provider.
        """
        query = list_query(include_ended=include_ended, phase=phase, owner=owner, provider=provider)
        now = _now()
        with translated("cluster list"):
            found = self._client.list_workflows(query, page_size=1000)
            return [await cluster_row(execution, now) async for execution in found]

    async def wait(
        self,
        name: str,
        *,
        phases: Collection[Phase],
        timeout: timedelta | None = None,
        uid: str | None = None,
        on_change: OnChange | None = None,
    ) -> ClusterStatus:
        """Return once the cluster is in one of the phases.

        Args:
            name: Of the cluster.
            phases: Any of these ends the wait.
            timeout: None waits for ever.
            uid: Pins the life; by default the one that lives now.
            on_change: Called with each status that differs from the last.

        Raises:
            WaitTimeout: The time passed; the cluster goes on.
            GarrisonError: The life ended otherwise: with its own error, if it failed.
        """
        wanted = set(phases)

        def done(status: ClusterStatus) -> bool:
            return status.phase in wanted

        # While nobody looks on, the memo says when it is time to ask a worker for the rest.
        shown = wanted if on_change is None else None
        return await self._wait(name, done, timeout, uid, on_change, shown)

    async def wait_workload(
        self,
        name: str,
        *,
        timeout: timedelta | None = None,
        on_change: OnChange | None = None,
    ) -> ClusterStatus:
        """Return once the command has ended on every node; `WorkloadState` says how.

        Raises:
            ConflictPhase: The cluster has no command.
            WaitTimeout: The time passed.
        """
        first = await self.get(name)
        if not first.has_command:
            raise ConflictPhase(f"cluster {name} has no command to wait for")
        return await self._wait(name, workload_ended, timeout, first.uid, on_change)

    async def _wait(
        self,
        name: str,
        done: Callable[[ClusterStatus], bool],
        timeout: timedelta | None,
        uid: str | None,
        on_change: OnChange | None,
        shown: Collection[Phase] | None = None,
    ) -> ClusterStatus:
        reader = self._reader(name)
        life = uid

        async def worth_reading() -> bool:
            nonlocal life
            if shown is None:
                return True
            with translated(f"cluster {name}"):
                life, phase = await reader.glance(life)
            return phase is None or phase in shown

        async def read() -> ClusterStatus:
            nonlocal life
            with translated(f"cluster {name}"):
                status = await reader.read(life)
            life = status.uid
            return status

        return await wait_for(
            read, done, timeout=timeout, on_change=on_change, worth_reading=worth_reading
        )

    async def connections(self, name: str) -> Sequence[Connection]:
        """Return how to reach each node; host keys are written for the OpenSSH client."""
        return connections_of(await self.get(name), self._keys)

    async def ssh(self, name: str, *, rank: int = 0, command: Sequence[str] = ()) -> int:
        """Log in to a node, or run a command there, on this process's own terminal.

        Returns:
            The remote exit status.
        """
        status = await self.get(name)
        end = ssh_endpoint(status, rank)
        self._keys.public_key()
        return await run_ssh(end, self._keys.private_path, command)

    async def logs(
        self,
        name: str,
        *,
        rank: int = 0,
        uid: str | None = None,
        tail_bytes: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[bytes]:
        """Yield the log of one node's command, also after the node is gone.

        Args:
            name: Of the cluster.
            rank: Of the node.
            uid: Pins the life.
            tail_bytes: Begin so far before the end; None begins at the start.
            follow: Go on until the command has ended for good.
        """
        status = await self.get(name, uid=uid)
        request = log_request(status, rank)
        start = 0 if tail_bytes is None else -max(tail_bytes, 1)

        async def refreshed() -> tuple[ReadLogRequest, bool]:
            now = await self.get(name, uid=status.uid)
            return log_request(now, rank), now.phase in CLOSED_PHASES or rank_ended(now, rank)

        if not follow:
            async for data in read_log(self._client, request, start):
                yield data
            return
        async for data in stream_log(self._client, request, start, refreshed):
            yield data

    # Helpers

    def _reader(self, name: str) -> LifeReader:
        return LifeReader(self._client, _checked_name(name), call_timeout=self._call_timeout)

    def _handle(self, name: str, run_id: str | None = None) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle_for(
            ClusterWorkflow.run, cluster_workflow_id(_checked_name(name)), run_id=run_id
        )


def _now() -> datetime:
    return datetime.now(UTC)


def _checked_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN.strip("^$"), name):
        raise InvalidSpec(f"{name[:64]!r} is no cluster name: letters, digits, - and _, at most 63")
    return name


def static_summary(spec: ClusterSpec) -> str:
    """Return what the Temporal UI shows beside the id: `2 x 8 H100, eu-north-1`."""
    what = spec.accelerator or spec.instance_type or "CPU"
    per_node = f"{spec.gpus_per_node} {what}" if spec.gpus_per_node else what
    place = spec.region or spec.provider
    return f"{spec.nodes} x {per_node}" + (f", {place}" if place else "")
