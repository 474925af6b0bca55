"""A login on a node from this process's own terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncssh

from garrison.client.keys import known_host
from garrison.errors import ProviderAuth, ProviderUnreachable
from garrison.models.cluster_status import SshStatus

CONNECT_SECONDS = 15
SIGNALLED = 128


async def run_ssh(end: SshStatus, key: Path, command: Sequence[str]) -> int:
    """Run a command, or a login shell, with this process's standard streams.

    Args:
        end: The node, with its pinned host key.
        key: Private key file.
        command: Words, quoted for the remote shell; empty for a login shell.

    Returns:
        The remote exit status; 128 + n if a signal ended it.

    Raises:
        ProviderUnreachable: The node does not answer.
        ProviderAuth: It refuses our key, or its host key is not the pinned one.
    """
    try:
        connection = await asyncssh.connect(
            end.host,
            port=end.port,
            username=end.user,
            client_keys=[str(key)],
            known_hosts=known_host(end).encode() if end.host_key else None,
            connect_timeout=CONNECT_SECONDS,
            agent_path=None,
            config=None,
        )
    except (asyncssh.PermissionDenied, asyncssh.HostKeyNotVerifiable) as error:
        raise ProviderAuth(f"{end.host}:{end.port}: {error.reason}") from error
    except (OSError, asyncssh.Error, TimeoutError) as error:
        raise ProviderUnreachable(f"{end.host}:{end.port} does not answer: {error}") from error
    try:
        return await _session(connection, shlex.join(command) if command else None)
    finally:
        connection.close()
        await connection.wait_closed()


async def _session(connection: asyncssh.SSHClientConnection, command: str | None) -> int:
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    options: dict[str, Any] = {}
    if terminal:
        size = shutil.get_terminal_size()
        options = {
            "term_type": os.environ.get("TERM", "xterm"),
            "term_size": (size.columns, size.lines),
        }
    with _raw_terminal() if terminal else contextlib.nullcontext(), _blocking_after():
        process = await connection.create_process(
            command,
            stdin=os.dup(sys.stdin.fileno()),
            stdout=os.dup(sys.stdout.fileno()),
            stderr=os.dup(sys.stderr.fileno()),
            encoding=None,
            **options,
        )
        if terminal:
            _follow_size(process)
        result = await process.wait()
    if result.exit_status is not None and result.exit_status >= 0:
        return result.exit_status
    name = result.exit_signal[0] if result.exit_signal else ""
    number = getattr(signal, f"SIG{name}", None)
    return SIGNALLED + int(number) if number is not None else 255


def _follow_size(process: asyncssh.SSHClientProcess[bytes]) -> None:
    def resize() -> None:
        size = shutil.get_terminal_size()
        process.change_terminal_size(size.columns, size.lines)

    asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, resize)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _blocking_after() -> Iterator[None]:
    # The event loop makes shared descriptors non-blocking, which other programs do not expect.
    try:
        yield
    finally:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            os.set_blocking(stream.fileno(), True)
