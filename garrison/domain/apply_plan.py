"""What has to be done so that everything is as some files say: in which order, and what differs.

What no file speaks of is left alone. Values that are sealed cannot be compared, as sealing the
same one twice gives two texts: they count as unchanged, which is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from garrison.domain import compute_cluster
from garrison.domain.secrets import is_sealed
from garrison.errors import Problem
from garrison.models.apply import ApplyAction, ApplyStep, Difference, ResourceNoun
from garrison.models.base import Message
from garrison.models.compute_cluster import ComputeClusterSpec
from garrison.models.deployment import DeploymentSpec
from garrison.models.nodepool import NodepoolSpec

Spec: TypeAlias = ComputeClusterSpec | NodepoolSpec | DeploymentSpec
Key: TypeAlias = tuple[ResourceNoun, str]
"""Kind and name in lower case, as names are unique ignoring case."""

NO_FIELDS = ("id", "compute_cluster")
"""What names the resource; it may be written in another case."""

GROUPS = ("autoscale.", "template.")
"""Blocks whose fields are known by their own names."""

HIDDEN = ("env.", "ssh_keys")
"""Fields whose values are never shown."""

SHELL = ["/bin/sh", "-c"]
"""What runs a command that was written as one line."""
LONGEST = 60
LEAD_IN = 20
"""Characters that are shown before the first one in which two long texts differ."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One resource of a file.

    Attributes:
        source: The file's name.
    """

    spec: Spec
    source: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Existing:
    """A resource as it is now.

    Attributes:
        uid: Of its life.
        deleting: It is on its way out.
    """

    spec: Spec
    uid: str
    deleting: bool = False


def noun_of(spec: Spec) -> ResourceNoun:
    """Return the kind of a resource."""
    if isinstance(spec, ComputeClusterSpec):
        return ResourceNoun.COMPUTE_CLUSTER
    if isinstance(spec, NodepoolSpec):
        return ResourceNoun.NODEPOOL
    return ResourceNoun.DEPLOYMENT


def name_of(spec: Spec) -> str:
    """Return the name that people use, `<compute cluster>/<nodepool>` of a nodepool."""
    return f"{spec.compute_cluster}/{spec.id}" if isinstance(spec, NodepoolSpec) else spec.id


def key_of(spec: Spec) -> Key:
    """Return what tells a resource from all others."""
    return noun_of(spec), name_of(spec).lower()


def in_order(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Return resources so that each comes after what it is in; else as the files had them."""
    nouns = list(ResourceNoun)
    return sorted(wanted, key=lambda one: nouns.index(noun_of(one.spec)))


def repeated(wanted: Sequence[Wanted]) -> list[tuple[str, Problem]]:
    """Return the resources that a second file gives again, each with that file's name."""
    first: dict[Key, Wanted] = {}
    found = []
    for one in wanted:
        before = first.setdefault(key_of(one.spec), one)
        if before is not one:
            message = f"{noun_of(one.spec)} {name_of(one.spec)} is given in {before.source} too"
            found.append((one.source, Problem("", message)))
    return found


def plan_step(wanted: Wanted, existing: Existing | None) -> ApplyStep:
    """Return what has to be done for one resource.

    Args:
        wanted: As a file says.
        existing: As it is, None where there is none.
    """
    spec = wanted.spec
    step = ApplyStep(
        noun=noun_of(spec),
        name=name_of(spec),
        action=ApplyAction.CREATE,
        source=wanted.source,
        warnings=wanted.warnings,
        machines=_machines(spec, existing),
    )
    if existing is None:
        return step
    changes = differences(existing.spec, spec)
    action = ApplyAction.UPDATE if changes else ApplyAction.UNCHANGED
    told = {"action": action, "differences": changes, "uid": existing.uid}
    return step.model_copy(update={**told, "warnings": (*wanted.warnings, *_kept(wanted, action))})


def forbidden(step: ApplyStep) -> list[Problem]:
    """Return the changes of a step that cannot be made while the resource lives."""
    fixed = compute_cluster.FIXED if step.noun is ResourceNoun.COMPUTE_CLUSTER else ()
    return [
        Problem(
            f"compute_cluster.{'cloud_provider.id' if one.field == 'provider' else one.field}",
            f"{step.noun} {step.name} has {one.before} and cannot change to {one.after};"
            " delete it first, or give another id",
        )
        for one in step.differences
        if one.field in fixed
    ]


def differences(before: Spec, after: Spec) -> tuple[Difference, ...]:
    """Return what has to change, field by field, in the order of the fields."""
    old, new = _flat(before), _flat(after)
    names = dict.fromkeys([*new, *old])
    return tuple(
        _difference(_short(name), old.get(name), new.get(name))
        for name in names
        if name not in NO_FIELDS and not _same(old.get(name), new.get(name))
    )


def machines_held(spec: NodepoolSpec) -> int:
    """Return how many machines a nodepool has while nobody wants anything of it."""
    return min(max(spec.min_instances, spec.warm_instances), spec.max_instances)


def _machines(spec: Spec, existing: Existing | None) -> int:
    if not isinstance(spec, NodepoolSpec):
        return 0
    before = existing.spec if existing is not None else None
    held = machines_held(before) if isinstance(before, NodepoolSpec) else 0
    return max(machines_held(spec) - held, 0)


def _kept(wanted: Wanted, action: ApplyAction) -> list[str]:
    if action is not ApplyAction.UNCHANGED or not isinstance(wanted.spec, DeploymentSpec):
        return []
    names = [name for name, value in wanted.spec.template.env.items() if is_sealed(value)]
    if not names:
        return []
    return [
        f"sealed values cannot be compared ({', '.join(names)}); if one has changed: `garrison"
        f" deployment update {wanted.spec.id} --config {wanted.source}`"
    ]


def _flat(spec: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def add(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            found[path] = value
            return
        for key, item in value.items():
            add(item, f"{path}.{key}" if path else key)

    add(spec.model_dump(mode="json"), "")
    return found


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, str) and isinstance(new, str) and is_sealed(old) and is_sealed(new):
        return True
    return bool(old == new)


def _short(name: str) -> str:
    for group in GROUPS:
        name = name.removeprefix(group)
    return name


def _difference(field: str, before: Any, after: Any) -> Difference:
    if field.startswith(HIDDEN):
        was = "none" if before is None else "set"
        now = "none" if after is None else "set" if before is None else "another value"
        return Difference(field=field, before=was, after=now)
    old, new = _shown(field, before), _shown(field, after)
    start = _where_they_part(old, new) if max(len(old), len(new)) > LONGEST else 0
    return Difference(field=field, before=_clipped(old, start), after=_clipped(new, start))


def _shown(field: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if field == "command":
        return str(value[-1]) if value[:-1] == SHELL else " ".join(value)
    return value if value and isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _where_they_part(one: str, other: str) -> int:
    """Return from where on two texts are worth showing."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return max(next((at for at, (a, b) in pairs if a != b), shorter) - LEAD_IN, 0)


def _clipped(text: str, start: int) -> str:
    """Return at most `LONGEST` characters from a place on, with what is left out marked."""
    shown = text[start : start + LONGEST]
    head, tail = "..." if start else "", "..." if start + LONGEST < len(text) else ""
    return f"{head}{shown}{tail}"
