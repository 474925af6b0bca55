"""What the kept histories are of, and what they must not tell."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client

from garrison.models import cluster_state, deployment_state, nodepool_state
from garrison.models.base import Message
from garrison.models.cluster_messages import ClusterInput
from garrison.models.cluster_state import Phase
from garrison.models.compute_cluster import ComputeClusterInput, ComputeClusterState
from garrison.models.deployment_state import DeploymentInput
from garrison.models.load import LoadWatchInput
from garrison.models.nodepool import PoolPhase
from garrison.models.nodepool_state import NodepoolInput
from garrison.models.observation import WatchInput
from tests.histories.kept import (
    FILES,
    attributes_of,
    claim_in,
    events_of,
    payloads_in,
    text_of,
)
from tests.histories.record import FIRSTS, paths_of
from tests.workflows.conftest import Story

STANDALONE = {
    "list_offers",
    "list_orphans",
    "read_log",
    "read_replica_log",
    "resolve_deployment",
    "keep_sealed",
    "sweep_orphans",
}
"""Activities that only clients start, so that no history has them."""

INPUTS: dict[str, type[Message]] = {
    "Cluster": ClusterInput,
    "ComputeCluster": ComputeClusterInput,
    "Deployment": DeploymentInput,
    "LoadWatch": LoadWatchInput,
    "Nodepool": NodepoolInput,
    "ProviderWatch": WatchInput,
}

SCHEMA_VERSIONS = {
    "Cluster": cluster_state.SCHEMA_VERSION,
    "ComputeCluster": ComputeClusterState.model_fields["schema_version"].default,
    "Deployment": deployment_state.SCHEMA_VERSION,
    "Nodepool": nodepool_state.SCHEMA_VERSION,
}

PHASES: dict[str, Iterable[str]] = {
    "Cluster": Phase,
    "ComputeCluster": ("active", "deleting"),
    "Deployment": ("enabled", "disabled", "deleting", "deleted"),
    "Nodepool": PoolPhase,
}


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    return [event for file in FILES for event in events_of(file)]


def _all(events: Iterable[dict[str, Any]], kind: str, *keys: str) -> set[str]:
    found = (attributes_of(event, kind, *keys) for event in events)
    return {one for one in found if one is not None}


def _by_type(events: Iterable[dict[str, Any]], kind: str, *keys: str) -> set[tuple[str, Any]]:
    """What events of a kind say at the end of a path of keys, with their workflow's type."""
    found, type_name = set(), ""
    for event in events:
        started = attributes_of(event, "workflowExecutionStarted", "workflowType", "name")
        type_name = started or type_name
        said = attributes_of(event, kind, *keys)
        found |= {(type_name, one) for one in _words(said)}
    return found


def _words(said: Any) -> list[str]:
    """What was said as it is, or in a payload."""
    return [said] if isinstance(said, str) else [*payloads_in(said)]


def _activities(events: Iterable[dict[str, Any]]) -> set[str]:
    local = {
        said["activity_type"]
        for event in events
        for said in payloads_in(attributes_of(event, "markerRecorded"))
        if isinstance(said, dict) and "activity_type" in said
    }
    return local | _all(events, "activityTaskScheduled", "activityType", "name")


@pytest.mark.parametrize("folder", FIRSTS)
def test_each_path_has_a_history(folder: str) -> None:
    recorded = {file.name.split(".")[0] for file in FILES if file.parent.name == folder}

    assert recorded == paths_of(folder)


async def test_all_that_a_worker_offers_is_in_some_history(
    client: Client, tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    # Entered, as a worker that is only built stays registered for its queues.
    story = Story(client, tmp_path)
    async with story.worker() as worker:
        configs = [part.config() for part in worker.workers]
    await story.end()
    workflows = [
        workflow._Definition.must_from_class(one)
        for config in configs
        for one in config.get("workflows", ())
    ]
    activities = {
        activity._Definition.must_from_callable(one).name
        for config in configs
        for one in config.get("activities", ())
    }

    input_name = ("acceptedRequest", "input", "name")
    assert _all(events, "workflowExecutionStarted", "workflowType", "name") == {
        one.name for one in workflows
    }
    assert _by_type(events, "workflowExecutionUpdateAccepted", *input_name) == {
        (one.name, name) for one in workflows for name in one.updates
    }
    assert _by_type(events, "workflowExecutionSignaled", "signalName") == {
        (one.name, name) for one in workflows for name in one.signals
    }
    assert _activities(events) == activities - STANDALONE


def test_each_phase_is_in_some_history(events: list[dict[str, Any]]) -> None:
    keys = ("searchAttributes", "indexedFields", "GarrisonPhase")

    assert _by_type(events, "upsertWorkflowSearchAttributes", *keys) == {
        (kind, phase) for kind, phases in PHASES.items() for phase in phases
    }


def _continued(events: Iterable[dict[str, Any]]) -> list[tuple[str, Any]]:
    """The types and inputs of all runs that another one went on from."""
    kind = "workflowExecutionContinuedAsNew"
    return [
        (attributes_of(event, kind, "workflowType", "name"), said)
        for event in events
        for said in payloads_in(attributes_of(event, kind, "input"))
    ]


def _keeps(loaded: Any, stored: Any) -> bool:
    """Whether all that was stored is still there; there may be more."""
    if isinstance(stored, dict):
        return all(key in loaded and _keeps(loaded[key], stored[key]) for key in stored)
    if isinstance(stored, list):
        return len(loaded) == len(stored) and all(map(_keeps, loaded, stored))
    return bool(loaded == stored)


def test_a_state_that_any_version_handed_on_loads_without_loss(
    events: list[dict[str, Any]],
) -> None:
    continued = _continued(events)

    assert {kind for kind, _ in continued} == set(INPUTS)
    for kind, stored in continued:
        loaded: Any = INPUTS[kind].model_validate(stored)
        assert _keeps(loaded.model_dump(mode="json"), stored)
        if kind in SCHEMA_VERSIONS:
            assert loaded.state is not None
            assert loaded.state.schema_version <= SCHEMA_VERSIONS[kind]


@pytest.mark.parametrize("file", FILES, ids=claim_in)
def test_a_kept_history_tells_no_secret_and_not_where_it_was_recorded(file: Path) -> None:
    text = text_of(file)
    decoded = json.dumps([*payloads_in(json.loads(text))])

    for unwanted in ("hidden", "/tmp/", "/home/", "/root/", "Traceback", "stackTrace"):
        assert unwanted not in text
        assert unwanted not in decoded
    assert set(_all(events_of(file), "workflowTaskStarted", "identity")) == {"recorder"}
