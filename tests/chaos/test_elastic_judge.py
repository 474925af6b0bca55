"""The judge of nodepools and deployments finds every kind of broken promise, and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from garrison.errors import ErrorCode
from garrison.models.cluster_status import BlockedStatus
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    DeploymentSpec,
    DeploymentStatus,
    ReplicaState,
    ReplicaStatus,
    ReplicaTemplate,
    RolloutStatus,
    SchedulingChoice,
)
from garrison.models.group import NodeStatus
from garrison.models.nodepool import (
    NodepoolNodeStatus,
    NodepoolReplicaStatus,
    NodepoolSpec,
    NodepoolStatus,
)
from garrison.models.offer import CapacityType
from garrison.providers.simulated.runs import Run
from tests.chaos.elastic_facts import (
    DeploymentLife,
    DeploymentWish,
    ElasticFacts,
    PoolLife,
    PoolWish,
    command_of,
)
from tests.chaos.elastic_judge import AT_MAX, judge_elastic
from tests.chaos.elastic_plan import DeploymentPlan, PoolPlan
from tests.chaos.facts import Machine
from tests.chaos.judge import Kind

START = datetime(2026, 1, 1, tzinfo=UTC)
POOL, LIFE = "pool-uid", "12345678-life"
ON_DEMAND = (CapacityType.ON_DEMAND,)
NODE = f"{POOL}-0"
REPLICA = "web-12345678-1"


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


MACHINE = Machine("sim-1", NODE, POOL, 0, "sim-a", created_at=_at(1), ended_at=None)
RUN = Run("sim-1", REPLICA, 1, 1, " ".join(command_of(1)), _at(2), None, stopped=False)
SEATED = NodepoolNodeStatus(
    name=NODE,
    state="running",
    status=NodeStatus.RUNNING,
    provider_id="sim-1",
    instance_type="c5.xlarge",
    capacity_type=CapacityType.ON_DEMAND,
    created_at=_at(1),
    replicas=(NodepoolReplicaStatus(deployment="deployment/web", replica=REPLICA),),
)
POOL_STATUS = NodepoolStatus(
    id="p",
    compute_cluster="chaos",
    uid=POOL,
    phase="active",
    spec=NodepoolSpec(id="p", compute_cluster="chaos", instance_types=("c5.xlarge",)),
    generation=1,
    observed_generation=1,
    created_at=START,
    nodes=(SEATED,),
)
POOL_PLAN = PoolPlan("p", ("c5.xlarge",), ON_DEMAND, least=0, most=1, warm=0, start=0, steps=())
POOL_WISH = PoolWish(POOL_PLAN, POOL, least=0, most=1, highest=1)
READY = ReplicaStatus(
    name=REPLICA, revision=1, state=ReplicaState.READY, node=NODE, created_at=START
)
STATUS = DeploymentStatus(
    id="web",
    uid=LIFE,
    status="enabled",
    spec=DeploymentSpec(
        id="web",
        template=ReplicaTemplate(command=command_of(1)),
        autoscale=AutoscaleConfig(max_replicas=2),
        nodepools=(DeploymentPool(compute_cluster="chaos", nodepool="p"),),
    ),
    generation=1,
    observed_generation=1,
    created_at=START,
    desired=1,
    ready=1,
    fixed=1,
    replicas=(READY,),
)
PLAN = DeploymentPlan(
    "web", "", ("p",), 1000, 0, 2, exclusive=False,
        port=None, scheduling=SchedulingChoice.PRICE, start=0,
    steps=(),
)  # fmt: skip
WISH = DeploymentWish(PLAN, LIFE, fixed=1)
WHOLE = ElasticFacts(
    pools={POOL: PoolLife(POOL_STATUS, None, POOL_WISH)},
    deployments={LIFE: DeploymentLife(STATUS, None, WISH)},
    machines=(MACHINE,),
    runs=(RUN,),
)
GONE = replace(
    WHOLE,
    pools={POOL: PoolLife(POOL_STATUS, _at(20), replace(POOL_WISH, deleted=True))},
    deployments={LIFE: DeploymentLife(STATUS, _at(10), replace(WISH, deleted=True))},
    machines=(replace(MACHINE, ended_at=_at(15)),),
    runs=(replace(RUN, ended_at=_at(9), stopped=True),),
)
WAITING = ReplicaStatus(
    name="web-12345678-2",
    revision=1,
    state=ReplicaState.PENDING,
    reason=f"{AT_MAX} (1)",
    created_at=START,
)


def _pool(facts: ElasticFacts = WHOLE, **changes: Any) -> ElasticFacts:
    life = facts.pools[POOL]
    return replace(
        facts, pools={POOL: replace(life, status=life.status.model_copy(update=changes))}
    )


def _web(facts: ElasticFacts = WHOLE, **changes: Any) -> ElasticFacts:
    life = facts.deployments[LIFE]
    after = replace(life, status=life.status.model_copy(update=changes))
    return replace(facts, deployments={LIFE: after})


def _wished(**changes: Any) -> ElasticFacts:
    life = WHOLE.deployments[LIFE]
    return replace(WHOLE, deployments={LIFE: replace(life, wish=replace(WISH, **changes))})


def _pool_wished(**changes: Any) -> ElasticFacts:
    life = WHOLE.pools[POOL]
    return replace(WHOLE, pools={POOL: replace(life, wish=replace(POOL_WISH, **changes))})


def _run(**changes: Any) -> ElasticFacts:
    """Beside the run that is there."""
    return replace(WHOLE, runs=(RUN, replace(RUN, **changes)))


def _waits() -> ElasticFacts:
    facts = _web(replicas=(READY, WAITING), desired=2, fixed=2)
    life = facts.deployments[LIFE]
    wished = replace(WISH, fixed=2)
    return replace(facts, deployments={LIFE: replace(life, wish=wished)})


BLOCKED = BlockedStatus(
    code=ErrorCode.PROVIDER_ERROR, message="?", since=START, tries=1, retry_at=_at(9)
)
OTHER = replace(MACHINE, provider_id="sim-2", token=f"{POOL}-1")
KEPT: dict[str, Callable[[], ElasticFacts]] = {
    "all is as it should be": lambda: WHOLE,
    "all is gone": lambda: GONE,
    "a replica waits for a full pool": _waits,
    "one machine follows another": lambda: replace(
        WHOLE,
        machines=(replace(OTHER, created_at=START, ended_at=_at(1)), MACHINE),
    ),
    "a replica runs again after its machine was lost": lambda: replace(
        WHOLE,
        machines=(replace(OTHER, created_at=START, ended_at=_at(1)), MACHINE),
        runs=(replace(RUN, provider_id="sim-2", begun_at=START, ended_at=_at(1)), RUN),
        broken=frozenset({"sim-2"}),
    ),
}


@pytest.mark.parametrize("facts", KEPT.values(), ids=KEPT)
def test_kept_promises_are_found_kept(facts: Callable[[], ElasticFacts]) -> None:
    assert judge_elastic(facts()) == []


def _second_machine(**changes: Any) -> ElasticFacts:
    return replace(WHOLE, machines=(MACHINE, replace(OTHER, **changes)))


BROKEN: dict[str, tuple[Callable[[], ElasticFacts], Kind]] = {
    "more machines than the limit for a moment": (
        lambda: _second_machine(created_at=_at(3), ended_at=_at(4)),
        Kind.DOUBLE_BUY,
    ),
    "a token bought twice": (
        lambda: _second_machine(token=NODE, created_at=START, ended_at=_at(1)),
        Kind.DOUBLE_BUY,
    ),
    "a foreign token": (
        lambda: _second_machine(token="x", created_at=START, ended_at=_at(1)),
        Kind.DOUBLE_BUY,
    ),
    "an unknown machine": (lambda: _pool(nodes=()), Kind.LEAK),
    "a machine of nobody": (lambda: replace(WHOLE, pools={}), Kind.LEAK),
    "a machine that outlives its pool": (
        lambda: replace(GONE, machines=(replace(MACHINE, ended_at=_at(21)),)),
        Kind.LEAK,
    ),
    "a replica on two machines": (
        lambda: _run(provider_id="sim-2", begun_at=_at(1), ended_at=_at(3), stopped=True),
        Kind.DOUBLE_RUN,
    ),
    "a replica twice on one machine": (
        lambda: _run(generation=2, begun_at=_at(1), ended_at=_at(2), stopped=True),
        Kind.DOUBLE_RUN,
    ),
    "more replicas than the limit and one": (
        lambda: replace(
            WHOLE,
            runs=(
                RUN,
                *(
                    replace(RUN, name=f"web-12345678-{n}", ended_at=_at(5), stopped=True)
                    for n in range(2, 5)
                ),
            ),
        ),
        Kind.DOUBLE_RUN,
    ),
    "a machine deleted under a replica": (
        lambda: _run(name="web-12345678-9", ended_at=_at(5)),
        Kind.LOST_REPLICA,
    ),
    "a process of nobody": (lambda: _run(name="web-87654321-1"), Kind.LEAK),
    "a process that was forgotten": (lambda: _run(name="web-12345678-9"), Kind.LEAK),
    "a scale without effect": (lambda: _wished(fixed=2), Kind.LOST_ACK),
    "an update without effect": (lambda: _wished(revision=2), Kind.LOST_ACK),
    "a disable without effect": (lambda: _wished(enabled=False), Kind.LOST_ACK),
    "a delete without effect": (lambda: _wished(deleted=True), Kind.STUCK),
    "a deployment that ended by itself": (
        lambda: replace(WHOLE, deployments={LIFE: DeploymentLife(STATUS, _at(9), WISH)}),
        Kind.LOST_ACK,
    ),
    "a resize without effect": (lambda: _pool_wished(most=2, highest=2), Kind.LOST_ACK),
    "a delete of a pool without effect": (lambda: _pool_wished(deleted=True), Kind.STUCK),
    "a replica too few": (lambda: _web(replicas=(), ready=0), Kind.STUCK),
    "a replica that waits for a pool with room": (
        lambda: replace(
            _waits(),
            pools={
                POOL: PoolLife(
                    POOL_STATUS.model_copy(
                        update={
                            "spec": POOL_STATUS.spec.model_copy(update={"max_instances": 2}),
                        }
                    ),
                    None,
                    replace(POOL_WISH, most=2, highest=2),
                )
            },
        ),
        Kind.STUCK,
    ),
    "a rollout that does not end": (
        lambda: _web(rollout=RolloutStatus(state="rolling")),
        Kind.STUCK,
    ),
    "a blocked deployment": (lambda: _web(blocked=BLOCKED), Kind.STUCK),
    "a blocked pool": (lambda: _pool(blocked=BLOCKED), Kind.STUCK),
    "an idle machine": (
        lambda: _pool(nodes=(SEATED.model_copy(update={"replicas": ()}),)),
        Kind.STUCK,
    ),
    "a machine on the way": (
        lambda: _pool(nodes=(SEATED.model_copy(update={"state": "terminating"}),)),
        Kind.STUCK,
    ),
    "a replica that only seems ready": (lambda: replace(WHOLE, runs=()), Kind.OTHER),
    "an old command": (
        lambda: replace(WHOLE, runs=(replace(RUN, command="old"),)),
        Kind.OTHER,
    ),
    "a place for nobody": (lambda: replace(WHOLE, deployments={}, runs=()), Kind.OTHER),
    "a life that nobody asked for": (
        lambda: replace(WHOLE, deployments={LIFE: DeploymentLife(STATUS, None, None)}, runs=()),
        Kind.OTHER,
    ),
    "a complaint": (lambda: replace(WHOLE, complaints=("ouch",)), Kind.OTHER),
}


@pytest.mark.parametrize(("facts", "kind"), BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_found(facts: Callable[[], ElasticFacts], kind: Kind) -> None:
    found = judge_elastic(facts())

    assert kind in {one.kind for one in found}
