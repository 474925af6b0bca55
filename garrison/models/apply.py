"""What `apply` would change, and what became of it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from garrison.models.base import Message, Rate


class ResourceNoun(StrEnum):
    """A kind of resource that `apply` makes, in the order in which they are made."""

    COMPUTE_CLUSTER = "compute cluster"
    NODEPOOL = "nodepool"
    DEPLOYMENT = "deployment"


class ApplyAction(StrEnum):
    """What has to be done with one resource."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"


class Difference(Message):
    """One field that is not as the file says; texts as people read them, never a secret."""

    field: str
    before: str
    after: str


class ApplyStep(Message):
    """What has to be done with one resource.

    Attributes:
        name: `<compute cluster>/<nodepool>` of a nodepool.
        machines: How many machines are bought for it at once.
        hourly_usd: What those cost, None where a price is not known.
        uid: Of the life that is changed; once done, of the one that was made.
        done: It was carried out.
    """

    noun: ResourceNoun
    name: str
    action: ApplyAction
    differences: tuple[Difference, ...] = ()
    machines: int = 0
    hourly_usd: Rate | None = None
    warnings: tuple[str, ...] = ()
    source: str | None = None
    uid: str | None = None
    done: bool = False


class ApplyReport(Message):
    """All steps of one `apply`, in order.

    Attributes:
        warnings: Of the files, each with the file's name.
    """

    steps: tuple[ApplyStep, ...] = ()
    warnings: tuple[str, ...] = Field(default=())
