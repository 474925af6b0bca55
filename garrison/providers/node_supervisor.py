"""Supervise workloads on a node: copied there over SSH, so one file, and standard library only.

Run by whatever `python3` the node has (3.8 or newer). `SshWorkloads` calls it as

    node_supervisor.py start NAME < request.json     stop NAME     list
    node_supervisor.py log NAME OFFSET LIMIT         prepare < node.json

and it answers one line of JSON, which `log` follows with raw bytes. `start` leaves one process
per workload behind, in a session of its own, which outlives the SSH session.

The request holds secrets. It comes over stdin and stays in the supervisor's memory: nothing of
its environment is written to disk or shown in a process list. So a rebooted node cannot start a
workload by itself; the owner starts it again, as its `boot` is another one.

Under `~/.garrison/workloads/NAME/`: `status.json` (replaced, never edited), `log` (append only;
the workload writes to it directly, so it has every byte in order even when we die), `hostfile`,
`lock` (held while supervised, with the supervisor's pid inside), `start.lock` (held by start and
stop, one at a time).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GRACE_SECONDS = 10.0
BUSY_SECONDS = 40.0
HOME_LOOK_SECONDS = 2.0
LAST_PAUSE_SECONDS = 60.0
MAX_CHUNK = 16 * 1024 * 1024
MAX_STATUS = 64 * 1024
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
RUN_VARIABLE = "GARRISON_WORKLOAD_RUN"
LOCK_FD_VARIABLE = "GARRISON_NODE_LOCK_FD"
KEPT_VARIABLES = ("GARRISON_NODE_ID", "GARRISON_NODE_INCARNATION")
ENDED = ("succeeded", "failed", "stopped")
DOCKER_CLIENT_VARIABLE = re.compile(
    r"(DOCKER_|LD_|XDG_|SSH_|BUILDKIT_|(https?|no|all|ftp)_proxy$|(HOME|PATH|TMPDIR)$)", re.I
)

Status = dict[str, Any]


class Busy(Exception):
    """Another start or stop of this workload did not end in time."""


class CannotStart(Exception):
    """The command could not be executed."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Place:
    """The directory of one workload."""

    def __init__(self, home: Path, name: str) -> None:
        if not NAME.match(name):
            raise ValueError("not a workload name")
        self.name = name
        self.home = home
        self.path = home / ".garrison" / "workloads" / name
        self.status = self.path / "status.json"
        self.log = self.path / "log"
        self.hostfile = self.path / "hostfile"
        self.lock = self.path / "lock"
        self.start_lock = self.path / "start.lock"

    def read(self) -> Status | None:
        """Return the last written status; None if there is none that can be read."""
        return _read_status(self.status)

    def save(self, status: Status) -> None:
        """Replace the status."""
        _replace(self.status, json.dumps(status).encode())


# -- what readers see (also called in process by the `local` provider) ---------------------------


def list_views(home: Path, boot: str) -> list[Status]:
    """Return the state of every workload of a home, as it is now."""
    folder = home / ".garrison" / "workloads"
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    views = (view(Place(home, name), boot) for name in names if NAME.match(name))
    return [found for found in views if found is not None]


def view(place: Place, boot: str) -> Status | None:
    """Return one workload's state, corrected by whether its supervisor lives."""
    status = place.read()
    if status is None:
        return None
    if status["state"] not in ENDED and not held(place.lock):
        # Read again: it may have ended between the first look and the look at the lock.
        status = place.read() or status
        if status["state"] not in ENDED:
            status = _of_the_dead(status, boot)
    keys = ("name", "state", "exit_code", "restarts", "message")
    return {key: status.get(key) for key in keys}


def read_log(place: Place, *, offset: int, limit: int, boot: str) -> tuple[Status, bytes] | None:
    """Return a header and part of the log; None when there is no such workload."""
    # The state first: a log whose workload had ended then can only be complete.
    found = view(place, boot)
    ended = found is not None and found["state"] in ENDED
    try:
        fd = _open_regular(place.log)
    except FileNotFoundError:
        if found is None:
            return None
        return {"offset": 0, "ended": ended}, b""
    try:
        size = os.fstat(fd).st_size
        begin = max(0, size + offset) if offset < 0 else min(offset, size)
        data = os.pread(fd, max(0, min(limit, MAX_CHUNK)), begin)
    finally:
        os.close(fd)
    return {"offset": begin, "ended": ended and begin + len(data) >= size}, data


