"""The port through which Garrison buys, watches and gives back machines.

`tests/contracts/` runs one suite against every adapter; the docstrings here are what it tests.

Rules for every adapter:

- Every machine carries our tags: installation, owner, uid, rank, token. What lacks our
  installation id is never listed, counted or touched.
- Vendor errors are mapped at the adapter's edge, and nowhere else: capacity is a `Refusal`;
  `QuotaExceeded`, `ProviderAuth`, `InvalidSpec`, `Unsupported` are final; `TooManyRequests` and
  `ProviderUnreachable` are passing; anything unknown is a `ProviderError` with the vendor's text.
- A call that timed out or lost its connection raises `ProviderUnreachable`: it may have worked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from garrison.models.group import (
    Group,
    GroupRequest,
    LogChunk,
    Node,
    Refusal,
    RestartPolicy,
    RestartResult,
    WorkloadStatus,
)
from garrison.models.offer import Offer, OfferQuery
from garrison.models.provider import ProviderFacts


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """What a node gets once before it counts as ready.

    Attributes:
        authorized_keys: OpenSSH public keys that may log in.
        env: What Garrison tells a node of its cluster, for sessions of people; no secrets.
        hostfile: Content of the file that `HOSTFILE` points to.
    """

    authorized_keys: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    hostfile: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """A workload for one node, with its secrets opened.

    Never serialised, logged or put into a workflow; `repr` hides the environment.

    Attributes:
        name: Identity on the node; the same name and generation is the same workload.
        generation: Raised when the command changes; a newer one replaces the older.
        command: Argument vector, run in the node's working directory.
        image: Container image to run it in, None for none.
        env: Variables exactly as they reach the process.
        hostfile: Content of the file that `HOSTFILE` points to.
        max_restarts: How often a failing workload is started again.
    """

    name: str
    command: tuple[str, ...]
    generation: int = 1
    image: str | None = None
    env: dict[str, str] = field(default_factory=dict, repr=False)
    hostfile: str = ""
    restart: RestartPolicy = RestartPolicy.ON_FAILURE
    max_restarts: int = 3


class Workloads(Protocol):
    """Running things on nodes, the same way wherever a provider declares `workload: ssh`."""

    async def prepare_node(self, node: Node, setup: NodeSetup) -> Node:
        """Reach the node, install what it needs, and return it with its SSH host key.

        Idempotent. It is what "reachable" means: success is the proof.

        Raises:
            ProviderUnreachable: The node does not answer (yet).
        """
        ...

    async def start_workload(self, node: Node, request: WorkloadRequest) -> None:
        """Start a workload under a supervisor that outlives this call.

        Idempotent by name, generation and boot: one that was started since the node's last boot
        is left alone, also when it has ended. A newer generation stops the older one first.

        Raises:
            ProviderUnreachable: The node does not answer.
        """
        ...

    async def stop_workload(self, node: Node, name: str) -> None:
        """Stop a workload with all its processes; one that is not there counts as stopped."""
        ...

    async def list_workloads(self, node: Node) -> Sequence[WorkloadStatus]:
        """Return every workload of the node, the ended ones too.

        Raises:
            ProviderUnreachable: The node does not answer.
        """
        ...

    async def read_log(self, node: Node, name: str, *, offset: int, limit: int) -> LogChunk:
        """Return up to `limit` bytes of a workload's log from `offset`.

        The log of a name goes on over restarts and boots. A negative offset counts from the end.

        Raises:
            NotFound: The node has no such workload.
            ProviderUnreachable: The node does not answer.
        """
        ...


class Provider(Protocol):
    """One account at one GPU cloud."""

    @property
    def facts(self) -> ProviderFacts:
        """What it can do, how late its lists are, its limits."""
        ...

    @property
    def workloads(self) -> Workloads | None:
        """How to run things on its nodes; None unless `workload: ssh` is declared."""
        ...

    async def list_offers(self, query: OfferQuery) -> Sequence[Offer]:
        """Return what is sold, cheapest first, unknown prices last.

        An offer without a usable price has `usd_per_hour` None; it is never 0.
        """
        ...

    async def launch_group(self, request: GroupRequest) -> Group | Refusal:
        """Buy `request.count` machines, all or nothing, and return without waiting for boot.

        Idempotent by `request.token`: the same token returns the same group as it is now, also
        after a lost response; it never buys again, not even when the group was terminated.
        A refusal leaves no machine, or says so: what a partial failure left is found under the
        token by `list_groups` and deleted by `terminate_group`.

        Raises:
            PriceChanged: The live price is above `max_usd_per_node_hour`; nothing was bought.
            QuotaExceeded, ProviderAuth, InvalidSpec, Unsupported: Final; nothing was bought.
            NameConflict: Something of that name exists that is not ours.
            TooManyRequests, ProviderUnreachable, ProviderError: It may or may not have worked.
        """
        ...

    async def list_groups(self) -> Sequence[Group]:
        """Return everything this installation owns: complete, or an error.

        Terminated nodes may be listed for a while. The list may be late by `facts.settle`.
        A node whose state the provider cannot tell is listed as `unknown`. One that it said it
        will take has `notice_at` from then on, and goes on running until it is taken.

        Raises:
            ProviderUnreachable, TooManyRequests, ProviderAuth, ProviderError: No answer. That
                is no statement about any machine.
        """
        ...

    async def restart_node(self, provider_id: str, token: str) -> RestartResult:
        """Bring one node back in place: same machine or disk, same address.

        Returns when the order is accepted; the boot is seen in the list. Idempotent by `token`,
        which is recorded before the effect: the same token never restarts twice.

        Raises:
            TooManyRequests, ProviderUnreachable, ProviderError: It may or may not have worked.
        """
        ...

    async def terminate_group(self, token: str) -> None:
        """Delete all machines of a token; works from the token alone.

        Idempotent. A machine that is gone, going or was never made is success; that is decided
        by the vendor's word (404, already terminating, not found), never shown as an error.

        Raises:
            TooManyRequests, ProviderUnreachable, ProviderError: Not known to have worked.
        """
        ...


@runtime_checkable
class SeesInstallations(Protocol):
    """A provider that can tell cheaply who else has machines in its account."""

    async def other_installations(self) -> Mapping[str, int]:
        """Return how many machines each other installation of Garrison has, those with any.

        Raises:
            ProviderUnreachable, TooManyRequests, ProviderAuth, ProviderError: No answer.
        """
        ...
