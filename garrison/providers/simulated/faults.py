"""Scripted incidents: which call goes wrong, how, how often, and for whom.

Rules live in the cloud's file, so that a command in one process rehearses an incident in a
worker that runs in another. All rules that match a call act on it together; a rule's `times`
is counted down in the transaction of the call that it hit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field, model_validator

from garrison.errors import GarrisonError, ProviderUnreachable
from garrison.models.base import Model
from garrison.providers.simulated.store import Tx, span
from garrison.providers.simulated.vendor import NO_CAPACITY, Kind, error_for, kind_of

DEFAULT_NOTICE = 120.0
"""Seconds; what the large clouds give is 30 to 120."""

LONGEST = 10_000_000
"""Seconds, of everything that a rule or a person scripts."""

MAX_COUNT = 1_000_000_000
"""Of calls and ranks, which the cloud's file holds as numbers of fixed size."""

RESPONSE_LOST = "the connection was lost before the answer came"
REQUEST_LOST = "the connection was lost before the request arrived"


class Call(StrEnum):
    """What a rule can hit; `status` is one node's state in an otherwise complete list."""

    LIST_OFFERS = "list_offers"
    LAUNCH = "launch"
    LIST = "list"
    RESTART = "restart"
    TERMINATE = "terminate"
    PREPARE = "prepare"
    START_WORKLOAD = "start_workload"
    STOP_WORKLOAD = "stop_workload"
    LIST_WORKLOADS = "list_workloads"
    READ_LOG = "read_log"
    STATUS = "status"


class Fault(StrEnum):
    """How a call goes wrong.

    `error` answers with a vendor's code. `refusal` has no capacity; with a rank, a launch makes
    the nodes before that rank, keeps them and refuses the rest. `latency` makes the caller wait.
    `lost_response` cuts the connection. `delayed_effect` takes effect `seconds` later, whatever
    became of the caller, who gets no answer before then. `late_list` shows what a call made or
    deleted (or, on `list`, everything) `seconds` late. `node_fails` lets bought nodes fail
    `seconds` after the purchase. `reclaim` takes bought spot nodes back: their notice comes
    `seconds` after the purchase, and ends `notice_seconds` later. `unknown` hides a node's state
    and makes it unreachable.
    """

    ERROR = "error"
    REFUSAL = "refusal"
    LATENCY = "latency"
    LOST_RESPONSE = "lost_response"
    DELAYED_EFFECT = "delayed_effect"
    LATE_LIST = "late_list"
    NODE_FAILS = "node_fails"
    RECLAIM = "reclaim"
    UNKNOWN = "unknown"


class When(StrEnum):
    """Whether the fault comes before the call's effect or after it."""

    BEFORE = "before"
    AFTER = "after"


_ANY = frozenset(Call) - {Call.STATUS}
_ALLOWED: dict[Fault, frozenset[Call]] = {
    Fault.ERROR: _ANY,
    Fault.REFUSAL: frozenset({Call.LAUNCH, Call.RESTART}),
    Fault.LATENCY: _ANY,
    Fault.LOST_RESPONSE: _ANY,
    Fault.DELAYED_EFFECT: frozenset({Call.LAUNCH, Call.RESTART, Call.TERMINATE}),
    Fault.LATE_LIST: frozenset({Call.LAUNCH, Call.TERMINATE, Call.LIST}),
    Fault.NODE_FAILS: frozenset({Call.LAUNCH}),
    Fault.RECLAIM: frozenset({Call.LAUNCH}),
    Fault.UNKNOWN: frozenset({Call.STATUS}),
}
_TIMED = {Fault.LATENCY, Fault.DELAYED_EFFECT, Fault.LATE_LIST}


