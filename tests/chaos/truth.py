"""The cloud's own books: every machine that ever was, and every call that was made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from garrison.providers.simulated import machines
from garrison.providers.simulated.console import CallRecord, SimulatedConsole
from garrison.providers.simulated.faults import Call
from garrison.providers.simulated.runs import Run
from garrison.providers.simulated.store import Store, moment
from tests.chaos.facts import Bought, Machine
from tests.chaos.plan import Moment

LOOK_EVERY = 0.05


class Truth:
    """Reads one cloud's file, and follows its log of calls."""

    def __init__(self, path: Path, console: SimulatedConsole) -> None:
        self._store = Store(path)
        self._console = console
        self._calls: Sequence[CallRecord] = ()

    async def follow(self) -> None:
        """Look at the log again and again, until cancelled."""
        while True:
            self._calls = await asyncio.to_thread(self._console.calls)
            await asyncio.sleep(LOOK_EVERY)

    def count(self, owner: str, call: Call, moment: Moment) -> int:
        """Return how many calls for an owner have come to a moment of theirs."""
        return sum(
            record.owner == owner
            and record.call == call
            and (moment is Moment.RECEIVED or _took_effect(record))
            for record in self._calls
        )

    def living(self, uid: str) -> dict[int, str]:
        """Return the machines of a life that exist and are not being deleted, by rank."""
        return {
            entry["rank"]: entry["provider_id"]
            for entry in self._console.inventory()
            if entry["uid"] == uid and entry["status"] != "terminating"
        }

    def runs(self) -> tuple[Run, ...]:
        """Return every process that ever ran on a machine."""
        return tuple(self._console.workload_runs())

    def books(self) -> tuple[tuple[Machine, ...], tuple[Bought, ...]]:
        """Return every machine and every purchase that there ever was."""
        self._console.inventory()  # lets due effects happen first
        with self._store.transaction() as tx:
            rows = machines.select_machines(tx, installation=None, forgotten_by=None)
            bought = tx.execute(
                "SELECT token, uid, wanted, usd, created_at, refused_code FROM purchases"
            ).fetchall()
        return (
            tuple(_machine(machine, purchase) for machine, purchase in rows),
            tuple(
                Bought(token, uid, wanted, Decimal(usd), moment(at), code is not None)
                for token, uid, wanted, usd, at, code in bought
            ),
        )


def _took_effect(record: CallRecord) -> bool:
    return record.result.partition(",")[0] in {"ok", "restarted", "already_running"}


def _machine(machine: machines.Machine, purchase: machines.Purchase) -> Machine:
    ended = machine.terminated_at
    return Machine(
        provider_id=machine.provider_id,
        token=purchase.token,
        uid=purchase.uid,
        rank=machine.rank,
        region=purchase.region,
        created_at=moment(machine.created_at),
        ended_at=None if ended is None else moment(ended),
        boots=machine.incarnation,
    )
