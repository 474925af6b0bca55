"""Workloads over SSH, the same on every provider that declares `workload: ssh`.

All of it is done by `node_supervisor.py`, which is copied to the node once per connection; the
only thing a node needs is an SSH server and `python3`. One connection per node is kept and
shared; commands that meet a connection which has died meanwhile are sent again on a new one,
since each is idempotent.

| what goes wrong | outcome |
|---|---|
| no route, refused, timed out, connection lost | `ProviderUnreachable`, tried again |
| our key is refused, or the node's host key is another one | `ProviderAuth`, final |
| no `python3` on the node | `Unsupported` |
| another start or stop holds the workload | `TooManyRequests` |
| anything else the node says | `ProviderError` with its text |
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from garrison.errors import (
    InvalidSpec,
    NotFound,
    ProviderAuth,
    ProviderError,
    ProviderUnreachable,
    TooManyRequests,
    Unsupported,
)
from garrison.models.group import LogChunk, Node, SshEndpoint, WorkloadStatus
from garrison.providers import node_supervisor
from garrison.providers.base import NodeSetup, WorkloadRequest

CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 75.0
KEEPALIVE_SECONDS = 15.0
# OpenSSH allows 10 sessions per connection unless told otherwise.
SESSIONS_PER_CONNECTION = 8
# From here on, links to machines that no longer answer are forgotten.
MAX_LINKS = 4096
SUPERVISOR = Path(node_supervisor.__file__).read_bytes()
DIGEST = hashlib.sha256(SUPERVISOR).hexdigest()
# Isolated: whatever a user or an image put into PYTHON* variables or site-packages.
PYTHON = "python3 -I -S"
REMOTE_PATH = f".garrison/node_supervisor-{DIGEST[:16]}.py"
# Reads itself to the end and checks that before anything is put in place: a connection lost
# half-way looks like the end of the file.
INSTALL = (
    "import hashlib,os,sys;data=sys.stdin.buffer.read();"
    f'hashlib.sha256(data).hexdigest()=="{DIGEST}" or sys.exit("incomplete");'
    'os.umask(0o77);os.makedirs(".garrison",exist_ok=True);'
    'temporary=".garrison/.%d"%os.getpid();open(temporary,"wb").write(data);'
    f'os.replace(temporary,"{REMOTE_PATH}")'
)
NOT_FOUND_STATUS = 127


@dataclass(slots=True)
class _Link:
    """The way to one machine."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sessions: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(SESSIONS_PER_CONNECTION)
    )
    connection: asyncssh.SSHClientConnection | None = None
    host_key: str | None = None

    def is_idle(self) -> bool:
        """Return whether nothing is lost by forgetting it."""
        unused = self.connection is None or self.connection.is_closed()
        return unused and not self.lock.locked()


