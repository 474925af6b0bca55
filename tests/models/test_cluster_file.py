"""The cluster file: kept as written, refused with every mistake."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import InvalidSpec
from garrison.models.cluster import MAX_ENV_BYTES, ClusterSpec
from garrison.models.cluster_file import read_cluster_file
from garrison.models.problems import build
from garrison.sealing import load_or_create_key_pair, seal_env


def read(body: str) -> ClusterSpec:
    return read_cluster_file("cluster:\n" + textwrap.indent(textwrap.dedent(body), "  "), "c.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        read_cluster_file(text, "c.yaml")
    assert caught.value.source == "c.yaml"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return [str(problem) for problem in caught.value.problems]


def test_a_whole_file_is_read() -> None:
    spec = read(
        """
        name: train-1
        nodes: 2
        accelerator: H100:8
        capacity_type: spot
        recovery: {automatic: true, max_attempts: 5}
        command: [python, train.py, 3.10]
        env:
          TOKEN: {secret: hf}
        ports: [8080]
        provider_options: {aws: {placement: cluster}}
        """
    )

    assert (spec.name, spec.nodes, spec.accelerator) == ("train-1", 2, "H100:8")
    assert spec.recovery.automatic
    assert spec.command == ("python", "train.py", "3.10")
    assert spec.env == {"TOKEN": "secret:hf"}
    assert spec.provider_options == {"aws": {"placement": "cluster"}}


def test_environment_values_reach_the_process_as_written() -> None:
    spec = read(
        """
        env:
          PORT: 8080
          DEBUG: true
          RATIO: 1.0
          OCTAL: 00000122
          CLOCK: 12:30:45
          HEX: 0x1F
          EMPTY:
          QUOTED: ""
          TILDE: ~
          WORD: null
        """
    )

    assert spec.env == {
        "PORT": "8080",
        "DEBUG": "true",
        "RATIO": "1.0",
        "OCTAL": "00000122",
        "CLOCK": "12:30:45",
        "HEX": "0x1F",
        "EMPTY": "",
        "QUOTED": "",
        "TILDE": "~",
        "WORD": "null",
    }


@pytest.mark.parametrize("name", ["00000122", "1e3", "0x1F", "2026_8_6", "no", "true"])
def test_a_name_is_kept_letter_for_letter(name: str) -> None:
    assert read(f"name: {name}\n").name == name


def test_a_name_that_cannot_be_one_is_refused_as_written() -> None:
    assert problems("cluster:\n  name: 12:30:45\n") == [
        "line 2: cluster.name: must be 1 to 63 letters, digits, '-' or '_', "
        "first a letter or digit, not '12:30:45'"
    ]


def test_every_mistake_is_listed_at_once() -> None:
    found = problems(
        """\
cluster:
  num_nodes: 2
  gpus: 8
  nodes: two
  recovery:
    autmatic: yes
    max_attempts: -1
  env:
    1A: hunter2
    B: [hunter2]
    N: hunter2
    N: hunter3
  ports: 80
  expose: [everyone]
  capacity_type: spt
  failover: maybe
other: 1
"""
    )

    assert found == [
        "line 2: cluster.num_nodes: is not a known key; did you mean 'nodes'?",
        "line 3: cluster.gpus: is not a known key; did you mean 'gpus_per_node'?",
        "line 4: cluster.nodes: must be a whole number, not 'two'",
        "line 6: cluster.recovery.autmatic: is not a known key; did you mean 'automatic'?",
        "line 7: cluster.recovery.max_attempts: must be at least 1, not '-1'",
        "line 9: cluster.env.1A: '1A' is no environment variable name",
        "line 10: cluster.env.B: must be text",
        "line 12: cluster.env.N: is given twice, first on line 11",
        "line 13: cluster.ports: must be a list",
        "line 14: cluster.expose[0]: 'everyone' is no CIDR such as 203.0.113.0/24",
        "line 15: cluster.capacity_type: must be 'on_demand', 'spot' or 'reserved', not 'spt'",
        "line 16: cluster.failover: must be true or false, not 'maybe'",
        "line 17: other: is not a known key; known: cluster",
    ]


@pytest.mark.parametrize("value", ["2.5", "two", "true", "1e3", "0x2", "[2]", "", "9" * 5000])
def test_nodes_takes_whole_numbers_only(value: str) -> None:
    (problem,) = problems(f"cluster:\n  nodes: {value}\n")

    assert problem.startswith("line 2: cluster.nodes: ")
    assert len(problem) < 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("cluster:\n", ["line 1: cluster: is empty"], id="empty block"),
        pytest.param("cluster: {}\n", ["line 1: cluster: is empty"], id="empty braces"),
        pytest.param("cluster: 3\n", ["line 1: cluster: must be a block of keys"], id="a number"),
        pytest.param(
            "clutser:\n  nodes: 2\n",
            [
                "line 1: clutser: is not a known key; did you mean 'cluster'?",
                "line 1: cluster: the block `cluster:` is missing",
            ],
            id="misspelt block",
        ),
    ],
)
def test_a_missing_block_is_named(text: str, expected: list[str]) -> None:
    assert problems(text) == expected


@pytest.mark.parametrize("size", ["0", "-3"])
def test_sizes_below_one_are_refused(size: str) -> None:
    assert problems(f"cluster:\n  nodes: {size}\n") == [
        f"line 2: cluster.nodes: must be at least 1, not '{size}'"
    ]


def test_values_of_secret_fields_are_in_no_message() -> None:
    found = problems(
        """\
