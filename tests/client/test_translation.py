"""Temporal's errors in Garrison's words."""

from __future__ import annotations

import pytest
from temporalio.client import Client

from garrison.client.translation import translated
from garrison.errors import NotFound


async def test_a_namespace_that_is_not_there_is_named_with_the_remedy(client: Client) -> None:
    elsewhere = Client(client.service_client, namespace="nope")

    with pytest.raises(NotFound) as caught, translated("cluster list"):
        _ = [row async for row in elsewhere.list_workflows()]

    assert "nope" in str(caught.value)
    assert "GARRISON_NAMESPACE" in str(caught.value)
    assert "there is no cluster list" not in str(caught.value)


async def test_a_resource_that_is_not_there_is_still_that(client: Client) -> None:
    with (
        pytest.raises(NotFound, match=r"^there is no cluster train-1$"),
        translated("cluster train-1"),
    ):
        await client.get_workflow_handle("cluster/train-1").describe()
