"""What a process that is a router does to itself before it serves."""

from __future__ import annotations

import gc
import resource

ENOUGH = 65_536
"""Open files: each request takes two, one on each side."""

SPARE = 128
"""For all else that a process opens."""


def keep_what_was_loaded() -> None:
    """Have the collector look no more at what is there by now.

    It would go through all modules again and again, and hold up every request for 30 ms each time.
    """
    gc.collect()
    gc.freeze()


def raise_open_files() -> None:
    """Raise this process's own limit as far as it may, up to what a router can use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(wanted: int) -> int:
    """Return how many clients may be connected without running out of files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (soft - SPARE) // 2))
