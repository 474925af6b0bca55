"""The port of a source of load: it tells what traffic the deployments that it follows have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from garrison.models.load import Followed, LoadCounts


class LoadSource(Protocol):
    """Counts the requests of deployments.

    Counters may begin anew, which `garrison.domain.autoscaling.decision` understands; a number that
    is absent, stale, not a number or only of some replicas makes the whole deployment missing.
    """

    async def read(self, followed: Sequence[Followed]) -> Mapping[str, LoadCounts]:
        """Return the traffic by deployment id in lower case; who is left out is missing.

        Never raises for what the source answers or that it does not answer: all are missing then,
        and it is logged once until it is well again.
        """
        ...
