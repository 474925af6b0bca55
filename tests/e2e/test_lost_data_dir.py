"""Losing the data directory, and starting again, as a person does it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from garrison.catalog.loader import load_offers
from garrison.models.group import GroupRequest
from garrison.providers.simulated.console import SimulatedConsole
from garrison.providers.simulated.provider import SimulatedProvider
from tests.workers.installation import Installation, eventually

LOST = "lost-4711"


def _garrison(installation: Installation, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "garrison.cli.app", *arguments],
        env=installation.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _left_in_the_cloud(cloud: Path) -> None:
    """Let the lost installation have machines: a cloud outlives who rents there."""
    cloud.parent.mkdir(mode=0o700)
    provider = SimulatedProvider(cloud, installation=LOST, offers=load_offers())
    for owner, count in (("old", 2), ("young", 1)):
        request = GroupRequest(
            token=f"{owner}-0",
            owner=f"cluster/{owner}",
            uid=owner,
            name=owner,
            region="sim-a",
            instance_type="p5.48xlarge",
            count=count,
            max_usd_per_node_hour=Decimal(1000),
        )
        asyncio.run(provider.launch_group(request))
    with contextlib.closing(sqlite3.connect(cloud)) as file, file:
        hour = timedelta(hours=1) // timedelta(microseconds=1)
        file.execute("UPDATE purchases SET created_at = created_at - ? WHERE uid = 'old'", (hour,))


def test_a_lost_data_directory_is_recovered_from_under_the_old_id(
    installation: Installation,
) -> None:
    _left_in_the_cloud(installation.folder / "simulated.db")
    env = {**installation.environment, "GARRISON_INSTALLATION": LOST}
    ports = ["--port", str(installation.port), "--ui-port", str(installation.ui_port)]
    ports += ["--router-port", "0"]
    up = installation.start("up", *ports, env=env)
    eventually("up serves", lambda: "Ctrl-C" in up.out or up.ended)
    assert not up.ended, up.err

    listed = json.loads(_garrison(installation, "orphan", "list", "-o", "json").stdout)
    swept = _garrison(installation, "orphan", "sweep", "--yes", "-o", "json")
    left = SimulatedConsole(installation.folder / "simulated.db").inventory()
    up.signal(signal.SIGINT)

    assert [(one["uid"], one["sweepable"]) for one in listed] == [("old", True), ("young", False)]
    assert listed[0]["installation"] == LOST
    assert listed[0]["age_seconds"] >= 3600
    rate = Decimal(listed[0]["machines"][0]["usd_per_hour"])
    assert 2 * rate <= Decimal(listed[0]["cost_usd"]) < Decimal("2.1") * rate
    assert swept.returncode == 0, swept.stderr
    assert [(one["uid"], one["result"]) for one in json.loads(swept.stdout)] == [
        ("old", "deleted"),
        ("young", "left"),
    ]
    assert [machine["uid"] for machine in left] == ["young"]
    assert up.status() == 0
    assert "no owner that Garrison knows" in up.out.splitlines()[-1]
