"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil

from garrison.service import find_temporal


def describe() -> dict[str, str]:
    """Return the machine and the versions, in words; nothing that tells whose machine it is."""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return {
        "processor": f"{psutil.cpu_count()} x {_processor()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": platform.python_version(),
        "temporalio": version("temporalio"),
        "server": _server(),
        "load before the run": load,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _server() -> str:
    said = subprocess.run(
        [find_temporal(), "--version"], capture_output=True, text=True, timeout=30, check=True
    )
    return said.stdout.strip()
