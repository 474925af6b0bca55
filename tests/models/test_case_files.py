"""Ids and keys of the three files: kept as written, or refused before anything is bought."""

from __future__ import annotations

import pytest

from garrison.errors import InvalidSpec
from garrison.models.elastic_file import (
    read_compute_cluster_file,
    read_deployment_file,
    read_nodepool_file,
)

CLUSTER = """\
compute_cluster:
  id: {id}
  description: {description}
  cloud_provider: {{id: aws}}
  region: us-east-1
"""
NODEPOOL = """\
nodepool:
  id: pool
  compute_cluster: {id: test}
  instance_types: [{id: g5.2xlarge}]
"""
DEPLOYMENT = """\
deployment:
  id: web
  worker:
    command: [serve]
    env:
      PORT: 8080
      DEBUG: true
      RATIO: 1.0
      EMPTY:
      TILDE: ~
  scheduling_choice: 4
  nodepools: [{id: pool, compute_cluster: {id: test}}]
"""


def nodepool_problems(text: str) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        read_nodepool_file(text, "pool.yaml")
    assert caught.value.source == "pool.yaml"
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("id", ["00000122", "1e3", "0x1F", "2026_8_6", "no", '"null"'])
def test_a17_an_id_is_kept_letter_for_letter(id: str) -> None:
    spec, warnings = read_compute_cluster_file(CLUSTER.format(id=id, description="3.10"))

    assert spec.id == id.strip('"')
    assert spec.description == "3.10"
    assert warnings == ()


@pytest.mark.parametrize(
    ("id", "said"),
    [
        (
            "12:30:45",
            "must be 1 to 63 letters, digits, '-' or '_', first a letter or digit, not '12:30:45'",
        ),
        ("null", "is empty; if its text is meant, put it in quotes"),
        ("~", "is empty; if its text is meant, put it in quotes"),
        ("", "is empty; if its text is meant, put it in quotes"),
    ],
)
def test_a17_an_id_that_cannot_be_one_is_refused_by_line(id: str, said: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        read_compute_cluster_file(CLUSTER.format(id=id, description="x"), "cc.yaml")

    assert [str(problem) for problem in caught.value.problems] == [
        f"line 2: compute_cluster.id: {said}"
    ]


def test_a17_environment_values_are_the_text_as_written() -> None:
    file, _ = read_deployment_file(DEPLOYMENT)

    assert file.template is not None
    assert file.template.env == {
        "PORT": "8080",
        "DEBUG": "true",
        "RATIO": "1.0",
        "EMPTY": "",
        "TILDE": "~",
    }


def test_a18_several_mistakes_are_listed_together_with_line_key_and_nearest_key() -> None:
    found = nodepool_problems(
        """\
nodepool:
  id: pool
  compute_cluster: {id: test}
  min_instance: 2
  max_instances: 1
  instance_types:
    - id: g5.2xlarge
      compute_info:
        num_accelerators: 0
        accelerator_type: [a10]
        cpu_limit: many
  min_instances: 3
  max_instances: 10
  warm_instances: -1
  env_file: missing.env
"""
    )

    known = found[-1].partition("known: ")[2]
    assert found == [
        "line 4: nodepool.min_instance: is not a known key; did you mean 'min_instances'?",
        "line 5: nodepool.max_instances: must be at least min_instances (3), not 1",
        "line 10: nodepool.instance_types[0].compute_info.accelerator_type: "
        "contradicts num_accelerators: 0; remove one of them",
        "line 11: nodepool.instance_types[0].compute_info.cpu_limit: "
        "must be a number of cores such as 8, 0.5 or 500m, not 'many'",
        "line 13: nodepool.max_instances: is given twice, first on line 5",
        "line 14: nodepool.warm_instances: must be at least 0, not '-1'",
        f"line 15: nodepool.env_file: is not a known key; known: {known}",
    ]
    assert "max_instances" in known


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param(
            "min_instance: 2",
            "min_instance: is not a known key; did you mean 'min_instances'?",
            id="a typo",
        ),
        pytest.param(
            "max_instances: -1", "max_instances: must be at least 0, not '-1'", id="a negative size"
        ),
        pytest.param(
            "min_instances: 3",
            "max_instances: must be at least min_instances (3), not 1",
            id="a minimum above the default maximum",
        ),
        pytest.param(
            "max_instances: 1.5",
            "max_instances: must be a whole number, not '1.5'",
            id="half a machine",
        ),
        pytest.param(
            "instance_types: []",
            "instance_types: is given twice, first on line 4",
            id="a key given twice",
        ),
    ],
)
def test_a18_each_mistake_is_refused(line: str, said: str) -> None:
    (found,) = nodepool_problems(f"{NODEPOOL}  {line}\n")

    assert found.partition(": ")[2] == f"nodepool.{said}"


@pytest.mark.parametrize("text", ["nodepool:\n", "nodepool: {}\n", "nodepool: ~\n"])
def test_a18_an_empty_block_is_refused(text: str) -> None:
    assert nodepool_problems(text) == ["line 1: nodepool: is empty"]
