"""A worker in a process of its own, so that its CPU and memory are those of nothing else.

Run as `python -m benchmarks.worker_process ARM FOLDER READY [SAMPLE]`; makes the file READY once
it polls, and drains at SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from benchmarks.raw_worker import run_raw_worker
from garrison.settings import load_settings
from garrison.workers.service import run_worker


async def main(arm: str, folder: str, ready: str, sample: str = "") -> None:
    """Serve until asked to stop."""
    settings = load_settings({"GARRISON_DATA_DIR": folder})

    def polls(*_: object) -> None:
        Path(ready).touch()

    if arm == "garrison":
        await run_worker(settings, None, ready=polls)
    else:
        await run_raw_worker(settings, Path(sample), queue=arm, ready=polls)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main(*sys.argv[1:]))
