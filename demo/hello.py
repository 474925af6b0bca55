"""A rank-aware program: it says who it is, checks that it reaches every peer, and goes on.

Standard library only, since a node has nothing but Python. It is what any distributed program
begins with: know your rank, find the others, and only then start to work.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

PATIENCE_SECONDS = 60.0
HEARTBEAT_SECONDS = 2.0


def main() -> None:
    """Meet all peers, then print a heartbeat for ever."""
    rank, world = int(os.environ["NODE_RANK"]), int(os.environ["NUM_NODES"])
    own, port = os.environ["NODE_ADDR"], int(os.environ["MASTER_PORT"])
    addresses = os.environ["NODE_ADDRS"].splitlines()
    say(f"hello from rank {rank} of {world} in cluster {os.environ['GARRISON_CLUSTER']}")
    say(f"I am {own}; my peers are {', '.join(peers(addresses, rank).values()) or 'nobody'}")
    serve(rank, own, port)
    for other, address in peers(addresses, rank).items():
        answer = greet(address, port)
        if answer != f"rank {other}":
            sys.exit(f"{address}:{port} says {answer!r}, not 'rank {other}'")
        say(f"reached rank {other} at {address}:{port}")
    say(f"all {world} ranks are reachable; working")
    for beat in beats():
        say(f"heartbeat {beat}")


def peers(addresses: list[str], rank: int) -> dict[int, str]:
    """Return the address of every other rank."""
    return {other: address for other, address in enumerate(addresses) if other != rank}


def serve(rank: int, address: str, port: int) -> None:
    """Tell everybody who connects which rank this is, for as long as the process lives."""
    listener = socket.create_server((address, port))

    def answer() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(f"rank {rank}\n".encode())

    threading.Thread(target=answer, daemon=True).start()


def greet(address: str, port: int) -> str:
    """Return what a peer says; it may start later than this process, so be patient."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with socket.create_connection((address, port), timeout=2) as connection:
                return connection.makefile().readline().strip()
        except OSError as error:
            if time.monotonic() >= end:
                sys.exit(f"{address}:{port} does not answer: {error}")
            time.sleep(0.2)


def beats() -> Iterator[int]:
    """Count for ever, slowly."""
    beat = 0
    while True:
        beat += 1
        yield beat
        time.sleep(HEARTBEAT_SECONDS)


def say(text: str) -> None:
    """Print a line at once, so that the log has it even if the next moment is the last."""
    print(f"[rank {os.environ['NODE_RANK']}] {text}", flush=True)


if __name__ == "__main__":
    main()
