"""The kept histories, as files and as what their events say."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory

FIRST = "0.1.0"
ELASTIC_FIRST = "elastic"
CHANGED = "publish-what-changed"
FILES = sorted(Path(__file__).parent.glob("*/*.json.gz"))

Event = dict[str, Any]


def file_of(folder: str, claim: str) -> Path:
    """Return one file."""
    (found,) = (file for file in FILES if claim_in(file) == f"{folder}/{claim}")
    return found


def claim_in(file: Path) -> str:
    """Return what a file claims, under the version or change that it is of."""
    return f"{file.parent.name}/{file.name.removesuffix('.json.gz')}"


def text_of(file: Path) -> str:
    """Return the history as JSON."""
    return gzip.decompress(file.read_bytes()).decode()


def history_of(file: Path) -> WorkflowHistory:
    """Return the history, to be replayed."""
    return WorkflowHistory.from_json(claim_in(file), text_of(file))


def events_of(file: Path) -> list[Event]:
    """Return the events as JSON."""
    events: list[Event] = json.loads(text_of(file))["events"]
    return events


def attributes_of(event: Event, kind: str, *keys: str) -> Any:
    """Return what an event of a kind has at the end of a path of keys; None for any other."""
    value = event.get(f"{kind}EventAttributes")
    for key in keys:
        value = None if value is None else value.get(key)
    return value


def payloads_in(value: Any) -> Iterator[Any]:
    """Yield every payload somewhere in a value, decoded."""
    if isinstance(value, dict):
        if isinstance(value.get("data"), str):
            yield json.loads(base64.b64decode(value["data"]) or "null")
        value = [*value.values()]
    if isinstance(value, list):
        for one in value:
            yield from payloads_in(one)
