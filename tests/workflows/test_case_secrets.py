"""Secrets reach the node and nothing else: no history, no memo, no answer, no log, no error."""

from __future__ import annotations

import dataclasses
import logging

import pytest
from temporalio.client import WorkflowUpdateFailedError

from garrison.domain.clusters.outcome import WORKLOAD
from garrison.models.cluster_messages import QuoteRequest
from garrison.models.group import WorkloadState
from garrison.providers.simulated.faults import Call
from garrison.sealing import open_env
from garrison.workflows.cluster import ClusterWorkflow
from tests.workflows.conftest import VirtualStory

SECRET = "hunter2-and-more"


async def test_env_values_reach_the_node_and_are_in_no_history(
    virtual: VirtualStory, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[dict[str, str]] = []

    def opening(env: dict[str, str]) -> dict[str, str]:
        opened.append(open_env(virtual.keys, env, virtual.folder / "secrets"))
        return opened[-1]

    virtual.parts = dataclasses.replace(virtual.parts, open_env=opening)
    caplog.set_level(logging.DEBUG)
    spec = {"command": ["train"], "env": {"TOKEN": SECRET, "PLAIN": "plain:to-be-seen"}}

    async with virtual.worker():
        running = await virtual.running(**spec)
        await virtual.until(
            running.name, lambda s: all(node.workload is not None for node in s.nodes)
        )
        names = virtual.console.env_names(virtual.node_id(0), WORKLOAD)
        await virtual.clusters.terminate(running.name)
        ended = await virtual.ended(running.name)
        events = [e async for e in virtual.handle(running.name).fetch_history_events()]
        memo = await (await virtual.handle(running.name).describe()).memo()

    history = b"".join(event.SerializeToString() for event in events)
    assert [env["TOKEN"] for env in opened] == [SECRET]
    assert {"TOKEN", "PLAIN"} <= set(names)
    assert b"TOKEN" in history
    assert b"to-be-seen" in history
    assert SECRET.encode() not in history
    assert SECRET not in ended.model_dump_json()
    assert SECRET not in str(memo)
    assert SECRET not in caplog.text


async def test_a_secret_that_was_not_sealed_is_refused_without_being_shown(
    virtual: VirtualStory,
) -> None:
    async with virtual.worker():
        quote = await virtual.quote()
        spec = virtual.spec(name=quote.name, env={"TOKEN": SECRET})
        request = QuoteRequest(request_id="x", quote_id="x", spec=spec)
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await virtual.handle(quote.name).execute_update(ClusterWorkflow.quote, request)
        events = [e async for e in virtual.handle(quote.name).fetch_history_events()]

    assert "env.TOKEN" in str(caught.value.cause)
    assert SECRET not in str(caught.value.cause)
    assert SECRET.encode() not in b"".join(event.SerializeToString() for event in events)


async def test_a_command_that_a_node_refuses_has_failed_there_and_says_why(
    virtual: VirtualStory,
) -> None:
    virtual.fault(Call.START_WORKLOAD, code="InvalidParameterValue", rank=0, times=None)

    async with virtual.worker():
        running = await virtual.running(command=["train"])
        told = await virtual.until(
            running.name, lambda s: any(e.reason == "WorkloadNotStarted" for e in s.events)
        )

    refused = told.nodes[0].workload
    assert refused is not None
    assert refused.state is WorkloadState.FAILED
    assert "InvalidParameterValue" in (refused.message or "")
