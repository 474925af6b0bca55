"""What lists and filters of the Temporal Service show: search attributes and memo.

Search attributes only filter; all that a list prints is in the memo, as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

with workflow.unsafe.imports_passed_through():
    from garrison.domain.clusters.report import current_offer, provider_type, state_shape
    from garrison.models.cluster_state import ClusterState

KIND = SearchAttributeKey.for_keyword("GarrisonKind")
PHASE = SearchAttributeKey.for_keyword("GarrisonPhase")
PROVIDER = SearchAttributeKey.for_keyword("GarrisonProvider")
REGION = SearchAttributeKey.for_keyword("GarrisonRegion")
ACCELERATOR = SearchAttributeKey.for_keyword("GarrisonAccelerator")
OWNER = SearchAttributeKey.for_keyword("GarrisonOwner")
PARENT = SearchAttributeKey.for_keyword("GarrisonParent")
HOURLY_USD = SearchAttributeKey.for_float("GarrisonHourlyUsd")
READY_AT = SearchAttributeKey.for_datetime("GarrisonReadyAt")
ENDED_AT = SearchAttributeKey.for_datetime("GarrisonEndedAt")

ALL_KEYS: tuple[SearchAttributeKey[Any], ...] = (
    KIND,
    PHASE,
    PROVIDER,
    REGION,
    ACCELERATOR,
    OWNER,
    PARENT,
    HOURLY_USD,
    READY_AT,
    ENDED_AT,
)
"""Every attribute that a Temporal Service must have registered."""


def cluster_attributes(state: ClusterState) -> list[SearchAttributeUpdate[Any]]:
    """Return a cluster's search attributes, without those that have no value yet."""
    offer = current_offer(state)
    values: dict[SearchAttributeKey[Any], Any] = {
        KIND: "cluster",
        PHASE: str(state.phase) if state.phase else None,
        PROVIDER: offer.provider if offer else None,
        REGION: offer.region if offer else None,
        ACCELERATOR: offer.accelerator if offer else None,
        OWNER: state.owner or None,
        HOURLY_USD: float(state.quote.hourly_usd) if state.quote else None,
        READY_AT: state.ready_at,
        ENDED_AT: state.ended_at,
    }
    return [key.value_set(value) for key, value in values.items() if value is not None]


def cluster_memo(state: ClusterState) -> dict[str, Any]:
    """Return all that a list prints of a cluster, and what the watch needs to know of it."""
    offer = current_offer(state)
    quote, meter = state.quote, state.meter
    return {
        "uid": state.uid,
        "name": state.name,
        "phase": str(state.phase) if state.phase else None,
        "owner": state.owner,
        "nodes": state.spec.nodes if state.spec else 0,
        "shape": state_shape(state),
        "provider": offer.provider if offer else None,
        "provider_type": provider_type(state),
        "region": offer.region if offer else None,
        "instance_type": offer.instance_type if offer else None,
        "simulated": bool(offer and offer.simulated),
        "hourly_usd": str(quote.hourly_usd) if quote else None,
        "quote_id": quote.quote_id if quote else None,
        "expires_at": _text(quote.expires_at) if quote else None,
        "created_at": _text(state.created_at),
        "ready_at": _text(state.ready_at),
        "ended_at": _text(state.ended_at),
        "terminate_accepted_at": _text(state.terminate_accepted_at),
        "accrued_seconds": str(meter.accrued_seconds) if meter else None,
        "charging_since": _text(meter.running_since) if meter else None,
        "last_error": str(state.last_error.code) if state.last_error else None,
    }


def publish_changes(
    attributes: Iterable[SearchAttributeUpdate[Any]], memo: Mapping[str, Any]
) -> None:
    """Set what differs from what Temporal has, which a continued run takes over as it is.

    None takes a field of the memo away.
    """
    shown = workflow.info().typed_search_attributes
    if changed := [one for one in attributes if shown.get(one.key) != one.value]:
        workflow.upsert_search_attributes(changed)
    kept = workflow.memo()
    if fields := {name: value for name, value in memo.items() if kept.get(name) != value}:
        workflow.upsert_memo(fields)


def _text(time: Any) -> str | None:
    return None if time is None else time.isoformat().replace("+00:00", "Z")
