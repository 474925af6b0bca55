"""What the provider watch tells the owner of machines, and what owners ask of it."""

from __future__ import annotations

from datetime import timedelta

from garrison.models.base import Message, Seconds, Time
from garrison.models.group import Group
from garrison.models.provider import ProviderFacts


class Observation(Message):
    """One owner's machines in one complete pass over one provider.

    Attributes:
        owner: Workflow id of the owner.
        uid: The life it is about; another life drops it.
        begun_at: When the pass began, before the provider was asked.
        groups: Every group under this uid; empty means the list was complete and had none.
        confirmed: False in the first pass that shows so many bad nodes at once that the fault may
            be the provider's or ours; no recovery starts on it.
        gone: Deployments by uid that a nodepool has seats for and that were not seen to run; it
            finds out by telling them something.
    """

    owner: str
    uid: str
    provider: str
    begun_at: Time
    groups: tuple[Group, ...] = ()
    confirmed: bool = True
    gone: tuple[str, ...] = ()


class WatchAsk(Message):
    """A wish to be told the state as of a pass that begins at or after `not_before`."""

    owner: str
    uid: str
    not_before: Time


class WatchAsks(Message):
    """What a provider watch is asked for, as far as its activity has not read it yet.

    Attributes:
        last: Sequence number of the newest ask; read on from there.
        renew: The watching activity should return, so that the workflow continues as new.
    """

    asks: tuple[WatchAsk, ...] = ()
    last: int = 0
    renew: bool = False


class WatchInput(Message):
    """Start or continue the watch of a provider.

    Attributes:
        heartbeat: How long after the observer's worker died another one takes over.
    """

    provider: str
    facts: ProviderFacts | None = None
    heartbeat: Seconds = timedelta(seconds=30)
    asks: tuple[WatchAsk, ...] = ()


class WatchResult(Message):
    """Returned by the watching activity when the watch should be renewed.

    Attributes:
        answered: Asks that need not be kept.
    """

    answered: tuple[WatchAsk, ...] = ()


class WatchStatus(Message):
    """What `get` on a provider watch answers."""

    provider: str
    facts: ProviderFacts | None = None
    asks: tuple[WatchAsk, ...] = ()


class OrphanMachines(Message):
    """Machines with our installation's id, of a life that Temporal does not know.

    Attributes:
        machines: How many there are.
        provider_ids: The first few of them, cut to a bounded length.
    """

    owner: str
    uid: str
    machines: int
    provider_ids: tuple[str, ...] = ()


class WatchTrouble(Message):
    """Why passes fail.

    Attributes:
        since: The first failed pass after the last complete one.
    """

    code: str
    message: str
    since: Time


class WatchReport(Message):
    """What the observer of a provider says of itself with each heartbeat: under 2 kB.

    Attributes:
        interval: How often it looks when nothing is in transition.
        passed_at: End of the last complete pass, None before the first.
        error: Of the passes since then, None when the last one was complete.
        orphan_machines: How many orphans the last complete pass saw.
        orphans: The first few lives of those.
        reaped: Groups of closed lives deleted since the observer was started.
    """

    interval: Seconds = timedelta(seconds=15)
    passed_at: Time | None = None
    error: WatchTrouble | None = None
    orphan_machines: int = 0
    orphans: tuple[OrphanMachines, ...] = ()
    reaped: int = 0


class ProviderStatus(ProviderFacts):
    """A configured provider, and how its watch fares.

    Attributes:
        watch: None when no observer has reported.
    """

    watch: WatchReport | None = None
