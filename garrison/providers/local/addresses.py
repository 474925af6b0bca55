"""Where a local node listens: its own loopback address, or its own ports on a shared one.

Linux answers on all of 127.0.0.0/8, so each node gets a random address there and uses every
port as it likes, SSH always on the same one. Two nodes with one address, even of different
installations, collide on that port, and the later one takes another address. Elsewhere nodes
share 127.0.0.1, each with a range of ports whose last is SSH's.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from garrison.errors import ProviderError

SSH_PORT = 10022
SHARED_HOST = "127.0.0.1"
FIRST_RANGE = 20_000
RANGE_SIZE = 100
RANGES = 120
TRIES = 50


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A node's place on the loopback network.

    Attributes:
        port: SSH's.
        first_port: First of the node's own ports where the address is shared, else None.
    """

    host: str
    port: int
    first_port: int | None = None


@dataclass(slots=True)
class Addresses:
    """Choose and take endpoints.

    Attributes:
        shared: Whether nodes share one address.
    """

    shared: bool
    ssh_port: int = SSH_PORT

    def take_free(self, used: set[Endpoint]) -> tuple[Endpoint, socket.socket]:
        """Return an endpoint that nobody uses, with its listening socket.

        Raises:
            ProviderError: None was found.
        """
        for endpoint in self._candidates():
            if endpoint in used:
                continue
            with suppress(AddressTaken):
                return endpoint, listen(endpoint)
        what = f"port {self.ssh_port} on 127.0.0.0/8" if not self.shared else SHARED_HOST
        raise ProviderError(f"no free address for a local node: {what} is taken")

    def _candidates(self) -> Iterator[Endpoint]:
        if not self.shared:
            for _ in range(TRIES):
                yield Endpoint(_random_host(), self.ssh_port)
            return
        for index in random.sample(range(RANGES), RANGES):
            first = FIRST_RANGE + index * RANGE_SIZE
            yield Endpoint(SHARED_HOST, first + RANGE_SIZE - 1, first)


class AddressTaken(Exception):
    """Somebody listens on the endpoint."""


def listen(endpoint: Endpoint) -> socket.socket:
    """Return a socket that listens on an endpoint.

    Raises:
        AddressTaken: Somebody else does.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((endpoint.host, endpoint.port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise AddressTaken(endpoint.host) from None
        raise
    return sock


def answers_ssh(endpoint: Endpoint, *, seconds: float) -> bool:
    """Return whether an SSH server greets there; a frozen one accepts and says nothing."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=seconds) as sock:
            return sock.recv(4) == b"SSH-"
    except OSError:
        return False


def _random_host() -> str:
    # Beside 127.0.0.x and 127.0.1.1, which belong to the machine and its resolver.
    return f"127.{random.randint(64, 127)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
