"""Saving the logs of nodes before they are deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path

from garrison.activities.saved_logs import SavedLogs
from garrison.errors import GarrisonError
from garrison.models.group import Node
from garrison.providers.base import Workloads

LOG_CHUNK = 256 * 1024
STOP_SECONDS = 5
SAVE_SECONDS = 10
SAVE_BYTES = 64 * 1024 * 1024


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

    async def _copy(
        self, workloads: Workloads, node: Node, cluster: str, uid: str, workload: str
    ) -> int:
        last = await workloads.read_log(node, workload, offset=-1, limit=1)
        offset = max(last.next_offset - SAVE_BYTES, 0)
        size = 0
        with self._saved.writer(cluster, uid, node.rank, base=offset) as file:
            while size < SAVE_BYTES:
                chunk = await workloads.read_log(
                    node, workload, offset=offset, limit=min(LOG_CHUNK, SAVE_BYTES - size)
                )
                if not chunk.data:
                    break
                file.write(chunk.data)
                offset = chunk.next_offset
                size += len(chunk.data)
        return size
