"""What a deployment's load asks of it."""

from __future__ import annotations

from datetime import datetime, timedelta

from garrison.domain.autoscaling.decision import blend_boot, floor_of
from garrison.models.deployment import DeploymentSpec, LoadKind
from garrison.models.deployment_state import DeploymentState
from garrison.models.load import TargetChanged, WakeRequest

LONGEST_BOOT = timedelta(minutes=30)
"""Whoever waited longer for a place waited for more than a boot."""
WOKEN = "wake: a request is waiting and nothing runs"


def has_load(spec: DeploymentSpec) -> bool:
    """Return whether anybody can count a deployment's requests."""
    return spec.template.port is not None or spec.autoscale.load.source is not LoadKind.ROUTER


def is_autoscaled(state: DeploymentState) -> bool:
    """Return whether the load decides how many replicas there are."""
    return state.enabled and state.fixed is None and state.delete_accepted_at is None


def take_target(state: DeploymentState, said: TargetChanged) -> bool:
    """Take what the load asks for; return False if somebody else has said so since."""
    if said.uid != state.uid or said.generation != state.wish or not is_autoscaled(state):
        return False
    state.target, state.target_reason, state.demand = said.target, said.reason, said.demand
    return True


def take_wake(state: DeploymentState, said: WakeRequest) -> bool:
    """Have one replica where none is wanted; return False if that changes nothing."""
    if said.uid not in {None, state.uid} or state.spec is None or not is_autoscaled(state):
        return False
    if state.desired > 0 or state.spec.autoscale.max_replicas == 0:
        return False
    # What the load asked for before it saw this request must not put it to sleep again.
    state.wish += 1
    state.target, state.target_reason, state.demand = 1, WOKEN, None
    return True


def hand_over(state: DeploymentState, why: str) -> None:
    """Have the load go on from what is wanted now; without anybody to count, the minimum counts."""
    state.wish += 1
    state.demand = None
    state.target, state.target_reason = None, ""
    if state.spec is None or not has_load(state.spec):
        return
    if state.desired > floor_of(state.spec.autoscale):
        state.target, state.target_reason = state.desired, why


def learn_boot(state: DeploymentState, created_at: datetime, *, now: datetime) -> None:
    """A replica is ready for the first time."""
    state.boot = blend_boot(state.boot, min(now - created_at, LONGEST_BOOT))
