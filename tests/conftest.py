"""Servers that several test folders share."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from garrison.failures import DATA_CONVERTER
from garrison.workers import main
from garrison.workflows.visibility import ALL_KEYS

# The same examples each time, so that a red run is a change's fault; `explore` looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# Hundreds of workers stop in these tests, and each would wait a second for its watch.
main.WATCH_GRACE = timedelta(milliseconds=50)

BIN = Path(sys.executable).parent


@pytest.fixture(scope="session")
async def dev_server() -> AsyncIterator[WorkflowEnvironment]:
    """A real dev server in memory, with our search attributes."""
    environment = await WorkflowEnvironment.start_local(
        data_converter=DATA_CONVERTER,
        search_attributes=ALL_KEYS,
        dev_server_existing_path=str(BIN / "temporal"),
        dev_server_log_level="error",
    )
    yield environment
    await environment.shutdown()


@pytest.fixture
def client(dev_server: WorkflowEnvironment) -> Client:
    """Connected to the dev server."""
    return dev_server.client
