"""A real worker in a process of its own, to be killed.

Run as `python worker_process.py ADDRESS FOLDER PROVIDER`; prints one line once it polls.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from temporalio.client import Client

from garrison.failures import DATA_CONVERTER
from tests.workflows.conftest import Story


async def main(address: str, folder: str, provider: str) -> None:
    client = await Client.connect(address, data_converter=DATA_CONVERTER)
    story = Story(client, Path(folder), name=provider)
    async with story.worker():
        sys.stdout.write("polling\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
