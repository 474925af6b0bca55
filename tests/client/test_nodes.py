"""The command of `cluster connections`, as a shell and the OpenSSH client read it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from garrison.client.keys import ClientKeys
from garrison.client.nodes import connection_command
from tests.client.ssh_node import ssh_node

NAMES = [
    "plain",
    "a space",
    "an apostrophe's",
    'a "double" quote',
    "100% %h",
    "a #hash",
    "back\\slash \\\\ two",
    "Größe 大",
    "$HOME `id`",
]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH client")
@pytest.mark.parametrize("name", NAMES)
async def test_the_command_logs_in_with_the_pinned_key_wherever_the_files_are(
    tmp_path: Path, name: str
) -> None:
    keys = ClientKeys(tmp_path / name)
    async with ssh_node(keys.public_key()) as end:
        known = keys.write_known_hosts("c-1", [end])
        line = connection_command(end, keys, known)

        strict = "-F none -o BatchMode=yes -o StrictHostKeyChecking=yes"
        process = await asyncio.create_subprocess_shell(
            f"{line} {strict} echo in",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 30)

    assert (out, err, process.returncode) == (b"in\n", b"", 0)


def test_the_keys_folder_and_all_that_was_missing_above_it_is_for_its_owner_alone(
    tmp_path: Path,
) -> None:
    ClientKeys(tmp_path / "data" / "garrison").public_key()

    for folder in ("data", "data/garrison", "data/garrison/client"):
        assert (tmp_path / folder).stat().st_mode & 0o077 == 0
