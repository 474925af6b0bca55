"""A cluster's life in which anything may happen next, without a server; and what that found."""

from __future__ import annotations

from hypothesis import settings

from garrison.models.cluster_messages import PurchaseAnswer
from garrison.models.cluster_state import Phase
from garrison.models.group import Refusal
from tests.workflows.life_by_hand import Life

TestLife = Life.TestCase
TestLife.settings = settings(max_examples=settings().max_examples * 2 // 5, stateful_step_count=25)


def _launched(first: str = "e1") -> Life:
    life = Life()
    life.begin(takes=0, first=first, nodes=2, command=False, stage="launching")
    return life


def _until(life: Life, phase: Phase) -> None:
    for _ in range(500):
        if life.flow.query("get").phase is phase:
            break
        life.move_well()
    life.keeps_its_promises()
    assert life.status.phase is phase


def test_after_a_lost_answer_a_refusal_is_no_proof_that_nothing_was_bought() -> None:
    life = _launched()
    life.answer_purchase(how=3, late=30)  # it takes effect in 30 s, and its answer is lost
    life.answer_purchase(how=4, late=0)  # the second try is refused

    _until(life, Phase.PROVISIONING)

    first, second = life.status.purchases
    assert (first.region, second.region) == ("e1", "e2")
    assert {machine.request.region for machine in life.world.living()} == {"e2"}
    assert len(life.world.machines) == 4  # those of the first try came, and were given back


def test_a_machine_that_comes_later_than_promised_is_deleted_with_the_rest() -> None:
    life = _launched()
    (asked,) = life._open("purchase_group")
    refusal = Refusal(message="no capacity")
    life.world.births = lambda machine: None
    life.flow.succeed(asked, PurchaseAnswer(refusal=refusal, ended_at=life.flow.now))
    life.world.later(120, lambda: life.world.launch(asked.request.request))
    _until(life, Phase.RUNNING)
    life.pass_time(120)
    assert len(life.world.living()) == 4

    life.terminate("update")
    _until(life, Phase.TERMINATED)

    assert life.world.living() == []


def test_a_late_list_takes_no_node_back_to_its_boot() -> None:
    life = _launched("w1")
    _until(life, Phase.RUNNING)
    life.pass_time(1)

    seen = life.world.look(life.uid, "cluster/life", "west", late=0.5)
    life.tell("observe", seen)
    life.keeps_its_promises()

    assert {str(node.status) for group in seen.groups for node in group.nodes} == {"pending"}
    assert life.status.phase is Phase.RUNNING


def test_a_late_list_takes_no_node_back_to_an_earlier_boot() -> None:
    life = _launched("w1")
    _until(life, Phase.RUNNING)
    life.pass_time(120)
    for what in ("kill", "revive"):
        life.befall(0, what)
        life.pass_time(41)
        life.look(late=0, unconfirmed=False, keep=False)
        life.keeps_its_promises()
    assert life.status.phase is Phase.RUNNING
    life.pass_time(1)

    seen = life.world.look(life.uid, "cluster/life", "west", late=1.0)
    life.tell("observe", seen)
    life.keeps_its_promises()

    assert "stopped" in {str(node.status) for group in seen.groups for node in group.nodes}
    assert life.status.phase is Phase.RUNNING
