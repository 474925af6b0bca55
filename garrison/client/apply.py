"""Making everything so as some files say, for programs: first the plan, then step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from garrison.client.compute_clusters import ComputeClusters, check_place, spec_of
from garrison.client.deployments import Deployments, waits_for
from garrison.client.entity import Made
from garrison.client.located import located, problems_in
from garrison.client.nodepools import Nodepools
from garrison.client.providers import Providers
from garrison.domain.apply_plan import (
    Existing,
    Key,
    Spec,
    Wanted,
    forbidden,
    in_order,
    key_of,
    name_of,
    noun_of,
    plan_step,
    repeated,
)
from garrison.errors import ConflictPhase, GarrisonError, InvalidSpec, Problem
from garrison.models.apply import ApplyAction, ApplyStep
from garrison.models.compute_cluster import ComputeClusterSpec, ComputeClusterStatus
from garrison.models.deployment import DeploymentAck
from garrison.models.elastic_file import (
    DeploymentFile,
    NodepoolFile,
    ResourceFile,
    ResourceKind,
    read_resource_file,
)
from garrison.models.nodepool import NodepoolAck, NodepoolSpec
from garrison.models.provider import ProviderFacts

Answer: TypeAlias = ComputeClusterStatus | NodepoolAck | DeploymentAck

DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class Planned:
    """One step, and what is sent to carry it out."""

    step: ApplyStep
    spec: Spec


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """All steps in order.

    Attributes:
        skipped: Files that `apply` has nothing to do with, in words.
    """

    steps: tuple[Planned, ...]
    skipped: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[Planned, ...]:
        """The steps that change something."""
        return tuple(p for p in self.steps if p.step.action is not ApplyAction.UNCHANGED)


@dataclass(frozen=True, slots=True)
class _Read:
    source: str
    file: ResourceFile


_Mistake: TypeAlias = tuple[str, GarrisonError]
"""A file's name, and what is wrong with it."""


class Apply:
    """Plans and carries out what files say. Every method raises `GarrisonError`s only."""

    def __init__(
        self,
        providers: Providers,
        compute_clusters: ComputeClusters,
        nodepools: Nodepools,
        deployments: Deployments,
    ) -> None:
        self._providers = providers
        self._compute_clusters = compute_clusters
        self._nodepools = nodepools
        self._deployments = deployments

    async def plan(self, files: Mapping[str, bytes]) -> ApplyPlan:
        """Return what has to be done; nothing is changed, and nothing bought.

        Args:
            files: What they hold, by their names.

        Raises:
            InvalidSpec: With every mistake of all files, and all that cannot be made as they say.
            GarrisonError: The one thing that is wrong, where it is of another kind.
        """
        read, mistakes = _read_all(files)
        ours = [one for one in read if one.file.kind is not ResourceKind.CLUSTER]
        skipped = tuple(
            f"{one.source} is left out, as it is of a cluster: `garrison cluster up -f"
            f" {one.source}`"
            for one in read
            if one.file.kind is ResourceKind.CLUSTER
        )
        if not ours and not mistakes:
            raise InvalidSpec("; ".join(("there is nothing to apply", *skipped)))
        return ApplyPlan(await self._steps(ours, _Mistakes(files, mistakes)), skipped)

    async def carry_out(self, plan: ApplyPlan) -> AsyncIterator[ApplyStep]:
        """Do what a plan says, and yield each step once it is done.

        Applying the same files again goes on where this ended.

        Raises:
            GarrisonError: A step was refused; those before it are done.
        """
        for planned in plan.steps:
            if planned.step.action is ApplyAction.UNCHANGED:
                yield planned.step
                continue
            done = {"done": True, **await self._do(planned.spec, planned.step)}
            yield planned.step.model_copy(update=done)

    async def _do(self, spec: Spec, step: ApplyStep) -> dict[str, Any]:
        """Carry out one step, and return what that says of it."""
        if step.action is ApplyAction.UPDATE:
            return {"uid": (await self._update(spec, step.uid)).uid}
        made = await self._make(spec)
        # Somebody else can have made it just so since the plan.
        action = ApplyAction.CREATE if made.began else ApplyAction.UNCHANGED
        return {"uid": made.answer.uid, "action": action}

    async def _make(
        self, spec: Spec
    ) -> Made[ComputeClusterStatus] | Made[NodepoolAck] | Made[DeploymentAck]:
        if isinstance(spec, ComputeClusterSpec):
            return await self._compute_clusters.make(spec)
        if isinstance(spec, NodepoolSpec):
            return await self._nodepools.make(spec)
        return await self._deployments.make(spec)

    async def _update(self, spec: Spec, uid: str | None) -> Answer:
        if isinstance(spec, ComputeClusterSpec):
            return await self._compute_clusters.update(spec, uid=uid)
        if isinstance(spec, NodepoolSpec):
            return await self._nodepools.update(spec, uid=uid)
        return await self._deployments.update(spec, uid=uid)

    async def _steps(self, read: Sequence[_Read], mistakes: _Mistakes) -> tuple[Planned, ...]:
        facts = {one.name: one for one in await self._providers.list()} if read else {}
        checks = _Checks(self._nodepools, self._deployments, facts, read)
        tried = await asyncio.gather(*(_tried(checks, one) for one in read))
        wanted = [one for one in tried if isinstance(one, Wanted)]
        mistakes.add(one for one in tried if not isinstance(one, Wanted))
        mistakes.add(_mistake(source, [problem]) for source, problem in repeated(wanted))
        mistakes.check()
        ordered = in_order(wanted)
        found = await asyncio.gather(*(self._existing(one.spec) for one in ordered))
        pairs = list(zip(ordered, found, strict=True))
        mistakes.add(_leaving(one) for one, now in pairs if now is not None and now.deleting)
        steps = [_planned(one, now, checks.prices) for one, now in pairs]
        bad = [(one.step.source or "", forbidden(one.step)) for one in steps]
        mistakes.add(_mistake(source, problems) for source, problems in bad if problems)
        mistakes.check()
        return tuple(steps)

    async def _existing(self, spec: Spec) -> Existing | None:
        if isinstance(spec, ComputeClusterSpec):
            cluster = await self._compute_clusters.find(spec.id)
            if cluster is None:
                return None
            return Existing(spec_of(cluster), cluster.uid, cluster.phase == DELETING)
        if isinstance(spec, NodepoolSpec):
            pool = await self._nodepools.find(spec.compute_cluster, spec.id)
            if pool is None:
                return None
            return Existing(pool.spec, pool.uid, pool.phase == DELETING)
        deployment = await self._deployments.find(spec.id)
        if deployment is None:
            return None
        return Existing(deployment.spec, deployment.uid, deployment.status == DELETING)


