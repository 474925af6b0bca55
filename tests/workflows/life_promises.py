"""What holds of a cluster after whatever happened to it, by its own status."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from garrison.domain.lifecycle import NEXT
from garrison.models.cluster_state import CLOSED_PHASES, Phase
from garrison.models.cluster_status import ClusterStatus

ROUNDING = Decimal("1e-20")
"""Of a product of decimals with 28 digits."""


class Promises:
    """Watches one life from step to step."""

    def __init__(self, status: ClusterStatus) -> None:
        self._last = status
        self._charged: tuple[Decimal, Decimal] | None = None

    def check(self, status: ClusterStatus, now: datetime) -> None:
        """Take the status after a step; fails if a promise is broken."""
        assert status.uid == self._last.uid
        self._check_phases(status)
        self._check_charge(status, now)
        self._check_attempts(status)
        self._last = status

    def _check_phases(self, status: ClusterStatus) -> None:
        made, before = status.phase_transitions, self._last.phase_transitions
        assert made[: len(before)] == before, "the past was changed"
        last: Phase | None = None
        for change in made:
            assert change.phase in NEXT[last], f"{change.phase} after {last}"
            last = change.phase
        assert last == status.phase
        times = [change.time for change in made]
        assert times == sorted(times)
        assert (status.ended_at is not None) == (status.phase in CLOSED_PHASES)

    def _check_charge(self, status: ClusterStatus, now: datetime) -> None:
        if status.phase is Phase.FAILED or status.ready_at is None:
            assert status.cost_usd == 0
            return
        assert status.hourly_usd is not None
        hours = Decimal((now - status.ready_at) // timedelta(microseconds=1)) / 3_600_000_000
        most = status.hourly_usd * hours + ROUNDING
        assert 0 <= self._last.cost_usd <= status.cost_usd <= most
        if status.terminate_accepted_at is not None:
            assert status.charging_since is None
            charged = (status.cost_usd, status.charged_seconds)
            assert self._charged in {None, charged}, "charged after the accepted terminate"
            self._charged = charged

    def _check_attempts(self, status: ClusterStatus) -> None:
        before, after = self._last.recovery, status.recovery
        if after.episode is None:
            return
        attempts = before.attempts if before.episode == after.episode else 0
        assert before.episode is None or before.episode <= after.episode
        assert attempts <= after.attempts
        if after.attempts > attempts:
            # The budget may have been lowered since, but it was not spent beyond either of them.
            assert after.attempts <= max(before.max_attempts, after.max_attempts)
