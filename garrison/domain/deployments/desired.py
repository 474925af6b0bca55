"""How many replicas a deployment should have now, and why."""

from __future__ import annotations

from dataclasses import dataclass

from garrison.domain.autoscaling.decision import floor_of
from garrison.models.deployment import AutoscaleConfig


@dataclass(frozen=True, slots=True)
class Desired:
    """A count with its reason, in words."""

    replicas: int
    reason: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """Who wants what.

    Attributes:
        fixed: The count that a person holds, and `fixed_by` who that is.
        target: What autoscaling wants, None where nothing has decided, and why.
    """

    autoscale: AutoscaleConfig
    enabled: bool = True
    enabled_by: str = ""
    fixed: int | None = None
    fixed_by: str = ""
    target: int | None = None
    target_reason: str = ""
    deleting: bool = False


def decide_desired(wishes: Wishes) -> Desired:
    """Return how many replicas there should be; never more than `max_replicas`."""
    if wishes.deleting:
        return Desired(0, "it is being deleted")
    if not wishes.enabled:
        return Desired(0, f"disabled{_by(wishes.enabled_by)}")
    if wishes.autoscale.max_replicas == 0:
        return Desired(0, "off: max_replicas is 0")
    if wishes.fixed is not None:
        return _bounded(wishes.fixed, f"scaled to {wishes.fixed}{_by(wishes.fixed_by)}", wishes)
    least = floor_of(wishes.autoscale)
    if wishes.target is None or wishes.target < least:
        return _bounded(least, _why_least(wishes.autoscale), wishes)
    reason = wishes.target_reason or f"autoscaling wants {wishes.target}"
    return _bounded(wishes.target, reason, wishes)


def _bounded(count: int, reason: str, wishes: Wishes) -> Desired:
    most = wishes.autoscale.max_replicas
    if count <= most:
        return Desired(count, reason)
    return Desired(most, f"{reason}, but max_replicas is {most}")


def _why_least(config: AutoscaleConfig) -> str:
    least = f"min_replicas is {config.min_replicas}"
    soft = config.soft_min_replicas
    return f"{least}, soft_min_replicas {soft}" if soft else least


def _by(name: str) -> str:
    return f" by {name}" if name else ""
