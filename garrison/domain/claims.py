"""What a nodepool's file says of its instance types, against the catalogue: told, not believed."""

from __future__ import annotations

from garrison.domain.accelerators import names_kind
from garrison.models.resources import Resources
from garrison.models.units import show_bytes, show_cores

LEAST_SHARE = 95
"""In percent: people round sizes down, and a claim of a little less does no harm."""


def claim_warnings(instance_type: str, claim: Resources, capacity: Resources) -> list[str]:
    """Return where a file and the catalogue disagree, with both figures.

    More than there is always counts, as a replica made for it would fit nowhere.

    Args:
        instance_type: What both speak of.
        claim: 0 and empty where the file says nothing.
        capacity: What replicas can really use; 0 and empty where the catalogue does not know.
    """
    figures = (
        ("cpu cores", claim.cpu_milli, capacity.cpu_milli, show_cores),
        ("memory", claim.memory_bytes, capacity.memory_bytes, show_bytes),
        (
            "accelerator memory",
            claim.accelerator_memory_bytes,
            capacity.accelerator_memory_bytes,
            show_bytes,
        ),
    )
    told = [
        (f"{show(said)} {what}", show(known))
        for what, said, known, show in figures
        if _disagree(said, known)
    ]
    return [
        f"{instance_type}: the file says {said}, the catalogue {known}"
        for said, known in (*_kinds(claim, capacity), *_counts(claim, capacity), *told)
    ]


def _disagree(said: int, known: int) -> bool:
    return bool(said and known) and (said > known or 100 * said < LEAST_SHARE * known)


def _counts(claim: Resources, capacity: Resources) -> list[tuple[str, str]]:
    # Unlike a size, a count of 0 is known.
    if claim.accelerators in (0, capacity.accelerators):
        return []
    return [(f"{claim.accelerators} accelerators", str(capacity.accelerators))]


def _kinds(claim: Resources, capacity: Resources) -> list[tuple[str, str]]:
    said, known = claim.accelerator_types, capacity.accelerator_types
    if not said or any(names_kind(name, kind) for name in said for kind in known):
        return []
    return [(f"accelerator {', '.join(said)}", ", ".join(known) or "none")]
