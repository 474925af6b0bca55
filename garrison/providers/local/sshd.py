"""The SSH server of a local node: commands, shells, SFTP and forwarding for its own user."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import pwd
import shlex
import signal
import sys
import termios
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from garrison.providers.local.processes import INCARNATION, LOCK_FD, NODE_ID

INHERITED = ("LANG", "LANGUAGE", "TZ", "PATH", "TMPDIR", "LD_LIBRARY_PATH")
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish"}
# A terminal's shell has ended; a job it left in the background may hold the terminal for ever.
TERMINAL_DRAIN_SECONDS = 1.0
CLAIM_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a session needs to know of its node.

    Attributes:
        login: The only name that may log in.
        lock_fd: Descriptor that every process of the node inherits.
        installation_key: Garrison's public key, which no file in the node's home can revoke.
    """

    node_id: str
    incarnation: int
    home: Path
    login: str
    lock_fd: int
    installation_key: str

    @property
    def shell(self) -> str:
        """The user's own shell, if that is one."""
        try:
            shell = pwd.getpwuid(os.getuid()).pw_shell
        except KeyError:  # a container may run us under a number without a name
            return "/bin/sh"
        return shell if Path(shell).name in SHELLS and os.access(shell, os.X_OK) else "/bin/sh"

    def environment(self, wanted: Mapping[str, str], terminal: str | None) -> dict[str, str]:
        """Return what a session's process gets; nothing else of this process's environment."""
        login = {"HOME": str(self.home), "USER": self.login, "LOGNAME": self.login}
        mark = {
            NODE_ID: self.node_id,
            INCARNATION: str(self.incarnation),
            LOCK_FD: str(self.lock_fd),
        }
        term = {"TERM": terminal} if terminal else {}
        own = {**login, "SHELL": self.shell, **self._cluster_environment()}
        return {**clean_environment(), **own, **wanted, **term, **mark}

    def _cluster_environment(self) -> dict[str, str]:
        try:
            found = json.loads((self.home / ".garrison" / "environment.json").read_bytes())
            return {str(name): str(value) for name, value in found.items()}
        except (OSError, ValueError, AttributeError):
            # Not prepared yet; or the node's user, whose file it is, broke it.
            return {}


def clean_environment() -> dict[str, str]:
    """Return what a node may have of our environment: no credentials and no settings of ours."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or name.startswith("LC_")
    }
    # Last on the path, for machines whose only Python is the one that runs us.
    path = f"{found.get('PATH', os.defpath)}{os.pathsep}{Path(sys.executable).parent}"
    return {**found, "PATH": path}


async def serve(machine: Machine, sock: object, host_key: Path) -> asyncssh.SSHAcceptor:
    """Serve SSH on a listening socket."""

    async def handle(process: asyncssh.SSHServerProcess[bytes]) -> None:
        await _run(machine, process)

    return await asyncssh.listen(
        sock=sock,
        server_factory=lambda: _Door(machine),
        process_factory=handle,
        sftp_factory=lambda channel: _Files(channel, machine.home),
        allow_scp=True,
        server_host_keys=[str(host_key)],
        encoding=None,
        line_editor=False,
        agent_forwarding=False,
        x11_forwarding=False,
        config=None,
        password_auth=False,
        kbdint_auth=False,
        gss_host=None,
    )


class _Door(asyncssh.SSHServer):
    """Let in who has a key, as the files are at that moment."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def begin_auth(self, username: str) -> bool:
        keys = [self._machine.installation_key]
        # The workload can write whatever it likes there; what cannot be read lets nobody in.
        with suppress(OSError, ValueError):
            path = self._machine.home / ".ssh" / "authorized_keys"
            keys.append(path.read_text())
        assert self._connection is not None
        if username == self._machine.login:
            self._connection.set_authorized_keys(_authorized(keys))
        return True

    def connection_requested(self, *_: object) -> bool:
        return True

    def server_requested(self, *_: object) -> bool:
        return True


