"""A login on a node from this process's own terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shlex
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import asyncssh

from garrison.client.keys import known_host
from garrison.errors import ProviderAuth, ProviderUnreachable
from garrison.models.cluster_status import SshStatus

CONNECT_SECONDS = 15
SIGNALLED = 128
READ_BYTES = 64 * 1024


async def run_ssh(end: SshStatus, key: Path, command: Sequence[str]) -> int:
    """Run a command, or a login shell, with this process's standard streams.

    Args:
        end: The node, with its pinned host key.
        key: Private key file.
        command: Words, quoted for the remote shell; empty for a login shell.

    Returns:
        The remote exit status; 128 + n if a signal ended it. If nobody reads our output any
        more, the session ends as if by SIGPIPE.

    Raises:
        ProviderUnreachable: The node does not answer, or the connection was lost.
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
    except BrokenPipeError:
        return SIGNALLED + signal.SIGPIPE
    finally:
        connection.close()
        await connection.wait_closed()


async def _session(connection: asyncssh.SSHClientConnection, command: str | None) -> int:
    with contextlib.ExitStack() as stack:
        ours = [stack.enter_context(_descriptor(name)) for name in ("stdin", "stdout", "stderr")]
        terminal = os.isatty(ours[0]) and os.isatty(ours[1])
        if terminal:
            stack.enter_context(_raw_terminal(ours[0]))
        options = _terminal_options() if terminal else {}
        process = await connection.create_process(command, encoding=None, **options)
        if terminal:
            stack.enter_context(_follow_size(process))
        await _join(process, ours)
        await process.wait_closed()
    return _exit_status(process)


def _terminal_options() -> dict[str, Any]:
    size = shutil.get_terminal_size()
    return {
        "term_type": os.environ.get("TERM", "xterm"),
        "term_size": (size.columns, size.lines),
    }


def _exit_status(process: asyncssh.SSHClientProcess[bytes]) -> int:
    if process.exit_status is not None and process.exit_status >= 0:
        return process.exit_status
    name = process.exit_signal[0] if process.exit_signal else ""
    number = getattr(signal, f"SIG{name}", None)
    return SIGNALLED + int(number) if number is not None else 255


async def _join(process: asyncssh.SSHClientProcess[bytes], ours: Sequence[int]) -> None:
    """Carry the three streams until the far end has closed its two."""
    sending = asyncio.create_task(_send(ours[0], process.stdin))
    receiving = asyncio.create_task(_receive_both(process, ours))
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        if not receiving.done():
            sending.result()  # raises if our own input cannot be read
        await receiving
    finally:
        await _stop(sending, receiving)


async def _receive_both(process: asyncssh.SSHClientProcess[bytes], ours: Sequence[int]) -> None:
    output = asyncio.create_task(_receive(process.stdout, ours[1]))
    errors = asyncio.create_task(_receive(process.stderr, ours[2]))
    try:
        await asyncio.gather(output, errors)
    finally:
        await _stop(output, errors)


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _send(source: int, far: asyncssh.SSHWriter[bytes]) -> None:
    while True:
        await _ready(source, writing=False)
        try:
            data = os.read(source, READ_BYTES)
        except BlockingIOError:
            continue
        try:
            if not data:
                far.write_eof()
                return
            far.write(data)
            await far.drain()
        except (OSError, asyncssh.Error):
            return  # nobody reads at the far end; how it ended is seen on its output


async def _receive(far: asyncssh.SSHReader[bytes], target: int) -> None:
    while True:
        try:
            data = await far.read(READ_BYTES)
        except (OSError, asyncssh.Error) as error:
            raise ProviderUnreachable(f"the connection to the node was lost: {error}") from error
        if not data:
            return
        await _write(target, data)


async def _write(target: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        await _ready(target, writing=True)
        # This much fits into a pipe that is ready, so that the call does not block.
        with contextlib.suppress(BlockingIOError):
            rest = rest[os.write(target, rest[: select.PIPE_BUF]) :]


async def _ready(descriptor: int, *, writing: bool) -> None:
    """Wait until a descriptor can be used at once, without making it non-blocking.

    Other programs share our streams, and do not expect them to be non-blocking.
    """
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    add, remove = (
        (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    )
    try:
        add(descriptor, _settle, ready)
    except OSError:
        # Files, and devices like /dev/null, are always ready and cannot be waited for.
        await asyncio.sleep(0)
        return
    try:
        await ready
    finally:
        remove(descriptor)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


@contextlib.contextmanager
def _descriptor(name: str) -> Iterator[int]:
    """Yield one of our standard streams; the null device for one that was closed."""
    stream: TextIO | None = getattr(sys, name)
    if stream is not None:
        yield stream.fileno()
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield null
    finally:
        os.close(null)


@contextlib.contextmanager
def _follow_size(process: asyncssh.SSHClientProcess[bytes]) -> Iterator[None]:
    def resize() -> None:
        size = shutil.get_terminal_size()
        process.change_terminal_size(size.columns, size.lines)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _raw_terminal(descriptor: int) -> Iterator[None]:
    """Let every key through to the far end; restore the terminal, even if a signal ends us."""
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()
    endings = (signal.SIGTERM, signal.SIGHUP)

    def restore() -> None:
        # A terminal that has hung up needs no restoring.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)

    def end(number: signal.Signals) -> None:
        restore()
        loop.remove_signal_handler(number)
        os.kill(os.getpid(), number)

    for number in endings:
        loop.add_signal_handler(number, end, number)
    # The usual TCSAFLUSH would throw away what was typed while we connected.
    tty.setraw(descriptor, termios.TCSANOW)
    try:
        yield
    finally:
        restore()
        for number in endings:
            loop.remove_signal_handler(number)
