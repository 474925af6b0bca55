"""Saving the logs of nodes before they are deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from garrison.activities.saved_logs import SavedLogs
from garrison.errors import GarrisonError
from garrison.models.group import Node
from garrison.providers.base import Workloads

LOG_CHUNK = 256 * 1024
STOP_SECONDS = 5
SAVE_SECONDS = 10
SAVE_BYTES = 64 * 1024 * 1024
REPLICA_BYTES = 16 * 1024 * 1024

Writer = Callable[[int], AbstractContextManager[BinaryIO]]
"""Opens a saved log whose first byte has that offset."""


class LogKeeper:
    """Copies logs from nodes into the log directory."""

    def __init__(self, log_dir: Path) -> None:
        self._saved = SavedLogs(log_dir)

    async def keep(
        self,
        workloads: Workloads,
        nodes: Iterable[Node],
        *,
        cluster: str,
        uid: str,
        workload: str,
        whole_seconds: float = STOP_SECONDS + SAVE_SECONDS,
    ) -> dict[int, int | str]:
        """Return by rank how many bytes were saved, or why nothing was.

        Each workload is stopped first, so that its log is complete to its last line; of a long
        log the last 64 MB are kept. All nodes are read at once.

        Args:
            workloads: The provider's way to its nodes.
            nodes: Those to read.
            cluster: Name.
            uid: Life.
            workload: Name of what ran.
            whole_seconds: Bound on stopping and reading a node; at most half of it goes to the
                stop.
        """

        async def keep_one(node: Node) -> tuple[int, int | str]:
            try:
                async with asyncio.timeout(whole_seconds):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(min(STOP_SECONDS, whole_seconds / 2)):
                            await workloads.stop_workload(node, workload)
                    async with asyncio.timeout(SAVE_SECONDS):
                        return node.rank, await self._copy(workloads, node, cluster, uid, workload)
            except TimeoutError:
                return node.rank, f"not fetched within {min(SAVE_SECONDS, whole_seconds):g} s"
            except (GarrisonError, OSError) as error:
                return node.rank, str(error)

        return dict(await asyncio.gather(*map(keep_one, nodes)))

    async def keep_replica(self, workloads: Workloads, node: Node, replica: str) -> int | str:
        """Return how many bytes of a replica's log were saved, or why nothing was.

        Of a long log the last 16 MB are kept.
        """

        def writer(base: int) -> AbstractContextManager[BinaryIO]:
            return self._saved.replica_writer(replica, base=base)

        try:
            async with asyncio.timeout(SAVE_SECONDS):
                return await _copied(workloads, node, replica, writer, most=REPLICA_BYTES)
        except TimeoutError:
            return f"not fetched within {SAVE_SECONDS:g} s"
        except (GarrisonError, OSError) as error:
            return str(error)

    async def stop_and_keep_replica(
        self, workloads: Workloads, node: Node, replica: str
    ) -> int | str:
        """Do the same for one that runs; it is stopped first, as far as that is quick."""
        with contextlib.suppress(TimeoutError, GarrisonError):  # reading shows what is wrong
            async with asyncio.timeout(STOP_SECONDS):
                await workloads.stop_workload(node, replica)
        return await self.keep_replica(workloads, node, replica)

    async def _copy(
        self, workloads: Workloads, node: Node, cluster: str, uid: str, workload: str
    ) -> int:
        def writer(base: int) -> AbstractContextManager[BinaryIO]:
            return self._saved.writer(cluster, uid, node.rank, base=base)

        return await _copied(workloads, node, workload, writer, most=SAVE_BYTES)


async def _copied(
    workloads: Workloads, node: Node, workload: str, writer: Writer, *, most: int
) -> int:
    """Copy the end of a log; return how many bytes it was."""
    last = await workloads.read_log(node, workload, offset=-1, limit=1)
    offset = max(last.next_offset - most, 0)
    size = 0
    with writer(offset) as file:
        while size < most:
            chunk = await workloads.read_log(
                node, workload, offset=offset, limit=min(LOG_CHUNK, most - size)
            )
            if not chunk.data:
                break
            file.write(chunk.data)
            offset = chunk.next_offset
            size += len(chunk.data)
    return size
