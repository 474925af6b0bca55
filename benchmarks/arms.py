"""The two arms, driven by the same client calls: a life is quoted, launched, run and ended."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from benchmarks.raw_workflow import RawWorkflow
from garrison.client.clusters import Clusters
from garrison.client.waiting import polling, wait_for
from garrison.domain.clusters.call import cluster_workflow_id
from garrison.errors import ServiceUnreachable
from garrison.models.cluster import ClusterSpec
from garrison.models.cluster_messages import (
    ActionAck,
    ClusterInput,
    LaunchRequest,
    QuoteQuery,
    QuoteRequest,
    RecoverySwitch,
    TerminateRequest,
)
from garrison.models.cluster_state import Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.settings import Settings

PATIENCE = timedelta(minutes=10)
CALL_TIMEOUT = timedelta(seconds=10)
TRIES = 10
SILENT = frozenset({RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED})
T = TypeVar("T")


class Arm(Protocol):
    """What is compared."""

    @property
    def name(self) -> str:
        """One word."""
        ...

    async def begin(self, name: str) -> None:
        """Quote and launch a life, and wait until it runs."""
        ...

    async def end(self, name: str) -> None:
        """Terminate a life and wait until it is over."""
        ...

    async def touch(self, name: str) -> float:
        """Send a running life one update and return how many seconds the answer took."""
        ...

    def handle(self, name: str) -> WorkflowHandle[Any, Any]:
        """Return the workflow of a life."""
        ...


class GarrisonArm:
    """Clusters, through the SDK that users have."""

    name = "garrison"

    def __init__(self, client: Client, settings: Settings, *, nodes: int, **spec: Any) -> None:
        """Wrap a client.

        Args:
            client: Of the service.
            settings: Of the installation.
            nodes: Of each cluster.
            spec: More fields of each cluster's file.
        """
        self._client = client
        self.clusters = Clusters(client, settings, call_timeout=CALL_TIMEOUT)
        self._spec = {
            "nodes": nodes,
            "gpus_per_node": 8,
            "accelerator": "H100",
            "provider": "simulated",
            **spec,
        }

    async def begin(self, name: str) -> None:
        """See `Arm.begin`."""
        quote_id = uuid.uuid4().hex
        spec = self.spec(name)
        await patiently(lambda: self.clusters.quote(spec, request_id=quote_id))
        await patiently(lambda: self.clusters.launch(name, quote_id=quote_id, request_id=quote_id))
        await self.running(name)

    async def running(self, name: str) -> None:
        """Return once a life runs."""
        await patiently(lambda: self.clusters.wait(name, phases={Phase.RUNNING}, timeout=PATIENCE))

    async def end(self, name: str) -> None:
        """See `Arm.end`."""
        request_id = uuid.uuid4().hex
        await patiently(lambda: self.clusters.terminate(name, request_id=request_id))
        await patiently(
            lambda: self.clusters.wait(name, phases={Phase.TERMINATED}, timeout=PATIENCE)
        )

    async def touch(self, name: str) -> float:
        """See `Arm.touch`."""
        return await _touch(self.handle(name))

    def handle(self, name: str) -> WorkflowHandle[Any, Any]:
        """See `Arm.handle`."""
        return self._client.get_workflow_handle(cluster_workflow_id(name))

    def spec(self, name: str) -> ClusterSpec:
        """Return a cluster's file."""
        return ClusterSpec.model_validate({"name": name, **self._spec})


class RawArm:
    """Raw workflows, through the client calls that the SDK makes for a cluster."""

    def __init__(self, client: Client, name: str, spec: Callable[[str], ClusterSpec]) -> None:
        """Wrap a client.

        Args:
            client: Of the service.
            name: Of the arm, and of its task queue.
            spec: Makes the file that travels with a quote.
        """
        self._client = client
        self.name = name
        self._spec = spec

    async def begin(self, name: str) -> None:
        """See `Arm.begin`."""
        quote_id = uuid.uuid4().hex
        await patiently(lambda: self._quote(name, quote_id))
        await self._quoted(name, quote_id)
        request = LaunchRequest(request_id=uuid.uuid4().hex, quote_id=quote_id, by="bench")
        await self._update(name, RawWorkflow.launch, request)
        await self._running(name)

    async def end(self, name: str) -> None:
        """See `Arm.end`."""
        request = TerminateRequest(request_id=uuid.uuid4().hex, by="bench")
        await self._update(name, RawWorkflow.terminate, request)
        await self.handle(name).result()

    async def touch(self, name: str) -> float:
        """See `Arm.touch`."""
        return await _touch(self.handle(name))

    def handle(self, name: str) -> WorkflowHandle[Any, Any]:
        """See `Arm.handle`."""
        return self._client.get_workflow_handle(f"{self.name}/{name}")

    async def _quote(self, name: str, quote_id: str) -> None:
        start = WithStartWorkflowOperation(
            RawWorkflow.run,
            ClusterInput(name=name, uid=quote_id, owner="bench"),
            id=f"{self.name}/{name}",
            task_queue=self.name,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        await self._client.execute_update_with_start_workflow(
            RawWorkflow.quote,
            QuoteRequest(request_id=quote_id, quote_id=quote_id, spec=self._spec(name)),
            start_workflow_operation=start,
            rpc_timeout=CALL_TIMEOUT,
        )

    async def _update(self, name: str, update: Any, request: Any) -> None:
        handle = self.handle(name)
        await patiently(lambda: handle.execute_update(update, request, rpc_timeout=CALL_TIMEOUT))

    async def _quoted(self, name: str, quote_id: str) -> None:
        query = QuoteQuery(quote_id=quote_id)
        async for _ in polling(PATIENCE):
            answer = await patiently(
                lambda: self.handle(name).query(
                    RawWorkflow.get_quote, query, rpc_timeout=CALL_TIMEOUT
                )
            )
            if not answer.pending:
                return
        raise RuntimeError(f"{name} was not quoted")

    async def _running(self, name: str) -> None:
        async def read() -> ClusterStatus:
            status: ClusterStatus = await patiently(
                lambda: self.handle(name).query(RawWorkflow.get, rpc_timeout=CALL_TIMEOUT)
            )
            return status

        await wait_for(read, _runs, timeout=PATIENCE, on_change=None)


def _runs(status: ClusterStatus) -> bool:
    return status.phase is Phase.RUNNING


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call returns, made again when a worker was too busy to answer in time.

    Raises:
        ServiceUnreachable, RPCError: It was so each of ten times, or is another error.
    """
    for left in reversed(range(TRIES)):
        try:
            return await call()
        except RPCError as error:
            if error.status not in SILENT or not left:
                raise
        except (ServiceUnreachable, WorkflowUpdateRPCTimeoutOrCancelledError):
            if not left:
                raise
    raise AssertionError("unreachable")


async def live(arm: Arm, name: str) -> None:
    """Lead a whole life."""
    await arm.begin(name)
    await arm.end(name)


async def all_at_once(
    work: Callable[[str], Awaitable[Any]], names: Iterable[str], *, at_once: int
) -> None:
    """Do something for each name, so many at a time."""
    limit = asyncio.Semaphore(at_once)

    async def one(name: str) -> None:
        async with limit:
            await work(name)

    await asyncio.gather(*map(one, names))


async def _touch(handle: WorkflowHandle[Any, Any]) -> float:
    request = RecoverySwitch(request_id=uuid.uuid4().hex, max_attempts=3, by="bench")
    began = time.monotonic()
    await handle.execute_update("recovery", request, result_type=ActionAck)
    return time.monotonic() - began
