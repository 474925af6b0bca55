"""What is known of the Temporal Service and of the `garrison up` that runs one."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from garrison.models.base import Message, Time


class ProcessRecord(Message):
    """A process, named so that a later one under the same id is not taken for it.

    Attributes:
        created: When the system says that it began, in seconds since 1970.
    """

    pid: int = Field(gt=0)
    created: float


class UpRecord(Message):
    """The `up.json` of a data directory.

    Attributes:
        server: The Temporal server; it can outlive `up`.
        up: The `garrison up` that started it or took it over last.
        stopping: The server was told to end, so that nobody takes it over any more.
    """

    server: ProcessRecord
    up: ProcessRecord
    host: str
    port: int
    ui_port: int
    namespace: str
    started_at: Time
    stopping: bool = False

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"{self.host}:{self.port}"

    @property
    def ui(self) -> str:
        """The address of the Temporal UI."""
        return f"http://{self.host}:{self.ui_port}"


class CheckStatus(StrEnum):
    """What a check found."""

    OK = "ok"
    FAIL = "fail"
    NOTE = "note"


class Check(Message):
    """One line of `garrison doctor`.

    Attributes:
        detail: What was found.
        remedy: What to do about it, None when nothing is to be done.
        unreachable: The service does not answer, so that nothing more can be asked.
        invalid: What a person set cannot be.
    """

    name: str
    status: CheckStatus
    detail: str
    remedy: str | None = None
    unreachable: bool = Field(default=False, exclude=True)
    invalid: bool = Field(default=False, exclude=True)


def ok(name: str, detail: str) -> Check:
    """Return a check that passed."""
    return Check(name=name, status=CheckStatus.OK, detail=detail)


def note(name: str, detail: str, remedy: str | None = None) -> Check:
    """Return a finding that stops nothing."""
    return Check(name=name, status=CheckStatus.NOTE, detail=detail, remedy=remedy)


def fail(
    name: str, detail: str, remedy: str, *, unreachable: bool = False, invalid: bool = False
) -> Check:
    """Return a check that did not pass."""
    return Check(
        name=name,
        status=CheckStatus.FAIL,
        detail=detail,
        remedy=remedy,
        unreachable=unreachable,
        invalid=invalid,
    )