class _Checks:
    """Asks all that can be known of resources before one of them is made.

    Attributes:
        prices: Of one machine of each nodepool, None where it is not known.
    """

    def __init__(
        self,
        nodepools: Nodepools,
        deployments: Deployments,
        providers: Mapping[str, ProviderFacts],
        read: Sequence[_Read],
    ) -> None:
        values = [one.file.value for one in read]
        self._nodepools = nodepools
        self._deployments = deployments
        self._providers = providers
        clusters = [value for value in values if isinstance(value, ComputeClusterSpec)]
        self._places = {cluster.id.lower(): cluster for cluster in clusters}
        pools = [value.spec for value in values if isinstance(value, NodepoolFile)]
        self._coming = {name_of(pool).lower() for pool in pools}
        self.prices: dict[Key, Decimal | None] = {}

    async def wanted(self, read: _Read) -> Wanted:
        """Return what a file asks for, if it can be made.

        Raises:
            GarrisonError: It cannot.
        """
        value, told = read.file.value, read.file.warnings
        if isinstance(value, ComputeClusterSpec):
            check_place(value, self._providers)
            return Wanted(value, read.source, told)
        if isinstance(value, NodepoolFile):
            return Wanted(value.spec, read.source, (*told, *await self._nodepool(value)))
        assert isinstance(value, DeploymentFile)
        spec = await self._deployments.resolve(value)
        return Wanted(spec, read.source, (*told, *await self._missing(value)))

    async def _nodepool(self, value: NodepoolFile) -> tuple[str, ...]:
        place = self._places.get(value.spec.compute_cluster.lower())
        if place is not None and not _is_known(place, self._providers):
            return ()  # said of the compute cluster's own file
        preview = await self._nodepools.preview(
            value.spec, claims=value.claims, compute_cluster=place
        )
        self.prices[key_of(value.spec)] = preview.usd_per_hour
        return preview.warnings

    async def _missing(self, value: DeploymentFile) -> list[str]:
        missing = await self._deployments.missing_nodepools(value)
        return [waits_for(name) for name in missing if name.lower() not in self._coming]


def _planned(
    wanted: Wanted, existing: Existing | None, prices: Mapping[Key, Decimal | None]
) -> Planned:
    step = plan_step(wanted, existing)
    price = prices.get(key_of(wanted.spec))
    if step.machines and price is not None:
        step = step.model_copy(update={"hourly_usd": step.machines * price})
    return Planned(step, wanted.spec)


def _leaving(wanted: Wanted) -> _Mistake:
    what = f"{noun_of(wanted.spec)} {name_of(wanted.spec)}"
    return wanted.source, ConflictPhase(f"{what} is being deleted; apply again once it is gone")


def _is_known(place: ComputeClusterSpec, providers: Mapping[str, ProviderFacts]) -> bool:
    try:
        check_place(place, providers)
    except InvalidSpec:
        return False
    return True


async def _tried(checks: _Checks, read: _Read) -> Wanted | _Mistake:
    try:
        return await checks.wanted(read)
    except GarrisonError as error:
        return read.source, error


def _read_all(files: Mapping[str, bytes]) -> tuple[list[_Read], list[_Mistake]]:
    read: list[_Read] = []
    mistakes: list[_Mistake] = []
    for source, content in files.items():
        try:
            read.append(_Read(source, read_resource_file(content, source)))
        except GarrisonError as error:
            mistakes.append((source, error))
    return read, mistakes


def _mistake(source: str, problems: Sequence[Problem]) -> _Mistake:
    return source, InvalidSpec("is not valid", problems=tuple(problems))


class _Mistakes:
    """What is wrong with the files, so far."""

    def __init__(self, files: Mapping[str, bytes], found: Sequence[_Mistake]) -> None:
        self._files = files
        self._found = list(found)

    def add(self, found: Iterable[_Mistake]) -> None:
        """Keep more of it."""
        self._found += found

    def check(self) -> None:
        """Return if nothing is wrong.

        Raises:
            GarrisonError: With all of it.
        """
        if not self._found:
            return
        if len(self._found) == 1:
            source, error = self._found[0]
            raise located(error, self._files[source], source)
        told = [
            problem
            for name in self._files
            for source, error in self._found
            if source == name
            for problem in problems_in(error, self._files[source], source)
        ]
        count = len({source for source, _ in self._found})
        where = "1 file has" if count == 1 else f"{count} files have"
        raise InvalidSpec(f"nothing was applied: {where} mistakes", problems=tuple(told))
