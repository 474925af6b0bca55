"""Whatever stands in a file, it is read or refused in words; nothing else ever comes out."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.errors import InvalidSpec
from garrison.models.elastic_file import (
    ResourceKind,
    read_compute_cluster_file,
    read_deployment_file,
    read_nodepool_file,
    read_resource_file,
)

WHOLE: dict[str, dict[str, Any]] = {
    ResourceKind.COMPUTE_CLUSTER: {
        "id": "c",
        "cloud_provider": {"id": "aws"},
        "region": "r",
        "managed_by": "clarifai",
        "visibility": {"gettable": 10},
    },
    ResourceKind.NODEPOOL: {
        "id": "p",
        "compute_cluster": {"id": "c"},
        "instance_types": [
            {"id": "a", "compute_info": {"cpu_limit": "8", "accelerator_type": ["a10"]}},
            {"id": "b"},
        ],
        "node_capacity_type": {"capacity_types": [1, 2]},
        "min_instances": 0,
        "max_instances": 1,
        "ssh_keys": [],
    },
    ResourceKind.DEPLOYMENT: {
        "id": "d",
        "worker": {
            "command": ["serve"],
            "env": {"A": "b"},
            "port": 80,
            "resources": {"cpu": 1, "memory": "1Gi", "accelerators": 1, "accelerator_type": "x"},
            "health": {"path": "/"},
        },
        "autoscale_config": {"min_replicas": 0, "enable_packing": True},
        "scheduling_choice": 4,
        "nodepools": [{"id": "p", "compute_cluster": {"id": "c"}}],
        "deployment_nodepools": [{"nodepool": {"id": "p", "compute_cluster": {"id": "c"}}}],
    },
}
ODD: tuple[Any, ...] = (
    *("", "null", None, "0", "-1", "9" * 30, "NaN", "x", "a b", True),
    *([], {}, [[]], {"id": []}, ["x"]),
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [p for key, item in inner for p in ((*path, key), *places(item, (*path, key)))]


@pytest.mark.parametrize("kind", WHOLE)
def test_the_whole_files_are_read(kind: str) -> None:
    assert read_resource_file(json.dumps({kind: WHOLE[kind]})).kind == kind


@pytest.mark.parametrize("kind", WHOLE)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_in_words(kind: str, data: st.DataObject) -> None:
    content: Any = {kind: copy.deepcopy(WHOLE[kind])}
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(places(content)[1:] or [(kind,)]))
        block = content
        for key in way:
            block = block[key]
        if data.draw(st.booleans()):
            block[last] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
        elif isinstance(block, dict):
            block.pop(last)

    text = json.dumps(content)
    told = refusal(lambda: read_resource_file(text))
    told += refusal(lambda: READERS[kind](text, "file.yaml", "mine"))

    assert all(len(line) < 1000 for line in told)


READERS: dict[str, Callable[[str, str, str], object]] = {
    ResourceKind.COMPUTE_CLUSTER: read_compute_cluster_file,
    ResourceKind.NODEPOOL: lambda text, source, id: read_nodepool_file(text, source, id, "here"),
    ResourceKind.DEPLOYMENT: read_deployment_file,
}


def refusal(read: Callable[[], object]) -> list[str]:
    """Return every mistake, none where it is read; anything but a refusal goes through."""
    try:
        read()
    except InvalidSpec as error:
        return [str(problem) for problem in error.problems]
    return []
