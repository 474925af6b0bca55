"""What the SDK decides by itself about compute clusters, nodepools and deployments."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from garrison.client.compute_clusters import check_place
from garrison.client.deployments import is_settled as deployment_settled
from garrison.client.elastic_kinds import (
    compute_cluster_entity,
    deployment_entity,
    nodepool_entity,
    row_of,
    total_usd,
)
from garrison.client.located import located, problems_in
from garrison.client.nodepools import is_settled as nodepool_settled
from garrison.client.replica_logs import _chosen
from garrison.errors import (
    ConflictPhase,
    ErrorCode,
    GarrisonError,
    InvalidSpec,
    ModelNotConfigured,
    NotFound,
    Problem,
    Unsupported,
)
from garrison.models.cluster_status import ErrorStatus
from garrison.models.compute_cluster import ComputeClusterSpec
from garrison.models.deployment import (
    DeploymentStatus,
    ReplicaState,
    ReplicaStatus,
    RolloutStatus,
)
from garrison.models.elastic_rows import NodepoolRow
from garrison.models.nodepool import NodepoolStatus
from garrison.models.provider import ProviderFacts
from tests.golden_elastic import DEPLOYMENT_STATUS, NODEPOOL_STATUS

NOW = datetime(2030, 1, 1, tzinfo=UTC)
AWS = ProviderFacts(name="aws", type="simulated", regions=("us-east-1", "us-west-2"))
ANYWHERE = ProviderFacts(name="local", type="local")
CLUSTER_FILE = b"""compute_cluster:
  id: gpus
  cloud_provider:
    id: awss
  region: us-east-1
"""
POOL_FILE = b"""nodepool:
  id: a10g
  compute_cluster: {id: gpus}
  instance_types:
    - id: g5.xlarge
    - id: g5.2xlrge
