"""The registry of adapters that the contract suite runs against."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contracts.adapters import AdapterUnderTest, Factory
from tests.contracts.local_adapter import local_under_test
from tests.contracts.simulated_adapter import simulated_under_test

ADAPTERS: dict[str, Factory] = {
    "local": local_under_test,
    "simulated": simulated_under_test,
}


@pytest_asyncio.fixture(params=sorted(ADAPTERS))
async def subject(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[AdapterUnderTest]:
    async with ADAPTERS[request.param](tmp_path) as under_test:
        yield under_test
