"""Record a history of each interesting path: `python -m tests.histories.record FOLDER [PATH...]`.

Without PATHs: all of the folder's own, or all there are where it is a new one. A history says what
a version wrote, so none is recorded again, but `--unreleased` replaces what no release had.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import WorkflowHistory
from temporalio.testing import WorkflowEnvironment

from garrison.failures import DATA_CONVERTER
from garrison.workflows.visibility import ALL_KEYS
from tests.histories.elastic_paths import ELASTIC, RENEWING
from tests.histories.kept import ELASTIC_FIRST, FIRST
from tests.histories.paths import CLOUDS, REAL, VIRTUAL, RealPath, Runs, VirtualPath
from tests.workflows.conftest import BIN, ServerClock, Story, VirtualStory

HERE = Path(__file__).parent
SUGGEST_RENEWAL = 100
"""Events after which the dev server suggests continue-as-new; written in the history itself."""

AT_ONCE = 3
"""Paths that are walked at the same time, each on a server of its own."""

WHO = "recorder"
PROVIDER = "sim"


OF_CLUSTERS: tuple[Callable[..., object], ...] = (*VIRTUAL, *REAL)
OF_ELASTIC: tuple[Callable[..., object], ...] = (*ELASTIC, *RENEWING)
FIRSTS = {FIRST: OF_CLUSTERS, ELASTIC_FIRST: OF_ELASTIC}
"""The folders in which kinds of workflows first have histories, and all paths of those kinds."""

Walk = Coroutine[Any, Any, Mapping[str, WorkflowHistory]]

UNRELEASED = "--unreleased"


def claim_of(path: Callable[..., object]) -> str:
    """Return what the file of a path is called."""
    return path.__name__.replace("_", "-")


async def record(folder: Path, wanted: frozenset[str]) -> None:
    """Walk the wanted paths, all of the folder's where none is named, and write what they leave."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def walk(path: Callable[..., object], walking: Walk) -> None:
        async with turns:
            histories = await walking
        _write(folder, claim_of(path), histories)

    walks = _walks(wanted or paths_of(folder.name))
    await asyncio.gather(*(walk(path, walking) for path, walking in walks.items()))


def _walks(wanted: frozenset[str]) -> Mapping[Callable[..., object], Walk]:
    found: dict[Callable[..., object], Walk] = {
        path: _walk_virtual(path) for path in VIRTUAL if claim_of(path) in wanted
    }
    for real in (*REAL, *RENEWING, *ELASTIC):
        if claim_of(real) in wanted:
            found[real] = _walk_real(real, early=real not in ELASTIC)
    return found


def paths_of(folder: str) -> frozenset[str]:
    """Return the claims of all paths that a folder is to have, where none is named."""
    return frozenset(map(claim_of, FIRSTS.get(folder, (*OF_CLUSTERS, *OF_ELASTIC))))


def forget(folder: Path) -> None:
    """Delete what a folder has, to be recorded again."""
    for file in folder.glob("*.json.gz"):
        file.unlink()


async def _walk_virtual(path: VirtualPath) -> Mapping[str, WorkflowHistory]:
    """Walk a path on a server of its own, since time may be anything after it."""
    environment = await WorkflowEnvironment.start_time_skipping(
        data_converter=DATA_CONVERTER,
        identity=WHO,
        test_server_existing_path=str(BIN / "temporal-test-server"),
    )
    async with environment:
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace="default",
                search_attributes={key.name: int(key.indexed_value_type) for key in ALL_KEYS},  # type: ignore[misc]
            )
        )
        clock = ServerClock(environment.client.service_client.config.target_host)
        with tempfile.TemporaryDirectory() as folder:
            story = VirtualStory(environment, Path(folder), clock)
            _name(story, CLOUDS.get(path, {}))
            try:
                async with story.worker():
                    return await _fetch(await path(story))
            finally:
                await story.end()
                clock.stop()


async def _walk_real(path: RealPath, *, early: bool) -> Mapping[str, WorkflowHistory]:
    suggest = f"limit.historyCount.suggestContinueAsNew={SUGGEST_RENEWAL}"
    environment = await WorkflowEnvironment.start_local(
        data_converter=DATA_CONVERTER,
        identity=WHO,
        search_attributes=ALL_KEYS,
        dev_server_existing_path=str(BIN / "temporal"),
        dev_server_log_level="error",
        dev_server_extra_args=["--dynamic-config-value", suggest] if early else [],
    )
    async with environment:
        with tempfile.TemporaryDirectory() as folder:
            story = Story(environment.client, Path(folder))
            _name(story, {})
            try:
                return await _fetch(await path(story))
            finally:
                await story.end()


def _name(story: Story, cloud: Mapping[str, object]) -> None:
    story.name = PROVIDER
    story.use(**cloud)


async def _fetch(runs: Runs) -> dict[str, WorkflowHistory]:
    if not isinstance(runs, Mapping):
        return {"": await runs.fetch_history()}
    return {which: await run.fetch_history() for which, run in runs.items()}


def _write(folder: Path, claim: str, histories: Mapping[str, WorkflowHistory]) -> None:
    folder.mkdir(exist_ok=True)
    for which, history in histories.items():
        file = folder / f"{claim}{f'.{which}' if which else ''}.json.gz"
        if file.exists():
            raise FileExistsError(f"{file} is kept as it was recorded")
        scrubbed = _scrubbed(json.loads(history.to_json()))
        text = json.dumps(scrubbed, separators=(",", ":")).encode()
        file.write_bytes(gzip.compress(text, mtime=0))
        size = file.stat().st_size
        sys.stdout.write(f"{file.name}: {len(history.events)} events, {size} bytes\n")


def _scrubbed(value: Any) -> Any:
    """Leave out what says where it was recorded, and no replay reads: stack traces."""
    if isinstance(value, dict):
        return {key: _scrubbed(one) for key, one in value.items() if key != "stackTrace"}
    if isinstance(value, list):
        return [_scrubbed(one) for one in value]
    return value


def main(*words: str) -> None:
    """Do what the command line says."""
    folder, *wanted = (word for word in words if word != UNRELEASED)
    if UNRELEASED in words:
        forget(HERE / folder)
    asyncio.run(record(HERE / folder, frozenset(wanted)))


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # the incidents are scripted
    main(*sys.argv[1:])
