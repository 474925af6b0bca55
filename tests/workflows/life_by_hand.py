"""A cluster's life in which anything may happen next: the shipped workflow in a paper world.

Whatever the order of wishes, answers, faults and looks, the promises hold after every step. The
world keeps its own word (settle, effect bound); beyond that it does its worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from garrison.domain.health import DOWN
from garrison.models.cluster import ClusterSpec
from garrison.models.cluster_messages import (
    ClusterInput,
    LaunchRequest,
    QuoteQuery,
    QuoteRequest,
    RecoverRequest,
    RecoverySwitch,
    TerminateRequest,
)
from garrison.models.cluster_state import CLOSED_PHASES, UP_PHASES, Phase
from garrison.models.cluster_status import ClusterStatus
from garrison.models.group import NodeStatus
from garrison.models.observation import Observation
from garrison.workflows.cluster import ClusterWorkflow
from tests.workflows.by_hand import ByHand, Refused
from tests.workflows.life_calls import OWNER, TERMINATED, Calls
from tests.workflows.life_promises import Promises
from tests.workflows.paper_world import FACTS, PLACES, Machine, World

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
SPANS = (0.5, 1, 5, 15, 15, 30, 30, 60, 60, 121, 121, 300, 900, 3_600, 8 * 3_600)

seconds = st.sampled_from(SPANS)
share = st.sampled_from((0.0, 0.5, 1.0))
some = st.integers(min_value=0, max_value=30)
stages = st.sampled_from(
    ("quoted", "launching", "launching", "provisioning", "running", "running", "degraded")
)
Fate = Sequence[tuple[int, float]]
fates = st.sampled_from(
    (
        (),
        ((1, 0),),
        ((4, 0),),
        ((6, 0),),
        ((3, 15), (4, 0)),
        ((3, 30), (4, 0)),
        ((TERMINATED, 30),),
        ((3, 30), (TERMINATED, 15)),
    )
)
"""What becomes of the first purchase, try by try: how, and how late."""

incidents = st.sampled_from(("kill", "revive", "vanish", "gone", "fail", "reboot", "hide"))
how_it_goes = st.integers(min_value=0, max_value=14)


class Life(Calls, RuleBasedStateMachine):
    """One cluster, its clouds, its watch and everybody who may touch it."""

    @initialize(
        takes=st.sampled_from((0, 20)),
        first=st.sampled_from(sorted(PLACES)),
        nodes=st.integers(1, 3),
        command=st.booleans(),
        stage=stages,
        fate=fates,
        late=share,
    )
    def begin(
        self,
        takes: int,
        first: str,
        nodes: int,
        command: bool,
        stage: str,
        fate: Fate = (),
        late: float = 0,
    ) -> None:
        self.world = World(BEGIN, delete_takes=timedelta(seconds=takes))
        self.world.births = self._is_born
        self.world.first = first
        self.lives = 0
        self.live(nodes, command, stage, fate, late)

    @rule(
        nodes=st.integers(1, 3),
        command=st.booleans(),
        stage=stages,
        fate=fates,
        late=share,
    )
    @precondition(lambda self: self.flow.closed)
    def live(self, nodes: int, command: bool, stage: str, fate: Fate, late: float) -> None:
        """Begin a life of the name, and let it come so far that something can happen to it.

        Args:
            fate: What becomes of the first purchase, try by try.
            late: How late a last list is, once the stage is reached.
        """
        self.lives += 1
        self.uid = f"{self.lives:08}-6c1b-4b57-9f0e-2f3c6a8e7d10"
        self.flow = ByHand(
            ClusterWorkflow, OWNER, ClusterInput(name="life", uid=self.uid), self.world.now
        )
        self.status: ClusterStatus = self.flow.query("get")
        self.sent: list[tuple[str, Any, Any]] = []
        self.seen: list[Observation] = []
        self.quotes: list[str] = []
        self._checked: tuple[object, ...] = ()
        self.promises = Promises(self.status)
        self.quote(nodes=nodes, command=command, automatic=True)
        if stage == "quoted":
            return
        self.go_well(3)
        self.keeps_its_promises()
        self.launch("none", failover=True, lifetime=None, priced={}, limit=None)
        for how, after in fate:
            if how == TERMINATED:
                self.terminate("update")
            for asked in self._open("purchase_group"):
                self.answer(asked, how, after)
        self._reach(Phase.RUNNING if stage == "degraded" else Phase(stage))
        if stage == "degraded" and self.world.living():
            self.befall(0, "kill")
            self.look(late=0, unconfirmed=False, keep=False)
        if late:
            self.pass_time(1)
            self.look(late, unconfirmed=False, keep=False)

    def _reach(self, phase: Phase) -> None:
        for _ in range(60):
            self.keeps_its_promises()
            if self.status.phase is phase or not self.move_well(timedelta(seconds=5)):
                return

    # Wishes

    @rule(
        nodes=st.integers(1, 3),
        command=st.booleans(),
        automatic=st.booleans(),
    )
    @precondition(lambda self: self.status.phase in {None, Phase.QUOTED})
    def quote(self, nodes: int, command: bool, automatic: bool) -> None:
        spec = ClusterSpec.model_validate(
            {
                "name": "life",
                "nodes": nodes,
                "gpus_per_node": 8,
                "accelerator": "H100",
                "recovery": {"automatic": automatic, "max_attempts": 2},
                **({"command": ["train"]} if command else {}),
            }
        )
        name = f"q{len(self.sent)}"
        request = QuoteRequest(request_id=name, quote_id=name, spec=spec)
        if not isinstance(self.send("quote", request), Refused):
            self.quotes.append(name)

    @rule(
        which=st.sampled_from(("current", "none", "first", "wrong")),
        failover=st.sampled_from((None, True, True, False)),
        lifetime=st.sampled_from((None, None, 7_200)),
        priced=st.sampled_from(({}, {}, {"nodes": 2}, {"nodes": 7})),
        limit=st.sampled_from((None, None, Decimal(1))),
    )
    @precondition(lambda self: self.status.phase in {None, Phase.QUOTED, Phase.LAUNCHING})
    def launch(
        self,
        which: str,
        failover: bool | None,
        lifetime: int | None,
        priced: dict[str, Any],
        limit: Decimal | None,
    ) -> None:
        names = {"current": self.status.quote_id, "none": None, "wrong": "of somebody else"}
        request = LaunchRequest(
            request_id=f"l{len(self.sent)}",
            quote_id=names.get(which, self.quotes[0]),
            priced=priced,
            max_hourly_usd=limit,
            max_lifetime=None if lifetime is None else timedelta(seconds=lifetime),
            failover=failover,
        )
        before = self.status
        answer = self.send("launch", request)
        right = before.phase is Phase.QUOTED and which in {"current", "none"}
        fits = priced.get("nodes") in {None, before.nodes_wanted} and limit is None
        fresh = before.expires_at is not None and self.flow.now < before.expires_at
        if right and fits and fresh:
            assert not isinstance(answer, Refused), answer
        elif which == "wrong" or limit is not None:
            assert isinstance(answer, Refused), answer

    @rule(
        how=st.sampled_from(("wrong life", "update", "signal", "bare", "cancel")),
        really=st.sampled_from((True, False, False, False)),
    )
    @precondition(lambda self: not self.flow.closed)
    def terminate(self, how: str, really: bool = True) -> None:
        if not really:
            return
        number = f"t{len(self.sent)}"
        match how:
            case "update":
                answer = self.send("terminate", TerminateRequest(request_id=number, uid=self.uid))
                assert not isinstance(answer, Refused), answer
            case "signal":
                self.tell("terminate", TerminateRequest(request_id=number))
            case "bare":
                self.tell("terminate")
            case "cancel":
                if not self.flow.closed:
                    self.flow.cancel()
            case "wrong life":
                self.tell("terminate", TerminateRequest(request_id=number, uid="another"))
                answer = self.send("terminate", TerminateRequest(request_id=number, uid="another"))
                assert isinstance(answer, Refused)
                return
        if not self.flow.closed:
            status: ClusterStatus = self.flow.query("get")
            assert status.terminate_accepted_at is not None
            assert status.charging_since is None

    @rule(automatic=st.sampled_from((None, True, False)), most=st.sampled_from((None, 1, 2, 4)))
    @precondition(lambda self: not self.flow.closed)
    def switch(self, automatic: bool | None, most: int | None) -> None:
        request = RecoverySwitch(
            request_id=f"s{len(self.sent)}", automatic=automatic, max_attempts=most
        )
        self.send("recovery", request)

    @rule()
    @precondition(lambda self: self.status.phase in UP_PHASES)
    def recover(self) -> None:
        before = self.status
        answer = self.send("recover", RecoverRequest(request_id=f"r{len(self.sent)}"))
        if before.phase is Phase.RUNNING:
            assert isinstance(answer, Refused)

    @rule(which=some, what=st.sampled_from(("repeat", "nonsense", "renew")))
    @precondition(lambda self: not self.flow.closed)
    def interlude(self, which: int, what: str) -> None:
        """What must make no difference."""
        match what:
            case "repeat":
                verb, request, answer = self.sent[which % len(self.sent)]
                if not isinstance(answer, Refused):
                    assert self.flow.update(verb, request) == answer
            case "nonsense":
                self.tell("observe")
                seen = self._look("east", 0)
                self.tell("observe", seen.model_copy(update={"uid": "another"}))
                self.tell("observe", seen.model_copy(update={"provider": "nobody"}))
            case "renew":  # the history is long: a quiet moment is for continuing as new
                self.flow.suggested = True

    def send(self, verb: str, request: Any) -> Any:
        if self.flow.closed:
            return Refused("not_found", "closed")
        answer = self.flow.update(verb, request)
        self.sent.append((verb, request, answer))
        return answer

    def tell(self, name: str, *arguments: Any) -> None:
        if not self.flow.closed:
            self.flow.signal(name, *arguments)

    # Time and the watch

    @rule(span=seconds)
    def pass_time(self, span: float) -> None:
        end = self.flow.now + timedelta(seconds=span)
        while self.flow.now < end and not self.flow.closed:
            self.step_to(end)
        self.world.pass_time(max(end, self.world.now))
        self.flow.now = self.world.now

    def step_to(self, end: datetime) -> None:
        """Let time pass to whatever comes next."""
        times = [end, self.flow.next_timer, self.world.next_effect]
        until = min(time for time in times if time is not None)
        self.world.pass_time(max(until, self.world.now))
        self.flow.pass_time(self.world.now)

    @precondition(lambda self: not self.flow.closed)
    @rule(late=share, unconfirmed=st.booleans(), keep=st.booleans())
    def look(self, late: float, unconfirmed: bool, keep: bool) -> None:
        """One pass over each cloud; its word may be kept back."""
        for provider in FACTS:
            seen = self._look(provider, late)
            if unconfirmed:
                seen = seen.model_copy(update={"confirmed": False})
            self.seen.append(seen)
            if not keep:
                self.tell("observe", seen)

    @rule(which=some)
    @precondition(lambda self: self.seen)
    def deliver_late(self, which: int) -> None:
        self.tell("observe", self.seen[-1 - which % len(self.seen)])

    # What becomes of calls

    @rule(how=how_it_goes, late=seconds)
    @precondition(lambda self: self._open("purchase_group"))
    def answer_purchase(self, how: int, late: float) -> None:
        self.answer(self._open("purchase_group")[0], how, late)

    @rule(how=how_it_goes, late=seconds)
    @precondition(lambda self: self._open("restart_node"))
    def answer_restart(self, how: int, late: float) -> None:
        self.answer(self._open("restart_node")[0], how, late)

    @rule(how=how_it_goes, late=seconds)
    @precondition(lambda self: self._open("delete_groups"))
    def answer_delete(self, how: int, late: float) -> None:
        self.answer(self._open("delete_groups")[0], how, late)

    @rule(which=some, how=how_it_goes, late=seconds)
    @precondition(lambda self: self.flow.activities)
    def answer_any(self, which: int, how: int, late: float) -> None:
        calls = list(self.flow.activities.values())
        self.answer(calls[which % len(calls)], how, late)

    # What befalls machines and markets

    @rule(
        which=some,
        what=st.sampled_from(("kill", "revive", "vanish", "gone", "fail", "reboot", "hide")),
    )
    @precondition(lambda self: self.world.living())
    def befall(self, which: int, what: str) -> None:
        living = self.world.living()
        machine = living[which % len(living)]
        status, boot = machine.at(self.world.now)
        machine.touched = True
        match what:
            case "kill":
                self._becomes(machine, NodeStatus.STOPPED, boot)
            case "vanish":
                machine.becomes(self.world.now, (timedelta(0), None, boot))
            case "gone":
                self._becomes(machine, NodeStatus.TERMINATED, boot)
            case "fail":
                self._becomes(machine, NodeStatus.FAILED, boot)
            case "reboot":
                self.world.boot_again(machine)
            case "hide":
                machine.hidden = not machine.hidden
            case "revive" if status in {NodeStatus.STOPPED, NodeStatus.FAILED}:
                self.world.boot_again(machine)

    def _becomes(self, machine: Machine, status: NodeStatus, boot: int) -> None:
        machine.becomes(self.world.now, (timedelta(0), status, boot))

    @rule(region=st.sampled_from(sorted(PLACES)), price=st.sampled_from((8, 10, 15)))
    def reprice(self, region: str, price: int) -> None:
        self.world.prices[region] = Decimal(price)

    # All goes well

    @rule(moves=st.integers(1, 25))
    def go_well(self, moves: int) -> None:
        for _ in range(moves):
            if not self.move_well():
                return

    def move_well(self, patience: timedelta = timedelta(seconds=15)) -> bool:
        """Let the next call work, or else the watch look and time pass."""
        if self.flow.closed:
            return False
        calls = list(self.flow.activities.values())
        if calls:
            self.answer(calls[0], how=30, late=1)
            return True
        for provider in FACTS:
            self.tell("observe", self._look(provider, 0))
        if not self.flow.activities and not self.flow.closed:
            self.step_to(self.flow.now + patience)
        return True

    # Promises

    def _is_born(self, machine: Machine) -> None:
        living = self.world.living(self.uid)
        assert machine.request.uid == self.uid, "a machine of an earlier life"
        status: ClusterStatus = self.flow.query("get")
        assert len(living) <= status.nodes_wanted, "more machines than nodes"
        assert len({one.request.token for one in living}) == 1, "two purchases at once"
        assert status.hourly_usd is not None
        assert machine.usd * status.nodes_wanted <= status.hourly_usd, "above the locked rate"
        assert not self.flow.closed, "a machine after the end"

    @invariant()
    def keeps_its_promises(self) -> None:
        if not hasattr(self, "flow"):
            return
        if self._checked == (self.flow.tasks, self.world.now, len(self.world.machines)):
            return
        self.status = self.flow.query("get")
        self.promises.check(self.status, self.flow.now)
        self._check_nodes()
        self._check_end()
        if self.status.phase in {None, Phase.QUOTED}:
            self.flow.query("get_quote", QuoteQuery(quote_id=self.quotes[-1]))
        self._checked = (self.flow.tasks, self.world.now, len(self.world.machines))

    def _check_nodes(self) -> None:
        """Nothing bad is said of a machine that nothing was done to."""
        if self.status.phase not in {Phase.PROVISIONING, *UP_PHASES}:
            return
        token = f"{self.uid}-{len(self.status.purchases) - 1}"
        machines = self.world.bought.get(token, [])
        for machine in machines:
            if not machine.touched:
                node = self.status.nodes[machine.rank]
                assert node.status not in DOWN, f"node {node.rank} is called {node.status}"
        if self.status.phase is Phase.DEGRADED:
            assert any(one.touched for one in machines), "degraded, and nothing is wrong"

    def _check_end(self) -> None:
        if not self.flow.closed:
            # It may be told of the proof while it still asks the watch for a look.
            assert self.status.phase not in CLOSED_PHASES or self.flow.activities
            return
        assert self.world.living(self.uid) == []
        failed = self.status.phase is Phase.FAILED
        assert (self.flow.failure is not None) == failed
        assert not failed or self.status.last_error is not None

    def teardown(self) -> None:
        """Terminate, and let all go well: everything is given back, and stays so."""
        if not hasattr(self, "flow"):
            return
        if not self.flow.closed and self.status.phase is not None:
            self.terminate("update")
        end = self.flow.now + timedelta(hours=1)
        moves = 0
        while self.move_well(timedelta(minutes=1)):
            moves += 1
            assert self.flow.now < end, "not over within the hour"
            assert moves < 2_000, "it does not come to rest"
        self.keeps_its_promises()
        self.world.pass_time(self.world.now + timedelta(minutes=10))
        assert self.world.living(self.uid) == []
        phases = {Phase.TERMINATED, Phase.EXPIRED, Phase.FAILED, None}
        assert self.status.phase in phases
