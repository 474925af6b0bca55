"""Machines that carry an installation's id and that no workflow answers for."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum

from pydantic import Field

from garrison.errors import ErrorCode
from garrison.models.base import Message, Money, Time
from garrison.models.group import NodeStatus


class OrphanMachine(Message):
    """One machine as its provider lists it.

    Attributes:
        created_at: When it was bought.
        usd_per_hour: What the provider charges, None where it does not say.
    """

    provider_id: str
    rank: int
    status: NodeStatus
    region: str
    instance_type: str
    created_at: Time
    usd_per_hour: Money | None = None


class Orphan(Message):
    """The machines of one purchase whose life nobody knows.

    Attributes:
        installation: The id that they are tagged with.
        owner: Workflow id of the owner, as the tag says.
        uid: The life of the owner, as the tag says.
        token: Of the purchase; what a deletion goes by.
        age_seconds: Since they were bought.
        cost_usd: Of the machines that are left, over that time; None where no price is known.
        sweepable: Whether a sweep deletes them.
        reason: Why it does, or does not yet.
        simulated: They are on paper or on this computer.
        provider_type: The adapter.
    """

    provider: str
    installation: str
    owner: str
    uid: str
    token: str
    machines: tuple[OrphanMachine, ...]
    age_seconds: float
    cost_usd: Money | None = None
    sweepable: bool
    reason: str
    simulated: bool = False
    provider_type: str | None = None

    @property
    def usd_per_hour(self) -> Decimal | None:
        """What all of them cost now, None where a price is unknown."""
        prices = [machine.usd_per_hour for machine in self.machines]
        known = [price for price in prices if price is not None]
        return sum(known, Decimal(0)) if len(known) == len(prices) else None


class OrphanQuery(Message):
    """Ask a provider's worker for orphans.

    Attributes:
        installation: Whose machines; None for those of the worker's own installation.
        after: Token at which the page before ended, None for the first page.
    """

    installation: str | None = None
    after: str | None = None


class OrphanPage(Message):
    """A part of a provider's orphans, in the order of their tokens.

    Attributes:
        installation: Whose they are.
        own: Whether that is the worker's own installation.
        claimed_machines: Machines of the installation that a life answers for.
        others: Machines of other installations at the provider, by id; None where it cannot tell.
        next_after: Where the next page begins, None when there is none.
    """

    installation: str
    own: bool
    orphans: tuple[Orphan, ...] = ()
    claimed_machines: int = 0
    others: dict[str, int] | None = None
    next_after: str | None = None


class OrphanProblem(Message):
    """A provider that did not answer; that says nothing about its machines."""

    provider: str
    code: ErrorCode
    message: str


class OrphanReport(Message):
    """The orphans of all providers that were asked.

    Attributes:
        installations: Whose machines were looked for; one, unless workers have different ids.
        own: Whether that is the installation of the workers that answered.
        claimed_machines: Machines of the installation that a life answers for.
        others: Machines of other installations, by id, where providers can tell.
        problems: Providers that did not answer.
    """

    installations: tuple[str, ...] = ()
    own: bool = True
    orphans: tuple[Orphan, ...] = ()
    claimed_machines: int = 0
    others: dict[str, int] = Field(default_factory=dict)
    problems: tuple[OrphanProblem, ...] = ()


class SweepRequest(Message):
    """Delete these purchases, each only if it is still an orphan.

    Attributes:
        installation: As in `OrphanQuery`.
        tokens: What a person has seen and agreed to.
    """

    installation: str | None = None
    tokens: tuple[str, ...]


class SweepResult(StrEnum):
    """What became of a purchase in a sweep.

    `deleted`: a list that cannot be older than the deletion lacks it. `deleting`: the provider
    accepted the deletion. `gone`: it was not listed any more. `left`: it is no orphan, or too
    young. `failed`: it should go, and is not known to.
    """

    DELETED = "deleted"
    DELETING = "deleting"
    GONE = "gone"
    LEFT = "left"
    FAILED = "failed"


class Swept(Message):
    """One purchase after a sweep.

    Attributes:
        machines: How many machines of it there were.
        code: Of the failure, None without one.
        message: Why it was left, or the failure in words.
    """

    provider: str
    installation: str
    owner: str | None = None
    uid: str | None = None
    token: str
    machines: int = 0
    result: SweepResult
    code: ErrorCode | None = None
    message: str | None = None

    @classmethod
    def of(
        cls,
        orphan: Orphan,
        result: SweepResult,
        message: str | None = None,
        *,
        code: ErrorCode | None = None,
    ) -> Swept:
        """Return what became of an orphan."""
        return cls(
            provider=orphan.provider,
            installation=orphan.installation,
            owner=orphan.owner,
            uid=orphan.uid,
            token=orphan.token,
            machines=len(orphan.machines),
            result=result,
            code=code,
            message=message,
        )


class SweepAnswer(Message):
    """What became of each purchase, in the order asked."""

    swept: tuple[Swept, ...] = ()