cluster:
  env: {A: [hunter2], B: {secret: [hunter2]}, C: "hunter2
    hunter2", D: {hunter2: x}}
  command: {hunter2: hunter2}
  ssh_keys: [hunter2]
  provider_options: hunter2
  nodes: x
"""
    )

    assert len(found) == 7
    assert "hunter2" not in "".join(found)


def test_a_long_value_is_clipped_in_messages() -> None:
    (problem,) = problems("cluster:\n  name: " + "x" * 5000 + "\n")

    assert len(problem) < 300


def test_many_mistakes_are_listed_up_to_a_bound() -> None:
    found = problems("cluster:\n" + "".join(f"  key{i}: 1\n" for i in range(5000)))

    assert len(found) == 51


def test_json_is_read_too() -> None:
    text = json.dumps({"cluster": {"nodes": 2, "env": {"A": 1.0, "B": None}}}, indent="\t")

    spec = read_cluster_file(text.encode())

    assert (spec.nodes, spec.env) == (2, {"A": "1.0", "B": "null"})


def test_null_leaves_an_optional_field_out() -> None:
    spec = read("name: ~\nimage:\nregion: null\n")

    assert (spec.name, spec.image, spec.region) == (None, None, None)


def test_flags_get_the_same_sentences_without_lines() -> None:
    with pytest.raises(InvalidSpec) as caught:
        build(ClusterSpec, {"nodes": "two", "acelerator": "H100"}, what="the flags are not valid")

    assert sorted(str(problem) for problem in caught.value.problems) == [
        "acelerator: is not a known key; did you mean 'accelerator'?",
        "nodes: must be a whole number, not 'two'",
    ]
    assert caught.value.__context__ is None


def test_a_variable_name_has_no_control_character_and_none_is_printed() -> None:
    assert problems('cluster:\n  env: {"A\\n": x, "\\e[2J": y}\n') == [
        "line 2: cluster.env.A\\n: 'A\\n' is no environment variable name",
        "line 2: cluster.env.\\x1b[2J: '\\x1b[2J' is no environment variable name",
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"command": ""}, "command: must not be empty: give a shell line, or a list of words"),
        ({"command": {}}, "command: must be text, a shell line, or a list of words"),
        ({"command": ["a\udc80"]}, "command[0]: has bytes that are no valid UTF-8"),
        ({"env": {"A": "plain:\udc80"}}, "env.A: has bytes that are no valid UTF-8"),
        (
            {"env": {"A": "x" * 204_800}},
            "env.A: has 204800 bytes; a process can receive at most 130814 in one variable",
        ),
        ({"command": ["a"] * 1025}, "command: must have at most 1024 items"),
    ],
)
def test_what_no_process_can_be_given_is_refused_in_plain_words(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        build(ClusterSpec, fields, what="flags")

    assert [str(problem) for problem in caught.value.problems] == [said]


@pytest.mark.parametrize("letter", ["x", "\udc80"])
def test_the_longest_value_is_still_valid_when_it_is_sealed(letter: str, tmp_path: Path) -> None:
    keys = load_or_create_key_pair(tmp_path)
    longest = letter * MAX_ENV_BYTES

    plain = build(ClusterSpec, {"env": {"A": longest}}, what="flags")
    sealed = build(ClusterSpec, {"env": seal_env(keys.public_text, plain.env)}, what="flags")

    assert len(sealed.env["A"]) > MAX_ENV_BYTES
