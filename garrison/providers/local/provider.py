"""The `local` provider: nodes as supervised processes on this machine.

A node costs a nominal 0.01 USD an hour. Its ports are open to the other nodes and to this
machine's user, and nobody else: loopback is all the network it has, `ports` and `expose` change
nothing, and `root_disk_gb` is not enforced. A stopped node's agent was killed; its directory,
address and host key are as they were. A process of a node outlives Garrison, but not a service
manager that ends everything of Garrison's control group: systemd needs `KillMode=process`.

| what goes wrong | outcome |
|---|---|
| no processes, memory, descriptors or disk left (EAGAIN, ENOMEM, EMFILE, ENOSPC) | capacity |
| more than `max_nodes` | quota |
| GPUs, spot, reserved | unsupported |
| another region or instance type, a malformed token | invalid |
| a lock held by another call for 8 s | transient (`provider_unreachable`) |
| damaged records, processes that cannot be ended | `provider_error` |
"""

from __future__ import annotations

import asyncio
import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import asyncssh
import psutil
from pydantic import ValidationError

from garrison.errors import InvalidSpec, PriceChanged, Unsupported
from garrison.models.group import (
    Group,
    GroupRequest,
    Node,
    NodeStatus,
    Refusal,
    RestartResult,
    SshEndpoint,
    WorkloadState,
    WorkloadStatus,
)
from garrison.models.offer import CapacityType, Offer, OfferQuery, Stock
from garrison.models.provider import Capabilities, ProviderFacts
from garrison.providers import node_supervisor
from garrison.providers.local.addresses import SSH_PORT, Addresses, answers_ssh
from garrison.providers.local.files import is_held
from garrison.providers.local.machines import Machines, NoRoom
from garrison.providers.local.processes import is_alive
from garrison.providers.local.store import GroupRecord, NodeDir, NodeSpec, Store
from garrison.providers.workload_ssh import SshWorkloads

REGION = "local"
INSTANCE_TYPE = "local"
USD_PER_NODE_HOUR = Decimal("0.01")
PROBE_SECONDS = 2.0
CALLS_AT_ONCE = 8
TOKEN = re.compile(r"[!-~]{1,64}\Z")

_T = TypeVar("_T")


class LocalProvider:
    """Implements `Provider` on this machine, for any number of processes at once."""

    def __init__(
        self,
        root: Path,
        *,
        installation: str,
        installation_key: asyncssh.SSHKey | Path,
        name: str = "local",
        max_nodes: int = 64,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        shared_address: bool = sys.platform != "linux",
        ssh_port: int = SSH_PORT,
    ) -> None:
        """Open, or create, the nodes' directory.

        Args:
            root: Where nodes live; on a local disk, as the locks need one.
            installation: What is not of this installation is never seen or touched.
            installation_key: Garrison's private key, by which it logs in to every node.
            name: The provider's name in the settings.
            max_nodes: Quota of this installation.
            clock: For `created_at`.
            shared_address: Nodes share 127.0.0.1 and have port ranges.
            ssh_port: Of every node that has an address of its own.
        """
        key = installation_key
        if isinstance(key, Path):
            key = asyncssh.read_private_key(key)
        store = Store(root.absolute(), installation=installation)
        self._name = name
        self._clock = clock
        self._store = store
        self._machines = Machines(
            store=store,
            addresses=Addresses(shared=shared_address, ssh_port=ssh_port),
            installation_key=" ".join(key.export_public_key().decode().split()[:2]),
            max_nodes=max_nodes,
            clock=clock,
        )
        self._workloads = SshWorkloads(key)
        # Own threads: a call that waits for a lock must not take one from others' quick work,
        # and one whose caller was cancelled must go on to its end, holding the lock.
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="garrison-local")

    @property
    def facts(self) -> ProviderFacts:
        return ProviderFacts(
            name=self._name,
            type="local",
            regions=(REGION,),
            capabilities=Capabilities(gang=True, restart=True),
            settle=timedelta(0),
            effect_bound=timedelta(seconds=15),
            start_timeout=timedelta(minutes=2),
            simulated=True,
        )

    @property
    def workloads(self) -> SshWorkloads:
        return self._workloads

    async def aclose(self) -> None:
        """Close SSH connections; nodes go on."""
        await self._workloads.aclose()
        self._threads.shutdown(wait=False)

    async def list_offers(self, query: OfferQuery) -> Sequence[Offer]:
        offer = Offer(
            provider=self._name,
            region=REGION,
            instance_type=INSTANCE_TYPE,
            vcpus=psutil.cpu_count() or 1,
            memory_gib=(Decimal(psutil.virtual_memory().total) / 2**30).quantize(Decimal("0.1")),
            usd_per_hour=USD_PER_NODE_HOUR,
            cluster_usd_per_hour=USD_PER_NODE_HOUR,
            stock=Stock.HIGH,
            source="this machine, nominal",
            as_of=self._clock().date().isoformat(),
            simulated=True,
            provider_type="local",
        )
        return [offer] if _matches(offer, query) else []

    async def launch_group(self, request: GroupRequest) -> Group | Refusal:
        _check(request)
        try:
            record = await self._call(self._machines.launch, request)
        except NoRoom as error:
            return Refusal(message=str(error))
        if self._store_has(record):
            return await self._look(record)
        return _buried(record)

    async def list_groups(self) -> Sequence[Group]:
        records = await asyncio.to_thread(self._store.groups)
        groups = [await self._look(record) for record in records]
        return [group for group in groups if group.nodes]

    async def other_installations(self) -> Mapping[str, int]:
        return await asyncio.to_thread(self._store.other_installations)

    async def restart_node(self, provider_id: str, token: str) -> RestartResult:
        return await self._call(self._machines.restart, provider_id, token)

    async def terminate_group(self, token: str) -> None:
        await self._call(self._machines.terminate, token)

    async def _call(self, effect: Callable[..., _T], *arguments: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(effect, *arguments))

    def _store_has(self, record: GroupRecord) -> bool:
        return self._store.group(record.token) is not None

    async def _look(self, record: GroupRecord) -> Group:
        looks = [
            asyncio.to_thread(self._look_at_node, record, rank, node_id)
            for rank, node_id in enumerate(record.node_ids)
        ]
        nodes = [node for node in await asyncio.gather(*looks) if node is not None]
        return _group(record, tuple(nodes))

    def _look_at_node(self, record: GroupRecord, rank: int, node_id: str) -> Node | None:
        node = self._store.node(node_id)
        spec = node.spec()
        if spec is None:
            # Not made yet, by a launch that goes on or was killed; or removed behind our back.
            pending = Node(rank=rank, provider_id=node_id, status=NodeStatus.PENDING)
            return None if record.launched else pending
        status, message = _state(node, spec, launched=record.launched)
        return Node(
            rank=spec.rank,
            provider_id=node_id,
            status=status,
            incarnation=max(1, node.incarnation()),
            private_address=spec.host,
            first_port=spec.first_port,
            ssh=SshEndpoint(host=spec.host, port=spec.port, user=spec.user, host_key=spec.host_key),
            workloads=_workloads(node),
            message=message,
        )


