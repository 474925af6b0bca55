"""Which machines nobody answers for, and when they may be deleted.

An orphan carries an installation's id and the uid of a life that this Temporal Service does not
know. A purchase is left alone while it could still be one that is under way: for the time in which
a call can take effect and then show up in a list, and for ten minutes at least.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from garrison.domain.health import living_nodes
from garrison.models.group import Group, Node
from garrison.models.orphan import Orphan, OrphanMachine
from garrison.models.provider import ProviderFacts

YOUNGEST = timedelta(minutes=10)
"""One try of a purchase may take as long, also by a worker that has lost its service."""

_MICROSECOND = timedelta(microseconds=1)
_HOUR = Decimal(3600)


def is_orphaned(*, known: bool, running: bool, own: bool) -> bool:
    """Return whether nobody answers for the machines of a life.

    A closed life's machines are deleted by the watch; but a watch sees its own installation only,
    so those of another one are left to a sweep.

    Args:
        known: This Temporal Service has heard of exactly this life.
        running: It has not ended.
        own: The machines are tagged with the id of the installation that is asked.
    """
    return not known or not (running or own)


def settle_time(facts: ProviderFacts) -> timedelta:
    """Return how old a purchase must be to count as forgotten rather than under way."""
    return max(YOUNGEST, facts.settle + facts.effect_bound)


def describe_orphan(
    group: Group, *, facts: ProviderFacts, installation: str, known: bool, now: datetime
) -> Orphan:
    """Return what is said of an orphan, and whether it may be deleted now.

    Args:
        group: As listed.
        facts: Of its provider.
        installation: The id that it is tagged with.
        known: Its life is known, and closed.
        now: The time.
    """
    # A clock that is behind the provider's makes a machine young, never old.
    age = max(now - group.created_at, timedelta(0))
    nodes = living_nodes((group,))
    old_at = group.created_at + settle_time(facts)
    sweepable = now >= old_at
    return Orphan(
        provider=facts.name,
        installation=installation,
        owner=group.owner,
        uid=group.uid,
        token=group.token,
        machines=tuple(_machine(group, node) for node in nodes),
        age_seconds=age.total_seconds(),
        cost_usd=_cost(group, len(nodes), age),
        sweepable=sweepable,
        reason=_why(known=known) if sweepable else _too_young(old_at),
        simulated=facts.simulated,
        provider_type=facts.type,
    )


def _machine(group: Group, node: Node) -> OrphanMachine:
    return OrphanMachine(
        provider_id=node.provider_id,
        rank=node.rank,
        status=node.status,
        region=group.region,
        instance_type=group.instance_type,
        created_at=group.created_at,
        usd_per_hour=group.usd_per_node_hour,
    )


def _cost(group: Group, count: int, age: timedelta) -> Decimal | None:
    if group.usd_per_node_hour is None:
        return None
    seconds = Decimal(age // _MICROSECOND) / 1_000_000
    return group.usd_per_node_hour * count * seconds / _HOUR


def _why(*, known: bool) -> str:
    if known:
        return "its life has ended, and no watch of that installation runs here"
    return "its life is unknown to this Temporal Service"


def _too_young(old_at: datetime) -> str:
    return f"too young: left alone until {old_at:%Y-%m-%dT%H:%M:%SZ}"