class FaultRule(Model):
    """One scripted incident.

    Attributes:
        id: Given by the store.
        when: None is the usual side: after for a lost response, before for all else.
        code: A vendor's error code, known or not, for `error`, `refusal` and `node_fails`.
        message: The vendor's words.
        seconds: How long or how late, for the faults that take time.
        notice_seconds: How long before a reclaim its notice comes; None is two minutes.
        retry_after_seconds: What the error tells the caller to wait.
        times: How many calls it hits, None for every one until it is cleared.
        skip: How many matching calls pass unharmed first.
        lasts_seconds: The rule ends this long after it was added, None for never.
        owner: Only for this owner: a workflow id (`cluster/train-1`) or its name (`train-1`).
        node: Only for the machine with this provider id.
        rank: Only for the node of this rank.
    """

    id: int | None = None
    call: Call
    what: Fault = Fault.ERROR
    when: When | None = None
    code: str | None = Field(default=None, min_length=1, max_length=200)
    message: str | None = Field(default=None, max_length=2000)
    seconds: float = Field(default=0.0, ge=0, le=LONGEST, allow_inf_nan=False)
    notice_seconds: float | None = Field(default=None, ge=0, le=LONGEST)
    retry_after_seconds: float | None = Field(default=None, ge=0, le=LONGEST)
    times: int | None = Field(default=1, ge=1, le=MAX_COUNT)
    skip: int = Field(default=0, ge=0, le=MAX_COUNT)
    lasts_seconds: float | None = Field(default=None, ge=0, le=LONGEST)
    owner: str | None = None
    region: str | None = None
    node: str | None = None
    rank: int | None = Field(default=None, ge=0, le=MAX_COUNT)

    @model_validator(mode="after")
    def _fits_its_call(self) -> FaultRule:
        if self.call not in _ALLOWED[self.what]:
            calls = ", ".join(sorted(_ALLOWED[self.what]))
            raise ValueError(f"{self.what} is a fault of {calls}, not of {self.call}")
        if self.what is Fault.ERROR and self.code is None:
            raise ValueError("an error needs a code")
        if self.what in _TIMED and not self.seconds:
            raise ValueError(f"{self.what} needs seconds")
        if self.notice_seconds is not None and self.what is not Fault.RECLAIM:
            raise ValueError(f"notice_seconds is of {Fault.RECLAIM} only, not of {self.what}")
        aimed = self.owner or self.region or self.node or self.rank is not None
        if self.call in {Call.LIST, Call.LIST_OFFERS} and aimed:
            raise ValueError(f"{self.call} is one call for all owners, places and nodes")
        return self

    @property
    def side(self) -> When:
        """Before or after the effect."""
        usual = When.AFTER if self.what is Fault.LOST_RESPONSE else When.BEFORE
        return self.when or usual

    @property
    def aimed_at_node(self) -> bool:
        """Whether it concerns single nodes of a call."""
        return self.node is not None or self.rank is not None

    @property
    def spoils_one_node(self) -> bool:
        """Whether it refuses single nodes of a call that takes effect on the others."""
        return self.aimed_at_node and self.what in {Fault.ERROR, Fault.REFUSAL}

    @property
    def lacks_capacity(self) -> bool:
        """Whether it says that the machine is not in stock."""
        if self.what is Fault.REFUSAL:
            return True
        return self.what is Fault.ERROR and kind_of(self.code or "") is Kind.CAPACITY

    @property
    def makes_spot_end(self) -> bool:
        """Whether it is about machines that are bought on spot, and no others."""
        return self.what is Fault.RECLAIM

    @property
    def text(self) -> str:
        """The vendor's code and words."""
        return f"{self.code or NO_CAPACITY}: {self.words}"

    @property
    def words(self) -> str:
        """The vendor's words."""
        return self.message or "scripted by a fault rule"

    def error(self) -> GarrisonError:
        """Return the exception that it ends a call with."""
        if self.what is Fault.LOST_RESPONSE:
            return ProviderUnreachable(
                RESPONSE_LOST if self.side is When.AFTER else REQUEST_LOST,
            )
        return error_for(
            self.code or NO_CAPACITY, self.words, retry_after_seconds=self.retry_after_seconds
        )


@dataclass(frozen=True, slots=True)
class Target:
    """What a call is about, for rules to match.

    Attributes:
        nodes: Provider id and rank of each node concerned; of a launch only ranks are known.
        spot: A launch of spot machines.
    """

    call: Call
    token: str = ""
    owner: str = ""
    region: str = ""
    nodes: tuple[tuple[str, int], ...] = ()
    spot: bool = False


