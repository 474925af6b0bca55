"""The demo's own program; `make demo` itself is the test of the whole."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HELLO = Path(__file__).parents[2] / "demo" / "hello.py"
HOSTS = ("127.60.0.1", "127.60.0.2")
PATIENCE_SECONDS = 30.0


def _start(rank: int, port: int, log: Path) -> subprocess.Popen[bytes]:
    env = {
        **os.environ,
        "NODE_RANK": str(rank),
        "NUM_NODES": str(len(HOSTS)),
        "NODE_ADDR": HOSTS[rank],
        "NODE_ADDRS": "\n".join(HOSTS),
        "MASTER_PORT": str(port),
        "GARRISON_CLUSTER": "hello",
    }
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, str(HELLO)], env=env, stdout=output, stderr=output)


def _says(log: Path, words: str) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while words not in log.read_text():
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux answers on all of 127.0.0.0/8")
def test_each_rank_reaches_the_other_also_when_one_starts_late(tmp_path: Path) -> None:
    with socket.create_server((HOSTS[0], 0)) as probe:
        port = int(probe.getsockname()[1])
    logs = [tmp_path / f"{rank}.log" for rank in range(2)]

    first = _start(0, port, logs[0])
    introduced = _says(logs[0], "my peers are 127.60.0.2")
    second = _start(1, port, logs[1])
    met = [_says(logs[rank], "all 2 ranks are reachable") for rank in range(2)]
    for process in (first, second):
        process.kill()
        process.wait()

    assert introduced
    assert met == [True, True]
    assert f"reached rank 1 at 127.60.0.2:{port}" in logs[0].read_text()
    assert f"reached rank 0 at 127.60.0.1:{port}" in logs[1].read_text()
