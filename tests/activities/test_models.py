"""Secrets that did not change stay sealed as they were."""

from __future__ import annotations

from garrison.activities.models import ModelActivities
from garrison.models.deployment import EnvComparison

SAME, AGAIN, OTHER = (f"sealed:{'0' * 16}:{'A' * 63}{end}" + "A" * 40 for end in "bcd")
TEXTS = {SAME: "secret", AGAIN: "secret", OTHER: "another"}


async def test_a_value_that_was_sealed_anew_is_kept_as_it_was_and_a_changed_one_is_not() -> None:
    activities = ModelActivities({}, lambda env: {name: TEXTS[env[name]] for name in env})
    known = {"A": SAME, "B": SAME, "GONE": SAME, "PLAIN": "plain:x"}
    wanted = {"A": AGAIN, "B": OTHER, "NEW": AGAIN, "PLAIN": "plain:y"}

    kept = await activities.keep_sealed(EnvComparison(known=known, wanted=wanted))

    assert kept.env == {"A": SAME, "B": OTHER, "NEW": AGAIN, "PLAIN": "plain:y"}
