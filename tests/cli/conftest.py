"""One command line, run in this process against a fake SDK."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from garrison.cli.app import run
from garrison.cli.session import CONNECT
from tests.cli.fake_garrison import FakeGarrison


@dataclass(frozen=True)
class Answer:
    """What a command line did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


Cli = Callable[..., Answer]


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of an installation of its own."""
    monkeypatch.setenv("GARRISON_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("GARRISON_CONFIG", raising=False)
    return tmp_path / "data"


@pytest.fixture
def garrison() -> Iterator[FakeGarrison]:
    """The fake SDK that commands connect to."""
    fake = FakeGarrison()
    token = CONNECT.set(fake.connect)
    yield fake
    CONNECT.reset(token)


@pytest.fixture
def cli(garrison: FakeGarrison, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command line; `typed` is standard input, on a terminal if `terminal` says so."""

    def call(*argv: str, typed: bytes = b"", terminal: bool = False) -> Answer:
        with monkeypatch.context() as patch:
            kind = Terminal if terminal else io.TextIOWrapper
            patch.setattr(sys, "stdin", kind(io.BytesIO(typed), encoding="utf-8"))
            out, err = io.BytesIO(), io.BytesIO()
            stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
            stderr = kind(err, encoding="utf-8", write_through=True)
            patch.setattr(sys, "stdout", stdout)
            patch.setattr(sys, "stderr", stderr)
            result = run(argv)
            stdout.flush()
            texts = (data.getvalue().decode(errors="backslashreplace") for data in (out, err))
            return Answer(result, *texts)

    return call
