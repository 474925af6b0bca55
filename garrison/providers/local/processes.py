"""Which processes belong to a node, and how they are ended.

A process belongs to a node when its environment has the node's mark, or when it holds the
node's lock, which everything started there inherits. A zombie belongs to nobody: where process
1 does not reap, the dead stay listed, and a check by pid alone calls them alive.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from garrison.errors import ProviderError
from garrison.providers.local.files import is_held

NODE_ID = "GARRISON_NODE_ID"
INCARNATION = "GARRISON_NODE_INCARNATION"
LOCK_FD = "GARRISON_NODE_LOCK_FD"
KILL_SECONDS = 8.0


def birth(pid: int) -> float | None:
    """Return when a living process was started; None when it is dead, or a zombie.

    With the pid it names one process for good. On Linux it counts from boot, as a time of day
    would shift whenever the clock is set.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if sys.platform != "linux":
            return process.create_time()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (psutil.NoSuchProcess, OSError, IndexError):
        return None


def is_alive(pid: int, born: float) -> bool:
    """Return whether the process of that pid lives and is the one born then."""
    now = birth(pid)
    return now is not None and abs(now - born) < 0.05


def members(nodes: Mapping[str, Path]) -> list[int]:
    """Return the pids of all living processes of some nodes, ours excepted.

    Args:
        nodes: The lock that each node's processes inherit, by node id.
    """
    inodes = {inode for lock in nodes.values() if is_held(lock) and (inode := _inode(lock))}
    return [
        process.pid
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _belongs(process, nodes, inodes)
    ]


def end_members(nodes: Mapping[str, Path], *, grace: float) -> None:
    """End all processes of some nodes: SIGTERM, and SIGKILL after the grace.

    Args:
        nodes: The lock that each node's processes inherit, by node id.
        grace: Seconds; 0 kills at once.

    Raises:
        ProviderError: Some process cannot be ended.
    """
    polite = time.monotonic() + grace
    deadline = polite + KILL_SECONDS
    asked: set[int] = set()
    # A lock can be held by a process that we may not look into.
    while (found := members(nodes)) or any(is_held(lock) for lock in nodes.values()):
        now = time.monotonic()
        if now >= deadline:
            raise ProviderError(f"processes of {', '.join(nodes)} cannot be ended: {found}")
        if now >= polite:
            _signal(found, signal.SIGKILL)
        else:
            _signal([pid for pid in found if pid not in asked], signal.SIGTERM)
            asked.update(found)
        time.sleep(0.02)


def _belongs(
    process: psutil.Process, nodes: Mapping[str, Path], inodes: set[tuple[int, int]]
) -> bool:
    try:
        if process.environ().get(NODE_ID) in nodes:
            return True
    except (psutil.Error, OSError):
        pass  # dead by now, or another user's: then its descriptors tell, if anything does
    return bool(inodes) and _holds(process, nodes, inodes)


def _holds(
    process: psutil.Process, nodes: Mapping[str, Path], inodes: set[tuple[int, int]]
) -> bool:
    if sys.platform == "linux":
        links = _descriptors(process.pid)
        return any(_inode(link) in inodes and _is_writable(link) for link in links)
    try:
        return any(Path(file.path) in nodes.values() for file in process.open_files())
    except (psutil.Error, OSError):
        return False


def _descriptors(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []


def _is_writable(link: Path) -> bool:
    # What only looks whether the lock is held, another worker say, has it open to read.
    try:
        return bool(link.lstat().st_mode & stat.S_IWUSR)
    except OSError:
        return False


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        # Gone; or not ours to end, which the caller's deadline reports.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
