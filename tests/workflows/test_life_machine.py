"""A cluster's life in which anything may happen next, on the time-skipping server.

To look for new ones: `HYPOTHESIS_PROFILE=explore pytest --timeout=0` with this file, or with
`test_life_by_hand.py`, which is ten times as fast.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.workflows.life_machine import ServedLife, Stage

SHARE = 33
"""Of the lives that the profile asks for, one in so many: this server takes a second for each."""

STEPS = 12


def test_a_life_keeps_its_promises_whatever_happens_next(tmp_path: Path) -> None:
    ServedLife.stage = Stage(tmp_path)
    try:
        run_state_machine_as_test(
            ServedLife,
            settings=settings(
                max_examples=settings().max_examples // SHARE,
                stateful_step_count=STEPS,
                # A life takes a second: too long to look for a shorter one that fails.
                phases=(Phase.explicit, Phase.reuse, Phase.generate),
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        ServedLife.stage.close()
