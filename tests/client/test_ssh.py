"""A login with real descriptors of every kind, against a real SSH server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import shlex
import signal
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from garrison.models.cluster_status import SshStatus
from tests.client.ssh_node import ssh_node, write_client_key

LIMIT = 30.0
PROGRAM = """
import asyncio, sys
from pathlib import Path
from garrison.client.ssh import run_ssh
from garrison.models.cluster_status import SshStatus

end = SshStatus.model_validate_json(sys.argv[1])
sys.exit(asyncio.run(run_ssh(end, Path(sys.argv[2]), sys.argv[3:])))
"""


@dataclass(frozen=True)
class Login:
    end: SshStatus
    key: Path

    def line(self, *command: str) -> str:
        """Return a shell's words for the login, to which redirections can be added."""
        words = [sys.executable, "-c", PROGRAM, self.end.model_dump_json(), str(self.key)]
        return shlex.join([*words, *command])

    async def shell(self, script: str) -> tuple[int, bytes, bytes]:
        """Run a script of this machine's shell; return how it ended and what it wrote."""
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            script,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), LIMIT)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        return process.returncode or 0, out, err


@pytest.fixture
async def login(tmp_path: Path) -> AsyncIterator[Login]:
    key, public = write_client_key(tmp_path)
    async with ssh_node(public) as end:
        yield Login(end, key)


@pytest.mark.parametrize("source", ["</dev/null", "<&-", "< <(true)"])
async def test_input_that_has_nothing_ends_at_once(login: Login, source: str) -> None:
    assert await login.shell(f"{login.line('cat')} {source}") == (0, b"", b"")


async def test_a_login_shell_without_input_ends(login: Login) -> None:
    assert await login.shell(f"{login.line()} </dev/null") == (0, b"", b"")


async def test_a_file_arrives_whole_and_leaves_whole(login: Login, tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    (tmp_path / "in").write_bytes(data)

    ended = await login.shell(f"{login.line('cat')} <{tmp_path}/in >{tmp_path}/out")

    assert ended == (0, b"", b"")
    assert (tmp_path / "out").read_bytes() == data


async def test_much_data_passes_through_pipes_unchanged(login: Login, tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    (tmp_path / "in").write_bytes(data)

    ended = await login.shell(f"cat {tmp_path}/in | {login.line('cat')} | cat")

    assert ended == (0, data, b"")


async def test_a_reader_that_leaves_ends_the_session_as_a_broken_pipe(login: Login) -> None:
    script = f"{login.line('yes')} </dev/null | head -2; echo ${{PIPESTATUS[0]}}"

    assert await login.shell(script) == (0, b"y\ny\n141\n", b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/null 2>/dev/null"])
async def test_closed_output_counts_as_the_null_device(login: Login, closed: str) -> None:
    line = login.line("sh", "-c", "echo out; echo err >&2; exit 7")

    status, out, err = await login.shell(f"{line} {closed}")

    assert status == 7
    assert out == (b"out\n" if closed == "2>&-" else b"")
    assert err == (b"err\n" if closed == ">&-" else b"")


async def test_both_outputs_and_the_exit_status_come_back(login: Login) -> None:
    line = login.line("sh", "-c", "echo out; echo err >&2; exit 7")

    assert await login.shell(line + " </dev/null") == (7, b"out\n", b"err\n")


async def test_a_command_ends_although_our_input_stays_open(login: Login) -> None:
    _, out, _ = await login.shell(f"exec 3< <(sleep 60); {login.line('echo', 'hi')} <&3; kill $!")

    assert out == b"hi\n"


async def test_shared_streams_stay_blocking(login: Login) -> None:
    probe = "import os; print(os.get_blocking(0), os.get_blocking(1), os.get_blocking(2))"

    _, out, _ = await login.shell(
        f"{login.line('true')}; {shlex.join([sys.executable, '-c', probe])}"
    )

    assert out == b"True True True\n"


async def test_what_was_typed_ahead_arrives_and_the_terminal_is_restored(login: Login) -> None:
    with _terminal() as (ours, theirs):
        before = termios.tcgetattr(theirs)
        os.write(ours, b"echo a$((1+1))b; exit 5\n")
        process = await _spawn_on(theirs, login.line())

        said = await _read_until(ours, b"a2b")
        status = await asyncio.wait_for(process.wait(), LIMIT)

        assert b"a2b" in said
        assert status == 5
        assert termios.tcgetattr(theirs) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_a_signal_that_ends_us_restores_the_terminal(
    login: Login, number: signal.Signals
) -> None:
    with _terminal() as (ours, theirs):
        before = termios.tcgetattr(theirs)
        process = await _spawn_on(theirs, login.line("sh", "-c", "echo started; sleep 60"))
        await _read_until(ours, b"started")
        assert termios.tcgetattr(theirs) != before

        process.send_signal(number)
        status = await asyncio.wait_for(process.wait(), LIMIT)

        assert status != 0
        assert termios.tcgetattr(theirs) == before


@contextlib.contextmanager
def _terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


async def _spawn_on(terminal: int, line: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *shlex.split(line), stdin=terminal, stdout=terminal, stderr=asyncio.subprocess.DEVNULL
    )


async def _read_until(descriptor: int, wanted: bytes) -> bytes:
    said = b""
    os.set_blocking(descriptor, False)
    async with asyncio.timeout(LIMIT):
        while wanted not in said:
            with contextlib.suppress(BlockingIOError):
                said += os.read(descriptor, 4096)
            await asyncio.sleep(0.01)
    return said
