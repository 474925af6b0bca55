"""Which phase may follow which, and what a person's wishes mean in each.

These functions change the one `ClusterState` in place; its workflow is the only writer. Each takes
the time, so that the same call gives the same life.
"""

from __future__ import annotations

from datetime import datetime

from garrison.domain.accelerators import read_accelerator
from garrison.domain.cleanup import begin_cleanup
from garrison.domain.clusters.recovery import check_recoverable
from garrison.domain.pricing import start_meter, stop_meter
from garrison.domain.secrets import unsealed_names
from garrison.errors import (
    ConflictPhase,
    ErrorCode,
    InvalidSpec,
    NameInUse,
    NotFound,
    PriceChanged,
    Problem,
    QuoteExpired,
)
from garrison.models.billing import Meter
from garrison.models.cluster import ClusterShape, ClusterSpec, WorkloadSettings
from garrison.models.cluster_messages import LaunchRequest, QuoteRequest
from garrison.models.cluster_state import (
    UP_PHASES,
    ClusterEvent,
    ClusterNode,
    ClusterState,
    Failure,
    LaunchTerms,
    Phase,
    PhaseTransition,
    Purchase,
    QuoteIntent,
    Recovery,
)
from garrison.models.offer import Offer
from garrison.models.problems import build
from garrison.models.provider import ProviderFacts
from garrison.models.quote import Quote

MAX_EVENTS = 100
MAX_TRANSITIONS = 1000

NEXT: dict[Phase | None, frozenset[Phase]] = {
    None: frozenset({Phase.QUOTED}),
    Phase.QUOTED: frozenset({Phase.LAUNCHING, Phase.EXPIRED, Phase.TERMINATING}),
    Phase.LAUNCHING: frozenset({Phase.PROVISIONING, Phase.TERMINATING}),
    Phase.PROVISIONING: frozenset({Phase.RUNNING, Phase.LAUNCHING, Phase.TERMINATING}),
    Phase.RUNNING: frozenset({Phase.DEGRADED, Phase.TERMINATING}),
    Phase.DEGRADED: frozenset({Phase.RUNNING, Phase.TERMINATING}),
    Phase.TERMINATING: frozenset({Phase.TERMINATED, Phase.FAILED}),
    Phase.TERMINATED: frozenset(),
    Phase.EXPIRED: frozenset(),
    Phase.FAILED: frozenset(),
}
"""Phases that may follow each phase; None is before the first quote."""


def enter_phase(state: ClusterState, phase: Phase, *, now: datetime) -> None:
    """Move to a phase and keep when.

    Raises:
        ValueError: A bug: that phase cannot follow.
    """
    if phase not in NEXT[state.phase]:
        raise ValueError(f"{phase} cannot follow {state.phase}")
    state.phase = phase
    state.phase_transitions.append(PhaseTransition(phase=phase, time=now))
    del state.phase_transitions[:-MAX_TRANSITIONS]
    if not NEXT[phase]:
        state.ended_at = now


def add_event(
    state: ClusterState,
    reason: str,
    message: str,
    *,
    now: datetime,
    node: int | None = None,
    by: str = "garrison",
) -> None:
    """Keep an event; the last 100 are kept."""
    state.events.append(
        ClusterEvent(time=now, node=node, reason=reason, message=message, by=by or "unknown")
    )
    del state.events[:-MAX_EVENTS]


def facts_of(state: ClusterState) -> ProviderFacts:
    """Return the facts of the provider that the current purchase is made at."""
    assert state.quote is not None
    purchase = state.purchase
    provider = purchase.offer.provider if purchase else state.quote.offer.provider
    return state.quote.facts.get(provider) or ProviderFacts(name=provider, type=provider)


def check_life(state: ClusterState, uid: str | None) -> None:
    """Return if a request is meant for this life.

    Raises:
        NotFound: It pins another one.
    """
    if uid is not None and uid != state.uid:
        raise NotFound(
            f"{state.name} with uid {uid} is gone; a later life of the name is {state.uid}"
        )


def check_sealed(env: dict[str, str]) -> None:
    """Return if no value of an environment can be read.

    Raises:
        InvalidSpec: Names the variables; never shows a value.
    """
    if names := unsealed_names(env):
        raise InvalidSpec(
            "environment values must be sealed by the client",
            problems=tuple(Problem(f"env.{name}", "is not sealed") for name in names),
        )


def check_quotable(state: ClusterState, request: QuoteRequest) -> None:
    """Return if this life can be quoted (again).

    Raises:
        NameInUse: It was launched.
        InvalidSpec: It has an unsealed secret.
    """
    check_sealed(request.spec.env)
    if state.phase not in {None, Phase.QUOTED}:
        raise NameInUse(f"cluster {state.name} is {state.phase}; its name is free once it is gone")


def accept_quote(state: ClusterState, request: QuoteRequest) -> None:
    """Record that a quote is wanted."""
    state.pending_quote = QuoteIntent(
        request_id=request.request_id, quote_id=request.quote_id, spec=request.spec
    )


