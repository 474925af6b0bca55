"""Files from people: read as written, and every mistake named."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.errors import InvalidSpec
from garrison.models.document import MAX_BYTES, decode, load_document


def refusal(text: str) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as caught:
        load_document(text, "f.yaml")
    return caught.value


@pytest.mark.parametrize(
    "scalar",
    ["00000122", "1e3", "0x1F", "2026_8_6", "no", "12:30:45", "3.10", "true", "1.0", "2026-08-06"],
)
def test_a_scalar_stays_as_written(scalar: str) -> None:
    document = load_document(f"id: {scalar}\n")

    assert document.value == {"id": scalar}
    assert document.nulls == frozenset()


@pytest.mark.parametrize(
    ("written", "text", "null"),
    [
        pytest.param("", "", True, id="nothing"),
        pytest.param("null", "null", True, id="the word null"),
        pytest.param("~", "~", True, id="a tilde"),
        pytest.param("''", "", False, id="quoted nothing"),
        pytest.param('"null"', "null", False, id="the quoted word null"),
    ],
)
def test_an_unquoted_null_is_told_from_text(written: str, text: str, null: bool) -> None:
    document = load_document(f"a:\n  b: {written}\n")

    assert document.value == {"a": {"b": text}}
    assert (("a", "b") in document.nulls) is null


def test_lines_are_those_of_keys_and_list_items() -> None:
    document = load_document("# first\na:\n  b: 1\n  c:\n  - x\n  - y: z\n")

    assert document.lines == {
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "c"): 4,
        ("a", "c", 0): 5,
        ("a", "c", 1): 6,
        ("a", "c", 1, "y"): 6,
    }


def test_a_key_given_twice_is_a_problem_and_the_first_value_stays() -> None:
    document = load_document("pool:\n  max: 1\n  other: 2\n  max:\n    deep: 10\n")

    assert document.value == {"pool": {"max": "1", "other": "2"}}
    assert [str(p) for p in document.problems] == [
        "line 4: pool.max: is given twice, first on line 2"
    ]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("", None, "is empty", id="empty file"),
        pytest.param("# a\n\n# b\n", None, "is empty", id="only comments"),
        pytest.param("---\n", None, "is empty", id="an empty document"),
        pytest.param("- a\n", 1, "must be keys", id="a list"),
        pytest.param("hello", 1, "must be keys", id="a scalar"),
        pytest.param("a:\n\tb: 1\n", 2, "tab", id="indented with a tab"),
        pytest.param("a: 1\n---\nb: 2\n", 2, "several documents", id="two documents"),
        pytest.param("a: &x [1]\nb: *x\n", 1, "anchors", id="an anchor"),
        pytest.param("a: *hunter2\n", 1, "anchors", id="an alias"),
        pytest.param("a: !!python/object/apply:os.system [ls]\n", 1, "tags", id="a Python tag"),
        pytest.param("a: !hunter2 x\n", 1, "tags", id="a secret that begins with !"),
        pytest.param("a: b\0c\n", 1, "U+0000", id="a NUL"),
        pytest.param('a: "b\\0c"\n', 1, "NUL", id="an escaped NUL"),
        pytest.param('a:\n  "\\ud83d"\n', 2, "surrogate", id="half a character"),
        pytest.param("a:\n  b: \ud800\n", 2, "U+D800", id="a raw surrogate"),
        pytest.param("a: {{ hunter2 }}\n", 1, "template", id="a template"),
        pytest.param("a: [1, 2\nb: 3\n", 2, "bracket", id="an open bracket"),
        pytest.param("a: 'hunter2\n", 2, "quote", id="an open quote"),
        pytest.param("a: b: hunter2\n", 1, "':'", id="a colon in a value"),
        pytest.param("a: 1\n   b: 2\n", 2, "indentation", id="wrong indentation"),
        pytest.param('a: "\\q"\n', 1, "backslash", id="an unknown escape"),
        pytest.param("a: %hunter2\n", 1, "cannot begin", id="a percent sign"),
    ],
)
def test_what_cannot_be_read_is_said_by_line_without_its_content(
    text: str, line: int | None, words: str
) -> None:
    error = refusal(text)

    assert error.problems[0].line == line
    assert words in error.problems[0].message
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "x" * (2 * MAX_BYTES), id="huge"),
        pytest.param("a: " + "[" * 100_000, id="deep lists"),
        pytest.param("a: " + "{a: " * 50_000, id="deep maps"),
        pytest.param("- " * 50_000, id="deep block lists"),
        pytest.param("? " * 50_000, id="deep keys"),
        pytest.param("\n".join(" " * i + "a:" for i in range(1000)), id="deep blocks"),
        pytest.param("a: [" + "1," * 200_000 + "]", id="many values"),
        pytest.param("a: &a [x,x]\n" + "".join(f"{c}: &{c} [*a,*a]\n" for c in "bcd"), id="laughs"),
    ],
)
def test_hostile_input_is_refused_soon(text: str) -> None:
    begin = time.monotonic()

    refusal(text)

    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("\ufeffa: 1\r\nb: 2\r\n", {"a": "1", "b": "2"}, id="a BOM and CRLF"),
        pytest.param("a: 数据🚀عرب\n", {"a": "数据🚀عرب"}, id="any script"),
        pytest.param('{\n\t"a": [1,\n\t\ttrue]}', {"a": ["1", "true"]}, id="JSON with tabs"),
        pytest.param('{"a": "\\ud83d\\ude00"}', {"a": "😀"}, id="a JSON surrogate pair"),
        pytest.param("a: |\n  x\n  y\n", {"a": "x\ny\n"}, id="a block of text"),
    ],
)
def test_what_people_save_is_read(text: str, value: dict[str, Any]) -> None:
    assert load_document(text).value == value


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("name: café\n".encode(), id="UTF-8"),
        pytest.param("name: café\n".encode("utf-8-sig"), id="UTF-8 with its mark"),
        pytest.param("name: café\n".encode("utf-16"), id="UTF-16"),
    ],
)
def test_common_encodings_are_decoded(data: bytes) -> None:
    assert decode(data) == "name: café\n"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param("a: 1\nname: café\n".encode("cp1252"), "line 2: is not UTF-8", id="cp1252"),
        pytest.param(b"\xff\xfea", "not UTF-8", id="half of UTF-16"),
        pytest.param(b"x" * (MAX_BYTES + 1), "larger than 1024 KiB", id="too large"),
    ],
)
def test_other_bytes_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        decode(data, "f.yaml")

    assert words in str(caught.value)
    assert str(caught.value).startswith("f.yaml: ")


_TEXTS = st.text(max_size=200) | st.text(alphabet="ab:-{}[],'\"#&*!|>%@`\n\t ?", max_size=60)


@given(_TEXTS)
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    with contextlib.suppress(InvalidSpec):
        assert isinstance(load_document(text).value, dict)
