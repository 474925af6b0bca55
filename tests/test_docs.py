"""What the documents say is what the code does.

The golden files are written anew with `GARRISON_WRITE_GOLDEN=1 make test ARGS=tests/test_docs.py`;
look at the difference: a field that vanished, or changed its form, breaks somebody's program.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import BaseModel
from temporalio import workflow

from garrison.domain.node_environment import RESERVED
from garrison.errors import ErrorCode, exit_status, http_status
from garrison.failures import DATA_CONVERTER
from garrison.models.base import Message
from garrison.models.cluster import ClusterShape, ClusterSpec, RecoverySpec, WorkloadSettings
from garrison.models.cluster_messages import (
    ActionAck,
    ClusterInput,
    LaunchRequest,
    QuoteAck,
    QuoteAnswer,
    QuoteQuery,
    QuoteRequest,
    RecoverRequest,
    RecoverySwitch,
    TerminateAck,
    TerminateRequest,
)
from garrison.models.cluster_state import ClusterEvent, ClusterState, Phase, PhaseTransition
from garrison.models.cluster_status import (
    BlockedStatus,
    ClusterNodeStatus,
    ClusterStatus,
    ErrorStatus,
    NodeWorkloadStatus,
    PurchaseStatus,
    QuoteStatus,
    RecoveryStatus,
    SshStatus,
)
from garrison.models.compute_cluster import ComputeClusterState
from garrison.models.group import Group, Node, NodeStatus, SshEndpoint, WorkloadState
from garrison.models.group import WorkloadStatus as SupervisedStatus
from garrison.models.nodepool_state import NodepoolState
from garrison.models.observation import Observation, WatchAsk, WatchAsks, WatchStatus
from garrison.models.offer import CapacityType, Offer, Stock
from garrison.models.provider import Capabilities, ProviderFacts
from garrison.models.quote import Considered, QuotePart
from garrison.providers.simulated import vendor
from garrison.providers.simulated.faults import Fault
from garrison.settings import ProviderSettings, SettingsFile
from garrison.workflows.cluster import ClusterWorkflow
from garrison.workflows.compute_cluster import ComputeClusterWorkflow
from garrison.workflows.deployment import DeploymentWorkflow
from garrison.workflows.deployment_visibility import deployment_memo
from garrison.workflows.elastic_visibility import compute_cluster_memo, nodepool_memo
from garrison.workflows.load_watch import LoadWatchWorkflow
from garrison.workflows.nodepool import NodepoolWorkflow
from garrison.workflows.provider_watch import ProviderWatchWorkflow
from garrison.workflows.visibility import ALL_KEYS, cluster_memo
from tests.golden_elastic import DEPLOYMENT_STATE, ELASTIC_MESSAGES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GOLDEN = DOCS / "golden"
UID = "0b5a2f5e-7d0c-4c3e-9a39-3f0f6f1c2d11"
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SEALED = "sealed:0123456789abcdef:" + "QUJD" * 21
ROW = re.compile(r"^\|(.+)\|$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")

OFFER = Offer(
    provider="simulated",
    region="sim-a",
    instance_type="p5.48xlarge",
    vcpus=192,
    memory_gib=Decimal(2048),
    accelerator="H100",
    accelerator_count=Decimal(8),
    accelerator_memory_gib=Decimal(80),
    usd_per_hour=Decimal("55.04"),
    stock=Stock.HIGH,
    source="catalogue",
    as_of="2025-06-05",
    simulated=True,
)
FACTS = ProviderFacts(
    name="simulated",
    type="simulated",
    regions=("sim-a", "sim-b"),
    capabilities=Capabilities(spot=True, live_price=True),
    effect_bound=timedelta(seconds=10),
    simulated=True,
)
SPEC = ClusterSpec(
    name="Train-1",
    nodes=2,
    accelerator="H100:8",
    provider="simulated",
    recovery=RecoverySpec(automatic=True),
    command=("python", "train.py"),
    env={"TOKEN": SEALED, "NCCL_DEBUG": "plain:INFO"},
    ports=(29500,),
)
QUOTE = QuoteStatus(
    name="Train-1",
    uid=UID,
    quote_id="q-1",
    nodes=2,
    gpus_per_node=8,
    hourly_usd=Decimal("110.08"),
    parts=(
        QuotePart(
            what="p5.48xlarge (8 x H100)",
            quantity=Decimal(2),
            unit_usd_per_hour=Decimal("55.04"),
            usd_per_hour=Decimal("110.08"),
        ),
        QuotePart(what="network", quantity=Decimal(2), included=True),
    ),
    availability="high (for one node; whether all can be placed together is known only at launch)",
    expires_at=NOW + timedelta(minutes=15),
    offer=OFFER,
    considered=(
        Considered(
            offer="simulated/sim-a/p5.48xlarge (8 x H100)",
            usd_per_hour=Decimal("110.08"),
            verdict="chosen",
        ),
    ),
)
STATUS = ClusterStatus(
    name="Train-1",
    uid=UID,
    phase=Phase.DEGRADED,
    provider="simulated",
    region="sim-a",
    instance_type="p5.48xlarge",
    accelerator="H100",
    capacity_type=CapacityType.ON_DEMAND,
    simulated=True,
    nodes_wanted=2,
    gpus_per_node=8,
    hourly_usd=Decimal("110.08"),
    provider_hourly_usd=Decimal("110.08"),
    cost_usd=Decimal("55.04"),
    charged_seconds=Decimal(0),
    charging_since=NOW,
    owner="ada",
    quote_id="q-1",
    created_at=NOW,
    quoted_at=NOW,
    expires_at=NOW + timedelta(minutes=15),
    ready_at=NOW,
    recovery=RecoveryStatus(
        automatic=True,
        max_attempts=3,
        episode=1,
        attempts=1,
        next_attempt_at=NOW + timedelta(minutes=31),
        reason="node 1 is stopped",
        last_error="node 1 is stopped (restart: no_capacity)",
    ),
    last_error=ErrorStatus(code=ErrorCode.PROVIDER_UNREACHABLE, message="no answer in time"),
    blocked=BlockedStatus(
        code=ErrorCode.PROVIDER_UNREACHABLE,
        message="no answer in time",
        since=NOW,
        tries=2,
        retry_at=NOW + timedelta(seconds=4),
    ),
    has_command=True,
    nodes=(
        ClusterNodeStatus(
            rank=0,
            status=NodeStatus.RUNNING,
            provider_id="i-1",
            private_address="10.0.0.1",
            ssh=SshStatus(host="10.0.0.1", port=22, user="root", host_key="ssh-ed25519 AAAA"),
            workload=NodeWorkloadStatus(state=WorkloadState.RUNNING),
        ),
        ClusterNodeStatus(rank=1, status=NodeStatus.STOPPED, provider_id="i-2", restarts=1),
    ),
    purchases=(PurchaseStatus(provider="simulated", region="sim-a", instance_type="p5.48xlarge"),),
    phase_transitions=(PhaseTransition(phase=Phase.QUOTED, time=NOW),),
    events=(
        ClusterEvent(time=NOW, node=1, reason="NodeStopped", message="node 1 was running and is"),
    ),
)
OBSERVATION = Observation(
    owner="cluster/train-1",
    uid=UID,
    provider="simulated",
    begun_at=NOW,
    groups=(
        Group(
            token=f"{UID}-0",
            owner="cluster/train-1",
            uid=UID,
            region="sim-a",
            instance_type="p5.48xlarge",
            usd_per_node_hour=Decimal("55.04"),
            created_at=NOW,
            nodes=(
                Node(
                    rank=0,
                    provider_id="i-1",
                    status=NodeStatus.RUNNING,
                    private_address="10.0.0.1",
                    ssh=SshEndpoint(host="10.0.0.1", host_key="ssh-ed25519 AAAA"),
                    workloads=(SupervisedStatus(name="main", state=WorkloadState.RUNNING),),
                ),
            ),
        ),
    ),
)
ASK = WatchAsk(owner="cluster/train-1", uid=UID, not_before=NOW)
MESSAGES: tuple[Message, ...] = (
    ClusterInput(name="Train-1", uid=UID, owner="ada", revision=1),
    QuoteRequest(request_id="r-1", quote_id="q-1", spec=SPEC),
    QuoteAck(name="Train-1", uid=UID, quote_id="q-1"),
    QuoteQuery(quote_id="q-1"),
    QuoteAnswer(quote=QUOTE),
    QUOTE,
    LaunchRequest(
        request_id="r-2",
        quote_id="q-1",
        uid=UID,
        priced={"nodes": 2},
        workload={"ports": [29500]},
        max_hourly_usd=Decimal("120.00"),
        max_lifetime=timedelta(hours=12),
        by="ada",
    ),
    ActionAck(
        name="Train-1", uid=UID, accepted_at=NOW, phase=Phase.LAUNCHING, message="launch accepted"
    ),
    TerminateRequest(request_id="r-3", uid=UID, by="ada"),
    TerminateAck(name="Train-1", uid=UID, accepted_at=NOW),
    RecoverRequest(request_id="r-4", uid=UID, by="ada"),
    RecoverySwitch(request_id="r-5", uid=UID, automatic=True, max_attempts=5, by="ada"),
    STATUS,
    OBSERVATION,
    ASK,
    WatchAsks(asks=(ASK,), last=7),
    WatchStatus(provider="simulated", facts=FACTS, asks=(ASK,)),
    *ELASTIC_MESSAGES,
)


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _rows(text: str, columns: int) -> Iterator[list[str]]:
    """Yield the cells of every table row with so many columns, heads and rules excepted."""
    for match in ROW.finditer(text):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", match[1])]
        if len(cells) == columns and cells[0].startswith("`"):
            yield cells


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _first_names(text: str, columns: int) -> list[str]:
    return [name for cells in _rows(text, columns) for name in _names(cells[0])]


def _section(text: str, title: str) -> str:
    """Return what stands under a heading, up to the next one of its level or above."""
    level = title.split(" ")[0]
    begin = text.index(f"\n{title}\n") + len(title) + 2
    end = re.search(rf"^#{{1,{len(level)}}} ", text[begin:], re.MULTILINE)
    return text[begin : begin + end.start()] if end else text[begin:]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_golden_json_is_what_goes_over_the_wire(message: Message) -> None:
    path = GOLDEN / f"{type(message).__name__}.json"
    [payload] = DATA_CONVERTER.payload_converter.to_payloads([message])
    if os.environ.get("GARRISON_WRITE_GOLDEN"):
        path.write_text(json.dumps(json.loads(payload.data), indent=2) + "\n", encoding="utf-8")

    golden = json.loads(path.read_text(encoding="utf-8"))

    assert json.loads(payload.data) == golden
    assert type(message).model_validate_json(json.dumps(golden)) == message


def test_every_golden_file_is_compared_and_explained() -> None:
    files = {path.stem for path in GOLDEN.glob("*.json")}
    text = _read("docs/workflows.md")

    assert files == {type(message).__name__ for message in MESSAGES}
    assert all(f"(golden/{name}.json)" in text for name in files)


@pytest.mark.parametrize(
    "defined",
    [
        ClusterWorkflow,
        ComputeClusterWorkflow,
        NodepoolWorkflow,
        DeploymentWorkflow,
        ProviderWatchWorkflow,
        LoadWatchWorkflow,
    ],
)
def test_every_update_signal_and_query_is_documented(defined: type) -> None:
    found = workflow._Definition.must_from_class(defined)
    section = _section(_read("docs/workflows.md"), f"## `{found.name}`")
    rows = re.findall(r"^\| (update|signal|query) \| `(\w+)` \|", section, re.MULTILINE)

    handlers = {
        *(("update", str(name)) for name in found.updates),
        *(("signal", str(name)) for name in found.signals),
        *(("query", str(name)) for name in found.queries if not str(name).startswith("__")),
    }

    assert set(rows) == handlers


def test_every_phase_is_documented() -> None:
    section = _section(_read("docs/workflows.md"), "### Phases")

    assert _first_names(section, 2) == [str(phase) for phase in Phase]


def test_search_attributes_are_documented_with_their_types() -> None:
    section = _section(_read("docs/workflows.md"), "## Search attributes")
    types = {"KEYWORD": "Keyword", "DOUBLE": "Double", "DATETIME": "Datetime"}

    documented = {_names(name)[0]: kind for name, kind in _rows(section, 2)}

    assert documented == {key.name: types[key.indexed_value_type.name] for key in ALL_KEYS}


def test_memo_fields_are_documented() -> None:
    section = _section(_read("docs/workflows.md"), "## Memo of a cluster")
    memo = cluster_memo(ClusterState(name="a", uid=UID, created_at=NOW))

    assert _first_names(section, 2) == list(memo)


MEMOS = {
    "compute cluster": compute_cluster_memo(ComputeClusterState(uid=UID, created_at=NOW)),
    "nodepool": nodepool_memo(
        NodepoolState(id="a10g", compute_cluster="gpus", uid=UID, created_at=NOW), now=NOW
    ),
    "deployment": deployment_memo(DEPLOYMENT_STATE),
}


@pytest.mark.parametrize("noun", MEMOS)
def test_memo_fields_of_what_is_elastic_are_documented(noun: str) -> None:
    section = _section(_read("docs/workflows.md"), f"### Memo of a {noun}")

    assert _first_names(section, 2) == list(MEMOS[noun])


def test_every_error_code_is_documented_with_its_statuses() -> None:
    rows = list(_rows(_read("docs/errors.md"), 5))

    documented = [(_names(code)[0], int(http), int(status)) for code, http, status, _, _ in rows]

    assert documented == [(str(code), http_status(code), exit_status(code)) for code in ErrorCode]
    assert all(meaning and remedy for *_, meaning, remedy in rows)


def test_every_field_of_the_cluster_file_is_documented() -> None:
    text = _read("docs/cluster-file.md")
    priced = _first_names(_section(text, "## What is priced"), 4)
    workload = _first_names(_section(text, "## What is not"), 4)

    assert priced == list(ClusterShape.model_fields)
    assert workload == list(WorkloadSettings.model_fields)


def test_every_variable_of_a_node_is_documented() -> None:
    section = _section(_read("docs/cluster-file.md"), "## What every node gets")

    assert set(_first_names(section, 2)) == RESERVED


@pytest.mark.parametrize(
    ("page", "title", "columns", "model"),
    [
        pytest.param("operations.md", "## Settings", 3, SettingsFile, id="the settings file"),
        pytest.param("providers.md", "## Settings", 2, ProviderSettings, id="a provider"),
    ],
)
def test_every_setting_is_documented(
    page: str, title: str, columns: int, model: type[BaseModel]
) -> None:
    section = _section(_read(f"docs/{page}"), title)

    assert _first_names(section, columns) == list(model.model_fields)


def test_vendor_codes_are_documented_as_they_are_mapped() -> None:
    section = _section(_read("docs/providers.md"), "## `simulated`")
    table = section[section.index("| kind | codes |") :]
    rows = re.findall(r"^\| (\w+) \| (.+?) \|", table, re.MULTILINE)

    documented = {kind: tuple(_names(codes)) for kind, codes in rows if _names(codes)}

    assert documented == {str(kind): codes for kind, codes in vendor._CODES.items()}


def test_faults_of_the_simulated_cloud_are_documented() -> None:
    section = _section(_read("docs/providers.md"), "## `simulated`")

    assert _first_names(section, 2) == [str(fault) for fault in Fault]


def test_words_of_the_glossary_are_in_order_and_given_once() -> None:
    words = re.findall(r"^\| ([a-z][a-z ]+?) \|", _read("docs/glossary.md"), re.MULTILINE)[1:]

    assert words == sorted(set(words))


@pytest.mark.parametrize(
    "page",
    sorted(
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.md", "docs/**/*.md", "garrison/**/*.md", "demo/*.md")
        for path in ROOT.glob(pattern)
    ),
)
def test_links_lead_somewhere(page: str) -> None:
    targets = [link for link in LINK.findall(_read(page)) if "://" not in link]

    missing = [link for link in targets if not ((ROOT / page).parent / link).exists()]

    assert not missing


def test_every_package_folder_says_what_lives_in_it() -> None:
    folders = [path.parent for path in (ROOT / "garrison").glob("*/__init__.py")]

    for folder in folders:
        text = (folder / "README.md").read_text(encoding="utf-8")
        parts = re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE)
        assert [part.split(" ")[0] for part in parts] == ["What", "What", "What", "How"], folder


def test_the_tree_in_the_readme_names_every_part_of_the_package() -> None:
    tree = _section(_read("README.md"), "## Layout")
    parts = {
        path.name if path.suffix else f"{path.name}/"
        for path in (ROOT / "garrison").iterdir()
        if not path.name.startswith(("_", ".")) and path.name != "py.typed"
    }

    assert not {part for part in parts if f" {part}" not in tree}


def test_the_readme_begins_with_the_two_commands() -> None:
    blocks = re.findall(r"^```\n(.+?)^```", _read("README.md"), re.MULTILINE | re.DOTALL)

    assert blocks[0].split("\n")[:2] == ["make demo", "make test"]


def test_tests_named_in_the_readme_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", _read("README.md")))
    sources = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py"))

    assert named
    assert not {name for name in named if f"def {name}(" not in sources}
