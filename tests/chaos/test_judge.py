"""The judge finds every kind of broken promise, and none where all were kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from garrison.errors import ErrorCode
from garrison.models.cluster_state import ClusterEvent, Phase
from garrison.models.cluster_status import (
    BlockedStatus,
    ClusterNodeStatus,
    ClusterStatus,
    ErrorStatus,
    PurchaseStatus,
    RecoveryStatus,
)
from garrison.models.group import NodeStatus
from tests.chaos.facts import Ack, Bought, Facts, Life, Machine
from tests.chaos.judge import Kind, judge
from tests.chaos.plan import ClusterPlan, PowerCut, Price

START = datetime(2026, 1, 1, tzinfo=UTC)
UID = "uid-1"
TOKEN = f"{UID}-0"


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


PLAN = ClusterPlan("c", "story", nodes=2, instance_type="c5.large", start=0, steps=())
MACHINES = tuple(
    Machine(f"sim-{rank}", TOKEN, UID, rank, "sim-a", created_at=_at(1), ended_at=None)
    for rank in range(2)
)
BOUGHT = Bought(TOKEN, UID, wanted=2, usd=Decimal("0.1"), at=_at(1))
NODES = tuple(
    ClusterNodeStatus(rank=rank, status=NodeStatus.RUNNING, provider_id=f"sim-{rank}")
    for rank in range(2)
)
RUNNING = ClusterStatus(
    name="c",
    uid=UID,
    phase=Phase.RUNNING,
    hourly_usd=Decimal("0.2"),
    created_at=START,
    ready_at=_at(2),
    recovery=RecoveryStatus(automatic=False, max_attempts=3),
    nodes=NODES,
    purchases=(PurchaseStatus(provider="simulated", region="sim-a", instance_type="c5.large"),),
)
LAUNCHED = Ack("launch", UID, _at(0.5))
TERMINATED = Ack("terminate", UID, _at(5))
ENDED = RUNNING.model_copy(
    update={
        "phase": Phase.TERMINATED,
        "terminate_accepted_at": _at(5),
        "billed_until": _at(5),
        "ended_at": _at(9),
    }
)
FAILED = RUNNING.model_copy(
    update={
        "phase": Phase.FAILED,
        "ready_at": None,
        "ended_at": _at(9),
        "last_error": ErrorStatus(code=ErrorCode.PROVIDER_ERROR, message="?"),
    }
)


def _facts(
    status: ClusterStatus = RUNNING,
    machines: tuple[Machine, ...] = MACHINES,
    *,
    acks: tuple[Ack, ...] = (LAUNCHED,),
    purchases: tuple[Bought, ...] = (BOUGHT,),
    **life: Any,
) -> Facts:
    closed = status.ended_at is not None
    one = Life(**{"plan": PLAN, "status": status, "closed": closed, "acks": acks, **life})
    return Facts(at=_at(60), lives={UID: one}, machines=machines, purchases=purchases)


def _gone(at: float) -> tuple[Machine, ...]:
    return tuple(replace(machine, ended_at=_at(at)) for machine in MACHINES)


def _changed(status: ClusterStatus, **changes: Any) -> ClusterStatus:
    return status.model_copy(update=changes)


OTHERS = tuple(replace(m, token=f"{UID}-1", provider_id=f"b-{m.rank}") for m in MACHINES)
THIRD = replace(MACHINES[0], provider_id="sim-9", token=f"{UID}-1", created_at=_at(3))

BROKEN: dict[str, tuple[Kind, Callable[[], Facts]]] = {
    "a rank bought twice under one token": (
        Kind.DOUBLE_BUY,
        lambda: _facts(machines=(*MACHINES, replace(MACHINES[0], provider_id="sim-9"))),
    ),
    "a machine too many, for a moment": (
        Kind.DOUBLE_BUY,
        lambda: _facts(machines=(*MACHINES, replace(THIRD, ended_at=_at(4)))),
    ),
    "two places at once": (
        Kind.DOUBLE_BUY,
        lambda: _facts(
            machines=(
                replace(MACHINES[0], region="sim-b", ended_at=_at(3)),
                replace(MACHINES[1], created_at=_at(2)),
            )
        ),
    ),
    "a token that the cluster does not know": (
        Kind.DOUBLE_BUY,
        lambda: _facts(machines=(replace(MACHINES[0], token="other"), MACHINES[1])),
    ),
    "a machine of nobody": (
        Kind.LEAK,
        lambda: _facts(machines=(*MACHINES, replace(THIRD, uid="uid-9"))),
    ),
    "a machine that its cluster does not know": (
        Kind.LEAK,
        lambda: _facts(machines=(MACHINES[0], replace(MACHINES[1], provider_id="sim-9"))),
    ),
    "a machine after the end": (Kind.LEAK, lambda: _facts(ENDED)),
    "an end before the machines' own": (Kind.LEAK, lambda: _facts(ENDED, _gone(9.5))),
    "a terminate that does not end": (
        Kind.STUCK,
        lambda: _facts(
            _changed(RUNNING, phase=Phase.TERMINATING, terminate_accepted_at=_at(5)),
            acks=(LAUNCHED, TERMINATED),
        ),
    ),
    "a launch that does not end": (
        Kind.STUCK,
        lambda: _facts(_changed(RUNNING, phase=Phase.PROVISIONING, ready_at=None)),
    ),
    "a step that stays blocked": (
        Kind.STUCK,
        lambda: _facts(
            _changed(
                RUNNING,
                blocked=BlockedStatus(
                    code=ErrorCode.INTERNAL, message="?", since=START, tries=9, retry_at=START
                ),
            )
        ),
    ),
    "a recovery that does not come": (
        Kind.STUCK,
        lambda: _facts(
            _changed(
                RUNNING,
                phase=Phase.DEGRADED,
                recovery=RecoveryStatus(automatic=True, max_attempts=3),
            ),
            plan=replace(PLAN, steps=(PowerCut(0),)),
        ),
    ),
    "a launch without a purchase": (
        Kind.LOST_ACK,
        lambda: _facts(_changed(RUNNING, purchases=())),
    ),
    "a launch that fails without a cause": (Kind.LOST_ACK, lambda: _facts(FAILED, _gone(8))),
    "a purchase that is given up as too dear": (
        Kind.LOST_ACK,
        lambda: _facts(
            _changed(
                ENDED,
                purchases=(
                    PurchaseStatus(
                        provider="simulated",
                        region="sim-a",
                        instance_type="c5.large",
                        code=ErrorCode.PRICE_CHANGED,
                    ),
                ),
            ),
            _gone(8),
            plan=replace(PLAN, steps=(Price(2),)),
        ),
    ),
    "a terminate that nobody knows": (
        Kind.LOST_ACK,
        lambda: _facts(acks=(LAUNCHED, TERMINATED)),
    ),
    "a terminate at another time": (
        Kind.LOST_ACK,
        lambda: _facts(
            _changed(ENDED, terminate_accepted_at=_at(6)), _gone(8), acks=(LAUNCHED, TERMINATED)
        ),
    ),
    "a switch without effect": (
        Kind.LOST_ACK,
        lambda: _facts(acks=(LAUNCHED, Ack("recovery", UID, _at(3), automatic=True))),
    ),
    "a recovery attempt without effect": (
        Kind.LOST_ACK,
        lambda: _facts(acks=(LAUNCHED, Ack("recover", UID, _at(3)))),
    ),
    "a bill of what was never ready": (
        Kind.OTHER,
        lambda: _facts(
            _changed(FAILED, cost_usd=Decimal("0.01")),
            _gone(8),
            plan=replace(PLAN, may_fail=frozenset({ErrorCode.PROVIDER_ERROR})),
        ),
    ),
    "a bill after the terminate": (
        Kind.OTHER,
        lambda: _facts(_changed(ENDED, billed_until=_at(8)), _gone(8)),
    ),
    "a price above the accepted one": (
        Kind.OTHER,
        lambda: _facts(purchases=(replace(BOUGHT, usd=Decimal("0.11")),)),
    ),
    "a node that does not exist": (Kind.OTHER, lambda: _facts(machines=MACHINES[:1])),
    "a restart of a healthy node": (
        Kind.OTHER,
        lambda: _facts(machines=(MACHINES[0], replace(MACHINES[1], boots=2))),
    ),
    "an unsound history": (Kind.OTHER, lambda: _facts(faults=("ended as TERMINATED",))),
    "what no client should meet": (Kind.OTHER, lambda: replace(_facts(), complaints=("?",))),
}


@pytest.mark.parametrize(("kind", "facts"), BROKEN.values(), ids=BROKEN.keys())
def test_every_broken_promise_is_found(kind: Kind, facts: Callable[[], Facts]) -> None:
    found = judge(facts())

    assert kind in {violation.kind for violation in found}


KEPT: dict[str, Callable[[], Facts]] = {
    "a running cluster": _facts,
    "a terminated one": lambda: _facts(ENDED, _gone(8), acks=(LAUNCHED, TERMINATED)),
    "a failure that was scripted": lambda: _facts(
        FAILED, _gone(8), plan=replace(PLAN, may_fail=frozenset({ErrorCode.PROVIDER_ERROR}))
    ),
    "a place after another": lambda: _facts(
        _changed(
            RUNNING,
            nodes=tuple(n.model_copy(update={"provider_id": f"b-{n.rank}"}) for n in NODES),
        ),
        machines=(*_gone(3), *(replace(m, region="sim-b", created_at=_at(3)) for m in OTHERS)),
    ),
    "a node that was brought back": lambda: _facts(
        _changed(
            RUNNING,
            events=(ClusterEvent(time=START, reason="RecoverRequested", message=""),),
        ),
        (MACHINES[0], replace(MACHINES[1], boots=2)),
        acks=(LAUNCHED, Ack("recover", UID, _at(3))),
        plan=replace(PLAN, steps=(PowerCut(1),)),
    ),
    "a terminate by signal, a moment later": lambda: _facts(
        ENDED, _gone(8), acks=(LAUNCHED, replace(TERMINATED, at=_at(4.5), by_signal=True))
    ),
}


@pytest.mark.parametrize("facts", KEPT.values(), ids=KEPT.keys())
def test_where_all_promises_are_kept_nothing_is_found(facts: Callable[[], Facts]) -> None:
    found = judge(facts())

    assert found == []
