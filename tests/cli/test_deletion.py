"""Before compute clusters, nodepools and deployments are deleted, what goes is shown."""

from __future__ import annotations

import pytest

from garrison.errors import NotFound
from garrison.models.nodepool import NodepoolReplicaStatus
from tests.cli.conftest import Answer, Cli
from tests.cli.fake_elastic import DEPLOYMENT_ROW, NODE, UID, compute_cluster, nodepool
from tests.cli.fake_garrison import FakeGarrison

CASCADE = ("computecluster", "delete", "gpus", "--cascade")
POOL = ("nodepool", "delete", "gpus", "a10g")
DEPLOYMENT = ("deployment", "delete", "llama")


def words(answer: Answer) -> list[list[str]]:
    return [line.split() for line in answer.out.splitlines()]


@pytest.mark.parametrize("argv", [CASCADE, POOL], ids=["with all nodepools", "one nodepool"])
@pytest.mark.parametrize("yes", [(), ("--yes",)], ids=["nobody can be asked", "confirmed"])
def test_machines_their_price_and_replicas_are_shown(
    cli: Cli, argv: tuple[str, ...], yes: tuple[str, ...]
) -> None:
    answer = cli(*argv, *yes)

    assert answer.status == 0
    *shown, lost, deleted = answer.out.splitlines()
    assert [line.split()[0] for line in shown] == ["NAME", "a10g", "token-0", "llama-1", "total"]
    assert shown[-1].split() == ["total", "1.212"]
    assert lost == "deployment llama loses llama-1, and has no other nodepool"
    assert "delete accepted" in deleted


@pytest.mark.parametrize("argv", [CASCADE, POOL, DEPLOYMENT], ids=lambda argv: argv[0])
def test_what_goes_is_shown_before_it_is_asked(
    cli: Cli, garrison: FakeGarrison, argv: tuple[str, ...]
) -> None:
    answer = cli(*argv, typed=b"n\n", terminal=True)

    assert (answer.status, answer.err.count("[y/N]")) == (1, 1)
    assert "llama-1" in answer.out
    nouns = (garrison.compute_clusters, garrison.nodepools, garrison.deployments)
    assert not any(noun.named("delete") for noun in nouns)


def test_the_replicas_of_a_deployment_are_shown_with_their_share(cli: Cli) -> None:
    answer = cli(*DEPLOYMENT)

    head, replica, share, _ = words(answer)
    assert (head[0], replica[0], replica[3]) == ("REPLICA", "llama-1", "gpus/a10g")
    assert share[-2:] == ["1.212", "USD/h"]


@pytest.mark.parametrize(
    ("argv", "nodepools", "deployments"),
    [
        pytest.param(CASCADE, ["a10g"], ["llama"], id="compute cluster"),
        pytest.param(POOL, ["a10g"], ["llama"], id="nodepool"),
        pytest.param(DEPLOYMENT, [], [], id="deployment"),
    ],
)
def test_a_program_gets_one_answer_with_what_goes(
    cli: Cli, argv: tuple[str, ...], nodepools: list[str], deployments: list[str]
) -> None:
    answer = cli(*argv, "-o", "json")

    assert answer.json["uid"] == UID
    goes = answer.json["goes"]
    assert [pool["id"] for pool in goes["nodepools"]] == nodepools
    assert [one["id"] for one in goes["deployments"]] == deployments
    assert goes["hourly_usd"] == "1.212"


def test_without_cascade_a_compute_cluster_that_has_nodepools_is_not_even_asked_about(
    cli: Cli, garrison: FakeGarrison
) -> None:
    answer = cli("computecluster", "delete", "gpus", typed=b"y\n", terminal=True)

    assert answer.status == 4
    assert "compute cluster gpus has nodepools: a10g; delete them first" in answer.err
    assert "[y/N]" not in answer.err
    assert not garrison.compute_clusters.named("delete")


def test_a_delete_that_was_accepted_is_accepted_again(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.compute_clusters.found = compute_cluster(phase="deleting")

    answer = cli("computecluster", "delete", "gpus")

    assert answer.status == 0


def test_the_life_that_was_shown_is_deleted_and_no_successor(
    cli: Cli, garrison: FakeGarrison
) -> None:
    garrison.deployments.rows = [[], []]

    cli(*CASCADE)
    cli(*POOL)
    cli(*DEPLOYMENT)

    nouns = (garrison.compute_clusters, garrison.nodepools, garrison.deployments)
    assert [noun.named("delete")[0]["uid"] for noun in nouns] == [UID, UID, UID]


def test_a_deployment_with_another_nodepool_goes_on_there(cli: Cli, garrison: FakeGarrison) -> None:
    row = DEPLOYMENT_ROW.replace(nodepools=("GPUs/a10g", "gpus/h100"))
    garrison.deployments.rows = [[row, row.replace(id="idle"), row.replace(id="x", nodepools=())]]

    answer = cli(*POOL)

    assert answer.out.splitlines()[-3:-1] == [
        "deployment idle has no replica there, and goes on in gpus/h100",
        "deployment llama loses llama-1, and goes on in gpus/h100",
    ]


def test_a_replica_whose_deployment_the_list_does_not_have_yet_is_named(
    cli: Cli, garrison: FakeGarrison
) -> None:
    new = NodepoolReplicaStatus(deployment="deployment/new", replica="new-1")
    garrison.nodepools.story = [nodepool(nodes=(NODE.replace(replicas=(new,)),))]
    garrison.deployments.rows = [[]]

    answer = cli(*POOL)

    assert "deployment new loses new-1, and has no other nodepool" in answer.out


def test_of_what_is_gone_nothing_goes(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.compute_clusters.found = None
    garrison.nodepools.rows = [[]]

    answer = cli(*CASCADE, "-o", "json")

    assert answer.json["goes"] == {
        "nodepools": [],
        "deployments": [],
        "replicas": [],
        "hourly_usd": "0.00",
    }


def test_what_never_was_is_not_found(cli: Cli, garrison: FakeGarrison) -> None:
    garrison.nodepools.error = NotFound("there is no nodepool gpus/a10g")

    answer = cli(*POOL)

    assert (answer.status, answer.out) == (3, "")


def test_nodepools_that_their_compute_cluster_does_not_know_of_are_named(
    cli: Cli, garrison: FakeGarrison
) -> None:
    garrison.compute_clusters.found = None

    answer = cli(*CASCADE)

    assert answer.status == 4
    assert "knows nothing of nodepools that run in it: a10g" in answer.err
    assert "garrison nodepool delete gpus a10g" in answer.err
