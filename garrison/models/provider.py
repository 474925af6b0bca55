"""What a provider is, as workflows and clients need to know it."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from garrison.models.base import Message, Seconds


class WorkloadSupport(StrEnum):
    """How workloads get onto a provider's nodes."""

    SSH = "ssh"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    NONE = "none"


class Capabilities(Message):
    """What a provider can do; what it cannot is refused at quote.

    Attributes:
        gang: Sells several machines all or nothing.
        restart: Can bring a node back in place.
    """

    gang: bool = True
    restart: bool = True
    spot: bool = False
    volumes: bool = False
    live_price: bool = False
    workload: WorkloadSupport = WorkloadSupport.SSH


class ProviderFacts(Message):
    """The promises of a provider's API that waiting depends on.

    Attributes:
        settle: How late its lists can be.
        effect_bound: The longest time after a call was sent within which it can still take
            effect, whatever became of the caller.
        start_timeout: How long a node may take from purchase to ready.
        calls_per_second: Rate limit of the account, None when there is none.
        simulated: Its machines are on paper or on this computer.
    """

    name: str
    type: str
    regions: tuple[str, ...] = ()
    capabilities: Capabilities = Capabilities()
    settle: Seconds = timedelta(0)
    effect_bound: Seconds = timedelta(minutes=1)
    start_timeout: Seconds = timedelta(minutes=20)
    calls_per_second: float | None = None
    simulated: bool = False
