"""Which values may travel."""

from __future__ import annotations

import pytest

from garrison.domain.secrets import unsealed_names

SEALED = "sealed:0123456789abcdef:" + "A" * 64


@pytest.mark.parametrize("value", [SEALED, "plain:", "plain:x", "secret:hf", SEALED + "AA=="])
def test_sealed_plain_and_named_values_may_travel(value: str) -> None:
    assert unsealed_names({"A": value}) == ()


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="nothing"),
        pytest.param("hunter2", id="text"),
        pytest.param("sealed:", id="the prefix alone"),
        pytest.param("sealed:0123456789abcdef:short", id="too short for a box"),
        pytest.param(SEALED + "A", id="no base64"),
        pytest.param(SEALED + "\n", id="a newline after it"),
        pytest.param("sealed:0123456789abcdeg:" + "A" * 64, id="no key id"),
        pytest.param("PLAIN:x", id="another case"),
        pytest.param(" plain:x", id="a space before it"),
        pytest.param("secret:", id="no name"),
        pytest.param("secret:../x", id="a path"),
    ],
)
def test_anything_else_is_named(value: str) -> None:
    assert unsealed_names({"OK": "plain:x", "BAD": value}) == ("BAD",)
