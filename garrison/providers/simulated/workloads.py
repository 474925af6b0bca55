"""The simulated provider's nodes as one reaches them: keys, host keys, workloads, logs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from garrison.errors import ProviderUnreachable
from garrison.models.group import LogChunk, Node, NodeStatus, WorkloadStatus
from garrison.providers.base import NodeSetup, WorkloadRequest
from garrison.providers.simulated import paper
from garrison.providers.simulated.desk import Desk, Visit
from garrison.providers.simulated.faults import Call, Target, list_rules, matches
from garrison.providers.simulated.machines import Machine, find_machine, status_at
from garrison.providers.simulated.store import Tx

T = TypeVar("T")
NO_RANK = -1


class PaperWorkloads:
    """Plays `Workloads` on the machines of one installation."""

    def __init__(self, desk: Desk, installation: str) -> None:
        self._desk = desk
        self._installation = installation

    async def prepare_node(self, node: Node, setup: NodeSetup) -> Node:
        """Add the keys and return the node with a made-up host key, always the same one."""

        def prepare(visit: Visit, machine: Machine) -> bool:
            return _add_keys(visit.tx, machine, setup.authorized_keys)

        await self._reach(Call.PREPARE, node, prepare)
        if node.ssh is None:
            return node
        endpoint = node.ssh.model_copy(update={"host_key": host_key(node.provider_id)})
        return node.model_copy(update={"ssh": endpoint})

    async def start_workload(self, node: Node, request: WorkloadRequest) -> None:
        """Write down that the workload runs, and its first log line."""

        def start(visit: Visit, machine: Machine) -> bool:
            paper.start(visit.tx, machine, request, visit.now)
            return True

        await self._reach(Call.START_WORKLOAD, node, start)

    async def stop_workload(self, node: Node, name: str) -> None:
        """Write down that the workload was stopped."""

        def stop(visit: Visit, machine: Machine) -> bool:
            paper.stop(visit.tx, machine, name, visit.now)
            return True

        await self._reach(Call.STOP_WORKLOAD, node, stop)

    async def list_workloads(self, node: Node) -> Sequence[WorkloadStatus]:
        """Return the workloads of the node, by name."""

        def look(visit: Visit, machine: Machine) -> tuple[WorkloadStatus, ...]:
            return paper.statuses(visit.tx, machine)

        return await self._reach(Call.LIST_WORKLOADS, node, look)

    async def read_log(self, node: Node, name: str, *, offset: int, limit: int) -> LogChunk:
        """Return a part of a workload's log."""

        def read(visit: Visit, machine: Machine) -> LogChunk:
            return paper.read_log(visit.tx, machine, name, offset=offset, limit=limit)

        return await self._reach(Call.READ_LOG, node, read)

    async def _reach(self, call: Call, node: Node, act: Callable[[Visit, Machine], T]) -> T:
        """Act on a node that answers.

        Raises:
            ProviderUnreachable: It does not: gone, not running, hidden by a rule, or not ours.
        """

        def describe(tx: Tx) -> tuple[Target, bool]:
            return describe_node(tx, call, node.provider_id, self._installation), False

        def effect(visit: Visit) -> T:
            visit.hits.check_before()
            return act(visit, self._reachable(visit, node.provider_id))

        return await self._desk.call(describe, effect)

    def _reachable(self, visit: Visit, provider_id: str) -> Machine:
        found = find_machine(visit.tx, provider_id, self._installation)
        state = status_at(found[0], visit.now).status if found else NodeStatus.TERMINATED
        if found is None or state is not NodeStatus.RUNNING or is_hidden(visit):
            raise ProviderUnreachable(f"{provider_id} does not answer")
        return found[0]


def describe_node(tx: Tx, call: Call, provider_id: str, installation: str) -> Target:
    """Return a call about one node, as rules match it."""
    found = find_machine(tx, provider_id, installation)
    if found is None:
        return Target(call, nodes=((provider_id, NO_RANK),))
    machine, purchase = found
    return Target(
        call,
        token=purchase.token,
        owner=purchase.owner,
        region=purchase.region,
        nodes=((provider_id, machine.rank),),
    )


def is_hidden(visit: Visit) -> bool:
    """Return whether a rule hides the state of the node that a call is about."""
    rules = list_rules(visit.tx, visit.now, Call.STATUS)
    return any(not rule.skip and matches(rule, visit.target) for rule in rules)


def host_key(provider_id: str) -> str:
    """Return the well-formed Ed25519 key that a machine shows, for ever the same."""
    kind = b"ssh-ed25519"
    point = hashlib.sha256(provider_id.encode()).digest()
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, point))
    return f"{kind.decode()} {base64.b64encode(blob).decode()}"


def _add_keys(tx: Tx, machine: Machine, keys: Sequence[str]) -> bool:
    known = authorized_keys(tx, machine)
    added = [key for key in dict.fromkeys(keys) if key not in known]
    if added:
        tx.execute(
            "UPDATE machines SET authorized_keys = ? WHERE id = ?",
            (json.dumps([*known, *added]), machine.id),
        )
    return bool(added)


def authorized_keys(tx: Tx, machine: Machine) -> list[str]:
    """Return the keys that may log in to a machine."""
    (text,) = tx.execute(
        "SELECT authorized_keys FROM machines WHERE id = ?", (machine.id,)
    ).fetchone()
    return list(json.loads(text))
