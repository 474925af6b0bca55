"""The demo: two nodes on this machine are quoted, bought, lost, brought back and given back.

`make demo` runs it. It plays in a data directory of its own, checks what it shows, and leaves
nothing behind; the exit status says whether every check held.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil

PROJECT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
GARRISON = BIN / "garrison"
NAME = "hello"
PATIENCE_SECONDS = 60.0
CLUSTER_FILE = """\
cluster:
  name: {name}
  provider: local
  nodes: 2
  gpus_per_node: 0
  command: [python3, {program}]
"""


class Failed(Exception):
    """A check of the demo did not hold."""


class World:
    """A Garrison of the demo's own: its directory, its ports, its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.ui_port, self.router_port = free_ports(3)
        self.env = environment(folder)
        self.up: subprocess.Popen[bytes] | None = None

    @property
    def up_log(self) -> Path:
        """What `garrison up` prints."""
        return self.folder / "up.log"

    def garrison(self, *words: str, shown: bool = True) -> str:
        """Run a command, show it with its output, and return the output.

        Raises:
            Failed: Its exit status is not 0.
        """
        if shown:
            say(f"$ garrison {shlex.join(words)}")
        done = subprocess.run(
            [str(GARRISON), *words],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
            check=False,
        )
        if shown:
            show(done.stdout)
        if done.returncode:
            raise Failed(f"garrison {shlex.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def check_up(self) -> None:
        """Return while `garrison up` runs.

        Raises:
            Failed: It has ended by itself.
        """
        if self.up is not None and self.up.poll() is not None:
            raise Failed(f"`garrison up` ended with {self.up.returncode}")

    def cluster(self) -> dict[str, Any]:
        """Return the cluster as programs read it."""
        status: dict[str, Any] = json.loads(
            self.garrison("cluster", "get", NAME, "-o", "json", shown=False)
        )
        return status

    def log(self, rank: int) -> str:
        """Return the whole log of a rank."""
        return self.garrison("cluster", "logs", NAME, "--rank", str(rank), shown=False)

    def agent_pid(self, provider_id: str) -> int:
        """Return the process that is a local node."""
        status = self.folder / "providers" / "local" / "nodes" / provider_id / "status.json"
        return int(json.loads(status.read_text())["pid"])


def main() -> int:
    """Play the story; return 0 if every check held."""
    began = time.monotonic()
    before = files_around()
    folder = Path(tempfile.mkdtemp(prefix="garrison-demo-")).resolve()
    world = World(folder)
    # A shell that runs this in the background has it ignore Ctrl-C, and `up` would too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        play(world)
        leave_nothing(world, before)
    except (Failed, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        show_end_of(world.up_log)
        print(f"the demo's data directory is kept: {folder}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; cleaning up", file=sys.stderr)
        end_processes(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return 130
    finally:
        end_processes(folder)
    print(f"\nThe demo is done: all checks held, in {time.monotonic() - began:.0f} s.")
    return 0


def play(world: World) -> None:
    """Tell the story, in order."""
    start(world)
    quote(world)
    launch(world)
    meet(world)
    log_in(world)
    lost = lose_a_node(world)
    recover(world, lost)
    give_back(world)
    stop(world)


def start(world: World) -> None:
    """Run Garrison in the background."""
    title("Start Garrison, with a Temporal server of its own")
    words = ["up", "--port", str(world.port), "--ui-port", str(world.ui_port)]
    words += ["--router-port", str(world.router_port)]
    say(f"$ garrison {shlex.join(words)} &")
    with world.up_log.open("wb") as log:
        world.up = subprocess.Popen(
            [str(GARRISON), *words],
            env=world.env,
            cwd=world.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    until(world, "Garrison serves the provider `local`", lambda: serves_local(world))
    show(world.up_log.read_text())


def serves_local(world: World) -> bool:
    """Return whether `up` is ready for work."""
    listed = json.loads(world.garrison("provider", "list", "-o", "json", shown=False))
    return any(provider["name"] == "local" for provider in listed)


def quote(world: World) -> None:
    """Ask for the price of what a file describes."""
    title("Ask what two nodes cost; nothing is bought")
    text = CLUSTER_FILE.format(name=NAME, program=json.dumps(str(PROJECT / "demo" / "hello.py")))
    (world.folder / "hello.yaml").write_text(text)
    say("$ cat hello.yaml")
    show(text)
    world.garrison("cluster", "quote", "-f", "hello.yaml")
    check("the quote is 0.02 USD/h", Decimal(world.cluster()["hourly_usd"]) == Decimal("0.02"))


def launch(world: World) -> None:
    """Accept the quote."""
    title("Accept the price: buy both nodes, or none")
    world.garrison("cluster", "launch", NAME, "--yes", "--wait", "--timeout", "60s")
    check("both nodes run", statuses(world.cluster()) == ["running", "running"])


def meet(world: World) -> None:
    """See that the ranks reached each other over the interconnect addresses."""
    title("See the program meet its peers")
    for rank, other in ((0, 1), (1, 0)):
        until(world, f"rank {rank} reached rank {other}", met(world, rank, other))
        world.garrison("cluster", "logs", NAME, "--rank", str(rank))
    world.garrison("cluster", "get", NAME)


def met(world: World, rank: int, other: int, times: int = 1) -> Callable[[], bool]:
    """Return a question: has a rank said so often that it reached another?"""
    said = f"[rank {rank}] reached rank {other} at"
    return lambda: world.log(rank).count(said) == times


def log_in(world: World) -> None:
    """Run a command on a node."""
    title("Log in to a node")
    world.garrison("cluster", "connections", NAME)
    where = 'echo "$USER on $GARRISON_NODE_ID, in $PWD"'
    said = world.garrison("cluster", "ssh", NAME, "--rank", "1", "--", "sh", "-c", where)
    check("it is node 1", world.cluster()["nodes"][1]["provider_id"] in said)


def lose_a_node(world: World) -> dict[str, Any]:
    """Kill node 1 and see the cluster degraded; return the node as it was."""
    title("Lose a node")
    node: dict[str, Any] = world.cluster()["nodes"][1]
    pid = world.agent_pid(node["provider_id"])
    say(f"$ kill -9 {pid}    # the machine of rank 1")
    os.kill(pid, signal.SIGKILL)
    world.garrison("cluster", "wait", NAME, "--for", "degraded", "--timeout", "60s")
    check("only node 1 is down", statuses(world.cluster()) == ["running", "stopped"])
    return node


def recover(world: World, lost: dict[str, Any]) -> None:
    """Turn recovery on and see the node come back in place."""
    title("Let Garrison bring it back")
    world.garrison("cluster", "recovery", NAME, "on")
    world.garrison("cluster", "wait", NAME, "--for", "running", "--timeout", "60s")
    node = world.cluster()["nodes"][1]
    same = ("provider_id", "private_address", "ssh")
    check("it is the same node at the same address", all(node[key] == lost[key] for key in same))
    check("it was restarted once", node["restarts"] == 1)
    until(world, "its program meets rank 0 again", met(world, 1, 0, times=2))


def give_back(world: World) -> None:
    """Terminate, and look at the bill."""
    title("Give everything back")
    world.garrison("cluster", "terminate", NAME, "--wait", "--timeout", "60s")
    status = world.cluster()
    check("no node is left", statuses(status) == ["terminated", "terminated"])
    title("The bill")
    world.garrison("cluster", "list", "--all")
    cost, seconds = Decimal(status["cost_usd"]), Decimal(status["charged_seconds"])
    rate = Decimal(status["hourly_usd"])
    say(f"{seconds:.1f} s at {rate} USD/h: {cost:.6f} USD")
    check("it is the locked rate for the time that nodes ran", is_due(cost, rate, seconds))


def is_due(cost: Decimal, rate: Decimal, seconds: Decimal) -> bool:
    """Return whether a cost is rate times time, to far below a cent."""
    return seconds > 0 and abs(cost - rate * seconds / 3600) < Decimal("0.0000001")


def stop(world: World) -> None:
    """Stop Garrison as a person does."""
    title("Stop Garrison")
    assert world.up is not None
    shown_before = len(world.up_log.read_text())
    say("$ kill -INT %1    # Ctrl-C")
    world.up.send_signal(signal.SIGINT)
    try:
        status = world.up.wait(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        raise Failed("`garrison up` does not stop") from None
    show(world.up_log.read_text()[shown_before:])
    check("it ended well", status == 0)


def leave_nothing(world: World, before: set[Path]) -> None:
    """Check that no process and no file is left, and remove the data directory."""
    title("Leave nothing behind")
    left = [f"{process.pid} {process.name()}" for process in processes_of(world.folder)]
    check(f"no process is left {', '.join(left)}".strip(), not left)
    made = sorted(map(str, files_around() - before))
    check(f"no file was made elsewhere {', '.join(made)}".strip(), not made)
    shutil.rmtree(world.folder)
    check("the data directory is removed", not world.folder.exists())


# What the steps are made of


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which every usual place for files is in the data directory."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GARRISON_", "TEMPORAL_", "XDG_"))
    }
    home, scratch = folder / "home", folder / "tmp"
    home.mkdir()
    scratch.mkdir()
    return {
        **kept,
        "GARRISON_DATA_DIR": str(folder),
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "100",
    }


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on at this moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(sock.getsockname()[1]) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def statuses(status: dict[str, Any]) -> list[str]:
    """Return the status of each node, in the order of ranks."""
    return [node["status"] for node in status["nodes"]]


def files_around() -> set[Path]:
    """Return the places where a careless program would leave something."""
    home = Path.home()
    usual = (".garrison", ".local/share/garrison", ".config/garrison", ".config/temporalio")
    private = home / ".ssh"
    return {
        *(PROJECT / name for name in os.listdir(PROJECT)),
        *PROJECT.glob("demo/*"),
        *PROJECT.glob("garrison/catalog/*"),
        *(home / name for name in usual if (home / name).exists()),
        *(private.iterdir() if private.is_dir() else ()),
    }


def processes_of(folder: Path) -> Iterator[psutil.Process]:
    """Yield every process that has to do with the data directory, this one excepted."""
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            traces = [process.cwd(), *process.cmdline(), *process.environ().values()]
            if any(str(folder) in trace for trace in traces):
                yield process


def end_processes(folder: Path) -> None:
    """End what a demo that failed has left running."""
    for process in list(processes_of(folder)):
        with suppress(psutil.Error):
            process.kill()


def until(world: World, claim: str, holds: Callable[[], bool]) -> None:
    """Wait until a claim holds; a command that fails meanwhile is asked again.

    Raises:
        Failed: It did not within a minute, or `garrison up` has ended.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        world.check_up()
        why = ""
        try:
            if holds():
                return check(claim, True)
        except Failed as error:
            why = f" ({error})"
        if time.monotonic() >= end:
            raise Failed(f"{claim}: not within {PATIENCE_SECONDS:.0f} s{why}")
        time.sleep(0.3)


def check(claim: str, holds: bool) -> None:
    """Say that a claim holds.

    Raises:
        Failed: It does not.
    """
    if not holds:
        raise Failed(claim)
    print(f"  ok: {claim}", flush=True)


def title(text: str) -> None:
    """Begin a step."""
    print(f"\n=== {text}", flush=True)


def say(text: str) -> None:
    """Print a command, or a line of ours."""
    print(f"\n  {text}", flush=True)


def show(output: str) -> None:
    """Print the output of a command, indented."""
    for line in output.strip("\n").splitlines():
        print(f"  | {line}".rstrip(), flush=True)


def show_end_of(log: Path, lines: int = 30) -> None:
    """Print the last lines of a log that exists."""
    if log.exists():
        ending: Sequence[str] = log.read_text(errors="replace").splitlines()[-lines:]
        print(f"the end of {log}:\n" + "\n".join(ending), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
