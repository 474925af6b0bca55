"""A node's log, byte for byte, on standard output."""

from __future__ import annotations

import sys
from collections import deque

from garrison.cli.session import Link


async def print_log(
    link: Link, name: str, *, rank: int, follow: bool, tail: int | None, uid: str | None
) -> None:
    """Write a node's log to standard output.

    Args:
        link: The connection.
        name: Of the cluster.
        rank: Of the node.
        follow: Go on until the command has ended.
        tail: Begin so many lines before the end; None begins at the start.
        uid: Pins the life.
    """
    clusters = link.garrison.clusters
    start: int | None = None
    if tail is not None:
        ending = await _last_lines(link, name, rank=rank, lines=tail, uid=uid)
        if not follow:
            _write(ending)
            return
        start = len(ending)
    async for data in clusters.logs(name, rank=rank, uid=uid, tail_bytes=start, follow=follow):
        _write(data)


async def _last_lines(link: Link, name: str, *, rank: int, lines: int, uid: str | None) -> bytes:
    """Return the last lines of a log, an unfinished one included."""
    kept: deque[bytes] = deque(maxlen=lines + 1)
    rest = b""
    async for data in link.garrison.clusters.logs(name, rank=rank, uid=uid):
        *whole, rest = (rest + data).split(b"\n")
        kept.extend(text + b"\n" for text in whole)
    if rest:
        kept.append(rest)
    wanted = list(kept)[-lines:] if lines else []
    return b"".join(wanted)


def _write(data: bytes) -> None:
    # A log is bytes: whatever the command wrote goes out as it is.
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
