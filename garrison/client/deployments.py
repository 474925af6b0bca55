"""Deployments, for programs: replicas of one workload over nodepools."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import RetryPolicy

from garrison.client.elastic_kinds import DEPLOYMENT, NODEPOOL, deployment_entity, row_of
from garrison.client.entities import Entities
from garrison.client.entity import Beginning, Made
from garrison.client.lives import CALL_TIMEOUT
from garrison.client.nodepools import Nodepools
from garrison.client.replica_logs import OnSaved, ReplicaLogs
from garrison.client.sealer import Sealer
from garrison.client.translation import translated
from garrison.domain.resource_ids import nodepool_workflow_id
from garrison.domain.secrets import is_sealed
from garrison.errors import ConflictPhase, NotFound, error_of
from garrison.models.base import Message
from garrison.models.compute_cluster import DeleteAccepted, DeleteRequested
from garrison.models.deployment import (
    DeploymentAck,
    DeploymentRequest,
    DeploymentSpec,
    DeploymentStatus,
    EnableRequest,
    EnvComparison,
    ScaleRequest,
    SealedEnv,
)
from garrison.models.deployment_state import DeploymentInput
from garrison.models.elastic_file import DeploymentFile
from garrison.models.elastic_rows import DeploymentRow
from garrison.models.nodepool import PoolEvent
from garrison.models.queues import TASK_QUEUE
from garrison.settings import Settings

OnChange = Callable[[DeploymentStatus], None]


class Deployments:
    """All deployments. Every method raises `GarrisonError`s only."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        nodepools: Nodepools,
        *,
        call_timeout: timedelta = CALL_TIMEOUT,
    ) -> None:
        """Wrap a connected client.

        Args:
            client: Connected with `garrison.failures.DATA_CONVERTER`.
            settings: Of this process.
            nodepools: On which deployments run.
            call_timeout: How long a worker may take to answer.
        """
        self._client = client
        self._settings = settings
        self._call_timeout = call_timeout
        self._sealer = Sealer(client, settings)
        self._logs = ReplicaLogs(client, nodepools)
        self._entities = Entities(client, DEPLOYMENT, call_timeout=call_timeout)
        self._pools = Entities(client, NODEPOOL, call_timeout=call_timeout)

    async def resolve(self, wanted: DeploymentFile) -> DeploymentSpec:
        """Return what a deployment should be: its model looked up, its secrets sealed.

        Raises:
            ModelNotConfigured: The workers' settings have no such model.
            InvalidSpec: A secret that its environment names is not there.
            ServiceUnreachable: No worker runs.
        """
        template = wanted.template
        if template is not None:
            env = await self._sealer.sealed_env(template.env)
            template = template.model_copy(update={"env": env})
            if not env:
                return wanted.spec(template)
            wanted = wanted.model_copy(update={"template": template})
        with translated(f"deployment {wanted.id}"):
            spec: DeploymentSpec = await self._client.execute_activity(
                "resolve_deployment",
                wanted,
                id=f"resolve-deployment/{wanted.id}/{uuid.uuid4()}",
                task_queue=TASK_QUEUE,
                result_type=DeploymentSpec,
                schedule_to_close_timeout=self._call_timeout,
                start_to_close_timeout=self._call_timeout,
                retry_policy=RetryPolicy(maximum_attempts=2),
                summary=f"model of {wanted.id}",
            )
        return spec

    async def missing_nodepools(self, wanted: DeploymentSpec | DeploymentFile) -> tuple[str, ...]:
        """Return the nodepools that a deployment names and that do not exist, `cluster/pool`.

        Its replicas wait for them.
        """
        memos = [memo async for memo in self._pools.memos()]
        known = {nodepool_workflow_id(memo["compute_cluster"], memo["id"]) for memo in memos}
        return tuple(
            f"{pool.compute_cluster}/{pool.nodepool}"
            for pool in wanted.nodepools
            if nodepool_workflow_id(pool.compute_cluster, pool.nodepool) not in known
        )

    async def create(
        self, wanted: DeploymentFile | DeploymentSpec, *, request_id: str | None = None
    ) -> DeploymentAck:
        """Make a deployment. Its nodepools need not exist yet: replicas wait for them.

        Args:
            wanted: A file's content, or a spec with its model resolved; env values are sealed
                here, before they leave this process.
            request_id: The same id gets the same answer.

        Raises:
            ModelNotConfigured: The workers' settings have no such model.
            InvalidSpec: A secret that its environment names is not there.
            NameInUse: Another deployment has this id.
        """
        return (await self.make(wanted, request_id=request_id)).answer

    async def make(
        self, wanted: DeploymentFile | DeploymentSpec, *, request_id: str | None = None
    ) -> Made[DeploymentAck]:
        """Do as `create` does, and say whether this call made it."""
        entity = deployment_entity(wanted.id)
        spec = await self.resolve(
            wanted if isinstance(wanted, DeploymentFile) else DeploymentFile.of(wanted)
        )
        owner = self._settings.owner
        beginning = Beginning(
            build=lambda uid: DeploymentInput(id=spec.id, uid=uid, owner=owner),
            memo={"id": spec.id, "owner": owner},
            summary=what_runs(spec),
        )
        request = self._request(spec, None, request_id)
        return await self._entities.create(entity, request, beginning, DeploymentAck)

    async def update(
        self,
        wanted: DeploymentFile | DeploymentSpec,
        *,
        uid: str | None = None,
        request_id: str | None = None,
    ) -> DeploymentAck:
        """Change a deployment; a change of what a replica is replaces one after the other.

        Raises:
            ModelNotConfigured: The workers' settings have no such model.
            InvalidSpec: A secret that a file's environment names is not there.
            NotFound: There is none of this id, or `uid` names another life.
        """
        entity = deployment_entity(wanted.id)
        spec = await self._keep_sealed(await self._spec(wanted))
        request = self._request(spec, uid, request_id)
        return await self._entities.update(entity, "update", request, DeploymentAck)

    async def _keep_sealed(self, spec: DeploymentSpec) -> DeploymentSpec:
        """Return a spec in which secrets that did not change are sealed as they were."""
        known = (await self.get(spec.id)).spec.template.env
        wanted = spec.template.env
        if not any(is_sealed(v) and is_sealed(known.get(k, "")) for k, v in wanted.items()):
            return spec
        with translated(f"deployment {spec.id}"):
            kept: SealedEnv = await self._client.execute_activity(
                "keep_sealed",
                EnvComparison(known=known, wanted=wanted),
                id=f"keep-sealed/{spec.id}/{uuid.uuid4()}",
                task_queue=TASK_QUEUE,
                result_type=SealedEnv,
                schedule_to_close_timeout=self._call_timeout,
                start_to_close_timeout=self._call_timeout,
                retry_policy=RetryPolicy(maximum_attempts=2),
                summary=f"secrets of {spec.id}",
            )
        template = spec.template.model_copy(update={"env": kept.env})
        return spec.model_copy(update={"template": template})

    async def _spec(self, wanted: DeploymentFile | DeploymentSpec) -> DeploymentSpec:
        if isinstance(wanted, DeploymentFile):
            return await self.resolve(wanted)
        env = await self._sealer.sealed_env(wanted.template.env)
        return wanted.model_copy(
            update={"template": wanted.template.model_copy(update={"env": env})}
        )

    def _request(
        self, spec: DeploymentSpec, uid: str | None, request_id: str | None
    ) -> DeploymentRequest:
        return DeploymentRequest(
            request_id=request_id or uuid.uuid4().hex, spec=spec, uid=uid, by=self._settings.owner
        )

    async def scale(
        self,
        name: str,
        replicas: int | None,
        *,
        uid: str | None = None,
        request_id: str | None = None,
    ) -> DeploymentAck:
        """Hold a count of replicas; None gives the count back to autoscaling.

        Raises:
            NotFound: There is none of this id, or `uid` names another life.
            InvalidSpec, ConflictPhase: The count is not allowed now.
        """
        request = ScaleRequest(
            request_id=request_id or uuid.uuid4().hex,
            replicas=replicas,
            uid=uid,
            by=self._settings.owner,
        )
        return await self._change(name, "scale", request)

    async def enable(
        self, name: str, *, uid: str | None = None, request_id: str | None = None
    ) -> DeploymentAck:
        """Let a deployment run again, and try again what was given up.

        Raises:
            NotFound: There is none of this id, or `uid` names another life.
        """
        return await self._change(name, "enable", self._switch(uid, request_id))

    async def disable(
        self, name: str, *, uid: str | None = None, request_id: str | None = None
    ) -> DeploymentAck:
        """Stop all replicas, and keep everything else.

        Raises:
            NotFound: There is none of this id, or `uid` names another life.
        """
        return await self._change(name, "disable", self._switch(uid, request_id))

    def _switch(self, uid: str | None, request_id: str | None) -> EnableRequest:
        return EnableRequest(
            request_id=request_id or uuid.uuid4().hex, uid=uid, by=self._settings.owner
        )

    async def _change(self, name: str, update: str, request: Message) -> DeploymentAck:
        return await self._entities.update(deployment_entity(name), update, request, DeploymentAck)

    async def get(self, name: str, *, uid: str | None = None) -> DeploymentStatus:
        """Return a deployment with its replicas.

        Raises:
            NotFound: There is none of this id, or no such life.
        """
        return await self._entities.read(deployment_entity(name), uid)

    async def find(self, name: str) -> DeploymentStatus | None:
        """Return a deployment, None when there is none of this id."""
        return await self._entities.find(deployment_entity(name))

    async def list(self) -> list[DeploymentRow]:
        """Return all deployments, newest first; one visibility query, no workflow is asked."""
        return [row_of(DeploymentRow, memo) async for memo in self._entities.memos()]

    async def events(self, name: str, *, uid: str | None = None) -> tuple[PoolEvent, ...]:
        """Return what happened to a deployment and its replicas, oldest first.

        Raises:
            NotFound: There is none of this id, or no such life.
        """
        return (await self.get(name, uid=uid)).events

    async def logs(
        self,
        name: str,
        *,
        replica: str | None = None,
        follow: bool = False,
        on_saved: OnSaved | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the log of one replica; of one that is gone, what the workers saved of it.

        Args:
            name: Of the deployment.
            replica: Which one; by default the oldest that has a node.
            follow: Go on until the replica is gone.
            on_saved: Called with the replica's name, if its log is a saved one.

        Raises:
            NotFound: There is no such deployment or replica, and no log was kept.
            ConflictPhase: No replica has a node.
        """
        status: DeploymentStatus | None = None
        try:
            status = await self.get(name)
            source = await self._logs.source(status, replica)
        except NotFound as error:
            source = await self._logs.saved_source(name, replica, status, error)
        if status is None or source.node is None or not follow:
            async for data in self._logs.read(source, on_saved):
                yield data
            return
        async for data in self._logs.stream(source, lambda: self.get(name, uid=status.uid)):
            yield data

    async def delete(
        self, name: str, *, uid: str | None = None, request_id: str | None = None
    ) -> DeleteAccepted:
        """Delete a deployment: it stops every replica; the same answer each time.

        Raises:
            NotFound: There never was one, or `uid` names another life.
        """
        request = DeleteRequested(
            request_id=request_id or uuid.uuid4().hex, uid=uid, by=self._settings.owner
        )
        return await self._entities.delete(deployment_entity(name), request)

    async def wait(
        self,
        name: str,
        *,
        uid: str | None = None,
        generation: int = 0,
        timeout: timedelta | None = None,
        on_change: OnChange | None = None,
    ) -> DeploymentStatus:
        """Return once a deployment has the ready replicas that it wants, and no others.

        Args:
            name: Its id.
            uid: Pins the life.
            generation: The change that must have been acted on.
            timeout: None waits for ever.
            on_change: Called with each status that differs from the last.

        Raises:
            NotFound: It was deleted.
            ConflictPhase: Its rollout has stopped.
            WaitTimeout: The time passed; it goes on.
        """
        return await self._entities.wait(
            deployment_entity(name),
            lambda status: is_settled(status, generation),
            uid=uid,
            timeout=timeout,
            on_change=on_change,
        )

    async def wait_deleted(
        self,
        name: str,
        *,
        uid: str | None = None,
        timeout: timedelta | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        """Return once a deployment that is being deleted is gone, with all its replicas.

        Raises:
            WaitTimeout: The time passed; the deletion goes on.
        """
        entity = deployment_entity(name)
        await self._entities.wait_gone(entity, uid=uid, timeout=timeout, on_change=on_change)


def is_settled(status: DeploymentStatus, generation: int = 0) -> bool:
    """Return whether a deployment has acted on a change and has just the replicas it wants.

    Raises:
        GarrisonError: It never will, without a further change.
    """
    if status.observed_generation < max(generation, status.generation):
        return False
    if status.rollout.state == "stopped":
        said = status.last_error
        reason = status.rollout.reason or (said.message if said else "")
        message = f"the rollout of revision {status.rollout.revision} has stopped: {reason}"
        raise error_of(said.code, message) if said else ConflictPhase(message)
    counted = status.ready == status.desired == len(status.replicas)
    return counted and status.rollout.state == "done"


def what_runs(spec: DeploymentSpec) -> str:
    """Return what a deployment runs, in a few words: its model, image or command."""
    template = spec.template
    return template.model or template.image or " ".join(template.command or ())[:80]


def waits_for(nodepool: str) -> str:
    """Return the warning of a nodepool that does not exist."""
    return f"there is no nodepool {nodepool} yet; replicas wait until there is"
