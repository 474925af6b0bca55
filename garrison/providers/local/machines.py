"""Make, restart and end local nodes, so that a crash at any instant leaves nothing unknown.

Every call holds the purchase's lock from its first look to its last effect, so a launch and a
terminate of one purchase never interleave, whichever processes they run in. Each effect is
recorded before it happens: node ids before directories, a restart's token before the restart.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncssh

from garrison.errors import ProviderError, QuotaExceeded
from garrison.models.group import GroupRequest, RestartResult
from garrison.providers.local.addresses import Addresses, AddressTaken, answers_ssh, listen
from garrison.providers.local.files import is_held, locked, take_lock, write_file
from garrison.providers.local.processes import INCARNATION, NODE_ID, end_members
from garrison.providers.local.sshd import clean_environment
from garrison.providers.local.store import (
    NODE_ID_PATTERN,
    GroupRecord,
    NodeDir,
    NodeSpec,
    Store,
)

LOCK_SECONDS = 8.0
GRACE_SECONDS = 2.0
START_SECONDS = 120.0
KEPT_RESTARTS = 50
NO_ROOM = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT}
# The process that the starter waits for ends at once, and init adopts the agent: no zombie of
# it stays with us, and it does not care what becomes of us.
DETACH = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.execv(sys.executable, [sys.executable, "-P", "-m", *sys.argv[1:]])
"""
AGENT_MODULE = "garrison.providers.local.agent"
IMPORT_ROOT = Path(__file__).parents[3]


class NoRoom(Exception):
    """This machine cannot hold more nodes now."""


@dataclass(frozen=True, slots=True)
class Machines:
    """The effects of the `local` provider; all calls block.

    Attributes:
        installation_key: The public key that every node lets in.
    """

    store: Store
    addresses: Addresses
    installation_key: str
    max_nodes: int
    clock: Callable[[], datetime]

    def launch(self, request: GroupRequest) -> GroupRecord:
        """Make a purchase, or finish it, or return what became of it.

        Raises:
            QuotaExceeded: More than `max_nodes`.
            NoRoom: The machine refuses more processes or files; nothing was left.
            ProviderUnreachable: Another call holds the purchase.
        """
        with locked(self.store.group_lock(request.token), seconds=LOCK_SECONDS):
            if ended := self.store.tombstone(request.token):
                return ended
            group = self.store.group(request.token) or self._plan(request)
            return group if group.launched else self._make(group)

    def restart(self, node_id: str, token: str) -> RestartResult:
        """Bring a node back: same directory, address and host key.

        Raises:
            ProviderError: What is left of its last boot cannot be ended.
            ProviderUnreachable: Another call holds the purchase.
        """
        spec = self._spec(node_id)
        if spec is None:
            return RestartResult.GONE
        with locked(self.store.group_lock(spec.token), seconds=LOCK_SECONDS):
            if self._spec(node_id) is None or self.store.group(spec.token) is None:
                return RestartResult.GONE
            return self._restart(self.store.node(node_id), spec, token)

    def terminate(self, token: str) -> None:
        """End a purchase for good, half made or never seen.

        The tombstone stays, so that a launch which is still on its way finds it.

        Raises:
            ProviderError: Some process or file resists.
            ProviderUnreachable: Another call holds the purchase.
        """
        with locked(self.store.group_lock(token), seconds=LOCK_SECONDS):
            group = self.store.group(token)
            if group is not None:
                self._remove(group)
                self.store.bury(group)
            elif self.store.tombstone(token) is None:
                self.store.bury(self._record(token))

    def _plan(self, request: GroupRequest) -> GroupRecord:
        with locked(self.store.lock, seconds=LOCK_SECONDS):
            have = self.store.count_nodes()
            if have + request.count > self.max_nodes:
                raise QuotaExceeded(
                    f"{have} of {self.max_nodes} local nodes exist, {request.count} more asked for"
                )
            ids = tuple(f"local-{uuid.uuid4().hex[:16]}" for _ in range(request.count))
            group = self._record(request.token, request.owner, request.uid, ids)
            self.store.save(group)
        return group

    def _record(
        self, token: str, owner: str = "", uid: str = "", node_ids: tuple[str, ...] = ()
    ) -> GroupRecord:
        return GroupRecord(
            installation=self.store.installation,
            token=token,
            owner=owner,
            uid=uid,
            created_at=self.clock(),
            node_ids=node_ids,
        )

    def _make(self, group: GroupRecord) -> GroupRecord:
        try:
            for rank, node_id in enumerate(group.node_ids):
                node = self.store.node(node_id)
                # An earlier try, whose process was killed, may have started some of them.
                if not is_held(node.lock):
                    self._start_new(group, rank, node)
        except (OSError, ProviderError, subprocess.SubprocessError) as error:
            self._remove(group)
            self.store.forget(group.token)
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise NoRoom(f"this machine has no room: {error.strerror}") from error
            raise ProviderError(f"cannot start a local node: {error}") from error
        launched: GroupRecord = group.replace(launched=True)
        self.store.save(launched)
        return launched

    def _start_new(self, group: GroupRecord, rank: int, node: NodeDir) -> None:
        end_members({node.node_id: node.node_lock}, grace=0)
        node.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = asyncssh.generate_private_key("ssh-ed25519", comment=node.node_id)
        write_file(node.host_key, key.export_private_key())
        with locked(self.store.lock, seconds=LOCK_SECONDS):
            endpoint, sock = self.addresses.take_free(self.store.used_endpoints())
            spec = NodeSpec(
                node_id=node.node_id,
                rank=rank,
                token=group.token,
                host=endpoint.host,
                port=endpoint.port,
                first_port=endpoint.first_port,
                user=login_name(),
                installation_key=self.installation_key,
                host_key=" ".join(key.export_public_key().decode().split()[:2]),
            )
            try:
                node.write_spec(spec)
            except OSError:
                sock.close()
                raise
        start_agent(node, 1, sock)

    def _restart(self, node: NodeDir, spec: NodeSpec, token: str) -> RestartResult:
        restarts = node.restarts()
        incarnation = node.incarnation()
        if token not in restarts:
            if _lives(node, spec):
                return RestartResult.ALREADY_RUNNING
            restarts[token] = incarnation + 1
            node.write_restarts(dict(list(restarts.items())[-KEPT_RESTARTS:]))
        target = int(restarts[token])
        if incarnation >= target and not _never_began(node, incarnation):
            return RestartResult.RESTARTED
        end_members({node.node_id: node.node_lock}, grace=0)
        try:
            sock = listen(spec.endpoint)
        except AddressTaken:
            # Its address must stay the same, so it has to wait until the other one leaves.
            return RestartResult.NO_CAPACITY
        start_agent(node, max(target, incarnation), sock)
        return RestartResult.RESTARTED

    def _remove(self, group: GroupRecord) -> None:
        nodes = [self.store.node(node_id) for node_id in group.node_ids]
        end_members({node.node_id: node.node_lock for node in nodes}, grace=GRACE_SECONDS)
        for node in nodes:
            self.store.remove_node(node.node_id)

    def _spec(self, node_id: str) -> NodeSpec | None:
        return self.store.node(node_id).spec() if NODE_ID_PATTERN.match(node_id) else None


