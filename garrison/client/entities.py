"""Resources that live as one workflow each: begun, changed, read and waited for by their id.

What compute clusters, nodepools and deployments have in common. Names of updates and queries are
public, see `docs/workflows.md`, so they are called by name.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from garrison.client.cluster_rows import KILLED
from garrison.client.entity import Beginning, Entity, Kind, Made, Reading
from garrison.client.lives import CALL_TIMEOUT
from garrison.client.retries import failing_call
from garrison.client.translation import translated
from garrison.client.updates import is_between_runs, send_update, starting_with
from garrison.client.waiting import polling
from garrison.errors import NotFound, WaitTimeout
from garrison.models.base import Message
from garrison.models.compute_cluster import DeleteAccepted, DeleteRequested
from garrison.models.queues import TASK_QUEUE

TRIES = 5
REST_PATIENCE = timedelta(seconds=3)
"""How long the end of a wait is put off until the workflow is at rest, see `is_at_rest`."""

S = TypeVar("S", bound=Message)
A = TypeVar("A", bound=Message)


class Entities(Generic[S]):
    """All resources of one kind. Every method raises `GarrisonError`s only."""

    def __init__(
        self, client: Client, kind: Kind[S], *, call_timeout: timedelta = CALL_TIMEOUT
    ) -> None:
        """Wrap a connected client.

        Args:
            client: Connected with `garrison.failures.DATA_CONVERTER`.
            kind: Which resources.
            call_timeout: How long a worker may take to answer.
        """
        self._client = client
        self._kind = kind
        self._call_timeout = call_timeout

    async def create(
        self, entity: Entity, request: Message, beginning: Beginning, answer: type[A]
    ) -> Made[A]:
        """Send `create` to the living one, or to a life that begins with it."""
        own: set[str] = set()
        with translated(self._what(entity)):
            for left in reversed(range(TRIES)):
                uid = str(uuid.uuid4())
                own.add(uid)
                try:
                    made = await self._begin(entity, request, beginning, answer, uid)
                except RPCError as error:
                    # The life that was found ended in that moment: the next try begins a new one.
                    ended = error.status is RPCStatusCode.NOT_FOUND
                    if not left or not (ended or is_between_runs(error)):
                        raise
                else:
                    return Made(made, getattr(made, "uid", None) in own)
        raise AssertionError("unreachable")

    async def _begin(
        self, entity: Entity, request: Message, beginning: Beginning, answer: type[A], uid: str
    ) -> A:
        start = self._start(entity, beginning, uid)
        async with starting_with(start):
            made: A = await self._client.execute_update_with_start_workflow(
                "create",
                request,
                start_workflow_operation=start,
                result_type=answer,
                rpc_timeout=self._call_timeout,
            )
        return made

    def _start(
        self, entity: Entity, beginning: Beginning, uid: str
    ) -> WithStartWorkflowOperation[Any, Any]:
        return WithStartWorkflowOperation(
            self._kind.workflow,
            beginning.build(uid),
            id=entity.workflow_id,
            task_queue=TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            memo={"uid": uid, **beginning.memo},
            static_summary=beginning.summary,
        )

    async def update(self, entity: Entity, name: str, request: Message, answer: type[A]) -> A:
        """Send an update to the living one.

        Raises:
            NotFound: There is none.
            GarrisonError: It refuses, or its life failed.
        """
        with translated(self._what(entity)):
            try:
                return await self._send(entity, name, request, answer)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            described = await self._describe(entity)
            await self._raise_ended(entity, described)
        raise AssertionError("unreachable")

    async def _send(self, entity: Entity, name: str, request: Message, answer: type[A]) -> A:
        handle = self._handle(entity)
        found: A = await send_update(
            lambda: handle.execute_update(
                name, request, result_type=answer, rpc_timeout=self._call_timeout
            ),
            within=self._call_timeout,
        )
        return found

    async def delete(self, entity: Entity, request: DeleteRequested) -> DeleteAccepted:
        """Send `delete`; one that is deleted already gives the same answer again.

        Raises:
            NotFound: There never was one, or `uid` names another life.
        """
        with translated(self._what(entity)):
            try:
                return await self._send(entity, "delete", request, DeleteAccepted)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            return await self._deleted_before(entity, request.uid)

    async def _deleted_before(self, entity: Entity, uid: str | None) -> DeleteAccepted:
        described = await self._describe(entity)
        memo = await described.memo()
        life = memo.get("uid", "")
        if memo.get(self._kind.phase) is None or uid not in {None, life}:
            raise NotFound(f"there is no {self._what(entity)}")
        return DeleteAccepted(
            id=memo.get("id", entity.name),
            uid=life,
            accepted_at=memo.get("delete_accepted_at") or described.close_time,
        )

    async def read(self, entity: Entity, uid: str | None = None) -> S:
        """Return the living one's status.

        Raises:
            NotFound: There is none, or no such life.
        """
        return (await Reader(self, entity).read(uid)).status

    async def find(self, entity: Entity) -> S | None:
        """Return the living one's status, None when there is none."""
        if await self.lives(entity) is None:
            return None
        try:
            return await self.read(entity)
        except NotFound:
            return None  # it ended in this moment, or its create was refused

    async def lives(self, entity: Entity) -> str | None:
        """Return the uid of the living one, None when there is none."""
        with translated(self._what(entity)):
            try:
                described = await self._describe(entity)
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return None
                raise
            running = described.status is WorkflowExecutionStatus.RUNNING
            return (await described.memo()).get("uid") if running else None

    async def memos(self, within: str | None = None) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the memo of each living one, newest first; one visibility query a page.

        Args:
            within: What the workflow id begins with.
        """
        query = f"WorkflowType = '{self._kind.workflow}' AND ExecutionStatus = 'Running'"
        if within is not None:
            query += f" AND WorkflowId STARTS_WITH '{within}'"
        with translated(f"{self._kind.noun} list"):
            async for execution in self._client.list_workflows(query, page_size=1000):
                memo = await execution.memo()
                if memo.get(self._kind.phase) is not None:
                    yield memo

    async def wait(
        self,
        entity: Entity,
        done: Callable[[S], bool],
        *,
        uid: str | None = None,
        timeout: timedelta | None = None,
        on_change: Callable[[S], None] | None = None,
    ) -> S:
        """Return the first status that is done.

        Args:
            entity: Which one.
            done: Whether the wait is over; it may raise to end it otherwise.
            uid: Pins the life; by default the one that lives now.
            timeout: None waits for ever.
            on_change: Called with each status that differs from the last.

        Raises:
            NotFound: It was deleted meanwhile.
            WaitTimeout: The time passed; the resource goes on.
        """
        reader = Reader(self, entity)
        last: S | None = None
        rested_by: datetime | None = None
        async for _ in polling(timeout):
            seen = await reader.read(uid)
            if on_change is not None and seen.status != last:
                on_change(seen.status)
            last = seen.status
            if not done(last):
                rested_by = None
                continue
            rested_by = rested_by or _now() + REST_PATIENCE
            if seen.at_rest or _now() >= rested_by:
                return last
        if last is not None and done(last):
            return last
        raise WaitTimeout(f"{self._what(entity)} is not there yet after {_seconds(timeout)}")

    async def wait_gone(
        self,
        entity: Entity,
        *,
        uid: str | None = None,
        timeout: timedelta | None = None,
        on_change: Callable[[S], None] | None = None,
    ) -> None:
        """Return once a deleted one has ended, and everything of it is given back.

        Raises:
            WaitTimeout: The time passed; the deletion goes on.
        """
        try:
            await self.wait(
                entity, lambda status: False, uid=uid, timeout=timeout, on_change=on_change
            )
        except NotFound:
            return

    def _handle(self, entity: Entity, run_id: str | None = None) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(entity.workflow_id, run_id=run_id)

    async def _describe(self, entity: Entity) -> WorkflowExecutionDescription:
        return await self._handle(entity).describe(rpc_timeout=self._call_timeout)

    def _what(self, entity: Entity) -> str:
        return f"{self._kind.noun} {entity.name}"

    async def _raise_ended(self, entity: Entity, found: WorkflowExecutionDescription) -> None:
        """Say why a closed life answers nothing.

        Raises:
            NotFound: It was deleted, never was, or was ended in Temporal itself.
            WorkflowFailureError: It failed.
        """
        what = self._what(entity)
        if found.status is WorkflowExecutionStatus.FAILED:
            await self._handle(entity, found.run_id).result(rpc_timeout=self._call_timeout)
        if found.status in KILLED:
            raise NotFound(f"{what} was ended in Temporal itself")
        if (await found.memo()).get(self._kind.phase) is None:
            raise NotFound(f"there is no {what}")
        raise NotFound(f"{what} was deleted")


class Reader(Generic[S]):
    """Reads one resource, and remembers what it read.

    A workflow whose history did not grow has nothing new to say, and is not asked again.
    """

    def __init__(self, entities: Entities[S], entity: Entity) -> None:
        self._entities = entities
        self._entity = entity
        self._known: tuple[tuple[object, ...], S] | None = None

    async def read(self, uid: str | None = None) -> Reading[S]:
        """Return the living one as it is now.

        Args:
            uid: Pins the life; by default the one that lives now.

        Raises:
            NotFound: There is none, or no such life.
        """
        owner, what = self._entities, self._entities._what(self._entity)
        with translated(what):
            found = await owner._describe(self._entity)
            if uid is not None and (await found.memo()).get("uid") != uid:
                raise NotFound(f"there is no life {uid} of {what} any more")
            if found.status is not WorkflowExecutionStatus.RUNNING:
                await owner._raise_ended(self._entity, found)
            try:
                status = await self._status(found)
            except WorkflowQueryFailedError:
                if (await found.memo()).get(owner._kind.phase) is not None:
                    raise
                raise NotFound(f"there is no {what}") from None  # its create was refused
            return Reading(status, _at_rest(found))

    async def _status(self, found: WorkflowExecutionDescription) -> S:
        mark = (found.run_id, found.history_length)
        if self._known is None or self._known[0] != mark:
            kind = self._entities._kind
            handle = self._entities._handle(self._entity, found.run_id)
            asked: S = await handle.query(
                "get", result_type=kind.status, rpc_timeout=self._entities._call_timeout
            )
            self._known = (mark, asked)
        return _with_retries(self._known[1], found)


def _at_rest(found: WorkflowExecutionDescription) -> bool:
    raw = found.raw_description
    return not raw.HasField("pending_workflow_task") and not raw.pending_activities


def _with_retries(status: S, found: WorkflowExecutionDescription) -> S:
    """Return a status that says which call keeps failing, unless the workflow says so itself."""
    if getattr(status, "blocked", ...) is not None:
        return status
    return status.model_copy(update={"blocked": failing_call(found, _now())})


def _seconds(length: timedelta | None) -> str:
    return "" if length is None else f"{length.total_seconds():g} s; it goes on"


def _now() -> datetime:
    return datetime.now(UTC)
