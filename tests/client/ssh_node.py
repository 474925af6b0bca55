"""A node with a real SSH server, on which commands run in this machine's shell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import asyncssh

from garrison.models.cluster_status import SshStatus

USER = "garrison"


@contextlib.asynccontextmanager
async def ssh_node(public_key: str) -> AsyncIterator[SshStatus]:
    """Serve one node whose only door is a public key."""
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[host_key],
        authorized_client_keys=asyncssh.import_authorized_keys(public_key),
        process_factory=_run,
        encoding=None,
        line_editor=False,
    )
    try:
        yield SshStatus(
            host="127.0.0.1",
            port=server.get_port(),
            user=USER,
            host_key=host_key.export_public_key().decode().strip(),
        )
    finally:
        server.close()
        await server.wait_closed()


async def _run(process: asyncssh.SSHServerProcess[bytes]) -> None:
    words = ["sh", "-c", process.command] if process.command else ["sh"]
    child = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    feeding = asyncio.create_task(_feed(process, child))
    ended = asyncio.create_task(_output(process, child))
    gone = asyncio.create_task(process.wait_closed())
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            process.exit(await asyncio.to_thread(child.wait))
        await gone
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await asyncio.to_thread(child.wait)
        await asyncio.gather(ended, feeding)


async def _feed(process: asyncssh.SSHServerProcess[bytes], child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    # The command may not want its input, and the client may go.
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await process.stdin.read(65_536):
            await asyncio.to_thread(_write, child.stdin.fileno(), data)
    child.stdin.close()


def _write(target: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]


async def _output(
    process: asyncssh.SSHServerProcess[bytes], child: subprocess.Popen[bytes]
) -> None:
    assert child.stdout is not None
    assert child.stderr is not None
    await asyncio.gather(_carry(child.stdout, process.stdout), _carry(child.stderr, process.stderr))


async def _carry(source: IO[bytes], target: asyncssh.SSHWriter[bytes]) -> None:
    with source:
        while data := await asyncio.to_thread(os.read, source.fileno(), 65_536):
            with contextlib.suppress(BrokenPipeError):  # the client has gone
                target.write(data)
                await target.drain()


def write_client_key(folder: Path) -> tuple[Path, str]:
    """Make a client's key; return its file and the public half."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    path = folder / "key"
    path.write_bytes(key.export_private_key())
    path.chmod(0o600)
    return path, key.export_public_key().decode().strip()
