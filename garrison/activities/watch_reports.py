"""What a watching activity says of itself in its heartbeats, so that it costs no history event."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import activity

from garrison.activities.heartbeat import beat_pause
from garrison.domain.health import living_nodes
from garrison.errors import ErrorCode, GarrisonError
from garrison.models.group import Group
from garrison.models.observation import OrphanMachines, WatchReport, WatchTrouble

LIVES_SHOWN = 3
MACHINES_SHOWN = 3
MESSAGE_BYTES = 300
ID_BYTES = 64

Life = tuple[str, str, tuple[Group, ...]]
"""Owner, uid and machines."""


class Reporter:
    """The report of one watch, kept up to date and sent with every heartbeat."""

    def __init__(
        self,
        before: Sequence[Any],
        *,
        interval: timedelta,
        clock: Callable[[], datetime],
        send: Callable[[WatchReport], None] = activity.heartbeat,
    ) -> None:
        """Go on from what the observer before this one reported.

        Args:
            before: Its heartbeat details; anything else than a report is passed over.
            interval: How often a calm provider is looked at.
            clock: The time of this host.
            send: Sends a heartbeat.
        """
        self._clock = clock
        self._send = send
        self.report = _report_in(before).model_copy(update={"interval": interval})

    def passed(self, orphans: Iterable[Life], reaped: int) -> None:
        """Report a complete pass."""
        lives = sorted(orphans, key=lambda life: life[:2])
        machines = [_machines(*life) for life in lives]
        self._change(
            passed_at=self._clock(),
            error=None,
            orphan_machines=sum(one.machines for one in machines),
            orphans=tuple(machines[:LIVES_SHOWN]),
            reaped=self.report.reaped + reaped,
        )

    def failed(self, error: Exception) -> None:
        """Report a pass that failed; the time of the first failure stays."""
        before = self.report.error
        code = error.code if isinstance(error, GarrisonError) else ErrorCode.SERVICE_UNREACHABLE
        self._trouble(code, str(error), before.since if before else self._clock())

    def crashed(self, error: Exception) -> None:
        """Report a fault of the observer itself."""
        before = self.report.error
        text = f"{type(error).__name__}: {error}"
        self._trouble(ErrorCode.INTERNAL, text, before.since if before else self._clock())

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Send the report every few seconds while the body runs."""

        async def beat() -> None:
            while True:
                self._send(self.report)
                await asyncio.sleep(beat_pause())

        task = asyncio.create_task(beat())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _trouble(self, code: ErrorCode, text: str, since: datetime) -> None:
        self._change(error=WatchTrouble(code=code, message=_cut(text, MESSAGE_BYTES), since=since))

    def _change(self, **fields: Any) -> None:
        self.report = self.report.model_copy(update=fields)
        self._send(self.report)


def _report_in(details: Sequence[Any]) -> WatchReport:
    if details and isinstance(details[0], dict):
        try:
            return WatchReport.model_validate(details[0])
        except ValidationError:
            # Of another version; the first pass makes a report anew.
            activity.logger.warning("report of an earlier observer is unreadable")
    return WatchReport()


def _machines(owner: str, uid: str, groups: tuple[Group, ...]) -> OrphanMachines:
    ids = [node.provider_id for node in living_nodes(groups)]
    return OrphanMachines(
        owner=_cut(owner, ID_BYTES + 16),
        uid=_cut(uid, ID_BYTES),
        machines=len(ids),
        provider_ids=tuple(_cut(one, ID_BYTES) for one in ids[:MACHINES_SHOWN]),
    )


def _cut(text: str, size: int) -> str:
    """Cut what a provider said so that it stays small in JSON, whatever is in it."""
    quoted = text.replace('"', "'").replace("\\", "/")
    plain = "".join(one if one.isprintable() else "?" for one in quoted)
    raw = plain.encode(errors="replace")
    return plain if len(raw) <= size else raw[: size - 3].decode(errors="ignore") + "..."
