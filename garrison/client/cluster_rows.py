"""Lines of a cluster list, from visibility and memo alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus

from garrison.domain.pricing import cost_usd
from garrison.errors import InvalidSpec
from garrison.models.billing import Meter
from garrison.models.cluster_state import CLOSED_PHASES, Phase
from garrison.models.cluster_status import ClusterRow

KILLED = frozenset({WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT})


async def cluster_row(execution: WorkflowExecution, now: datetime) -> ClusterRow:
    """Return one line; a life that was ended in Temporal itself is shown as terminated."""
    memo = await execution.memo()
    meter = _meter(memo)
    killed = execution.status in KILLED
    phase = Phase.TERMINATED if killed else memo.get("phase")
    end = execution.close_time if killed else None
    return ClusterRow.model_validate(
        {
            **{name: memo.get(name) for name in ClusterRow.model_fields if name in memo},
            "phase": phase,
            "cost_usd": cost_usd(meter, end or now) if meter else Decimal(0),
            "ended_at": memo.get("ended_at") or execution.close_time,
        }
    )


def _meter(memo: Mapping[str, Any]) -> Meter | None:
    if not memo.get("hourly_usd") or memo.get("accrued_seconds") is None:
        return None
    return Meter(
        rate_usd_per_hour=Decimal(memo["hourly_usd"]),
        accrued_seconds=Decimal(memo["accrued_seconds"]),
        running_since=memo.get("charging_since"),
    )


def list_query(
    *, include_ended: bool, phase: str | None, owner: str | None, provider: str | None
) -> str:
    """Return the visibility query of a list.

    Raises:
        InvalidSpec: There is no such phase.
    """
    filters = {
        "GarrisonKind": "cluster",
        "GarrisonPhase": _known_phase(phase),
        "GarrisonOwner": owner,
        "GarrisonProvider": provider,
    }
    terms = [f"{key} = {_quoted(value)}" for key, value in filters.items() if value]
    ended = include_ended or phase in set(CLOSED_PHASES)
    terms.append("ExecutionStatus != 'ContinuedAsNew'" if ended else "ExecutionStatus = 'Running'")
    return " AND ".join(terms)


def _known_phase(phase: str | None) -> str | None:
    if phase is not None and phase not in set(Phase):
        raise InvalidSpec(f"{phase[:64]!r} is no phase; phases are {', '.join(Phase)}")
    return phase


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