def note_quoted(state: ClusterState, quote: Quote, spec: ClusterSpec, *, now: datetime) -> None:
    """Take a quote that was made as the current one."""
    state.pending_quote = None
    state.refusal = None
    state.quote = quote
    state.spec = spec
    state.recovery = Recovery(
        automatic=spec.recovery.automatic, max_attempts=spec.recovery.max_attempts
    )
    if state.phase is None:
        enter_phase(state, Phase.QUOTED, now=now)


def note_refused(state: ClusterState, quote_id: str, failure: Failure) -> None:
    """Keep why the last quote could not be made; an older one stays valid."""
    state.pending_quote = None
    state.refused_quote_id = quote_id
    state.refusal = failure


def check_launchable(state: ClusterState, request: LaunchRequest, *, now: datetime) -> None:
    """Return if a launch may begin.

    Raises:
        NotFound, NameInUse, QuoteExpired, PriceChanged, ConflictPhase, InvalidSpec: As they say.
    """
    check_life(state, request.uid)
    if state.phase is None or state.quote is None or state.spec is None:
        raise ConflictPhase(f"cluster {state.name} has no quote yet")
    if state.phase is not Phase.QUOTED:
        raise NameInUse(f"cluster {state.name} is {state.phase}; it was launched already")
    if now >= state.quote.expires_at:
        raise QuoteExpired(_expired(state.quote))
    if request.quote_id is not None and request.quote_id != state.quote.quote_id:
        raise QuoteExpired(
            f"quote {request.quote_id} was replaced by {state.quote.quote_id}; look at it first"
        )
    check_priced_fields(state, request)
    if request.max_hourly_usd is not None and state.quote.hourly_usd > request.max_hourly_usd:
        raise PriceChanged(
            f"{state.quote.hourly_usd} USD/h is above the accepted {request.max_hourly_usd} USD/h"
        )
    check_sealed(launched_workload(state.spec, request).env)


def _expired(quote: Quote) -> str:
    return f"quote {quote.quote_id} expired at {quote.expires_at:%Y-%m-%dT%H:%M:%SZ}; quote again"


def check_priced_fields(state: ClusterState, request: LaunchRequest) -> None:
    """Return if every repeated priced field has the quoted value.

    Raises:
        PriceChanged: Names each field with both values.
    """
    assert state.spec is not None
    assert state.quote is not None
    quoted = state.spec.model_dump(mode="json")
    resolved = _resolved(state.quote)
    differences = [
        f"{name} was quoted as {quoted.get(name)!r} and is {value!r} now"
        for name, value in request.priced.items()
        if name in ClusterShape.model_fields
        and value != quoted.get(name)
        and (name not in resolved or not _same(name, value, resolved[name], state.quote))
    ]
    if differences:
        raise PriceChanged("; ".join(differences) + "; quote again")


def _resolved(quote: Quote) -> dict[str, object]:
    offer = quote.offer
    return {
        "provider": offer.provider,
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "accelerator": offer.accelerator,
        "gpus_per_node": quote.gpus_per_node,
    }


def _same(name: str, value: object, resolved: object, quote: Quote) -> bool:
    if name != "accelerator" or not isinstance(value, str):
        return bool(value == resolved)
    try:
        wish = read_accelerator(value, [quote.offer])
    except InvalidSpec:
        return False
    return wish.count in {None, quote.gpus_per_node}


def launched_workload(spec: ClusterSpec, request: LaunchRequest) -> WorkloadSettings:
    """Return the workload settings with those of the launch over the quoted ones.

    Raises:
        InvalidSpec: The launch has a field that is none, or a bad value.
    """
    fields = spec.workload().model_dump(mode="json") | request.workload
    return build(WorkloadSettings, fields, what="the workload settings of the launch")


def accept_launch(state: ClusterState, request: LaunchRequest, *, now: datetime) -> None:
    """Record an accepted launch and fix the token of the first purchase."""
    assert state.spec is not None
    assert state.quote is not None
    workload = launched_workload(state.spec, request)
    state.spec = state.spec.model_copy(
        update={name: getattr(workload, name) for name in WorkloadSettings.model_fields}
    )
    failover = state.spec.failover if request.failover is None else request.failover
    state.terms = LaunchTerms(
        failover=failover,
        max_lifetime=request.max_lifetime,
        accepted_at=now,
        by=request.by,
    )
    state.pending_quote = None  # what was accepted is not replaced any more
    # Why it was chosen is an eighth of what a healthy cluster would keep in memory for weeks.
    state.quote = state.quote.model_copy(update={"considered": ()})
    enter_phase(state, Phase.LAUNCHING, now=now)
    rate = f"{state.quote.hourly_usd} USD/h"
    add_event(state, "Launched", f"launch accepted at {rate}", now=now, by=request.by)
    add_purchase(state, state.quote.offer)


def add_purchase(state: ClusterState, offer: Offer) -> None:
    """Plan a purchase in a place, under a token of its own."""
    assert state.spec is not None
    state.purchases.append(Purchase(token=f"{state.uid}-{len(state.purchases)}", offer=offer))
    state.nodes = [ClusterNode(rank=rank) for rank in range(state.spec.nodes)]
    state.cleanup = None