def held(lock: Path) -> bool:
    """Return whether a process holds the lock."""
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _of_the_dead(status: Status, boot: str) -> Status:
    if status.get("boot") != boot:
        message = "not started since the node's last boot"
        return {**status, "state": "pending", "exit_code": None, "message": message}
    if status["state"] == "pending":
        return status
    return {**status, "state": "failed", "message": "its supervisor died"}


def _read_status(path: Path) -> Status | None:
    # The workload could have put anything there; a FIFO must not block us, nor must bad JSON
    # of one workload hide the others.
    try:
        fd = _open_regular(path)
    except FileNotFoundError:
        return None
    try:
        data = os.read(fd, MAX_STATUS)
    finally:
        os.close(fd)
    name = path.parent.name
    try:
        status = json.loads(data)
    except ValueError:
        status = None
    if _is_status(status):
        return dict(status, name=name)
    message = "its status file is not readable"
    return {"name": name, "state": "failed", "message": message, "generation": 0, "restarts": 0}


def _is_status(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("state") in (*ENDED, "pending", "running", "restarting")
        and isinstance(value.get("generation"), int)
        and isinstance(value.get("restarts"), int)
        and isinstance(value.get("exit_code"), (int, type(None)))
        and isinstance(value.get("message"), (str, type(None)))
    )


def _open_regular(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path)) from None
        raise
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))


# -- start and stop ------------------------------------------------------------------------------


def start(home: Path, request: dict[str, Any], boot: str) -> str:
    """Start a workload unless this generation was started in this boot; return what was done."""
    place = Place(home, request["name"])
    place.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(place.start_lock, BUSY_SECONDS):
        found = place.read()
        if found is not None and not _is_new(place, found, request, boot):
            return "kept"
        _stop(place, found)
        _replace(place.hostfile, request.get("hostfile", "").encode())
        run = uuid.uuid4().hex
        status = {
            "name": place.name,
            "state": "pending",
            "exit_code": None,
            "restarts": 0,
            "message": None,
            "generation": request["generation"],
            "boot": boot,
            "run": run,
        }
        place.save(status)
        _leave_behind(place, Supervisor(place, request, status))
    return "started"


def stop(home: Path, name: str) -> None:
    """Stop a workload with all its processes; one that is not there counts as stopped."""
    place = Place(home, name)
    if not place.path.is_dir():
        return
    with locked(place.start_lock, BUSY_SECONDS):
        _stop(place, place.read())
        status = place.read()
        if status is not None and status["state"] not in ENDED:
            place.save({**status, "state": "stopped"})


def _is_new(place: Place, found: Status, request: dict[str, Any], boot: str) -> bool:
    generation = int(found["generation"])
    if generation != request["generation"]:
        # An older generation is a request that was overtaken on its way.
        return bool(request["generation"] > generation)
    if found.get("boot") != boot:
        return True
    # Pending without a supervisor: whoever started it died before the command ran.
    return found["state"] == "pending" and not held(place.lock)


def _stop(place: Place, found: Status | None) -> None:
    deadline = time.monotonic() + GRACE_SECONDS + 5
    while held(place.lock):
        late = time.monotonic() >= deadline
        _signal_supervisor(place, signal.SIGKILL if late else signal.SIGTERM)
        _wait_until(lambda: not held(place.lock), time.monotonic() + 0.5)
    if found is not None and found.get("run"):
        # Nothing is left unless the supervisor died before its workload.
        end_processes(str(found["run"]), None, deadline=time.monotonic())