class _Files(asyncssh.SFTPServer):
    """SFTP in which a relative path begins at the node's home."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], home: Path) -> None:
        super().__init__(channel)
        self._home = os.fsencode(home)

    def map_path(self, path: bytes) -> bytes:
        return posixpath.join(self._home, path)

    def exit(self) -> None:
        # Clients such as scp take a missing exit status for a failure.
        self.channel.exit(0)


def _authorized(keys: list[str]) -> asyncssh.SSHAuthorizedKeys:
    try:
        return asyncssh.import_authorized_keys("\n".join(keys))
    except ValueError:  # one bad line must not lock us out
        return asyncssh.import_authorized_keys(keys[0])


async def _run(machine: Machine, process: asyncssh.SSHServerProcess[bytes]) -> None:
    terminal = process.get_terminal_type()
    argv = [machine.shell, *(["-c", process.command] if process.command else [])]
    env = machine.environment(_text(process.env), terminal)
    start = _start_on_terminal if terminal else _start_on_pipes
    try:
        child, stdin = await start(machine, process, argv, env)
    except OSError as error:
        process.stderr.write(f"{shlex.quote(argv[0])}: {error.strerror}\n".encode())
        process.exit(126)
        return
    feeding = asyncio.ensure_future(_feed(process, stdin, child.pid))
    try:
        await _until_ended(process, child, bool(terminal))
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def _until_ended(
    process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process, terminal: bool
) -> None:
    closed = asyncio.ensure_future(process.channel.wait_closed())
    ended = asyncio.ensure_future(child.wait())
    await asyncio.wait({closed, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        # The client is gone. Its pipes are closed, as by any SSH server, and a terminal hangs up.
        if terminal:
            _deliver(child.pid, "HUP")
        await ended
    drained = asyncio.ensure_future(_drain(process))
    limit = TERMINAL_DRAIN_SECONDS if terminal else None
    await asyncio.wait({closed, drained}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    drained.cancel()
    closed.cancel()
    await asyncio.gather(drained, closed, return_exceptions=True)
    code = child.returncode or 0
    if code < 0:
        process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
    else:
        process.exit(code)
    await process.wait_closed()


async def _drain(process: asyncssh.SSHServerProcess[bytes]) -> None:
    await process.stdout.drain()
    await process.stderr.drain()


async def _feed(process: asyncssh.SSHServerProcess[bytes], stdin: int, pid: int) -> None:
    """Pass on what the client sends; what the command does not want to read is dropped."""
    try:
        while data := await _next_input(process, stdin, pid):
            await _write(stdin, data)
    except OSError:
        return  # the command has closed its input, or its terminal is gone
    finally:
        os.close(stdin)


async def _next_input(process: asyncssh.SSHServerProcess[bytes], stdin: int, pid: int) -> bytes:
    while True:
        try:
            return await process.stdin.read(65_536)
        except asyncssh.TerminalSizeChanged as change:
            if os.isatty(stdin):
                termios.tcsetwinsize(stdin, (change.height, change.width))
        except asyncssh.BreakReceived:
            _deliver(pid, "INT")
        except asyncssh.SignalReceived as told:
            _deliver(pid, told.signal)


async def _write(descriptor: int, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            writable = asyncio.Event()
            loop.add_writer(descriptor, writable.set)
            try:
                await writable.wait()
            finally:
                loop.remove_writer(descriptor)


def _deliver(pid: int, name: str) -> None:
    number = getattr(signal, f"SIG{name}", None)
    if isinstance(number, signal.Signals):
        with suppress(ProcessLookupError):
            os.killpg(pid, number)


async def _start_on_pipes(
    machine: Machine,
    process: asyncssh.SSHServerProcess[bytes],
    argv: list[str],
    env: dict[str, str],
) -> tuple[asyncio.subprocess.Process, int]:
    (in_r, in_w), (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe(), os.pipe()
    try:
        child = await _spawn(machine, argv, env, (in_r, out_w, err_w))
    except OSError:
        _close(in_w, out_r, err_r)
        raise
    finally:
        _close(in_r, out_w, err_w)
    os.set_blocking(in_w, False)
    await process.redirect(stdout=out_r, stderr=err_r, send_eof=False)
    return child, in_w


async def _start_on_terminal(
    machine: Machine,
    process: asyncssh.SSHServerProcess[bytes],
    argv: list[str],
    env: dict[str, str],
) -> tuple[asyncio.subprocess.Process, int]:
    main, terminal = os.openpty()
    try:
        columns, rows, _, _ = process.term_size
        if columns and rows:
            termios.tcsetwinsize(terminal, (rows, columns))
        # Claimed by the child itself: code between fork and exec is not safe beside threads.
        claim = [sys.executable, "-I", "-S", "-c", CLAIM_TERMINAL, *argv]
        child = await _spawn(machine, claim, env, (terminal, terminal, terminal))
    except OSError:
        _close(main)
        raise
    finally:
        _close(terminal)
    os.set_blocking(main, False)
    stdin = os.dup(main)
    await process.redirect(stdout=main, send_eof=False)
    return child, stdin


async def _spawn(
    machine: Machine, argv: list[str], env: dict[str, str], stdio: tuple[int, int, int]
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=stdio[0],
        stdout=stdio[1],
        stderr=stdio[2],
        cwd=machine.home,
        env=env,
        start_new_session=True,
        pass_fds=(machine.lock_fd,),
    )


def _text(env: Mapping[str, str] | Mapping[bytes, bytes]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
