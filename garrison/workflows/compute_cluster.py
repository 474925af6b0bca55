"""The life of one compute cluster: a place in which nodepools live, costing nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from garrison.domain import compute_cluster as rules
    from garrison.domain.requests import recall, remember
    from garrison.models.compute_cluster import (
        ComputeClusterInput,
        ComputeClusterRequest,
        ComputeClusterState,
        ComputeClusterStatus,
        DeleteAccepted,
        DeleteRequested,
        JoinAnswer,
        JoinRequest,
        NodepoolMember,
    )
    from garrison.models.membership import NodepoolDeletion
    from garrison.workflows import nodepool_calls
    from garrison.workflows.elastic_visibility import (
        compute_cluster_attributes,
        compute_cluster_memo,
    )
    from garrison.workflows.patience import Patience, never
    from garrison.workflows.visibility import publish_changes

FIRST_SPEC_WITHIN = timedelta(minutes=1)
ASK_MEMBERS_EVERY = timedelta(minutes=1)
"""How often a compute cluster that is to go asks whether its nodepools still live."""

RENEW_EVENTS = 2_000


@workflow.defn(name="ComputeCluster")
class ComputeClusterWorkflow:
    """Know which nodepools live in a place, so that it does not go away under them.

    Workflow ID: `computecluster/<id>` in lower case. It completes once it is deleted, which with
    `cascade` is after each nodepool has left.
    """

    @workflow.init
    def __init__(self, life: ComputeClusterInput) -> None:
        self._name = life.id
        self._state = life.state or ComputeClusterState(
            uid=life.uid, owner=life.owner, created_at=workflow.now()
        )
        self._changes = 0
        self._ask_members_at: datetime | None = None
        self._patience = Patience(self._cancelled)

    @workflow.run
    async def run(self, life: ComputeClusterInput) -> ComputeClusterStatus | None:
        """Wait for a change; end once it is deleted and empty."""
        while not self._is_over():
            try:
                self._publish()
                if self._state.delete_accepted_at is not None:
                    await self._delete_members()
                else:
                    await self._wait()
            except asyncio.CancelledError:
                self._cancelled()
        self._publish()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.get() if self._state.spec is not None else None

    def _is_over(self) -> bool:
        return self._state.delete_accepted_at is not None and not self._state.members

    # Intent

    @workflow.update
    def create(self, request: ComputeClusterRequest) -> ComputeClusterStatus:
        """Take the settings; the same ones again are the same compute cluster."""
        return self._take_spec("create", request)

    @create.validator
    def _validate_create(self, request: ComputeClusterRequest) -> None:
        key = f"create/{request.request_id}"
        self._unless_known(key, lambda: rules.check_create(self._name, self._state, request))

    @workflow.update
    def update(self, request: ComputeClusterRequest) -> ComputeClusterStatus:
        """Take another description or visibility."""
        return self._take_spec("update", request)

    @update.validator
    def _validate_update(self, request: ComputeClusterRequest) -> None:
        key = f"update/{request.request_id}"
        self._unless_known(key, lambda: rules.check_update(self._name, self._state, request))

    def _take_spec(self, verb: str, request: ComputeClusterRequest) -> ComputeClusterStatus:
        key = f"{verb}/{request.request_id}"
        if (known := recall(self._state, key, ComputeClusterStatus)) is not None:
            return known
        self._change(rules.replaced(self._state, spec=request.spec))
        return remember(self._state, key, self.get())

    @workflow.update
    def join(self, request: JoinRequest) -> JoinAnswer:
        """Take a nodepool in; the same one again is in already."""
        self._change(rules.join(self._state, request.member))
        return rules.place(self._state)

    @join.validator
    def _validate_join(self, request: JoinRequest) -> None:
        rules.check_join(self._name, self._state, request)

    @workflow.update
    def leave(self, request: JoinRequest) -> JoinAnswer:
        """Let a nodepool go; one that is not in has left."""
        self._change(rules.leave(self._state, request.member))
        return rules.place(self._state)

    @workflow.update
    def delete(self, request: DeleteRequested) -> DeleteAccepted:
        """End once it is empty; the same answer each time."""
        key = f"delete/{request.request_id}"
        if (known := recall(self._state, key, DeleteAccepted)) is not None:
            return known
        accepted_at = self._delete(cascade=request.cascade)
        ack = DeleteAccepted(id=self._name, uid=self._state.uid, accepted_at=accepted_at)
        return remember(self._state, key, ack)

    @delete.validator
    def _validate_delete(self, request: DeleteRequested) -> None:
        key = f"delete/{request.request_id}"
        self._unless_known(key, lambda: rules.check_delete(self._name, self._state, request))

    @workflow.query
    def get(self) -> ComputeClusterStatus:
        """Return the compute cluster as of its last change."""
        return rules.report(self._name, self._state)

    def _unless_known(self, key: str, check: Callable[[], None]) -> None:
        if key not in self._state.answers:
            check()

    def _change(self, after: ComputeClusterState) -> None:
        if after != self._state:
            self._state = after
            self._changes += 1

    def _delete(self, *, cascade: bool) -> datetime:
        now = workflow.now()
        self._change(rules.accept_delete(self._state, cascade=cascade, now=now))
        return self._state.delete_accepted_at or now

    def _cancelled(self) -> None:
        # Cancel, from the Temporal UI say, means delete, and nothing in it can stay then.
        self._delete(cascade=True)

    # Steps

    async def _wait(self) -> None:
        seen, nothing = self._changes, self._state.spec is None
        if self._should_renew():
            await workflow.wait_condition(workflow.all_handlers_finished)
            self._continue_as_new()
        until = workflow.now() + FIRST_SPEC_WITHIN if nothing else None
        await self._patience.until(lambda: self._has_news(seen), until, "wait for the settings")
        if nothing and not self._has_news(seen):
            self._delete(cascade=False)

    def _has_news(self, seen: int) -> bool:
        return self._changes != seen or self._should_renew()

    def _should_renew(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested() or info.get_current_history_length() > RENEW_EVENTS
        )

    def _continue_as_new(self) -> None:
        workflow.continue_as_new(
            ComputeClusterInput(
                id=self._name, uid=self._state.uid, owner=self._state.owner, state=self._state
            ),
            memo=workflow.memo(),
            search_attributes=workflow.info().typed_search_attributes,
        )

    async def _delete_members(self) -> None:
        """Have each nodepool delete itself, then wait for them to leave; ask again now and then.

        One that lives no longer has left, whether it could say so or not.
        """
        seen = self._changes
        if self._ask_members_at is None or workflow.now() >= self._ask_members_at:
            members = list(self._state.members.values())
            await asyncio.gather(*map(self._delete_member, members))
            self._ask_members_at = workflow.now() + ASK_MEMBERS_EVERY
        if self._changes != seen:
            return
        if self._should_renew():
            await workflow.wait_condition(workflow.all_handlers_finished)
            self._continue_as_new()
        await self._patience.until(
            lambda: self._has_news(seen), self._ask_members_at, "ask whether the nodepools live"
        )

    async def _delete_member(self, member: NodepoolMember) -> None:
        asked = NodepoolDeletion(
            nodepool=member.owner,
            request=DeleteRequested(
                request_id=f"cascade-{self._state.uid}", uid=member.uid, by=self._state.owner
            ),
        )
        try:
            answer = await self._patience.outcome(nodepool_calls.delete_nodepool(asked), never)
        except ActivityError as error:
            workflow.logger.warning("%s was not deleted: %s", member.owner, error)
            return  # it is asked again
        if not answer.found:
            self._change(rules.leave(self._state, member))

    # What readers see

    def _publish(self) -> None:
        if self._state.spec is not None:
            publish_changes(
                compute_cluster_attributes(self._state), compute_cluster_memo(self._state)
            )
