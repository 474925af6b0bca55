"""What people ask of a nodepool, and how its life begins and ends.

These functions change the one `NodepoolState` in place; its workflow is the only writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from garrison.domain.rates import rounded
from garrison.errors import ConflictPhase, ErrorCode, InvalidSpec, NameInUse, NotFound, Problem
from garrison.models.cluster_messages import QuoteTerms
from garrison.models.cluster_state import Blocked, Failure
from garrison.models.compute_cluster import JoinAnswer
from garrison.models.nodepool import (
    NodepoolAck,
    NodepoolRequest,
    NodepoolSpec,
    PoolEvent,
    PoolOffersAnswer,
    PoolPhase,
)
from garrison.models.nodepool_state import NodepoolState, PoolMarket
from garrison.models.offer import CapacityType, Offer
from garrison.models.provider import ProviderFacts

MAX_EVENTS = 100
BUYABLE = (CapacityType.ON_DEMAND, CapacityType.SPOT)
FIRST_RETRY = timedelta(seconds=2)
LONGEST_RETRY = timedelta(minutes=5)


def add_event(
    state: NodepoolState,
    reason: str,
    message: str,
    *,
    now: datetime,
    about: str | None = None,
    by: str = "garrison",
) -> None:
    """Keep what happened, forgetting the oldest beyond the last 100."""
    event = PoolEvent(time=now, about=about, reason=reason, message=message, by=by or "garrison")
    state.events.append(event)
    del state.events[:-MAX_EVENTS]


def facts_of(state: NodepoolState) -> ProviderFacts:
    """Return the promises of the pool's provider; it must have joined its compute cluster."""
    assert state.facts is not None
    return state.facts


def is_closing(state: NodepoolState) -> bool:
    """Return whether the pool is being deleted."""
    return state.delete_accepted_at is not None


def phase_of(state: NodepoolState) -> PoolPhase:
    """Return where the pool is in its life."""
    if is_closing(state):
        return PoolPhase.DELETING
    if state.facts is None or state.spec is None:
        return PoolPhase.PENDING
    return PoolPhase.ACTIVE if state.spec.max_instances else PoolPhase.DISABLED


def pool_name(state: NodepoolState) -> str:
    """Return the pool's name as people write it, `gpus/a10g`."""
    return f"{state.compute_cluster}/{state.id}"


def check_life(state: NodepoolState, uid: str | None) -> None:
    """Return if this is the life that is meant.

    Raises:
        NotFound: It is another one.
    """
    if uid is not None and uid != state.uid:
        raise NotFound(f"nodepool {pool_name(state)} of uid {uid} is gone; uid {state.uid} lives")


def check_spec(state: NodepoolState, spec: NodepoolSpec) -> None:
    """Return if a spec can be this pool's.

    Raises:
        InvalidSpec: With all mistakes.
    """
    problems = tuple(_problems(state, spec))
    if problems:
        raise InvalidSpec(f"nodepool {pool_name(state)} is not valid", problems=problems)


def _problems(state: NodepoolState, spec: NodepoolSpec) -> Iterable[Problem]:
    if spec.id.lower() != state.id.lower():
        yield Problem("id", f"is fixed; this nodepool is {state.id}")
    if spec.compute_cluster.lower() != state.compute_cluster.lower():
        yield Problem("compute_cluster", f"is fixed; this nodepool is in {state.compute_cluster}")
    if not all(spec.instance_types):
        yield Problem("instance_types", "has an empty name; give names such as g5.2xlarge")
    foreign = [kind for kind in spec.capacity_types if kind not in BUYABLE]
    if foreign or not spec.capacity_types:
        yield Problem("capacity_types", "must be on_demand, spot or both")
    yield from _fallback_problems(spec)
    yield from count_problems(spec)
    if spec.max_usd_per_hour is not None and spec.max_usd_per_hour <= 0:
        yield Problem("max_usd_per_hour", "must be more than 0; leave it out for no limit")
    if spec.release_after < timedelta(0):
        yield Problem("release_after", "must not be negative")


