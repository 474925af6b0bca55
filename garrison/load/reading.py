"""From what a source of load saw of a deployment to its load: whole or missing, and said once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from garrison.domain.autoscaling.series import (
    HOLE_SECONDS,
    NOBODY_READY,
    REMEMBERED_SECONDS,
    LoadSeries,
    Look,
    count_load,
    find_missing,
)
from garrison.models.deployment import LoadConfig
from garrison.models.load import Followed, LoadCounts

PATIENCE_SECONDS = HOLE_SECONDS
"""A new replica is not scraped at once, which nobody need hear of."""
MAX_REASON = 300
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was seen of one deployment.

    Attributes:
        up: How many replicas it is of, None where only the numbers tell.
        missing: Why nothing was seen, in words; `said` if that was logged for all of the source.
    """

    look: Look = field(default_factory=dict)
    up: float | None = None
    missing: str | None = None
    said: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    config: LoadConfig
    series: LoadSeries
    read_at: float


@dataclass(slots=True)
class _Trouble:
    began_at: float
    said: bool = False


class Tally:
    """The loads of all deployments of one source, from look to look."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._troubles: dict[str, _Trouble] = {}

    def count(self, one: Followed, reading: Reading, at: float) -> LoadCounts | None:
        """Return the load of a deployment, None where it is missing; why is logged once."""
        missing = reading.missing or find_missing(reading.look, ready=one.ready, up=reading.up)
        if missing is not None:
            if not reading.said and missing != NOBODY_READY:
                self._say(one.id, missing, at)
            return None
        counts, series = count_load(self._series(one), reading.look, at)
        self._known[one.uid] = _Known(one.autoscale.load, series, at)
        self._clear(one.id)
        return counts

    def forget(self, followed: Sequence[Followed], at: float) -> None:
        """Forget who is not followed any more."""
        uids, ids = {one.uid for one in followed}, {one.id for one in followed}
        self._known = {
            uid: known
            for uid, known in self._known.items()
            if uid in uids or at - known.read_at <= REMEMBERED_SECONDS
        }
        self._keep_troubles(ids)

    def _series(self, one: Followed) -> LoadSeries:
        known = self._known.get(one.uid)
        if known is None:
            return LoadSeries()
        if known.config != one.autoscale.load:
            # Other counters from here on: what they have counted so far is not of this source.
            return replace(known.series, at=None)
        return known.series

    def _keep_troubles(self, ids: Collection[str]) -> None:
        self._troubles = {name: one for name, one in self._troubles.items() if name in ids}

    def _say(self, name: str, missing: str, at: float) -> None:
        trouble = self._troubles.setdefault(name, _Trouble(at))
        if not trouble.said and at - trouble.began_at >= PATIENCE_SECONDS:
            trouble.said = True
            logger.warning("load of deployment %s is missing: %s", name, shorten(missing))

    def _clear(self, name: str) -> None:
        trouble = self._troubles.pop(name, None)
        if trouble is not None and trouble.said:
            logger.warning("load of deployment %s is told again", name)


def shorten(text: str) -> str:
    """Return a text from elsewhere as a log may show it: one line, printable, clipped."""
    plain = "".join(c if c.isprintable() else " " for c in text[:MAX_REASON])
    return f"{plain}..." if len(text) > MAX_REASON else plain
