"""Workloads over SSH on real nodes: supervision, secrets, logs, trust."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import psutil
import pytest
import pytest_asyncio

from garrison.errors import InvalidSpec, NotFound, ProviderAuth, ProviderUnreachable
from garrison.models.group import Node, NodeStatus, RestartPolicy, SshEndpoint, WorkloadState
from garrison.providers import node_supervisor
from garrison.providers.base import NodeSetup, WorkloadRequest
from garrison.providers.workload_ssh import SUPERVISOR, SshWorkloads
from tests.providers.local_world import (
    LocalWorld,
    eventually,
    processes_with,
    shell,
)

SECRET = "s3cret-value-that-is-nowhere-else"


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[LocalWorld]:
    async with LocalWorld.opened(tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture
async def node(world: LocalWorld) -> Node:
    return await world.prepared()


@pytest.mark.parametrize(
    ("policy", "script", "state", "exit_code", "restarts"),
    [
        pytest.param("never", "exit 3", "failed", 3, 0, id="never: a failure stays"),
        pytest.param("on_failure", "exit 0", "succeeded", 0, 0, id="success is an end"),
        pytest.param("on_failure", "exit 3", "failed", 3, 1, id="failures are counted"),
        pytest.param("never", "kill -9 $$", "failed", -9, 0, id="a kill is recorded"),
        pytest.param("on_failure", "kill -9 $$", "failed", -9, 1, id="a kill is a failure"),
        pytest.param("on_failure", "kill -15 $$", "failed", -15, 1, id="so is SIGTERM by others"),
        pytest.param(
            "on_failure",
            "test -e been || { touch been; exit 1; }",
            "succeeded",
            0,
            1,
            id="the second try counts",
        ),
    ],
)
async def test_the_restart_policy_decides(
    world: LocalWorld,
    node: Node,
    policy: str,
    script: str,
    state: str,
    exit_code: int,
    restarts: int,
) -> None:
    request = shell(script, restart=RestartPolicy(policy), max_restarts=1)

    await world.on.start_workload(node, request)

    status = await world.reaches(node, WorkloadState(state))
    assert (status.exit_code, status.restarts) == (exit_code, restarts)


async def test_always_starts_again_after_success_with_growing_pauses(
    world: LocalWorld, node: Node
) -> None:
    request = shell("date +%s.%N", restart=RestartPolicy.ALWAYS, max_restarts=0)

    await world.on.start_workload(node, request)

    async def third() -> list[float] | None:
        log = (await world.on.read_log(node, "main", offset=0, limit=1000)).data.decode()
        times = [float(line) for line in log.splitlines()]
        return times if len(times) >= 3 else None

    times = await eventually(third)
    assert times[1] - times[0] >= 1.0
    assert times[2] - times[1] >= 2.0


async def test_a_workload_killed_from_outside_is_started_again(
    world: LocalWorld, node: Node
) -> None:
    request = shell("echo $$; exec sleep 1000", restart=RestartPolicy.ON_FAILURE)
    await world.on.start_workload(node, request)
    pid = int((await world.logs(node, "\n")).strip())

    os.kill(pid, signal.SIGKILL)

    killed = await world.reaches(node, WorkloadState.RESTARTING)
    again = await world.reaches(node, WorkloadState.RUNNING)
    assert killed.exit_code == -9
    assert (again.restarts, again.exit_code, again.message) == (1, None, "killed by signal 9")


async def test_a_workload_can_be_stopped_while_it_waits_to_start_again(
    world: LocalWorld, node: Node
) -> None:
    await world.on.start_workload(node, shell("exit 4", restart=RestartPolicy.ALWAYS))
    await world.reaches(node, WorkloadState.RESTARTING)

    await world.on.stop_workload(node, "main")

    (status,) = await world.on.list_workloads(node)
    assert (status.state, status.exit_code) == (WorkloadState.STOPPED, 4)


async def test_a_newer_generation_ends_the_older_with_all_its_processes(
    world: LocalWorld, node: Node
) -> None:
    seconds = unique_seconds()
    await world.on.start_workload(node, shell(f"setsid sleep {seconds} & sleep {seconds}"))
    await runs(f"sleep {seconds}")

    await world.on.start_workload(node, shell("echo new; sleep 1000", generation=2))

    assert processes_with(f"sleep {seconds}") == []
    assert await world.logs(node, "new") == "new\n"


async def test_an_overtaken_older_generation_changes_nothing(world: LocalWorld, node: Node) -> None:
    await world.on.start_workload(node, shell("echo new; sleep 1000", generation=2))
    await world.logs(node, "new")

    await world.on.start_workload(node, shell("echo old", generation=1))

    assert await world.logs(node, "new") == "new\n"
    assert (await world.reaches(node, WorkloadState.RUNNING)).restarts == 0


async def test_what_a_command_leaves_behind_ends_with_it(world: LocalWorld, node: Node) -> None:
    seconds = unique_seconds()

    await world.on.start_workload(node, shell(f"setsid sleep {seconds} & exit 0"))

    await world.reaches(node, WorkloadState.SUCCEEDED)
    assert processes_with(f"sleep {seconds}") == []


async def test_stop_gives_the_whole_session_time_to_end_well(world: LocalWorld, node: Node) -> None:
    # The shell dies at once; its child still saves its work.
    save = "trap 'sleep 1; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    await world.on.start_workload(node, shell(f'sh -c "{save}"; echo not reached'))
    await world.logs(node, "ready")

    await world.on.stop_workload(node, "main")

    log = await world.logs(node, "saved")
    assert log.endswith("saved\n")
    assert "not reached" not in log


def test_what_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    supervise(tmp_path, "start", "main", stdin=request_of(script))
    log = tmp_path / ".garrison" / "workloads" / "main" / "log"
    while log.read_bytes() != b"ready\n":
        time.sleep(0.02)

    began = time.monotonic()
    supervise(tmp_path, "stop", "main")

    (status,) = supervise(tmp_path, "list")["workloads"]
    assert (status["state"], status["exit_code"]) == ("stopped", -9)
    assert time.monotonic() - began >= 1.0


def test_starting_twice_at_once_starts_once(tmp_path: Path) -> None:
    request = request_of("echo began; sleep 1000")
    starts = [begin(tmp_path, "start", "main") for _ in range(4)]

    answers = [json.loads(start.communicate(request)[0])["done"] for start in starts]
    supervise(tmp_path, "stop", "main")

    log = tmp_path / ".garrison" / "workloads" / "main" / "log"
    assert sorted(answers) == ["kept", "kept", "kept", "started"]
    assert log.read_bytes() == b"began\n"


def test_a_start_that_was_cut_off_before_the_command_ran_is_carried_out(tmp_path: Path) -> None:
    folder = tmp_path / ".garrison" / "workloads" / "main"
    folder.mkdir(parents=True)
    status = {"name": "main", "state": "pending", "generation": 1, "boot": "7", "restarts": 0}
    (folder / "status.json").write_text(json.dumps(status))

    done = supervise(tmp_path, "start", "main", stdin=request_of("echo ran"))["done"]

    assert done == "started"
    while supervise(tmp_path, "list")["workloads"][0]["state"] != "succeeded":
        time.sleep(0.02)
    assert (folder / "log").read_bytes() == b"ran\n"


async def test_a_dead_supervisor_is_a_failed_workload_and_leaves_nothing_to_its_successor(
    world: LocalWorld, node: Node
) -> None:
    seconds = unique_seconds()
    await world.on.start_workload(node, shell(f"sleep {seconds}"))
    await runs(f"sleep {seconds}")

    os.kill(world.supervisor(node), signal.SIGKILL)
    dead = await world.reaches(node, WorkloadState.FAILED)
    await world.on.start_workload(node, shell("sleep 1000", generation=2))

    assert dead.message == "its supervisor died"
    assert processes_with(f"sleep {seconds}") == []
    await world.reaches(node, WorkloadState.RUNNING)


async def test_a_secret_is_in_no_file_and_in_no_process_list(world: LocalWorld, node: Node) -> None:
    request = shell("echo ${#TOKEN}; sleep 1000", env={"TOKEN": SECRET}, hostfile="a\n")

    await world.on.start_workload(node, request)
    log = await world.logs(node, "\n")

    files = [path for path in world.root.rglob("*") if path.is_file()]
    assert log == f"{len(SECRET)}\n"
    assert len(files) > 10
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert processes_with(SECRET) == []
    assert SECRET not in str(psutil.Process(world.supervisor(node)).environ())
    assert SECRET not in repr(request)


async def test_values_reach_the_process_exactly(world: LocalWorld, node: Node) -> None:
    env = {
        "LINES_": "10.0.0.1\n10.0.0.2\n",
        "SPACES": "  two  ",
        "QUOTES": "'\"$HOME`id`\\",
        "TEXT": "häß\u2028\U0001f600",
        "EMPTY": "",
        "LONG": "x" * 100_000,
        "GARRISON_NODE_ID": "hidden",
    }
    dump = "import json,os; print(json.dumps(dict(os.environ)))"
    request = WorkloadRequest(
        name="main", command=("python3", "-c", dump), env=env, hostfile="10.0.0.1 slots=8\n"
    )

    await world.on.start_workload(node, request)
    seen = json.loads(await world.logs(node, "}\n"))

    expected = env | {"GARRISON_NODE_ID": node.provider_id}
    assert {name: seen[name] for name in env} == expected
    assert Path(seen["HOSTFILE"]).read_text() == "10.0.0.1 slots=8\n"
    assert "PYTHONUNBUFFERED" not in seen
    assert "GARRISON_NODE_LOCK_FD" not in seen


@pytest.mark.parametrize(
    ("request_", "exit_code", "message"),
    [
        pytest.param(
            WorkloadRequest(name="main", command=("no-such-command",), max_restarts=0),
            127,
            "cannot start no-such-command: No such file or directory",
            id="no such command",
        ),
        pytest.param(
            WorkloadRequest(name="main", command=("/etc/passwd",), max_restarts=0),
            126,
            "cannot start /etc/passwd: Permission denied",
            id="not executable",
        ),
        pytest.param(
            shell("true", env={"TOKEN": SECRET * 5000}),
            127,
            "cannot start /bin/sh: Argument list too long",
            id="a value too long for the kernel",
        ),
    ],
)
async def test_a_command_that_cannot_start_says_why(
    world: LocalWorld, node: Node, request_: WorkloadRequest, exit_code: int, message: str
) -> None:
    await world.on.start_workload(node, request_)

    status = await world.reaches(node, WorkloadState.FAILED)
    assert (status.exit_code, status.message) == (exit_code, message)


async def test_an_image_is_run_by_docker_without_showing_values(
    world: LocalWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    # Stands in for the docker client, as there is no daemon: tells what it was given.
    docker.write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        "file = sys.argv[sys.argv.index('--env-file') + 1] if sys.argv[1] == 'run' else None\n"
        "if file: print(json.dumps([sys.argv[1:], dict(os.environ), open(file).read()]))\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}{os.pathsep}{os.environ['PATH']}")
    node = await world.prepared()
    env = {"TOKEN": SECRET, "LINES_": "a\nb\n", "DOCKER_HOST": "tcp://x", "GPUS_PER_NODE": "8"}

    await world.on.start_workload(
        node,
        WorkloadRequest(name="main", image="me/train:1", command=("go",), env=env, hostfile="a\n"),
    )
    await world.reaches(node, WorkloadState.SUCCEEDED)
    argv, seen, file = json.loads(await world.logs(node, "]\n"))

    assert argv[0] == "run"
    assert argv[-2:] == ["me/train:1", "go"]
    assert not any(SECRET in word for word in argv)
    named = {argv[at + 1] for at, word in enumerate(argv) if word == "--env"}
    assert {"TOKEN", "LINES_", "GPUS_PER_NODE", "HOSTFILE"} <= named
    assert (seen["TOKEN"], seen["LINES_"]) == (SECRET, "a\nb\n")
    assert "DOCKER_HOST" not in seen
    assert file == "DOCKER_HOST=tcp://x\n"
    assert argv[argv.index("--gpus") + 1] == "all"


async def test_a_missing_docker_is_a_clear_failure(
    world: LocalWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    node = await world.prepared()

    await world.on.start_workload(
        node, WorkloadRequest(name="main", image="me/train:1", command=(), max_restarts=0)
    )

    status = await world.reaches(node, WorkloadState.FAILED)
    assert status.message == "docker is not installed on this node; image me/train:1 needs it"


async def test_output_keeps_its_bytes_and_its_order(world: LocalWorld, node: Node) -> None:
    code = "import os\nfor n in range(2000):\n    os.write(1 + n % 2, b'%d \\x00\\xff\\r\\n' % n)\n"

    await world.on.start_workload(
        node, WorkloadRequest(name="main", command=("python3", "-c", code))
    )
    await world.reaches(node, WorkloadState.SUCCEEDED)
    chunk = await world.on.read_log(node, "main", offset=0, limit=1_000_000)

    assert chunk.data == b"".join(b"%d \x00\xff\r\n" % n for n in range(2000))
    assert chunk.ended


async def test_a_huge_log_is_read_in_parts(world: LocalWorld, node: Node) -> None:
    await world.on.start_workload(node, shell("true"))
    await world.reaches(node, WorkloadState.SUCCEEDED)
    log = world.workload_file(node, "main", "log")
    with log.open("r+b") as file:
        file.truncate(2**31)
        file.seek(0, os.SEEK_END)
        file.write(b"the end\n")

    tail = await world.on.read_log(node, "main", offset=-8, limit=10**12)
    middle = await world.on.read_log(node, "main", offset=2**30, limit=10**12)

    assert (tail.data, tail.offset, tail.ended) == (b"the end\n", 2**31, True)
    assert (len(middle.data), middle.offset, middle.ended) == (16 * 2**20, 2**30, False)


async def test_what_a_workload_does_to_its_own_files_hides_no_other(
    world: LocalWorld, node: Node
) -> None:
    for name in ("fifo", "garbage", "link", "good"):
        await world.on.start_workload(node, shell("true", name=name))
        await world.reaches(node, WorkloadState.SUCCEEDED, name)
    for name in ("fifo", "garbage", "link"):
        world.workload_file(node, name, "status.json").unlink()
    os.mkfifo(world.workload_file(node, "fifo", "status.json"))
    world.workload_file(node, "garbage", "status.json").write_text('{"state": ["running"]}')
    world.workload_file(node, "link", "status.json").symlink_to("/etc/passwd")

    over_ssh = await world.on.list_workloads(node)
    listed = (await world.node()).workloads

    states = {status.name: status.state for status in over_ssh}
    assert states == {"good": WorkloadState.SUCCEEDED, "garbage": WorkloadState.FAILED}
    assert listed == tuple(over_ssh)


@pytest.mark.parametrize("name", ["", "../up", "a b", "-x", "a/b", "a;id", "a\n", "x" * 129])
async def test_a_name_that_could_mean_something_else_is_refused(
    world: LocalWorld, node: Node, name: str
) -> None:
    for call in (
        world.on.start_workload(node, shell("true", name=name)),
        world.on.stop_workload(node, name),
        world.on.read_log(node, name, offset=0, limit=1),
    ):
        with pytest.raises(InvalidSpec):
            await call


@pytest.mark.parametrize(
    "key", ["", "hello", "ssh-ed25519 AAAA", "{key}\n{key}", 'command="x" {key}']
)
async def test_what_is_not_one_plain_key_is_refused(
    world: LocalWorld, node: Node, key: str
) -> None:
    good = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()

    with pytest.raises(InvalidSpec):
        await world.on.prepare_node(node, NodeSetup((key.format(key=good),)))

    assert not (world.directory(node).home / ".ssh" / "authorized_keys").exists()


async def test_a_changed_host_key_is_refused(world: LocalWorld, node: Node) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    assert node.ssh is not None
    expected_other = node.replace(ssh=node.ssh.replace(host_key=other))

    with pytest.raises(ProviderAuth, match="host key is not the recorded one"):
        await world.open().workloads.start_workload(expected_other, shell("true"))

    assert await world.on.list_workloads(node) == []


async def test_the_first_host_key_seen_is_recorded(world: LocalWorld, node: Node) -> None:
    assert node.ssh is not None
    unseen = node.replace(ssh=node.ssh.replace(host_key=None))

    prepared = await world.open().workloads.prepare_node(unseen, NodeSetup())

    assert prepared == node


async def test_a_refused_key_is_an_authentication_error(world: LocalWorld, node: Node) -> None:
    stranger = SshWorkloads(asyncssh.generate_private_key("ssh-ed25519"))

    with pytest.raises(ProviderAuth, match="refuses Garrison's key"):
        await stranger.list_workloads(node)


async def test_no_answer_is_unreachable_and_bounded(world: LocalWorld) -> None:
    on = SshWorkloads(world.key_file, connect_seconds=0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(ProviderUnreachable):
            await on.prepare_node(at("127.0.0.1", port), NodeSetup())
        took = time.monotonic() - began
    with pytest.raises(ProviderUnreachable, match="refused"):
        await on.prepare_node(at("127.0.0.1", port), NodeSetup())
    with pytest.raises(ProviderUnreachable, match="no SSH address yet"):
        await on.prepare_node(at("127.0.0.1", port).replace(ssh=None), NodeSetup())

    assert took < 5


async def test_one_connection_per_node_is_shared_and_closed(world: LocalWorld, node: Node) -> None:
    agent = psutil.Process(world.agent(node))

    await asyncio.gather(*(world.on.list_workloads(node) for _ in range(20)))
    shared = established(agent)
    await world.on.aclose()

    async def closed() -> bool:
        return established(agent) == 0

    assert shared == 1
    await eventually(closed)


async def test_a_node_is_reached_through_a_jump_host(world: LocalWorld) -> None:
    nodes = await world.launched(count=2)
    on = SshWorkloads(world.key_file, jump=nodes[0].ssh)

    inner = await on.prepare_node(nodes[1], NodeSetup())
    await on.start_workload(inner, shell("echo $SSH_CONNECTION; true"))

    await world.reaches(nodes[1], WorkloadState.SUCCEEDED)
    assert established(psutil.Process(world.agent(nodes[0]))) >= 1
    await on.aclose()


async def test_the_log_of_what_never_was_is_not_found(world: LocalWorld, node: Node) -> None:
    with pytest.raises(NotFound, match="never-started"):
        await world.on.read_log(node, "never-started", offset=0, limit=1)


def test_the_supervisor_needs_nothing_but_an_old_python() -> None:
    tree = ast.parse(SUPERVISOR, feature_version=(3, 8))

    imported = {
        alias.name.split(".")[0]
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Import)
        for alias in statement.names
    } | {
        (statement.module or "").split(".")[0]
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom)
    }
    assert imported <= set(sys.stdlib_module_names)


def at(host: str, port: int) -> Node:
    endpoint = SshEndpoint(host=host, port=port)
    return Node(rank=0, provider_id="somewhere", status=NodeStatus.RUNNING, ssh=endpoint)


def established(agent: psutil.Process) -> int:
    return sum(c.status == psutil.CONN_ESTABLISHED for c in agent.net_connections("tcp"))


def unique_seconds() -> str:
    return str(uuid.uuid4().int % 10**12)


async def runs(text: str) -> None:
    async def found() -> bool:
        return bool(processes_with(text))

    await eventually(found)


def request_of(script: str) -> bytes:
    command = ["/bin/sh", "-c", script]
    return json.dumps({"name": "main", "generation": 1, "command": command}).encode()


def begin(home: Path, *words: str) -> subprocess.Popen[bytes]:
    """Run the supervisor as it runs on a node, with a shorter grace."""
    path = str(Path(node_supervisor.__file__).parent)
    code = (
        f"import sys; sys.path.insert(0, {path!r}); import node_supervisor as s; "
        "s.GRACE_SECONDS = 1.0; s.main(sys.argv[1:])"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "HOME": str(home), "GARRISON_NODE_INCARNATION": "7"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def supervise(home: Path, *words: str, stdin: bytes = b"") -> dict[str, Any]:
    output, _ = begin(home, *words).communicate(stdin, timeout=30)
    answer: dict[str, Any] = json.loads(output)
    return answer