def _fallback_problems(spec: NodepoolSpec) -> Iterable[Problem]:
    """Yield what is wrong with the wish for machines on demand beside spot ones."""
    both = set(BUYABLE) <= set(spec.capacity_types)
    for name in ("on_demand_base", "on_demand_fallback"):
        if getattr(spec, name) and not both:
            text = "needs both on_demand and spot in capacity_types; add the other one"
            yield Problem(name, f"{text}, or leave it out")


def count_problems(spec: NodepoolSpec) -> Iterable[Problem]:
    """Yield what is wrong with the numbers of machines that a pool should hold."""
    if not spec.max_instances:
        return  # disabled: what is held otherwise can stay written
    for name in ("min_instances", "warm_instances", "on_demand_base"):
        count = getattr(spec, name)
        if count > spec.max_instances:
            text = f"{count} is more than max_instances, which is {spec.max_instances}"
            yield Problem(name, f"{text}; lower the one or raise the other")


def check_create(state: NodepoolState, request: NodepoolRequest) -> None:
    """Return if the pool can be created so, or is so already.

    Raises:
        NameInUse: A living pool has this name, with another spec or on its way out.
        InvalidSpec: With all mistakes.
    """
    name = pool_name(state)
    if is_closing(state):
        raise NameInUse(f"nodepool {name} is being deleted; create it again once it is gone")
    check_spec(state, request.spec)
    if state.spec is not None and state.spec != request.spec:
        raise NameInUse(
            f"nodepool {name} exists with other settings; "
            f"change it with: garrison nodepool update {state.compute_cluster} {state.id}"
        )


def check_update(state: NodepoolState, request: NodepoolRequest) -> None:
    """Return if the spec can be replaced.

    Raises:
        NotFound: It has no spec yet, or another life is meant.
        ConflictPhase: It is being deleted.
        InvalidSpec: With all mistakes.
    """
    check_life(state, request.uid)
    if state.spec is None:
        raise NotFound(f"there is no nodepool {pool_name(state)}")
    if is_closing(state):
        raise ConflictPhase(f"nodepool {pool_name(state)} is being deleted")
    check_spec(state, request.spec)


def accept_spec(state: NodepoolState, request: NodepoolRequest, *, now: datetime) -> NodepoolAck:
    """Take a spec, of a create or an update, that was checked; return what its sender is told."""
    before = state.spec
    if before != request.spec:
        state.spec = request.spec
        state.generation += 1
        state.accepted_at = now
        word = "Updated" if before is not None else "Created"
        text = f"generation {state.generation} of the settings"
        add_event(state, word, text, now=now, by=request.by)
        if before is None or _buys_other_things(before, request.spec):
            state.market = PoolMarket(refused=state.market.refused)
    return NodepoolAck(
        id=state.id,
        uid=state.uid,
        generation=state.generation,
        accepted_at=state.accepted_at or now,
    )


def accept_update(state: NodepoolState, request: NodepoolRequest, *, now: datetime) -> NodepoolAck:
    """Take settings, also the same ones: a person wants what was in vain tried again now."""
    _try_again(state, now=now, by=request.by)
    return accept_spec(state, request, now=now)


def _try_again(state: NodepoolState, *, now: datetime, by: str) -> None:
    """Forget refusals and pauses."""
    troubles = [one for one in (state.blocked, state.market_trouble) if one is not None]
    if not (troubles or state.market.refused or state.buy_after):
        return
    state.market = state.market.replace(refused={})
    state.strikes, state.last_strike_at, state.buy_after = 0, None, None
    if state.blocked is not None:
        state.blocked = state.blocked.replace(retry_at=now)
    if state.market_trouble is not None:
        state.market_trouble = state.market_trouble.replace(retry_at=now)
    add_event(state, "TriedAgain", "what was refused before is tried again now", now=now, by=by)


