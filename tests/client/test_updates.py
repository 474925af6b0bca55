"""An update that meets a workflow between two runs is sent again, and nothing else is."""

from __future__ import annotations

from datetime import timedelta

import pytest
from temporalio.service import RPCError, RPCStatusCode

from garrison.client.translation import translated
from garrison.client.updates import send_update
from garrison.errors import GarrisonError, TooManyRequests

BETWEEN_RUNS = [
    (
        RPCStatusCode.FAILED_PRECONDITION,
        "Unable to perform workflow execution update due to unexpected workflow task failure.",
    ),
    (
        RPCStatusCode.RESOURCE_EXHAUSTED,
        "workflow operation can not be applied because workflow is closing",
    ),
    (RPCStatusCode.UNAVAILABLE, "workflow update was aborted"),
]
"""As the dev server answers when an update and a continue-as-new cross."""


class Door:
    """Takes an update after so many refusals."""

    def __init__(self, status: RPCStatusCode, message: str, *, refusals: int) -> None:
        self._error = RPCError(message, status, b"")
        self._refusals = refusals
        self.knocks = 0

    async def knock(self) -> str:
        self.knocks += 1
        if self.knocks <= self._refusals:
            raise self._error
        return "accepted"


@pytest.mark.parametrize(("status", "message"), BETWEEN_RUNS)
async def test_an_update_between_two_runs_is_sent_again_until_it_is_taken(
    status: RPCStatusCode, message: str
) -> None:
    door = Door(status, message, refusals=2)

    answer = await send_update(door.knock, within=timedelta(seconds=10))

    assert answer == "accepted"
    assert door.knocks == 3


@pytest.mark.parametrize(("status", "message"), BETWEEN_RUNS)
async def test_an_update_that_is_never_taken_says_that_the_cluster_is_busy(
    status: RPCStatusCode, message: str
) -> None:
    door = Door(status, message, refusals=1_000)

    with pytest.raises(TooManyRequests), translated("cluster train-1"):
        await send_update(door.knock, within=timedelta(seconds=0.15))

    assert door.knocks > 1


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (RPCStatusCode.FAILED_PRECONDITION, "updates are disabled"),
        (RPCStatusCode.RESOURCE_EXHAUSTED, "limit on concurrent in-flight updates"),
        (RPCStatusCode.UNAVAILABLE, "connection refused"),
        (RPCStatusCode.NOT_FOUND, "workflow execution already completed"),
    ],
)
async def test_any_other_refusal_is_final(status: RPCStatusCode, message: str) -> None:
    door = Door(status, message, refusals=1)

    with pytest.raises(GarrisonError), translated("cluster train-1"):
        await send_update(door.knock, within=timedelta(seconds=10))

    assert door.knocks == 1
