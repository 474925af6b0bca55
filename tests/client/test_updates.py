"""An update that meets a workflow between two runs is sent again, and nothing else is.

And one that starts its workflow fails once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from garrison.client.clusters import Clusters
from garrison.client.deployments import Deployments
from garrison.client.translation import translated
from garrison.client.updates import send_update
from garrison.errors import GarrisonError, ServiceUnreachable, TooManyRequests
from garrison.models.cluster import ClusterSpec
from garrison.models.deployment import DeploymentPool, DeploymentSpec, ReplicaTemplate
from garrison.settings import load_settings

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


DEPLOYMENT = DeploymentSpec(
    id="unheard",
    template=ReplicaTemplate(command=("serve",)),
    nodepools=(DeploymentPool(compute_cluster="gpus", nodepool="a10g"),),
)


@pytest.mark.parametrize(
    ("begin", "workflow"),
    [
        pytest.param(
            lambda clusters, _: clusters.quote(ClusterSpec(name="unheard")),
            "cluster/unheard",
            id="cluster",
        ),
        pytest.param(
            lambda _, deployments: deployments.create(DEPLOYMENT),
            "deployment/unheard",
            id="deployment",
        ),
    ],
)
async def test_a_start_that_nobody_answers_fails_once(
    client: Client,
    tmp_path: Path,
    begin: Callable[[Clusters, Deployments], Awaitable[object]],
    workflow: str,
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
    settings = load_settings({"GARRISON_DATA_DIR": str(tmp_path)})
    soon, nobody = timedelta(seconds=0.3), cast(Any, None)
    clusters = Clusters(client, settings, call_timeout=soon)
    deployments = Deployments(client, settings, nobody, call_timeout=soon)

    with pytest.raises(ServiceUnreachable):
        await begin(clusters, deployments)
    with contextlib.suppress(RPCError):  # what was begun, if anything
        await client.get_workflow_handle(workflow).terminate()

    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