@dataclass(frozen=True, slots=True)
class Hits:
    """The rules that act on one call."""

    rules: tuple[FaultRule, ...] = ()

    def seconds(self, what: Fault, side: When | None = None) -> float:
        """Return how long a kind of fault takes, all rules together."""
        return sum(r.seconds for r in self.rules if r.what is what and side in {None, r.side})

    def first(self, *kinds: Fault, side: When) -> FaultRule | None:
        """Return the oldest rule of the kinds on one side of the effect."""
        return next((r for r in self.rules if r.what in kinds and r.side is side), None)

    def check_before(self) -> None:
        """Raise what a rule scripts before the effect, if one does."""
        rule = self.failing_before()
        if rule is not None:
            raise rule.error()

    def failing_before(self) -> FaultRule | None:
        """Return the rule that ends the call before its effect."""
        return self.first(Fault.ERROR, Fault.REFUSAL, Fault.LOST_RESPONSE, side=When.BEFORE)

    def failing_after(self) -> FaultRule | None:
        """Return the rule that spoils the answer of a call that took effect."""
        return self.first(Fault.ERROR, Fault.LOST_RESPONSE, side=When.AFTER)


def add_rule(tx: Tx, rule: FaultRule, now: int) -> FaultRule:
    """Store a rule and return it with its id."""
    until = None if rule.lasts_seconds is None else now + span(rule.lasts_seconds)
    cursor = tx.execute(
        "INSERT INTO faults (call, rule, remaining, skip, until) VALUES (?, ?, ?, ?, ?)",
        (rule.call, rule.model_dump_json(exclude={"id"}), rule.times, rule.skip, until),
    )
    return rule.model_copy(update={"id": cursor.lastrowid})


def list_rules(tx: Tx, now: int, call: Call | None = None) -> list[FaultRule]:
    """Return the rules still in force, oldest first, with what is left of their counts."""
    rows = tx.execute(
        "SELECT id, rule, remaining, skip FROM faults"
        " WHERE (?1 IS NULL OR call = ?1) AND (until IS NULL OR until > ?2) ORDER BY id",
        (call, now),
    )
    return [
        FaultRule.model_validate_json(text).model_copy(
            update={"id": number, "times": remaining, "skip": skip}
        )
        for number, text, remaining, skip in rows.fetchall()
    ]


def take_hits(tx: Tx, target: Target, now: int, *, replayed: bool = False) -> Hits:
    """Return the rules that act on a call, and count them down.

    Args:
        tx: The call's transaction.
        target: The call.
        now: Its time.
        replayed: The purchase was made before, so nothing is in or out of stock any more.
    """
    matching = [r for r in list_rules(tx, now, target.call) if matches(r, target)]
    if replayed:
        matching = [r for r in matching if not (r.lacks_capacity or r.makes_spot_end)]
    return Hits(tuple(count_down(tx, matching)))


def count_down(tx: Tx, rules: Iterable[FaultRule]) -> list[FaultRule]:
    """Use up one turn of each rule and return those that act this time."""
    acting = []
    for rule in rules:
        if rule.skip:
            tx.execute("UPDATE faults SET skip = skip - 1 WHERE id = ?", (rule.id,))
            continue
        acting.append(rule)
        if rule.times is not None:
            tx.execute("UPDATE faults SET remaining = remaining - 1 WHERE id = ?", (rule.id,))
            tx.execute("DELETE FROM faults WHERE id = ? AND remaining <= 0", (rule.id,))
    return acting


def matches(rule: FaultRule, target: Target) -> bool:
    """Return whether a rule concerns a call."""
    if rule.owner and rule.owner != target.owner and not target.owner.endswith(f"/{rule.owner}"):
        return False
    if rule.makes_spot_end and not target.spot:
        return False
    if rule.region and rule.region != target.region:
        return False
    return not rule.aimed_at_node or any(singles_out(rule, *node) for node in target.nodes)


def singles_out(rule: FaultRule, provider_id: str, rank: int) -> bool:
    """Return whether a rule concerns one node of a call."""
    return rule.node in {None, provider_id} and rule.rank in {None, rank}