def login_name() -> str:
    """Return the name under which people log in to local nodes: this process's user."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "garrison"


def start_agent(node: NodeDir, incarnation: int, sock: socket.socket) -> None:
    """Boot a node whose processes are all gone; its locks pass from us to it.

    Args:
        node: Its directory, with the spec in it.
        incarnation: The number of this boot.
        sock: Listens on its SSH endpoint; closed here.

    Raises:
        OSError, subprocess.SubprocessError: It was not started.
    """
    with sock, locked(node.lock, seconds=5) as lock_fd:
        node_lock_fd = take_lock(node.node_lock, seconds=5)
        try:
            node.write_incarnation(incarnation)
            node.write_status({"state": "launching", "incarnation": incarnation})
            _spawn(node, incarnation, (lock_fd, node_lock_fd, sock.fileno()))
        finally:
            os.close(node_lock_fd)


def _spawn(node: NodeDir, incarnation: int, descriptors: tuple[int, ...]) -> None:
    mark = {NODE_ID: node.node_id, INCARNATION: str(incarnation)}
    paths = {"PYTHONPATH": str(IMPORT_ROOT), "HOME": str(node.home)}
    handed = [str(node.path.absolute()), *map(str, descriptors)]
    with node.log.open("ab") as log:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", DETACH, AGENT_MODULE, *handed],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=node.path,
            env={**clean_environment(), **paths, **mark},
            start_new_session=True,
            pass_fds=descriptors,
            check=True,
            timeout=10,
        )


def _lives(node: NodeDir, spec: NodeSpec) -> bool:
    if not is_held(node.lock):
        return False
    if node.status().get("state") in ("launching", "starting"):
        changed = (node.path / "status.json").stat().st_mtime
        if time.time() - changed < START_SECONDS:
            return True
    return answers_ssh(spec.endpoint, seconds=5)


def _never_began(node: NodeDir, incarnation: int) -> bool:
    # Counted, but its starter was killed before the agent said its first word.
    status = node.status()
    began = status.get("incarnation") == incarnation and status.get("state") != "launching"
    return not began and not is_held(node.lock)