class SshWorkloads:
    """Implements `Workloads` for nodes that have an SSH endpoint.

    To be used within one event loop, and closed at its end.
    """

    def __init__(
        self,
        client_key: asyncssh.SSHKey | Path,
        *,
        jump: SshEndpoint | None = None,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        """Hold the key; nothing is connected yet.

        Args:
            client_key: Garrison's private key.
            jump: A host that all connections go through.
            connect_seconds: How long connecting and logging in may take.
        """
        key = client_key
        self._key = asyncssh.read_private_key(key) if isinstance(key, Path) else key
        self._jump = jump
        self._connect_seconds = connect_seconds
        self._links: dict[tuple[str, str, int], _Link] = {}
        self._jump_link = _Link()

    async def aclose(self) -> None:
        """Close all connections."""
        links, self._links = [*self._links.values(), self._jump_link], {}
        open_ones = [link.connection for link in links if link.connection is not None]
        for connection in open_ones:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in open_ones))

    async def prepare_node(self, node: Node, setup: NodeSetup) -> Node:
        keys = [_checked_key(key) for key in setup.authorized_keys]
        message = {"keys": keys, "env": setup.env, "hostfile": setup.hostfile}
        await self._ask(node, "prepare", stdin=json.dumps(message).encode())
        ssh = _endpoint(node)
        seen = self._link(node).host_key
        prepared: Node = node.replace(ssh=ssh.replace(host_key=ssh.host_key or seen))
        return prepared

    async def start_workload(self, node: Node, request: WorkloadRequest) -> None:
        if not request.command and not request.image:
            raise InvalidSpec("a workload needs a command or an image")
        name = _checked_name(request.name)
        message = {
            "name": name,
            "generation": request.generation,
            "command": list(request.command),
            "image": request.image,
            "env": request.env,
            "hostfile": request.hostfile,
            "restart": str(request.restart),
            "max_restarts": request.max_restarts,
        }
        await self._ask(node, "start", name, stdin=json.dumps(message).encode())

    async def stop_workload(self, node: Node, name: str) -> None:
        await self._ask(node, "stop", _checked_name(name))

    async def list_workloads(self, node: Node) -> Sequence[WorkloadStatus]:
        header, _ = await self._ask(node, "list")
        return [WorkloadStatus.model_validate(found) for found in header["workloads"]]

    async def read_log(self, node: Node, name: str, *, offset: int, limit: int) -> LogChunk:
        header, data = await self._ask(
            node, "log", _checked_name(name), str(offset), str(max(0, limit))
        )
        return LogChunk(offset=header["offset"], data=data, ended=header["ended"])

    async def _ask(
        self, node: Node, *words: str, stdin: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        command = " ".join(("exec", PYTHON, REMOTE_PATH, *words))
        output = await self._run(node, command, stdin)
        line, _, data = output.partition(b"\n")
        try:
            header = json.loads(line)
        except ValueError:
            raise ProviderError(f"node {node.provider_id} answered {line[:80]!r}") from None
        if "error" in header:
            raise _refusal(node, words, header)
        return header, data

    async def _run(self, node: Node, command: str, stdin: bytes) -> bytes:
        link = self._link(node)
        async with link.sessions:
            for last_try in (False, True):
                connection = await self._connection(node, link)
                try:
                    return await _run(connection, command, stdin)
                except _LostError as error:
                    connection.abort()
                    if last_try or error.timed_out:
                        raise ProviderUnreachable(f"{_where(node)}: {error}") from None
        raise AssertionError("unreachable: the loop returns or raises")

    def _link(self, node: Node) -> _Link:
        ssh = _endpoint(node)
        key = (node.provider_id, ssh.host, ssh.port)
        if key not in self._links and len(self._links) >= MAX_LINKS:
            self._links = {at: link for at, link in self._links.items() if not link.is_idle()}
        return self._links.setdefault(key, _Link())

    async def _connection(self, node: Node, link: _Link) -> asyncssh.SSHClientConnection:
        async with link.lock:
            if link.connection is None or link.connection.is_closed():
                link.connection = await self._connect(_endpoint(node), link, _where(node))
                await _install(link.connection, node)
            return link.connection

    async def _connect(
        self, ssh: SshEndpoint, link: _Link, where: str
    ) -> asyncssh.SSHClientConnection:
        known = ssh.host_key or link.host_key
        tunnel = await self._tunnel() if self._jump and ssh is not self._jump else None
        try:
            async with asyncio.timeout(self._connect_seconds):
                connection = await asyncssh.connect(
                    ssh.host,
                    ssh.port,
                    username=ssh.user,
                    client_keys=[self._key],
                    known_hosts=_known(known, where),
                    tunnel=tunnel,
                    agent_path=None,
                    config=None,
                    preferred_auth="publickey",
                    keepalive_interval=KEEPALIVE_SECONDS,
                    encoding=None,
                )
        except asyncssh.HostKeyNotVerifiable:
            raise ProviderAuth(f"{where}: its host key is not the recorded one") from None
        except asyncssh.PermissionDenied:
            raise ProviderAuth(f"{where}: refuses Garrison's key for user {ssh.user}") from None
        except (OSError, asyncssh.Error, TimeoutError) as error:
            raise ProviderUnreachable(f"{where}: {_reason(error)}") from None
        link.host_key = known or _server_key(connection)
        return connection

    async def _tunnel(self) -> asyncssh.SSHClientConnection:
        assert self._jump is not None
        link = self._jump_link
        async with link.lock:
            if link.connection is None or link.connection.is_closed():
                where = f"jump host {self._jump.host}:{self._jump.port}"
                link.connection = await self._connect(self._jump, link, where)
            return link.connection


class _LostError(Exception):
    """The connection died, or the command did not end in time."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


async def _run(connection: asyncssh.SSHClientConnection, command: str, stdin: bytes) -> bytes:
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            done = await connection.run(command, input=stdin, encoding=None)
    except TimeoutError:
        message = f"did not answer in {COMMAND_SECONDS:.0f} s"
        raise _LostError(message, timed_out=True) from None
    except (OSError, asyncssh.Error) as error:
        raise _LostError(_reason(error)) from None
    output, errors = _bytes(done.stdout), _bytes(done.stderr)
    if done.exit_status == 0:
        return output
    if done.exit_status == NOT_FOUND_STATUS:
        raise Unsupported("the node has no python3, which running workloads needs")
    if done.exit_status is None and done.exit_signal is None:
        raise _LostError("the connection was closed before the command ended")
    text = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
    raise ProviderError(f"the node's supervisor failed: {text[0][:300]}")


async def _install(connection: asyncssh.SSHClientConnection, node: Node) -> None:
    try:
        await _run(connection, f"exec {PYTHON} -c '{INSTALL}'", SUPERVISOR)
    except _LostError as error:
        connection.abort()
        raise ProviderUnreachable(f"{_where(node)}: {error}") from None
    except BaseException:
        # Without the supervisor the connection is of no use to the next command either.
        connection.abort()
        raise


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def _endpoint(node: Node) -> SshEndpoint:
    if node.ssh is None:
        raise ProviderUnreachable(f"node {node.provider_id} has no SSH address yet")
    return node.ssh


def _where(node: Node) -> str:
    ssh = _endpoint(node)
    return f"node {node.provider_id} at {ssh.host}:{ssh.port}"


def _known(host_key: str | None, where: str) -> Any:
    if host_key is None:
        return None  # first contact: whatever key it shows is the one we hold it to from now on
    try:
        return ([asyncssh.import_public_key(host_key)], [], [])
    except asyncssh.KeyImportError:
        raise ProviderAuth(f"{where}: its recorded host key is not a public key") from None


def _server_key(connection: asyncssh.SSHClientConnection) -> str | None:
    key = connection.get_server_host_key()
    if key is None:
        return None
    return " ".join(key.export_public_key().decode().split()[:2])


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value or "").encode()


def _checked_name(name: str) -> str:
    if not node_supervisor.NAME.match(name):
        raise InvalidSpec(f"{name[:64]!r} is no workload name")
    return name


def _checked_key(key: str) -> str:
    # Only plain keys: a line could otherwise smuggle in a second one, or options.
    try:
        asyncssh.import_public_key(key)
    except asyncssh.KeyImportError:
        raise InvalidSpec("an SSH key is no OpenSSH public key") from None
    if len(key.strip().splitlines()) != 1:
        raise InvalidSpec("an SSH key is not one line")
    return key.strip()


def _refusal(node: Node, words: tuple[str, ...], header: dict[str, Any]) -> Exception:
    if header["error"] == "not_found":
        return NotFound(f"node {node.provider_id} has no workload {words[1]!r}")
    if header["error"] == "busy":
        return TooManyRequests(
            f"{_where(node)}: another start or stop holds the workload", retry_after_seconds=10
        )
    return ProviderError(f"{_where(node)}: {header.get('message')}")
