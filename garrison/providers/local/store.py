"""The directories of local nodes, and the records of which purchase they belong to.

root/lock                   held while addresses are given out
root/groups/KEY.json        one purchase; KEY is a digest of installation and token
root/locks/NN.lock          held by whoever changes a purchase; a few purchases share one
root/tombstones/KEY.json    what is left of a purchase for good, so that it is never made again
root/nodes/ID/              a node: spec.json, host_key, incarnation, status.json, restarts.json,
lock (held by its agent), node.lock (held by all its processes),
node.log, home/
root/trash/ID/              a node's directory on its way out
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from garrison.errors import ProviderError
from garrison.models.base import Message, Time
from garrison.providers.local.addresses import Endpoint
from garrison.providers.local.files import read_json, write_file, write_json

NODE_ID_PATTERN = re.compile(r"local-[0-9a-f]{16}\Z")
_Record = TypeVar("_Record", bound=Message)


class GroupRecord(Message):
    """One purchase.

    Attributes:
        node_ids: By rank; chosen before the first effect, so that clean-up knows them all.
        launched: Every node was started once.
    """

    installation: str
    token: str
    owner: str
    uid: str
    created_at: Time
    node_ids: tuple[str, ...] = ()
    launched: bool = False


class NodeSpec(Message):
    """What does not change over a node's life."""

    node_id: str
    rank: int
    token: str
    host: str
    port: int
    first_port: int | None = None
    user: str
    installation_key: str
    host_key: str

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens."""
        return Endpoint(self.host, self.port, self.first_port)


@dataclass(frozen=True, slots=True)
class NodeDir:
    """The directory of one node."""

    path: Path

    @property
    def node_id(self) -> str:
        return self.path.name

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def node_lock(self) -> Path:
        return self.path / "node.lock"

    @property
    def log(self) -> Path:
        return self.path / "node.log"

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def host_key(self) -> Path:
        return self.path / "host_key"

    def spec(self) -> NodeSpec | None:
        """Return the spec; None when the directory is gone, or not written to its end."""
        found = read_json(self.path / "spec.json")
        return None if found is None else _valid(NodeSpec, found, self.path / "spec.json")

    def write_spec(self, spec: NodeSpec) -> None:
        """Make the directory a node."""
        write_json(self.path / "spec.json", spec.model_dump(mode="json"))

    def incarnation(self) -> int:
        """Return how often it was booted; 0 is never."""
        try:
            return int((self.path / "incarnation").read_text())
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except ValueError:
            raise ProviderError(f"{self.path / 'incarnation'} is damaged") from None

    def write_incarnation(self, value: int) -> None:
        """Count a boot."""
        write_file(self.path / "incarnation", f"{value}\n".encode())

    def status(self) -> dict[str, Any]:
        """Return what the agent last said, empty if it never did."""
        return read_json(self.path / "status.json") or {}

    def write_status(self, status: dict[str, Any]) -> None:
        """Say something in place of the agent."""
        write_json(self.path / "status.json", status)

    def restarts(self) -> dict[str, Any]:
        """Return the incarnation that each recent restart token leads to, oldest first."""
        return read_json(self.path / "restarts.json") or {}

    def write_restarts(self, restarts: dict[str, Any]) -> None:
        """Record restart tokens."""
        write_json(self.path / "restarts.json", restarts)


class Store:
    """All records under one root, as one installation sees them."""

    def __init__(self, root: Path, *, installation: str) -> None:
        self.root = root
        self.installation = installation
        self.lock = root / "lock"
        for folder in (self._groups, self._tombstones, self._nodes, self._trash, self._locks):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def _groups(self) -> Path:
        return self.root / "groups"

    @property
    def _tombstones(self) -> Path:
        return self.root / "tombstones"

    @property
    def _nodes(self) -> Path:
        return self.root / "nodes"

    @property
    def _trash(self) -> Path:
        return self.root / "trash"

    @property
    def _locks(self) -> Path:
        return self.root / "locks"

    def group_lock(self, token: str) -> Path:
        """Return the lock to hold while changing a purchase."""
        # A fixed number of files, as a lock file can never be removed safely.
        return self._locks / f"{self._key(token)[:2]}.lock"

    def group(self, token: str) -> GroupRecord | None:
        """Return a purchase that has, or may have, nodes."""
        return self._read(self._groups / f"{self._key(token)}.json")

    def tombstone(self, token: str) -> GroupRecord | None:
        """Return what is left of an ended purchase."""
        return self._read(self._tombstones / f"{self._key(token)}.json")

    def groups(self) -> list[GroupRecord]:
        """Return all purchases of this installation that have, or may have, nodes."""
        return [group for group in self._all_groups() if group.installation == self.installation]

    def other_installations(self) -> dict[str, int]:
        """Return how many nodes each other installation has under this root."""
        found: Counter[str] = Counter()
        for group in self._all_groups():
            if group.installation != self.installation:
                found[group.installation] += sum(
                    self.node(one).path.is_dir() for one in group.node_ids
                )
        return {installation: count for installation, count in sorted(found.items()) if count}

    def _all_groups(self) -> list[GroupRecord]:
        paths = sorted(self._groups.glob("[0-9a-f]*.json"))
        return [group for path in paths if (group := self._read(path)) is not None]

    def save(self, group: GroupRecord) -> None:
        """Write a purchase."""
        write_json(self._groups / f"{self._key(group.token)}.json", group.model_dump(mode="json"))

    def forget(self, token: str) -> None:
        """Remove a purchase that came to nothing; its token can be used again."""
        (self._groups / f"{self._key(token)}.json").unlink(missing_ok=True)

    def bury(self, group: GroupRecord) -> None:
        """Turn a purchase into its tombstone."""
        path = self._tombstones / f"{self._key(group.token)}.json"
        write_json(path, group.model_dump(mode="json"))
        self.forget(group.token)

    def node(self, node_id: str) -> NodeDir:
        """Return the directory of a node, whether or not it exists."""
        if not NODE_ID_PATTERN.match(node_id):
            raise ProviderError(f"{node_id[:64]!r} is no id of a local node")
        return NodeDir(self._nodes / node_id)

    def used_endpoints(self) -> set[Endpoint]:
        """Return where nodes of every installation under this root listen, stopped ones too."""
        specs = (NodeDir(path).spec() for path in self._nodes.iterdir())
        return {spec.endpoint for spec in specs if spec is not None}

    def count_nodes(self) -> int:
        """Return how many nodes all purchases of this installation may have."""
        return sum(len(group.node_ids) for group in self.groups())

    def remove_node(self, node_id: str) -> None:
        """Remove a node's directory with all that is in it; one that is gone is fine.

        Raises:
            ProviderError: Something in it cannot be removed.
        """
        trash = self._trash / node_id
        node = self.node(node_id)
        if node.path.exists() and not trash.exists():
            node.path.rename(trash)  # at once, so that no list sees half a node
        for path in (trash, node.path):
            if path.exists():
                shutil.rmtree(path, onerror=_open_and_retry)

    def _read(self, path: Path) -> GroupRecord | None:
        found = read_json(path)
        return None if found is None else _valid(GroupRecord, found, path)

    def _key(self, token: str) -> str:
        return hashlib.sha256(f"{self.installation}\n{token}".encode()).hexdigest()[:40]


def _valid(model: type[_Record], value: dict[str, Any], path: Path) -> _Record:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ProviderError(f"{path} is damaged: {error.error_count()} problems") from None


def _open_and_retry(_: Callable[[str], object], path: str, error: object) -> None:
    # A workload may have left directories that not even their owner may change.
    try:
        os.chmod(Path(path).parent, stat.S_IRWXU)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, stat.S_IRWXU)
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as found:
        raise ProviderError(f"cannot remove {path}: {found.strerror}") from None
