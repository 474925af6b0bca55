"""Secrets that did not change stay sealed as they were, and those that are missing are told."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from garrison.activities.models import ModelActivities
from garrison.errors import InvalidSpec, Problem
from garrison.models.deployment import DeploymentPool, EnvComparison, ReplicaTemplate
from garrison.models.elastic_file import DeploymentFile
from garrison.models.worker_file import ModelSettings

SAME, AGAIN, OTHER = (f"sealed:{'0' * 16}:{'A' * 63}{end}" + "A" * 40 for end in "bcd")
TEXTS = {SAME: "secret", AGAIN: "secret", OTHER: "another"}


async def test_a_value_that_was_sealed_anew_is_kept_as_it_was_and_a_changed_one_is_not() -> None:
    activities = ModelActivities({}, lambda env: {name: TEXTS[env[name]] for name in env})
    known = {"A": SAME, "B": SAME, "GONE": SAME, "PLAIN": "plain:x"}
    wanted = {"A": AGAIN, "B": OTHER, "NEW": AGAIN, "PLAIN": "plain:y"}

    kept = await activities.keep_sealed(EnvComparison(known=known, wanted=wanted))

    assert kept.env == {"A": SAME, "B": OTHER, "NEW": AGAIN, "PLAIN": "plain:y"}


def nothing_opens(env: Mapping[str, str]) -> dict[str, str]:
    problems = tuple(Problem(f"env.{name}", "the worker has no such secret") for name in env)
    raise InvalidSpec("cannot be opened", problems=problems)


def file(**fields: object) -> DeploymentFile:
    pools = (DeploymentPool(compute_cluster="gpus", nodepool="a10g"),)
    return DeploymentFile.model_validate({"id": "chat", "nodepools": pools, **fields})


async def test_what_cannot_be_opened_is_refused_under_the_keys_of_the_file() -> None:
    activities = ModelActivities({}, nothing_opens)
    template = ReplicaTemplate(command=("serve",), env={"A": "secret:a", "B": "secret:b"})

    with pytest.raises(InvalidSpec, match="environment of deployment chat") as refused:
        await activities.resolve_deployment(file(template=template))

    assert [problem.field for problem in refused.value.problems] == [
        "deployment.worker.env.A",
        "deployment.worker.env.B",
    ]


async def test_a_secret_that_the_settings_of_a_model_name_is_looked_for_too() -> None:
    models = {"m": ModelSettings.model_validate({"command": "serve", "env": {"A": "secret:a"}})}

    with pytest.raises(InvalidSpec) as refused:
        await ModelActivities(models, nothing_opens).resolve_deployment(file(model="m"))

    told = [str(problem) for problem in refused.value.problems]
    assert told[-1] == (
        "deployment.worker.model: env.A of the settings' `models:`: the worker has no such secret"
    )


async def test_an_environment_that_opens_stays_sealed() -> None:
    activities = ModelActivities({}, lambda env: {name: TEXTS[env[name]] for name in env})
    template = ReplicaTemplate(command=("serve",), env={"A": SAME})

    spec = await activities.resolve_deployment(file(template=template))

    assert spec.template == template
