"""What the kept histories are of, and what they must not tell."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client

from garrison.models.base import Message
from garrison.models.cluster_messages import ClusterInput
from garrison.models.cluster_state import SCHEMA_VERSION, Phase
from garrison.models.observation import WatchInput
from tests.histories.kept import (
    FILES,
    FIRST,
    attributes_of,
    claim_in,
    events_of,
    payloads_in,
    text_of,
)
from tests.histories.paths import REAL, VIRTUAL
from tests.histories.record import claim_of
from tests.workflows.conftest import Story

STANDALONE = {"read_log", "list_offers", "list_orphans", "sweep_orphans"}
"""Activities that only clients start, so that no history has them."""

INPUTS: dict[str, type[Message]] = {"Cluster": ClusterInput, "ProviderWatch": WatchInput}


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    return [event for file in FILES for event in events_of(file)]


def _all(events: Iterable[dict[str, Any]], kind: str, *keys: str) -> set[str]:
    found = (attributes_of(event, kind, *keys) for event in events)
    return {one for one in found if one is not None}


def _phases(events: Iterable[dict[str, Any]]) -> set[str]:
    keys = ("searchAttributes", "indexedFields", "GarrisonPhase")
    upserts = (attributes_of(one, "upsertWorkflowSearchAttributes", *keys) for one in events)
    return {phase for upsert in upserts for phase in payloads_in(upsert)}


def _activities(events: Iterable[dict[str, Any]]) -> set[str]:
    local = {
        said["activity_type"]
        for event in events
        for said in payloads_in(attributes_of(event, "markerRecorded"))
        if isinstance(said, dict) and "activity_type" in said
    }
    return local | _all(events, "activityTaskScheduled", "activityType", "name")


def test_each_path_has_a_history() -> None:
    recorded = {file.name.split(".")[0] for file in FILES if file.parent.name == FIRST}

    assert recorded == {claim_of(path) for path in (*VIRTUAL, *REAL)}


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
    assert _all(events, "workflowExecutionUpdateAccepted", *input_name) == {
        name for one in workflows for name in one.updates
    }
    assert _all(events, "workflowExecutionSignaled", "signalName") == {
        name for one in workflows for name in one.signals
    }
    assert _activities(events) == activities - STANDALONE


def test_each_phase_is_in_some_history(events: list[dict[str, Any]]) -> None:
    assert _phases(events) == set(Phase)


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
    return bool(loaded == stored)


def test_a_state_that_any_version_handed_on_loads_without_loss(
    events: list[dict[str, Any]],
) -> None:
    continued = _continued(events)

    assert {kind for kind, _ in continued} == set(INPUTS)
    for kind, stored in continued:
        loaded = INPUTS[kind].model_validate(stored)
        assert _keeps(loaded.model_dump(mode="json"), stored)
        if isinstance(loaded, ClusterInput):
            assert loaded.state is not None
            assert loaded.state.schema_version <= SCHEMA_VERSION


@pytest.mark.parametrize("file", FILES, ids=claim_in)
def test_a_kept_history_tells_no_secret_and_not_where_it_was_recorded(file: Path) -> None:
    text = text_of(file)
    decoded = json.dumps([*payloads_in(json.loads(text))])

    for unwanted in ("hidden", "/tmp/", "/home/", "/root/", "Traceback", "stackTrace"):
        assert unwanted not in text
        assert unwanted not in decoded
    assert set(_all(events_of(file), "workflowTaskStarted", "identity")) == {"recorder"}
