"""What is known of the Temporal Service and of the `garrison up` that runs one."""

from __future__ import annotations

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