"""


def pool(**overrides: Any) -> NodepoolStatus:
    return NODEPOOL_STATUS.model_copy(update=overrides)


def deployment(**overrides: Any) -> DeploymentStatus:
    rest = {"rollout": RolloutStatus(), "last_error": None, **overrides}
    return DEPLOYMENT_STATUS.model_copy(update=rest)


def replica(name: str, node: str | None = None) -> ReplicaStatus:
    return ReplicaStatus(
        name=name, revision=1, state=ReplicaState.PENDING, node=node, created_at=NOW
    )


def test_ids_are_the_same_in_any_case() -> None:
    assert compute_cluster_entity("GPUs").workflow_id == "computecluster/gpus"
    assert nodepool_entity("GPUs", "A10G").workflow_id == "nodepool/gpus/a10g"
    assert deployment_entity("Llama").workflow_id == "deployment/llama"


@pytest.mark.parametrize("text", ["", "a b", "-a", "a/b", "a\n", "x" * 64], ids=repr)
def test_what_can_be_no_id_is_refused_before_anybody_is_asked(text: str) -> None:
    with pytest.raises(InvalidSpec, match="is no nodepool id"):
        nodepool_entity("gpus", text)


@pytest.mark.parametrize(
    ("provider", "region", "field", "words"),
    [
        pytest.param("awss", "us-east-1", "cloud_provider.id", "did you mean 'aws'", id="provider"),
        pytest.param("aws", "us-east1", "region", "did you mean 'us-east-1'", id="region"),
    ],
)
def test_a_place_that_is_not_there_names_the_nearest(
    provider: str, region: str, field: str, words: str
) -> None:
    spec = ComputeClusterSpec(id="gpus", provider=provider, region=region)

    with pytest.raises(InvalidSpec) as refused:
        check_place(spec, {"aws": AWS})

    [problem] = refused.value.problems
    assert problem.field == f"compute_cluster.{field}"
    assert words in problem.message


def test_a_provider_without_a_list_of_regions_takes_any() -> None:
    spec = ComputeClusterSpec(id="here", provider="local", region="anywhere")

    check_place(spec, {"local": ANYWHERE})


@pytest.mark.parametrize(
    ("parts", "total"),
    [
        pytest.param([], Decimal(0), id="nothing"),
        pytest.param([(Decimal("1.5"), 1), (Decimal("0.5"), 2)], Decimal(2), id="known prices"),
        pytest.param([(Decimal("1.5"), 1), (None, 1)], None, id="an unknown price"),
        pytest.param([(Decimal("1.5"), 1), (None, 0)], Decimal("1.5"), id="no machine of it"),
    ],
)
def test_an_unknown_price_is_never_taken_for_nothing(
    parts: list[tuple[Decimal | None, int]], total: Decimal | None
) -> None:
    assert total_usd(parts) == total


def test_a_line_of_a_list_needs_only_what_names_it() -> None:
    row = row_of(NodepoolRow, {"id": "a", "compute_cluster": "b", "uid": "u", "region": None})

    assert (row.region, row.instance_types, row.ready) == (None, (), 0)


@pytest.mark.parametrize(
    ("status", "settled"),
    [
        pytest.param(pool(), True, id="it has what it wants"),
        pytest.param(pool(observed_generation=0), False, id="a change was not seen"),
        pytest.param(pool(desired=2), False, id="a machine is missing"),
        pytest.param(pool(desired=0, ready=0), False, id="a machine is on its way out"),
        pytest.param(pool(phase="pending"), False, id="it is not in its compute cluster"),
        pytest.param(pool(phase="deleting"), False, id="it is going away"),
        pytest.param(
            pool(phase="disabled", desired=0, ready=0, nodes=()), True, id="disabled and empty"
        ),
    ],
)
def test_a_nodepool_is_settled_when_it_has_just_the_machines_it_wants(
    status: NodepoolStatus, settled: bool
) -> None:
    assert nodepool_settled(status) is settled


def test_a_nodepool_is_not_settled_before_it_saw_the_change_that_is_waited_for() -> None:
    assert not nodepool_settled(pool(), generation=2)


@pytest.mark.parametrize(
    ("status", "settled"),
    [
        pytest.param(deployment(), True, id="it has what it wants"),
        pytest.param(deployment(observed_generation=1), False, id="a change was not seen"),
        pytest.param(deployment(desired=2), False, id="a replica is missing"),
        pytest.param(deployment(desired=0, ready=0), False, id="a replica is on its way out"),
        pytest.param(
            deployment(rollout=RolloutStatus(state="rolling", revision=2)), False, id="rolling out"
        ),
        pytest.param(deployment(desired=0, ready=0, replicas=()), True, id="at zero"),
    ],
)
def test_a_deployment_is_settled_when_it_has_just_the_replicas_it_wants(
    status: DeploymentStatus, settled: bool
) -> None:
    assert deployment_settled(status, generation=2) is settled


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(None, ErrorCode.CONFLICT_PHASE, id="no code is known"),
        pytest.param(
            ErrorStatus(code=ErrorCode.QUOTA_EXCEEDED, message="quota"),
            ErrorCode.QUOTA_EXCEEDED,
            id="the last error's code",
        ),
    ],
)
def test_a_rollout_that_stopped_ends_the_wait(error: ErrorStatus | None, code: ErrorCode) -> None:
    stopped = RolloutStatus(state="stopped", revision=2, reason="not ready 600 s after its start")

    with pytest.raises(GarrisonError, match="revision 2 has stopped: not ready 600 s") as told:
        deployment_settled(deployment(rollout=stopped, last_error=error))

    assert told.value.code == code


def test_the_log_of_nobody_is_of_the_first_replica_that_has_a_node() -> None:
    status = deployment(replicas=(replica("llama-1"), replica("llama-2", "node-0")))

    assert _chosen(status, None).name == "llama-2"
    assert _chosen(status, "llama-1").name == "llama-1"


def test_the_log_of_a_replica_that_is_not_there_names_the_nearest() -> None:
    status = deployment(replicas=(replica("llama-1"),))

    with pytest.raises(NotFound, match="did you mean 'llama-1'"):
        _chosen(status, "lama-1")


def test_a_deployment_without_replicas_has_no_log() -> None:
    with pytest.raises(ConflictPhase, match="has no replica now"):
        _chosen(deployment(replicas=()), None)


@pytest.mark.parametrize(
    ("field", "content", "line"),
    [
        pytest.param("compute_cluster.cloud_provider.id", CLUSTER_FILE, 4, id="a key"),
        pytest.param("compute_cluster.region", CLUSTER_FILE, 5, id="another key"),
        pytest.param("nodepool.instance_types[1]", POOL_FILE, 6, id="an item of a list"),
        pytest.param("compute_cluster.visibility", CLUSTER_FILE, 1, id="a key that is not there"),
    ],
)
def test_a_mistake_that_the_service_found_gets_its_line(
    field: str, content: bytes, line: int
) -> None:
    error = InvalidSpec("is not valid", problems=(Problem(field, "is wrong"),))

    found = located(error, content, "file.yaml")

    assert str(found) == f"file.yaml: is not valid\n  line {line}: {field}: is wrong"


def test_an_error_that_names_no_field_stays_as_it_is() -> None:
    error = NotFound("there is no compute cluster gpus")

    assert located(error, POOL_FILE, "pool.yaml") is error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        pytest.param(
            NotFound("there is no compute cluster gpus"),
            "pool.yaml: line 3: nodepool.compute_cluster: not_found: there is no compute cluster"
            " gpus",
            id="something is missing",
        ),
        pytest.param(
            Unsupported("aws sells no spot g5.xlarge"),
            "pool.yaml: line 1: nodepool.node_capacity_type: unsupported: aws sells no spot"
            " g5.xlarge",
            id="something is not sold",
        ),
        pytest.param(
            InvalidSpec("cannot be read: no such file", source="pool.yaml"),
            "pool.yaml: cannot be read: no such file",
            id="the file itself",
        ),
        pytest.param(
            ModelNotConfigured("model 'a' is not configured"),
            "pool.yaml: deployment.worker.model: model_not_configured: model 'a' is not configured",
            id="a model",
        ),
    ],
)
def test_among_mistakes_of_several_files_each_has_its_file_and_code(
    error: GarrisonError, told: str
) -> None:
    [problem] = problems_in(error, POOL_FILE, "pool.yaml")

    assert str(problem) == told