def _buys_other_things(before: NodepoolSpec, after: NodepoolSpec) -> bool:
    old = (before.instance_types, before.capacity_types)
    return old != (after.instance_types, after.capacity_types)


def accept_delete(state: NodepoolState, *, now: datetime, by: str, why: str = "") -> datetime:
    """Begin to give everything back; accepted always. Return when it was first accepted."""
    if state.delete_accepted_at is None:
        state.delete_accepted_at = now
        state.blocked = None
        add_event(state, "DeleteAccepted", why or "delete was asked for", now=now, by=by)
    return state.delete_accepted_at


def note_joined(
    state: NodepoolState, answer: JoinAnswer, terms: QuoteTerms, *, now: datetime
) -> None:
    """Take the pool's place, and what is known of its provider."""
    facts = terms.providers.get(answer.provider)
    state.deadman, state.heartbeat = terms.deadman, terms.heartbeat
    if facts is None:
        text = (
            f"provider {answer.provider} of compute cluster {state.compute_cluster} is not "
            "configured on the workers; add it under providers: and restart them"
        )
        note_blocked(state, Failure(code=ErrorCode.INVALID_SPEC, message=text), now=now)
        return
    state.provider, state.region, state.facts = answer.provider, answer.region, facts
    state.blocked = None
    text = f"lives in {state.compute_cluster}: {answer.provider} {answer.region}"
    add_event(state, "Joined", text, now=now)


def note_not_joined(state: NodepoolState, failure: Failure, *, now: datetime) -> None:
    """The compute cluster does not take the pool; it ends so, owning nothing."""
    if not is_closing(state):
        state.closing = failure
    state.last_error = failure
    accept_delete(state, now=now, by="garrison", why=failure.message)
    state.left = True


def next_trouble(
    before: Blocked | None, failure: Failure, *, now: datetime, retry_after: float | None = None
) -> Blocked:
    """Return what stops progress, tried again after a doubling pause or when a provider said."""
    tries = before.tries + 1 if before is not None else 1
    pause = min(FIRST_RETRY * (1 << min(tries - 1, 10)), LONGEST_RETRY)
    if retry_after is not None:
        pause = max(pause, timedelta(seconds=retry_after))
    return Blocked(
        code=failure.code,
        message=failure.message,
        since=before.since if before is not None else now,
        tries=tries,
        retry_at=now + pause,
    )


def note_blocked(
    state: NodepoolState, failure: Failure, *, now: datetime, retry_after: float | None = None
) -> None:
    """Keep what stops the pool as a whole, and say so once."""
    before = state.blocked
    state.blocked = next_trouble(before, failure, now=now, retry_after=retry_after)
    state.last_error = failure
    if before is None or (before.code, before.message) != (failure.code, failure.message):
        add_event(state, "Blocked", f"{failure.code}: {failure.message}", now=now)


def note_offers(state: NodepoolState, answer: PoolOffersAnswer, *, now: datetime) -> None:
    """Take what the provider sells; what it refused before stays remembered."""
    state.market_trouble = None
    state.wants_offers = False
    state.market = PoolMarket(
        asked_at=now,
        offers=answer.offers,
        unknown_types=answer.unknown_types,
        refused=state.market.refused,
    )


def note_no_offers(
    state: NodepoolState, failure: Failure, *, now: datetime, retry_after: float | None = None
) -> None:
    """The provider could not be asked for prices; it is asked again after a pause."""
    state.market_trouble = next_trouble(
        state.market_trouble, failure, now=now, retry_after=retry_after
    )
    state.last_error = failure


def price_text(offer: Offer) -> str:
    """Return what a machine costs, for people: `1.212 USD/h`."""
    price = offer.usd_per_hour
    return "at an unknown price" if price is None else f"{rounded(price)} USD/h"
