"""A worker to be killed: the shipped `garrison worker`, after a sabotage if one is ordered."""

from __future__ import annotations

import functools
import sys
from typing import NoReturn

from garrison.cli import app, run
from garrison.providers.simulated.provider import SimulatedProvider
from garrison.workers import assemble
from tests.chaos.plan import BOUND
from tests.chaos.sabotage import SABOTAGES

assert run  # the command `worker`, which the command line would import at its first use


def serve(sabotage: str | None) -> NoReturn:
    """Run `garrison worker` in this process, and end it."""
    # The bound on late effects is a promise of a cloud; this one's is short, as runs are.
    vars(assemble)["SimulatedProvider"] = functools.partial(SimulatedProvider, effect_bound=BOUND)
    if sabotage is not None:
        SABOTAGES[sabotage]()
    sys.argv = ["garrison", "worker"]
    app.main()
