"""The SSH server of a local node, judged by the OpenSSH client."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncssh
import pytest
import pytest_asyncio

from garrison.models.group import Node
from garrison.providers.base import NodeSetup
from tests.providers.local_world import LocalWorld, eventually, processes_with, vanishes

OPTIONS = (
    *("-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
    *("-o", "LogLevel=ERROR", "-F", "none"),
)


@dataclass(frozen=True)
class Client:
    """A person with a key of their own, on the command line."""

    node: Node
    key: Path
    known_hosts: Path

    @property
    def target(self) -> str:
        assert self.node.ssh is not None
        return f"{self.node.ssh.user}@{self.node.ssh.host}"

    def options(self, port_flag: str) -> list[str]:
        assert self.node.ssh is not None
        known = f"UserKnownHostsFile={self.known_hosts}"
        return [*OPTIONS, "-o", known, "-i", str(self.key), port_flag, str(self.node.ssh.port)]

    async def ssh(self, *words: str, stdin: bytes = b"", flags: tuple[str, ...] = ()) -> Answer:
        return await run("ssh", *self.options("-p"), *flags, self.target, *words, stdin=stdin)


@dataclass(frozen=True)
class Answer:
    status: int
    output: bytes
    errors: bytes


async def run(*argv: str, stdin: bytes = b"") -> Answer:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(30):
        output, errors = await process.communicate(stdin)
    return Answer(process.returncode or 0, output, errors)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[LocalWorld]:
    async with LocalWorld.opened(tmp_path) as opened:
        yield opened
        # Neither a traceback nor a warning of the server.
        logs = [log.read_text() for log in opened.root.glob("nodes/*/node.log")]
        assert logs == [""]


@pytest_asyncio.fixture
async def client(world: LocalWorld, tmp_path: Path) -> Client:
    key = asyncssh.generate_private_key("ssh-ed25519", comment="a user")
    path = tmp_path / "user_key"
    path.write_bytes(key.export_private_key())
    path.chmod(0o600)
    node = await world.prepared(key.export_public_key().decode())
    assert node.ssh is not None
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"[{node.ssh.host}]:{node.ssh.port} {node.ssh.host_key}\n")
    return Client(node, path, known_hosts)


async def test_a_users_key_logs_in_and_the_exit_status_comes_back(client: Client) -> None:
    answer = await client.ssh("echo out; echo err >&2; pwd; exit 7")

    home = f"nodes/{client.node.provider_id}/home"
    assert answer.status == 7
    assert answer.output.decode().splitlines()[0] == "out"
    assert answer.output.decode().splitlines()[1].endswith(home)
    assert answer.errors == b"err\n"


async def test_bytes_pass_unchanged_in_both_directions(client: Client) -> None:
    data = os.urandom(3_000_000) + b"\x00\xff\r\n"

    answer = await client.ssh("tee /dev/stderr", stdin=data)

    assert answer.status == 0
    assert answer.output == data
    assert answer.errors == data


async def test_a_command_that_does_not_read_its_input_ends(client: Client) -> None:
    answer = await client.ssh("exit 3", stdin=b"x" * 2_000_000)

    assert answer.status == 3


async def test_a_command_killed_by_a_signal_is_told_as_such(client: Client) -> None:
    answer = await client.ssh("kill -KILL $$")

    assert answer.status == 255


async def test_a_terminal_is_one_with_job_control(client: Client) -> None:
    script = "tty; test -t 0 && echo $TERM; ps -o tty= -p $$; stty size\nexit 5\n"

    plain = await client.ssh("tty")
    answer = await client.ssh(stdin=script.encode(), flags=("-tt",))

    assert b"not a tty" in plain.output
    assert answer.status == 5
    assert b"/dev/pts/" in answer.output
    assert b"no job control" not in answer.output


async def test_the_size_of_a_terminal_and_signals_reach_the_command(
    world: LocalWorld, client: Client
) -> None:
    ssh = client.node.ssh
    assert ssh is not None
    # `wait`, unlike a command in the foreground, gives way to a trap at once.
    waits = "echo ready; sleep 1000 & wait; :"
    script = f"trap 'echo told' USR1; stty size; read line; stty size; {waits}"
    async with asyncssh.connect(
        ssh.host, ssh.port, client_keys=[str(client.key)], known_hosts=None, config=None
    ) as connection:
        process = await connection.create_process(
            f"bash -c {shlex.quote(script)}", term_type="xterm", term_size=(100, 40)
        )
        first = await process.stdout.readline()
        process.change_terminal_size(120, 50)
        process.stdin.write("go\n")
        echo_and_second = [await process.stdout.readline() for _ in range(2)]
        await process.stdout.readuntil("ready")
        process.send_signal("USR1")
        told = await process.stdout.readuntil("told")
        process.close()

    assert first.strip() == "40 100"
    assert echo_and_second[1].strip() == "50 120"
    assert told.endswith("told")


async def test_a_shell_without_a_terminal_reads_a_script(client: Client) -> None:
    answer = await client.ssh(stdin=b"echo one\nexit 4\n", flags=("-T",))

    assert (answer.status, answer.output) == (4, b"one\n")


async def test_a_lost_terminal_hangs_up_its_shell(client: Client) -> None:
    seconds = str(uuid.uuid4().int % 10**12)
    argv = ["ssh", *client.options("-p"), "-tt", client.target, f"sleep {seconds}; :"]
    ssh = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )

    async def runs() -> bool:
        return len(processes_with(f"sleep {seconds}")) > 2

    await eventually(runs)
    ssh.send_signal(signal.SIGKILL)
    await ssh.wait()

    await vanishes(f"sleep {seconds}")


async def test_the_variables_of_a_login_are_the_nodes_own(client: Client) -> None:
    answer = await client.ssh(
        "echo $HOME $USER $SHELL $GARRISON_NODE_ID $WANTED",
        flags=("-o", "SetEnv=WANTED=yes GARRISON_NODE_ID=another"),
    )

    home, user, shell, node_id, wanted = answer.output.decode().split()
    assert home.endswith(f"{client.node.provider_id}/home")
    assert client.node.ssh is not None
    assert user == client.node.ssh.user
    assert os.access(shell, os.X_OK)
    assert (node_id, wanted) == (client.node.provider_id, "yes")


@pytest.mark.parametrize("protocol", ["-s", "-O"], ids=["over SFTP", "over the old protocol"])
async def test_scp_copies_there_and_back(client: Client, tmp_path: Path, protocol: str) -> None:
    (tmp_path / "there").write_bytes(data := os.urandom(200_000))
    remote = f"{client.target}:copied"

    there = await run("scp", protocol, *client.options("-P"), str(tmp_path / "there"), remote)
    back = await run("scp", protocol, *client.options("-P"), remote, str(tmp_path / "back"))
    listed = await client.ssh("ls")

    assert (there.status, back.status) == (0, 0), there.errors + back.errors
    assert (tmp_path / "back").read_bytes() == data
    assert listed.output == b"copied\n"


async def test_a_port_of_a_node_is_forwarded(client: Client) -> None:
    assert client.node.ssh is not None
    target = f"{client.node.ssh.host}:{client.node.ssh.port}"
    argv = ["ssh", *client.options("-p"), "-W", target, client.target]
    pipe = asyncio.subprocess.PIPE
    forward = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    assert forward.stdout is not None

    async with asyncio.timeout(20):
        greeting = await forward.stdout.readline()
    forward.kill()
    await forward.communicate()

    assert greeting.startswith(b"SSH-2.0")


async def test_many_sessions_at_once_are_served(client: Client) -> None:
    answers = await asyncio.gather(*(client.ssh(f"echo {n}; exit {n}") for n in range(12)))

    assert [answer.status for answer in answers] == list(range(12))
    assert [answer.output for answer in answers] == [b"%d\n" % n for n in range(12)]


async def test_an_unknown_key_and_a_foreign_name_are_refused(
    client: Client, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger"
    stranger.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    stranger.chmod(0o600)

    unknown = await Client(client.node, stranger, client.known_hosts).ssh("true")
    foreign = await client.ssh("true", flags=("-l", "somebody-else"))

    assert (unknown.status, foreign.status) == (255, 255)
    assert b"Permission denied" in unknown.errors
    assert b"Permission denied" in foreign.errors


async def test_a_broken_authorized_keys_file_lets_only_garrison_in(
    world: LocalWorld, client: Client
) -> None:
    file = world.directory(client.node).home / ".ssh" / "authorized_keys"
    file.write_bytes(b"\xff\xfe not a key\nssh-ed25519 AAAA broken\n")

    refused = await client.ssh("true")
    await world.open().workloads.prepare_node(client.node, NodeSetup())

    assert refused.status == 255


async def test_a_key_added_later_logs_in_and_one_removed_does_not(
    world: LocalWorld, client: Client
) -> None:
    file = world.directory(client.node).home / ".ssh" / "authorized_keys"
    key = file.read_text()

    file.write_text("")
    removed = await client.ssh("true")
    await world.on.prepare_node(client.node, NodeSetup((key.strip(),)))
    added = await client.ssh("true")

    assert (removed.status, added.status) == (255, 0)
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_session_knows_its_cluster(world: LocalWorld, client: Client) -> None:
    env = {"NODE_RANK": "1", "NODE_ADDRS": "10.0.0.1\n10.0.0.2", "ODD": "it's $HOME `x`"}
    setup = NodeSetup(env=env, hostfile="10.0.0.1 slots=8\n")
    await world.on.prepare_node(client.node, setup)

    script = 'echo "$NODE_RANK|$NODE_ADDRS|$ODD"; cat "$HOSTFILE"'
    direct = await client.ssh(script)
    bare = f'env -i HOME="$HOME" sh -c {shlex.quote(". ~/.garrison/env; " + script)}'
    sourced = await client.ssh(bare)

    expected = b"1|10.0.0.1\n10.0.0.2|it's $HOME `x`\n10.0.0.1 slots=8\n"
    assert direct.output == expected
    assert sourced.output == expected