def _signal_supervisor(place: Place, number: signal.Signals) -> None:
    try:
        pid = int(place.lock.read_text() or "0")
    except ValueError:
        pid = 0
    # The lock is held, so the process that wrote its pid into it lives; 0 has not written yet.
    if pid > 1 and held(place.lock):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _leave_behind(place: Place, supervisor: Supervisor) -> None:
    """Run the supervisor in a process that init adopts; return once it has tried to start."""
    lock_fd = _take(place.lock, 5.0)
    os.ftruncate(lock_fd, 0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            _become_supervisor(supervisor, lock_fd, writer)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    os.close(lock_fd)
    try:
        if os.read(reader, 16) != b"started":
            raise RuntimeError("the supervisor died while starting")
    finally:
        os.close(reader)


def _become_supervisor(supervisor: Supervisor, lock_fd: int, writer: int) -> None:
    try:
        os.pwrite(lock_fd, str(os.getpid()).encode(), 0)
        _close_all_but({lock_fd, writer, *node_lock_fds()})
        supervisor.run(started=lambda: _report(writer))
    except BaseException as error:  # nobody else could tell: stderr is /dev/null by now
        supervisor.give_up(error)
    finally:
        os._exit(0)


def _report(writer: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the caller lost its connection; we go on
        os.write(writer, b"started")
    os.close(writer)


def _close_all_but(kept: set[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):  # the listing's own descriptor
                os.close(int(name))


def node_lock_fds() -> tuple[int, ...]:
    """Return the descriptor by which a local node knows its processes, if there is one."""
    text = os.environ.get(LOCK_FD_VARIABLE, "")
    if not text.isdigit():
        return ()
    try:
        os.fstat(int(text))
    except OSError:
        return ()
    return (int(text),)


# -- supervision ---------------------------------------------------------------------------------


class Supervisor:
    """Run one command until it needs no restart, or until it is told to stop."""

    def __init__(self, place: Place, request: dict[str, Any], status: Status) -> None:
        self._place = place
        self._request = request
        self._status = status
        self._stopping = False
        self._wakeup = -1
        self._look_seconds = HOME_LOOK_SECONDS if node_lock_fds() else 60.0
        self._deadline: float | None = None

    def run(self, started: Callable[[], None]) -> None:
        """Start, wait, start again; `started` is called after the first try to start."""
        self._hear_signals()
        failures, pause = 0, 1.0
        while True:
            began = time.monotonic()
            exit_code, message = self._run_once(started)
            started = _nothing
            if time.monotonic() - began >= LAST_PAUSE_SECONDS:
                pause = 1.0
            if self._stopping or not self._starts_again(exit_code, failures):
                break
            failures += exit_code != 0
            self._save(state="restarting", exit_code=exit_code, message=message)
            self._pause(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)
            if self._stopping:
                break
            self._status["restarts"] += 1
        ended = "stopped" if self._stopping else "failed" if exit_code else "succeeded"
        self._save(state=ended, exit_code=exit_code, message=message)

    def give_up(self, error: BaseException) -> None:
        """Record a fault of our own; only its type, since its text might hold a secret."""
        message = f"its supervisor failed: {type(error).__name__}"
        self._save(state="failed", message=message)

    def _run_once(self, started: Callable[[], None]) -> tuple[int, str | None]:
        try:
            child = self._spawn()
        except CannotStart as error:
            self._save(message=str(error))
            started()
            return error.exit_code, str(error)
        self._save(state="running", exit_code=None)
        started()
        exit_code = self._wait(child)
        self._remove_container()
        how = f"killed by signal {-exit_code}" if exit_code < 0 else f"exited with {exit_code}"
        return exit_code, None if exit_code == 0 else how

    def _spawn(self) -> subprocess.Popen[bytes]:
        env = child_environment(self._request, self._place, self._status["run"])
        argv = list(self._request["command"])
        fds = node_lock_fds()
        if self._request.get("image"):
            argv, env, env_file = docker_command(self._request, self._place, self._status["run"])
            fds = (*fds, env_file)
        log = os.open(self._place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._place.home,
                env=env,
                start_new_session=True,
                pass_fds=fds,
            )
        except (OSError, ValueError) as error:
            code = 126 if isinstance(error, PermissionError) else 127
            reason = getattr(error, "strerror", None) or "not a valid command"
            raise CannotStart(code, f"cannot start {argv[0]}: {reason}") from None
        finally:
            os.close(log)
            for fd in fds[len(node_lock_fds()) :]:
                os.close(fd)

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        # Handlers only wake this loop. Waiting for the child inside one would wait for ever on
        # the lock that the interrupted wait holds.
        while not _has_exited(child):
            self._stopping = self._stopping or self._is_homeless()
            if self._stopping and self._deadline is None:
                self._deadline = time.monotonic() + GRACE_SECONDS
                _signal_all(self._status["run"], child.pid, signal.SIGTERM)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                _signal_all(self._status["run"], child.pid, signal.SIGKILL)
            self._hear(self._look_seconds if self._deadline is None else 0.5)
        # What it left behind ends with it. It is not reaped before that, so that its number
        # cannot become the session of somebody else's processes.
        deadline = self._deadline or time.monotonic() + GRACE_SECONDS
        end_processes(self._status["run"], child.pid, deadline=deadline)
        return child.wait()

    def _is_homeless(self) -> bool:
        """Return whether this is a local node that was removed behind everybody's back.

        Its agent sees to that, unless it was killed before. Elsewhere a home that is out of sight
        may be a file server that is away.
        """
        return bool(node_lock_fds()) and not self._place.home.is_dir()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            self._hear(left)

    def _hear_signals(self) -> None:
        self._wakeup, writer = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(writer, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def _hear(self, timeout: float) -> None:
        select.select([self._wakeup], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            heard = os.read(self._wakeup, 4096)
            if signal.SIGTERM in heard or signal.SIGINT in heard:
                self._stopping = True

    def _starts_again(self, exit_code: int, failures: int) -> bool:
        policy = self._request.get("restart", "on_failure")
        if exit_code == 0:
            return bool(policy == "always")
        return policy != "never" and failures < int(self._request.get("max_restarts", 3))

    def _remove_container(self) -> None:
        docker = shutil.which("docker")
        if not self._request.get("image") or docker is None:
            return
        # A killed client leaves its container running; with --rm it is usually gone already.
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [docker, "rm", "--force", container_name(self._status["run"])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=30,
                check=False,
            )

    def _save(self, **changes: Any) -> None:
        self._status.update(changes)
        while True:
            try:
                return self._place.save(self._status)
            except OSError:
                # A full disk must not end the supervision; only a final state has to wait for
                # room, since nothing would write it later.
                if self._status["state"] not in ENDED or not self._place.path.is_dir():
                    return None
                time.sleep(1.0)


def child_environment(request: dict[str, Any], place: Place, run: str) -> dict[str, str]:
    """Return the environment of a workload that runs without a container."""
    base = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SSH_") and name != LOCK_FD_VARIABLE
    }
    return {**base, **_given(request, place), **_markers(run)}


def docker_command(
    request: dict[str, Any], place: Place, run: str
) -> tuple[list[str], dict[str, str], int]:
    """Return the command, its environment and a descriptor with further variables.

    Values reach the container from the client's environment (`--env NAME`), exactly as they
    are. Those that would change the client itself come from a pipe, one line each.

    Raises:
        CannotStart: No docker, or such a variable has several lines.
    """
    docker = shutil.which("docker")
    image = request["image"]
    if docker is None:
        raise CannotStart(127, f"docker is not installed on this node; image {image} needs it")
    given = {**_given(request, place), **_markers(run)}
    special = {name: text for name, text in given.items() if DOCKER_CLIENT_VARIABLE.match(name)}
    reader = _env_file(special)
    argv = [docker, "run", "--rm", "--init", "--name", container_name(run)]
    argv += ["--network", "host", "--ipc", "host", "--ulimit", "memlock=-1"]
    argv += ["--env-file", f"/dev/fd/{reader}"]
    argv += [part for name in sorted(given.keys() - special) for part in ("--env", name)]
    if request.get("env", {}).get("GPUS_PER_NODE", "0") not in ("", "0"):
        argv += ["--gpus", "all"]
    if request.get("hostfile"):
        argv += ["--volume", f"{place.hostfile}:{place.hostfile}:ro"]
    plain = {name: text for name, text in given.items() if name not in special}
    return [*argv, image, *request["command"]], {**os.environ, **plain}, reader


def _env_file(variables: dict[str, str]) -> int:
    lines = "".join(f"{name}={text}\n" for name, text in variables.items()).encode()
    # One write into an empty pipe never blocks up to this size.
    if lines.count(b"\n") != len(variables) or len(lines) > 32_768:
        names = ", ".join(sorted(variables))
        raise CannotStart(126, f"too long or of several lines for docker: {names}")
    reader, writer = os.pipe()
    os.write(writer, lines)
    os.close(writer)
    return reader


def container_name(run: str) -> str:
    """Return the name of a run's container."""
    return f"garrison-{run}"


def _given(request: dict[str, Any], place: Place) -> dict[str, str]:
    env = dict(request.get("env", {}))
    if request.get("hostfile"):
        env["HOSTFILE"] = str(place.hostfile)
    return env


def _markers(run: str) -> dict[str, str]:
    # Last, so that a user's variable cannot hide a process from whoever must end it.
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, RUN_VARIABLE: run}


# -- processes -----------------------------------------------------------------------------------


def end_processes(run: str, session: int | None, *, deadline: float) -> None:
    """End every process of a run: SIGTERM, and SIGKILL after the deadline.

    Args:
        run: What the run's processes carry as `GARRISON_WORKLOAD_RUN`.
        session: The session of a child that is not reaped yet, None when there is none.
        deadline: In terms of `time.monotonic`.
    """
    if time.monotonic() < deadline and _signal_all(run, session, signal.SIGTERM):
        _wait_until(lambda: not processes_of(run, session), deadline)
    # A process that hangs in the kernel cannot be ended by anyone: not waited for without end.
    last = time.monotonic() + 5
    while _signal_all(run, session, signal.SIGKILL) and time.monotonic() < last:
        time.sleep(0.02)


def processes_of(run: str, session: int | None) -> list[int]:
    """Return the living processes of a run: in its session, or with its marker."""
    if not os.path.isdir("/proc/self"):
        return _group_of(session)
    marker = f"{RUN_VARIABLE}={run}".encode()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and _belongs(pid, session, marker)]


def _belongs(pid: int, session: int | None, marker: bytes) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] in (b"Z", b"X"):
            return False
        if session is not None and int(fields[3]) == session:
            return True
        return marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # gone, or another user's


def _group_of(session: int | None) -> list[int]:
    if session is None:
        return []
    try:
        os.killpg(session, 0)
    except (ProcessLookupError, PermissionError):
        return []
    return [-session]  # as `kill` names a group


def _signal_all(run: str, session: int | None, number: signal.Signals) -> bool:
    found = processes_of(run, session)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return bool(found)


def _has_exited(child: subprocess.Popen[bytes]) -> bool:
    if not hasattr(os, "waitid"):
        return child.poll() is not None
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


# -- files and locks -----------------------------------------------------------------------------


def boot_id() -> str:
    """Return what changes with each boot of this node."""
    if incarnation := os.environ.get("GARRISON_NODE_INCARNATION"):
        return incarnation
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    told = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, check=True)
    return told.stdout.decode().strip()


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock file.

    Raises:
        Busy: Somebody else held it for all these seconds.
    """
    fd = _take(path, seconds)
    try:
        yield
    finally:
        os.close(fd)


def prepare(home: Path, node: Status) -> None:
    """Let keys in, and leave what the node should know of its cluster; none of it is secret.

    `~/.garrison/env` is for shells (`. ~/.garrison/env`), `environment.json` for programs.
    """
    authorize(home, node["keys"])
    folder = home / ".garrison"
    env = dict(node["env"])
    if node["hostfile"]:
        path = folder / "hostfile"
        _replace(path, node["hostfile"].encode())
        env["HOSTFILE"] = str(path)
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    _replace(folder / "env", lines.encode())
    _replace(folder / "environment.json", json.dumps(env).encode())


def authorize(home: Path, keys: list[str]) -> None:
    """Add public keys to those that may log in; the ones already there stay."""
    folder = home / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "authorized_keys"
    with locked(folder / ".garrison.lock", BUSY_SECONDS):
        lines = path.read_text(errors="surrogateescape").splitlines() if path.exists() else []
        missing = [key for key in dict.fromkeys(keys) if key not in lines]
        if missing:
            text = "".join(f"{line}\n" for line in (*lines, *missing))
            _replace(path, text.encode(errors="surrogateescape"))


def _take(path: Path, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                raise Busy(path.name) from None
            time.sleep(0.01)
        else:
            return fd


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _wait_until(condition: Callable[[], bool], deadline: float) -> None:
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _nothing(*_: object) -> None:
    """Be a signal handler that leaves all work to the main loop."""


# -- command line --------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """Carry out one command and answer on stdout."""
    try:
        header, data = _answer(Path.home(), *arguments)
    except Busy:
        header, data = {"error": "busy"}, b""
    except OSError as error:
        header, data = {"error": "failed", "message": f"{error.strerror}: {error.filename}"}, b""
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n" + data)


def _answer(home: Path, verb: str, *rest: str) -> tuple[Status, bytes]:
    if verb == "start":
        request = json.loads(sys.stdin.buffer.read())
        if [request["name"]] != list(rest):
            raise ValueError("the request is for another workload")
        return {"done": start(home, request, boot_id())}, b""
    if verb == "stop":
        stop(home, rest[0])
        return {"done": "stopped"}, b""
    if verb == "list":
        return {"workloads": list_views(home, boot_id())}, b""
    if verb == "log":
        place = Place(home, rest[0])
        found = read_log(place, offset=int(rest[1]), limit=int(rest[2]), boot=boot_id())
        return found or ({"error": "not_found"}, b"")
    if verb == "prepare":
        prepare(home, json.loads(sys.stdin.buffer.read()))
        return {"done": "prepared"}, b""
    raise ValueError(f"no such command: {verb}")


if __name__ == "__main__":
    main(sys.argv[1:])