def next_place(state: ClusterState) -> Offer | None:
    """Return where a failed launch goes on, or None.

    After missing capacity the next place is tried; after a quota its whole region is skipped;
    after anything else no further place is.
    """
    purchase = state.purchase
    if purchase is None or state.quote is None or state.terms is None or not state.terms.failover:
        return None
    if state.terminate_accepted_at is not None:
        return None
    failed = {ErrorCode.INSUFFICIENT_CAPACITY, ErrorCode.QUOTA_EXCEEDED}
    if purchase.code not in failed:
        return None
    tried = {_place(p.offer) for p in state.purchases}
    barred = {
        (p.offer.provider, p.offer.region)
        for p in state.purchases
        if p.code is ErrorCode.QUOTA_EXCEEDED
    }
    return next(
        (
            offer
            for offer in state.quote.alternatives
            if _place(offer) not in tried and (offer.provider, offer.region) not in barred
        ),
        None,
    )


def _place(offer: Offer) -> tuple[str, str | None, str | None, str]:
    return (offer.provider, offer.region, offer.zone, offer.instance_type)


def note_ready(state: ClusterState, *, now: datetime) -> None:
    """The infrastructure is ready: charging starts."""
    assert state.quote is not None
    state.prepared = True
    state.ready_at = now
    state.start_deadline = None
    state.last_error = None
    state.meter = start_meter(Meter(rate_usd_per_hour=state.quote.hourly_usd), now)
    enter_phase(state, Phase.RUNNING, now=now)
    add_event(state, "Ready", "all nodes are ready; charging starts", now=now)


def accept_terminate(state: ClusterState, *, now: datetime, by: str, why: str = "") -> datetime:
    """Record that everything is to be given back; always accepted, also twice.

    Returns:
        When it was first accepted, which is when charging ended.
    """
    if state.terminate_accepted_at is not None:
        return state.terminate_accepted_at
    state.terminate_accepted_at = now
    state.pending_quote = None
    state.blocked = None
    if state.meter is not None:
        state.meter = stop_meter(state.meter, now)
    add_event(state, "Terminating", why or "terminate accepted", now=now, by=by)
    if state.phase is not None and Phase.TERMINATING in NEXT[state.phase]:
        enter_phase(state, Phase.TERMINATING, now=now)
    if state.cleanup is None:
        begin_giving_back(state, now=now)
    return now


def begin_giving_back(state: ClusterState, *, now: datetime) -> None:
    """Start the proof that nothing is left, if anything can have been bought."""
    purchase = state.purchase
    if purchase is None or not purchase.ended or purchase.emptied_at is not None:
        return
    state.cleanup = begin_cleanup(
        effects_until=purchase.effects_until or now, now=now, facts=facts_of(state)
    )


def check_recover(state: ClusterState) -> None:
    """Return if a manual recovery attempt may start.

    Raises:
        ConflictPhase: Nothing is degraded.
        RecoveryExhausted: The budget is spent.
    """
    if state.phase is not Phase.DEGRADED:
        raise ConflictPhase(f"cluster {state.name} is {state.phase}; only degraded ones recover")
    check_recoverable(state.recovery)


def accept_recover(state: ClusterState, *, now: datetime, by: str) -> None:
    """Record that an attempt is wanted now."""
    if state.recovery.attempt is None:
        state.recovery = state.recovery.model_copy(update={"requested": True})
        add_event(state, "RecoverRequested", "a recovery attempt was asked for", now=now, by=by)


def check_switchable(state: ClusterState) -> None:
    """Return if the recovery policy can be changed.

    Raises:
        ConflictPhase: The life is ending, or has no quote.
    """
    if state.phase is None or state.terminate_accepted_at is not None or state.closing is not None:
        raise ConflictPhase(f"cluster {state.name} is ending; its recovery cannot be changed")


def accept_recovery_switch(
    state: ClusterState,
    *,
    automatic: bool | None,
    max_attempts: int | None,
    now: datetime,
    by: str,
) -> None:
    """Change the recovery policy."""
    update: dict[str, object] = {}
    if automatic is not None:
        update["automatic"] = automatic
    if max_attempts is not None:
        update["max_attempts"] = max_attempts
    state.recovery = state.recovery.model_copy(update=update)
    _forget_exhausted(state)
    on = "on" if state.recovery.automatic else "off"
    text = f"automatic recovery is {on}, {state.recovery.max_attempts} attempts an episode"
    add_event(state, "RecoveryChanged", text, now=now, by=by)


def _forget_exhausted(state: ClusterState) -> None:
    episode, error = state.recovery.episode, state.last_error
    if episode is None or error is None or error.code is not ErrorCode.RECOVERY_EXHAUSTED:
        return
    if episode.attempts < state.recovery.max_attempts:
        state.last_error = None


def is_up(state: ClusterState) -> bool:
    """Return whether the cluster is ready and not ending."""
    return state.phase in UP_PHASES