def _check(request: GroupRequest) -> None:
    """Refuse what cannot be sold.

    Raises:
        InvalidSpec, Unsupported, PriceChanged: It cannot.
    """
    if not TOKEN.match(request.token):
        raise InvalidSpec("a token has 1 to 64 printable ASCII characters")
    if request.region != REGION or request.zone not in (None, REGION):
        raise InvalidSpec(f"the local provider has only the region {REGION!r}")
    if request.instance_type != INSTANCE_TYPE:
        raise InvalidSpec(f"the local provider has only the instance type {INSTANCE_TYPE!r}")
    if request.count < 1:
        raise InvalidSpec(f"{request.count} nodes cannot be launched")
    if request.options:
        raise InvalidSpec(f"the local provider has no options, {min(request.options)!r} is unknown")
    if request.gpus_per_node:
        raise Unsupported("local nodes have no GPUs; gpus_per_node must be 0")
    if request.capacity_type is not CapacityType.ON_DEMAND:
        raise Unsupported(f"local nodes are on demand, not {request.capacity_type}")
    if request.max_usd_per_node_hour < USD_PER_NODE_HOUR:
        limit = request.max_usd_per_node_hour
        raise PriceChanged(f"{USD_PER_NODE_HOUR} USD/h exceeds the accepted {limit} USD/h")


def _state(node: NodeDir, spec: NodeSpec, *, launched: bool) -> tuple[NodeStatus, str | None]:
    status = node.status()
    state = status.get("state")
    if not is_held(node.lock):
        return _state_of_the_dead(node, state, status.get("message"), launched=launched)
    begun = status.get("incarnation") == node.incarnation()
    if state != "ready" or not begun or not is_alive(status["pid"], status["birth"]):
        return NodeStatus.STARTING, None
    if not answers_ssh(spec.endpoint, seconds=PROBE_SECONDS):
        return NodeStatus.UNKNOWN, "its agent lives, but its SSH server does not answer"
    return NodeStatus.RUNNING, None


def _state_of_the_dead(
    node: NodeDir, state: str | None, message: str | None, *, launched: bool
) -> tuple[NodeStatus, str | None]:
    if state == "failed":
        return NodeStatus.FAILED, message
    if state is None or (state == "launching" and not launched):
        return NodeStatus.PENDING, None
    if is_held(node.node_lock):
        return NodeStatus.STOPPED, "its agent died; processes of it still run"
    return NodeStatus.STOPPED, "its agent died"


def _workloads(node: NodeDir) -> tuple[WorkloadStatus, ...]:
    boot = str(node.incarnation())
    return tuple(_workload(view) for view in node_supervisor.list_views(node.home, boot))


def _workload(view: dict[str, Any]) -> WorkloadStatus:
    try:
        return WorkloadStatus.model_validate(view)
    except ValidationError:
        # A workload can write what it likes into its own files; it must not hide the others.
        message = "its status file makes no sense"
        return WorkloadStatus(name=view["name"], state=WorkloadState.FAILED, message=message)


def _group(record: GroupRecord, nodes: tuple[Node, ...]) -> Group:
    return Group(
        token=record.token,
        owner=record.owner,
        uid=record.uid,
        region=REGION,
        instance_type=INSTANCE_TYPE,
        usd_per_node_hour=USD_PER_NODE_HOUR,
        created_at=record.created_at,
        nodes=nodes,
    )


def _buried(record: GroupRecord) -> Group:
    ids = enumerate(record.node_ids)
    gone = NodeStatus.TERMINATED
    return _group(record, tuple(Node(rank=r, provider_id=i, status=gone) for r, i in ids))


def _matches(offer: Offer, query: OfferQuery) -> bool:
    words = f"{offer.provider} {offer.region} {offer.instance_type}".lower()
    memory = offer.memory_gib or Decimal(0)
    return all(
        (
            query.search is None or query.search.lower() in words,
            query.provider in (None, offer.provider),
            query.region in (None, offer.region),
            query.instance_type in (None, offer.instance_type),
            query.accelerator is None,
            query.min_gpus is None or query.min_gpus <= 0,
            query.min_memory_gib is None or query.min_memory_gib <= memory,
            query.capacity_type in (None, offer.capacity_type),
            query.max_usd_per_hour is None or query.max_usd_per_hour >= USD_PER_NODE_HOUR,
        )
    )
