"""The client's own SSH key, so that `cluster ssh` works with nothing else set up."""

from __future__ import annotations

from pathlib import Path

import asyncssh

from garrison.models.cluster_status import SshStatus
from garrison.private_files import create_once, make_folder, replace


class ClientKeys:
    """A key pair and the host keys of nodes, under `<data dir>/client`."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "client"

    @property
    def private_path(self) -> Path:
        """Where the private half is kept, for the OpenSSH client too."""
        return self._folder / "id_ed25519"

    def public_key(self) -> str:
        """Return the public half, making the pair at first use."""
        if not self.private_path.exists():
            self._create()
        key = asyncssh.read_private_key(self.private_path)
        return key.export_public_key().decode().strip()

    def with_own(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Return a user's keys with this client's own among them."""
        own = self.public_key()
        return keys if own in keys else (*keys, own)

    def _create(self) -> None:
        make_folder(self._folder)
        key = asyncssh.generate_private_key("ssh-ed25519", comment="garrison")
        create_once(self.private_path, key.export_private_key().decode())

    def write_known_hosts(self, name: str, endpoints: list[SshStatus]) -> Path:
        """Write the host keys of a cluster's nodes in OpenSSH form and return the file."""
        folder = self._folder / "known_hosts"
        make_folder(folder)
        path = folder / name
        replace(path, "".join(known_host(end) for end in endpoints if end.host_key))
        return path


def known_host(end: SshStatus) -> str:
    """Return a node's line of a `known_hosts` file."""
    return f"[{end.host}]:{end.port} {end.host_key}\n"
