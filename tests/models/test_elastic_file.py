"""The files of compute clusters, nodepools and deployments, and what they are warned of."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import ErrorCode, InvalidSpec, ModelNotConfigured
from garrison.models.base import Model
from garrison.models.cluster import ClusterSpec
from garrison.models.compute_cluster import ComputeClusterSpec
from garrison.models.deployment import (
    AutoscaleConfig,
    DeploymentPool,
    HealthProbe,
    SchedulingChoice,
)
from garrison.models.deployment_fields import (
    AutoscaleBlock,
    DeploymentBlock,
    LoadBlock,
    WorkerBlock,
)
from garrison.models.elastic_fields import UNUSED, ComputeClusterBlock, NodepoolBlock
from garrison.models.elastic_file import (
    DeploymentFile,
    NodepoolFile,
    ResourceKind,
    read_compute_cluster_file,
    read_deployment_file,
    read_nodepool_file,
    read_resource_file,
    resolve,
)
from garrison.models.group import RestartPolicy
from garrison.models.nodepool import NodepoolSpec
from garrison.models.offer import CapacityType
from garrison.models.problems import build
from garrison.models.resources import Resources
from garrison.models.worker_file import HealthFile, ModelSettings, ResourcesFile

ROOT = Path(__file__).parents[2]
DOCUMENTED = ROOT / "tests" / "data" / "clarifai"
GIB = 2**30
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIN me"

CLUSTER: dict[str, Any] = {"id": "c", "cloud_provider": {"id": "aws"}, "region": "us-east-1"}
NODEPOOL: dict[str, Any] = {
    "id": "p",
    "compute_cluster": {"id": "c"},
    "instance_types": [{"id": "g5.2xlarge"}],
}
DEPLOYMENT: dict[str, Any] = {
    "id": "d",
    "worker": {"command": ["serve"]},
    "scheduling_choice": "4",
    "nodepools": [{"id": "p", "compute_cluster": {"id": "c"}}],
}


def compute_cluster(**keys: Any) -> tuple[ComputeClusterSpec, tuple[str, ...]]:
    return read_compute_cluster_file(json.dumps({"compute_cluster": {**CLUSTER, **keys}}))


def nodepool(**keys: Any) -> tuple[NodepoolFile, tuple[str, ...]]:
    return read_nodepool_file(json.dumps({"nodepool": {**NODEPOOL, **keys}}))


def deployment(**keys: Any) -> tuple[DeploymentFile, tuple[str, ...]]:
    return read_deployment_file(json.dumps({"deployment": {**DEPLOYMENT, **keys}}))


READERS = {"compute_cluster": compute_cluster, "nodepool": nodepool, "deployment": deployment}


def refused(kind: str, **keys: Any) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        READERS[kind](**keys)
    return [f"{problem.field}: {problem.message}" for problem in caught.value.problems]


def documented(name: str) -> str:
    return (DOCUMENTED / name).read_text(encoding="utf-8")


def test_the_documented_compute_cluster_means_what_it_says() -> None:
    spec, warnings = read_compute_cluster_file(documented("compute_cluster_config.yaml"))

    assert spec == ComputeClusterSpec(
        id="test-compute-cluster",
        provider="aws",
        region="us-east-1",
        description="My AWS compute cluster",
        managed_by="clarifai",
    )
    assert warnings == ()


def test_the_documented_nodepool_means_what_it_says_and_its_claims_are_kept_apart() -> None:
    file, warnings = read_nodepool_file(documented("nodepool_config.yaml"))

    assert file.spec == NodepoolSpec(
        id="test-nodepool",
        compute_cluster="test-compute-cluster",
        description="First nodepool in AWS in a proper compute cluster",
        instance_types=("g5.2xlarge",),
        min_instances=0,
        max_instances=1,
    )
    assert file.claims == {
        "g5.2xlarge": Resources(
            cpu_milli=8000,
            memory_bytes=30_064_771_072,
            accelerators=1,
            accelerator_memory_bytes=40 * GIB,
            accelerator_types=("a10",),
        )
    }
    assert warnings == ()


def test_the_documented_deployment_means_what_it_says() -> None:
    file, warnings = read_deployment_file(documented("deployment_config.yaml"))

    assert file == DeploymentFile(
        id="test-deployment",
        description="some random deployment",
        model="meta/Llama-3/Llama-3_2-3B-Instruct",
        model_version="fe271b43266a45a5b068766b6437687f",
        autoscale=AutoscaleConfig(),
        scheduling_choice=SchedulingChoice.PERFORMANCE,
        nodepools=(
            DeploymentPool(compute_cluster="test-compute-cluster", nodepool="test-nodepool"),
        ),
    )
    assert warnings == ()


def test_every_key_of_a_nodepool_reaches_its_spec() -> None:
    file, warnings = nodepool(
        description="d",
        instance_types=[{"id": "a"}, {"id": "b", "compute_info": {"cpu_memory": "28Gi"}}],
        node_capacity_type={"capacity_types": ["2", "ON_DEMAND_TYPE", "spot"]},
        min_instances="1",
        max_instances="4",
        warm_instances="2",
        on_demand_base="1",
        on_demand_fallback="true",
        max_price_per_hour="1.50",
        release_after_seconds="0",
        ssh_keys=[KEY],
    )

    assert file.spec == NodepoolSpec(
        id="p",
        compute_cluster="c",
        description="d",
        instance_types=("a", "b"),
        capacity_types=(CapacityType.SPOT, CapacityType.ON_DEMAND),
        min_instances=1,
        max_instances=4,
        warm_instances=2,
        on_demand_base=1,
        on_demand_fallback=True,
        max_usd_per_hour=Decimal("1.50"),
        release_after=timedelta(0),
        ssh_keys=(KEY,),
    )
    assert list(file.claims) == ["b"]
    assert warnings == ()


def test_every_key_of_a_deployment_reaches_its_file() -> None:
    file, _ = deployment(
        worker={
            "command": "serve --port $PORT",
            "image": "registry.example/chat:3",
            "env": {"TOKEN": {"secret": "chat"}},
            "port": "8000",
            "resources": {
                "cpu": "500m",
                "memory": "1.5Gi",
                "accelerators": "2",
                "accelerator_memory": "20Gi",
                "accelerator_type": "NVIDIA-*",
            },
            "health": {"path": "/ready", "start_timeout": "30", "interval": "0.5", "timeout": "2"},
            "restart": "on_failure",
            "max_restarts": "7",
        },
        autoscale_config={
            "min_replicas": "1",
            "max_replicas": "7",
            "soft_min_replicas": "2",
            "traffic_history_seconds": "100",
            "scale_up_delay_seconds": "31",
            "scale_down_delay_seconds": "30",
            "scale_to_zero_delay_seconds": "30",
            "disable_packing": "true",
        },
        scheduling_choice="prefer_spot",
    )

    template = file.template
    assert template is not None
    assert template.command == ("/bin/sh", "-c", "serve --port $PORT")
    assert (template.image, template.port) == ("registry.example/chat:3", 8000)
    assert template.env == {"TOKEN": "secret:chat"}
    assert template.resources == Resources(
        cpu_milli=500,
        memory_bytes=3 * GIB // 2,
        accelerators=2,
        accelerator_memory_bytes=20 * GIB,
        accelerator_types=("NVIDIA-*",),
    )
    assert template.health == HealthProbe(
        path="/ready",
        start_timeout=timedelta(seconds=30),
        interval=timedelta(seconds=0.5),
        timeout=timedelta(seconds=2),
    )
    assert (template.restart, template.max_restarts) == (RestartPolicy.ON_FAILURE, 7)
    assert file.autoscale == AutoscaleConfig(
        min_replicas=1,
        max_replicas=7,
        soft_min_replicas=2,
        traffic_history=timedelta(seconds=100),
        scale_up_delay=timedelta(seconds=31),
        scale_down_delay=timedelta(seconds=30),
        scale_to_zero_delay=timedelta(seconds=30),
        disable_packing=True,
    )
    assert file.scheduling_choice is SchedulingChoice.PREFER_SPOT


@pytest.mark.parametrize("choice", list(SchedulingChoice))
def test_a_scheduling_choice_is_known_by_number_and_by_name(choice: SchedulingChoice) -> None:
    by_number, _ = deployment(scheduling_choice=str(int(choice)))
    by_name, _ = deployment(scheduling_choice=choice.name)

    assert by_number.scheduling_choice is by_name.scheduling_choice is choice


@pytest.mark.parametrize(
    ("kind", "keys", "warned"),
    [
        pytest.param(
            "compute_cluster",
            {"visibility": {"gettable": "ORG"}},
            [
                "compute_cluster.visibility.gettable: 30 is kept and shown; "
                "everybody here can see everything"
            ],
            id="a visibility that is not enforced",
        ),
        pytest.param(
            "compute_cluster",
            {"key": {"id": "s3cret"}, "cloud_provider": {"id": "aws", "name": "Amazon"}},
            [
                "compute_cluster.cloud_provider.name: means nothing here and is ignored",
                "compute_cluster.key: means nothing here and is ignored",
            ],
            id="a token, which is not repeated",
        ),
        pytest.param(
            "nodepool",
            {
                "instance_types": [
                    {"id": "a"},
                    {"id": "b", "compute_info": {"accelerator_type": "a10"}},
                ]
            },
            [
                "nodepool.instance_types[1].compute_info.accelerator_type: "
                "should be a list; the one text is taken as one type"
            ],
            id="a bare accelerator type",
        ),
        pytest.param(
            "nodepool",
            {"instance_types": [{"id": "a", "price": "1"}], "metadata": {"a": ["b"]}},
            [
                "nodepool.instance_types[0].price: means nothing here and is ignored",
                "nodepool.metadata: means nothing here and is ignored",
            ],
            id="keys of the public messages in a nodepool",
        ),
        pytest.param(
            "deployment",
            {
                "user_id": "me",
                "email_reminder_after": "3600s",
                "deploy_latest_version": "true",
                "special_handling": [],
            },
            [
                "deployment.user_id: means nothing here and is ignored",
                "deployment.deploy_latest_version: means nothing here and is ignored",
                "deployment.special_handling: means nothing here and is ignored",
                "deployment.email_reminder_after: means nothing here and is ignored",
            ],
            id="keys of the public messages in a deployment",
        ),
        pytest.param(
            "deployment",
            {"scheduling_choice": "0"},
            [
                "deployment.scheduling_choice: is not given; "
                "4 (PERFORMANCE) is used: nodepools in the file's order"
            ],
            id="the unknown scheduling choice",
        ),
        pytest.param(
            "deployment",
            {"autoscale_config": {"enable_packing": "true"}},
            [
                "deployment.autoscale_config.enable_packing: "
                "is an old name; read as disable_packing: false"
            ],
            id="the removed field for packing",
        ),
        pytest.param(
            "deployment",
            {"nodepools": [{"id": "p", "compute_cluster": {"id": "c", "user_id": "me"}}]},
            ["deployment.nodepools[0].compute_cluster.user_id: means nothing here and is ignored"],
            id="the owner of a compute cluster",
        ),
    ],
)
def test_what_is_accepted_but_not_as_written_is_told(
    kind: str, keys: dict[str, Any], warned: list[str]
) -> None:
    _, warnings = READERS[kind](**keys)

    assert [warning.partition(": ")[2] for warning in warnings] == warned


def test_warnings_have_lines_and_the_order_of_the_file() -> None:
    text = documented("deployment_config.yaml").replace(" scheduling_choice: 4\n", "")
    text = text.replace("   disable_packing: false", "   enable_packing: false\n user_id: me")

    file, warnings = read_deployment_file(text)

    assert file.autoscale.disable_packing
    assert warnings == (
        "line 1: deployment.scheduling_choice: is not given; "
        "4 (PERFORMANCE) is used: nodepools in the file's order",
        "line 11: deployment.autoscale_config.enable_packing: "
        "is an old name; read as disable_packing: true",
        "line 12: deployment.user_id: means nothing here and is ignored",
    )


def test_a_public_variant_without_minimum_and_with_both_capacity_types_is_read() -> None:
    text = documented("nodepool_config.yaml").replace("  min_instances: 0\n", "")
    file, warnings = read_nodepool_file(text.replace("      - 1\n", "      - 1\n      - 2\n"))

    assert file.spec.min_instances == 0
    assert file.spec.capacity_types == (CapacityType.ON_DEMAND, CapacityType.SPOT)
    assert warnings == ()


def test_a_public_variant_with_short_delays_and_no_delay_to_zero_is_read() -> None:
    file, _ = deployment(
        autoscale_config={"scale_down_delay_seconds": "30", "scale_up_delay_seconds": "30"}
    )

    assert file.autoscale.scale_to_zero_delay == timedelta(seconds=1800)


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [
        (
            "compute_cluster",
            {"managed_by": "user"},
            "managed_by: must be clarifai or garrison, which both mean that Garrison buys the "
            "machines, not 'user'",
        ),
        (
            "compute_cluster",
            {"cluster_type": "shared"},
            "cluster_type: must be dedicated, not 'shared'",
        ),
        (
            "compute_cluster",
            {"visibility": {"gettable": "11"}},
            "visibility.gettable: must be 10 (PRIVATE), 30 (ORG) or 50 (PUBLIC), not '11'",
        ),
        ("compute_cluster", {"regin": "x"}, "regin: is not a known key; did you mean 'region'?"),
        ("compute_cluster", {"cloud_provider": "aws"}, "cloud_provider: must be a block of keys"),
        (
            "nodepool",
            {"instance_types": []},
            "instance_types: must not be empty: give at least one",
        ),
        (
            "nodepool",
            {"instance_types": [{"id": "a"}, {"id": "A"}]},
            "instance_types: has 'A' twice",
        ),
        (
            "nodepool",
            {"node_capacity_type": {"capacity_types": []}},
            "node_capacity_type.capacity_types: must not be empty: give at least one",
        ),
        (
            "nodepool",
            {"node_capacity_type": {"capacity_types": ["1", "3"]}},
            "node_capacity_type.capacity_types[1]: must be 1 (ON_DEMAND_TYPE) or 2 (SPOT_TYPE), "
            "not '3'",
        ),
        (
            "nodepool",
            {"node_capacity_type": {"capacity_types": [["1"]]}},
            "node_capacity_type.capacity_types[0]: must be 1 (ON_DEMAND_TYPE) or 2 (SPOT_TYPE)",
        ),
        (
            "nodepool",
            {"warm_instances": "2"},
            "warm_instances: must be at most max_instances (1), not 2",
        ),
        (
            "nodepool",
            {"node_capacity_type": {"capacity_types": ["1", "2"]}, "on_demand_base": "2"},
            "on_demand_base: must be at most max_instances (1), not 2",
        ),
        (
            "nodepool",
            {"node_capacity_type": {"capacity_types": ["2"]}, "on_demand_fallback": "true"},
            "on_demand_fallback: needs both capacity types, [1, 2]; add the other or leave this "
            "out",
        ),
        (
            "nodepool",
            {"on_demand_base": "1"},
            "on_demand_base: needs both capacity types, [1, 2]; add the other or leave this out",
        ),
        ("nodepool", {"max_price_per_hour": "0"}, "max_price_per_hour: must be above 0, not '0'"),
        (
            "nodepool",
            {"max_price_per_hour": "NaN"},
            "max_price_per_hour: must be a finite number, not 'NaN'",
        ),
        (
            "nodepool",
            {"max_instances": "10001"},
            "max_instances: must be at most 10000, not '10001'",
        ),
        (
            "nodepool",
            {"ssh_keys": ["hunter2"]},
            "ssh_keys[0]: is no OpenSSH public key such as 'ssh-ed25519 AAAA... me'",
        ),
        (
            "deployment",
            {"scheduling_choice": "99"},
            "scheduling_choice: must be a number or name of: 1 FAIL, 2 RANDOM, 3 PRICE, "
            "4 PERFORMANCE, 5 NETWORK, 6 UTILIZATION, 7 PREFER_SPOT, 8 PREFER_ONDEMAND, not '99'",
        ),
        (
            "deployment",
            {"autoscale_config": {"min_replicas": "6"}},
            "autoscale_config.max_replicas: must be at least min_replicas (6), not 5",
        ),
        (
            "deployment",
            {
                "autoscale_config": {
                    "scale_down_delay_seconds": "300",
                    "scale_to_zero_delay_seconds": "299",
                }
            },
            "autoscale_config.scale_to_zero_delay_seconds: "
            "must be at least scale_down_delay_seconds (300), not 299",
        ),
        (
            "deployment",
            {"autoscale_config": {"disable_packing": "true", "enable_packing": "true"}},
            "autoscale_config.enable_packing: contradicts disable_packing; remove it",
        ),
        ("deployment", {"nodepools": []}, "nodepools: must not be empty: give at least one"),
        (
            "deployment",
            {"nodepools": DEPLOYMENT["nodepools"] * 2},
            "nodepools: has 'c/p' twice",
        ),
        (
            "deployment",
            {"deployment_nodepools": [{"id": "q", "compute_cluster": {"id": "c"}}]},
            "deployment_nodepools: names other nodepools than `nodepools`; give one of the two",
        ),
        (
            "deployment",
            {
                "deployment_nodepools": [
                    {"id": "p", "compute_cluster": {"id": "c"}, "priority": "10"}
                ]
            },
            "deployment_nodepools[0].priority: must be at most 9, not '10'",
        ),
        (
            "deployment",
            {"deployment_nodepools": [{"id": "p"}]},
            "deployment_nodepools[0]: needs `id` and `compute_cluster: {id: ...}` of a nodepool",
        ),
        (
            "deployment",
            {"status": "DISABLED"},
            "status: cannot be DISABLED in a file; use `garrison deployment disable`",
        ),
        (
            "deployment",
            {"worker": {"port": "1"}},
            "worker: needs a `model`, a `command` or an `image`",
        ),
        (
            "deployment",
            {"worker": {"workflow": {"id": "w"}}},
            "worker: `workflow` cannot be run here; give a `model`, `command` or `image`",
        ),
        (
            "deployment",
            {"worker": {"model": {"id": "m"}, "port": "1", "env": {"A": "b"}}},
            "worker.model: goes without env, port: for a model the settings' `models:` say these",
        ),
        (
            "deployment",
            {"worker": {"model": {"id": "m", "user_id": "u"}}},
            "worker.model: needs both `user_id` and `app_id`, or neither",
        ),
        (
            "deployment",
            {"worker": {"command": "x", "health": {"path": "/"}}},
            "worker.health: needs the `port` to ask at",
        ),
        (
            "deployment",
            {"worker": {"command": "x", "resources": {"accelerator_type": "NVIDIA-*"}}},
            "worker.resources.accelerator_type: needs accelerators; say how many in `accelerators`",
        ),
        (
            "deployment",
            {"worker": {"command": "x", "resources": {"memory": "28"}}},
            "worker.resources.memory: '28' is less than 1Mi; give a unit, such as 28Gi",
        ),
        (
            "deployment",
            {"worker": {"command": "x", "resources": {"colour": "red"}}},
            "worker.resources.colour: is not a known key; known: accelerator_memory, "
            "accelerator_type, accelerators, cpu, memory",
        ),
        *(
            (
                "deployment",
                {"worker": {"command": "x", "resources": {word: "1"}}},
                f"worker.resources.{word}: is not a known key; did you mean {key!r}?",
            )
            for word, key in [
                ("gpu", "accelerators"),
                ("GPUs", "accelerators"),
                ("gpu_memory", "accelerator_memory"),
                ("ram", "memory"),
            ]
        ),
        (
            "nodepool",
            {"instance_types": [{"id": "g5.2xlarge", "compute_info": {"gpus": "1"}}]},
            "instance_types[0].compute_info.gpus: is not a known key; "
            "did you mean 'num_accelerators'?",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_plain_words(
    kind: str, keys: dict[str, Any], said: str
) -> None:
    assert refused(kind, **keys) == [f"{kind}.{said}"]


def test_a_deployment_needs_nodepools_and_a_model_their_names() -> None:
    keys = {name: value for name, value in DEPLOYMENT.items() if name != "nodepools"}

    with pytest.raises(InvalidSpec, match="deployment: needs `nodepools`, each with `id`"):
        read_deployment_file(json.dumps({"deployment": keys}))


def test_priorities_go_with_the_pools_that_they_name() -> None:
    pools = [
        {"id": "p", "compute_cluster": {"id": "c"}},
        {"nodepool": {"id": "q", "compute_cluster": {"id": "c"}}, "priority": "9"},
    ]

    file, warnings = deployment(
        nodepools=[{"id": "q", "compute_cluster": {"id": "c"}}, *DEPLOYMENT["nodepools"]],
        deployment_nodepools=pools,
    )

    assert file.nodepools == (
        DeploymentPool(compute_cluster="c", nodepool="p"),
        DeploymentPool(compute_cluster="c", nodepool="q", priority=9),
    )
    assert warnings == ()


def test_no_value_of_a_workers_secrets_is_in_a_message() -> None:
    found = refused(
        "deployment",
        worker={"command": {"hunter2": "x"}, "env": {"A": ["hunter2"], "B": {"hunter2": "x"}}},
    )

    assert len(found) == 3
    assert "hunter2" not in "".join(found)


def test_the_id_of_the_command_line_wins_with_a_warning() -> None:
    file, warnings = read_nodepool_file(
        documented("nodepool_config.yaml"), id="mine", compute_cluster="elsewhere"
    )

    assert (file.spec.id, file.spec.compute_cluster) == ("mine", "elsewhere")
    assert warnings == (
        "line 2: nodepool.id: the file says 'test-nodepool'; 'mine' of the command line is used",
        "line 4: nodepool.compute_cluster.id: the file says 'test-compute-cluster'; "
        "'elsewhere' of the command line is used",
    )


@pytest.mark.parametrize("id", ["test-deployment", None])
def test_the_same_id_twice_or_once_is_no_reason_to_warn(id: str | None) -> None:
    file, warnings = read_deployment_file(documented("deployment_config.yaml"), id=id)

    assert (file.id, warnings) == ("test-deployment", ())


@pytest.mark.parametrize("written", ["", "  id:\n", "  id: null\n", "  id: 'a b'\n"])
def test_the_id_of_the_command_line_makes_up_for_none_in_the_file(written: str) -> None:
    text = f"compute_cluster:\n{written}  cloud_provider: {{id: aws}}\n  region: r\n"

    spec, _ = read_compute_cluster_file(text, id="c")

    assert spec.id == "c"


def test_an_id_of_the_command_line_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"compute_cluster\.id: must be 1 to 63 .*not 'a b'"):
        read_compute_cluster_file(documented("compute_cluster_config.yaml"), id="a b")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "is missing; give it in the file or on the command line"),
        ("  compute_cluster:\n", "is missing; give it in the file or on the command line"),
        ("  compute_cluster: {id: }\n", "is empty; give a value or remove the key"),
        ("  compute_cluster: {user_id: me}\n", "is missing"),
    ],
)
def test_a_nodepool_without_a_compute_cluster_is_refused(written: str, said: str) -> None:
    text = f"nodepool:\n  id: p\n{written}  instance_types: [{{id: a}}]\n"

    with pytest.raises(InvalidSpec) as caught:
        read_nodepool_file(text)

    (problem,) = caught.value.problems
    assert (problem.field, problem.message) == ("nodepool.compute_cluster.id", said)


def test_what_kind_a_file_is_is_told_by_its_block() -> None:
    found = {
        ResourceKind.COMPUTE_CLUSTER: {"compute_cluster": CLUSTER},
        ResourceKind.NODEPOOL: {"nodepool": NODEPOOL},
        ResourceKind.DEPLOYMENT: {"deployment": DEPLOYMENT},
        ResourceKind.CLUSTER: {"cluster": {"nodes": "2"}},
    }
    values = {kind: read_resource_file(json.dumps(content)) for kind, content in found.items()}

    assert {kind: value.kind for kind, value in values.items()} == {kind: kind for kind in found}
    assert [type(value.value) for value in values.values()] == [
        ComputeClusterSpec,
        NodepoolFile,
        DeploymentFile,
        ClusterSpec,
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "nodepol: {}\n",
            [
                "line 1: nodepol: is not a known key; did you mean 'nodepool'?",
                "line 1: must have one of the blocks `compute_cluster:`, `nodepool:`, "
                "`deployment:`, `cluster:`",
            ],
        ),
        (
            "nodepool: {}\ncluster: {}\n",
            ["line 1: has `nodepool:` and `cluster:`; one file holds one block"],
        ),
    ],
)
def test_a_file_of_no_kind_or_of_several_is_refused(text: str, said: list[str]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        read_resource_file(text, "x.yaml")

    assert caught.value.source == "x.yaml"
    assert [str(problem) for problem in caught.value.problems] == said


def models(*names: str) -> Mapping[str, ModelSettings]:
    return {name: build(ModelSettings, {"command": ["serve", name]}, what="x") for name in names}


def served_by(name: str, *configured: str) -> str:
    file, _ = deployment()
    spec = resolve(file.replace(template=None, model=name), models(*configured))
    assert spec.template.command is not None
    return spec.template.command[1]


@pytest.mark.parametrize(
    ("configured", "chosen"),
    [
        (["*", "meta/*", "meta/Llama-3/*", "meta/Llama-3/x"], "meta/Llama-3/x"),
        (["*", "meta/*", "meta/Llama-3/*"], "meta/Llama-3/*"),
        (["*", "meta/*/x"], "meta/*/x"),
        (["meta/*"], "meta/*"),
        (["*"], "*"),
        (["meta/Llama.3/*", "*x"], "*x"),
    ],
)
def test_the_exact_name_goes_before_the_longest_pattern(configured: list[str], chosen: str) -> None:
    assert served_by("meta/Llama-3/x", *configured) == chosen
    assert served_by("meta/Llama-3/x", *reversed(configured)) == chosen


def test_a_model_is_told_its_name_and_the_settings_win() -> None:
    file, _ = read_deployment_file(documented("deployment_config.yaml"))
    entry = build(
        ModelSettings,
        {
            "image": "i",
            "env": {
                "A": "b",
                "T": {"secret": "t"},
                "P": "plain:p",
                "GARRISON_MODEL_ID": "mine",
            },
        },
        what="x",
    )

    spec = resolve(file, {"meta/*": entry})

    assert spec.template.env == {
        "GARRISON_MODEL": "plain:meta/Llama-3/Llama-3_2-3B-Instruct",
        "GARRISON_MODEL_ID": "plain:mine",
        "GARRISON_MODEL_VERSION": "plain:fe271b43266a45a5b068766b6437687f",
        "A": "plain:b",
        "T": "secret:t",
        "P": "plain:p",
    }
    assert spec.template.model == "meta/Llama-3/Llama-3_2-3B-Instruct"
    assert spec.template.model_version == "fe271b43266a45a5b068766b6437687f"
    assert (spec.id, spec.nodepools) == (file.id, file.nodepools)
    assert spec.scheduling_choice is SchedulingChoice.PERFORMANCE


def test_a_deployment_with_a_command_of_its_own_needs_no_settings() -> None:
    file, _ = deployment(description="d", autoscale_config={"max_replicas": "9"})

    spec = resolve(file, {})

    assert spec.template == file.template
    assert (spec.description, spec.autoscale.max_replicas) == ("d", 9)


@pytest.mark.parametrize(
    ("configured", "hint"),
    [(["meta/Llama-3/y"], "did you mean 'meta/Llama-3/y'"), ([], "none is known")],
)
def test_a_model_that_nobody_configured_is_refused_with_the_nearest(
    configured: list[str], hint: str
) -> None:
    with pytest.raises(ModelNotConfigured, match=hint) as caught:
        served_by("meta/Llama-3/x", *configured)

    assert caught.value.code is ErrorCode.MODEL_NOT_CONFIGURED
    assert "add it to `models:`" in str(caught.value)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*/*.yaml")), ids=lambda path: path.stem
)
def test_every_example_is_read_without_a_warning(path: Path) -> None:
    read = read_resource_file(path.read_bytes(), path.name)

    assert read.warnings == ()


@pytest.mark.parametrize("path", sorted(DOCUMENTED.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_documented_examples_are_those_of_the_tests(path: Path) -> None:
    assert (ROOT / "examples" / "clarifai" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("title", "table", "model"),
    [
        ("## Compute cluster", 0, ComputeClusterBlock),
        ("## Nodepool", 0, NodepoolBlock),
        ("## Deployment", 0, DeploymentBlock),
        ("### Autoscale", 0, AutoscaleBlock),
        ("### Autoscale", 1, LoadBlock),
        ("### Worker", 0, WorkerBlock),
        ("### Worker", 1, ResourcesFile),
        ("### Worker", 2, HealthFile),
    ],
)
def test_every_key_that_means_something_is_documented(
    title: str, table: int, model: type[Model]
) -> None:
    page = (ROOT / "docs" / "nodepools.md").read_text(encoding="utf-8")
    section = re.split(r"^##", page.partition(f"{title}\n")[2], flags=re.MULTILINE)[0]
    tables = re.findall(r"^\| key.*\n\|[-|]+\n((?:\|.*\n)+)", section, re.MULTILINE)

    documented = re.findall(r"^\| `(\w+)`", tables[table], re.MULTILINE)

    meant = [name for name, field in model.model_fields.items() if UNUSED not in field.metadata]
    assert sorted(documented) == sorted(meant)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodepool: 3\n", "must be a block of keys"),
        ("nodepool:\n", "is empty"),
        ("nodepool: {}\n", "is empty"),
        ("{}\n", "the block `nodepool:` is missing"),
    ],
)
def test_ids_of_the_command_line_do_not_make_up_for_a_missing_block(text: str, said: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        read_nodepool_file(text, id="p", compute_cluster="c")

    assert [problem.message for problem in caught.value.problems] == [said]
