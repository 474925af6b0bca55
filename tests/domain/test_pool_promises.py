"""Whatever happens to a nodepool, its promises hold: limits, places, and giving everything back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from garrison.domain.pools.seats import used_machines
from garrison.errors import ErrorCode
from garrison.models.group import NodeStatus
from garrison.models.nodepool_state import MachineState
from garrison.models.offer import CapacityType
from garrison.models.placement import PlacementState
from garrison.models.resources import Resources
from tests.domain.pool_world import ON_DEMAND, SPOT, PoolWorld, offer, refuse

DEPLOYMENTS = ("a", "b", "c")
HALF = Resources(cpu_milli=4000, memory_bytes=2**30)
BAD = (NodeStatus.STOPPED, NodeStatus.TERMINATED, NodeStatus.FAILED, NodeStatus.STARTING)


class PoolLife(RuleBasedStateMachine):
    """A pool, three deployments that take what they are told, and a provider with moods."""

    @initialize(
        limit=st.integers(1, 4),
        least=st.integers(0, 1),
        spare=st.integers(0, 1),
        kinds=st.sampled_from([(SPOT,), (ON_DEMAND,), (SPOT, ON_DEMAND)]),
        base=st.integers(0, 1),
        stand_ins=st.booleans(),
    )
    def begin(
        self,
        limit: int,
        least: int,
        spare: int,
        kinds: tuple[CapacityType, ...],
        base: int,
        stand_ins: bool,
    ) -> None:
        self.limit = limit
        self.least = max(least, spare)
        spec: dict[str, Any] = {
            "min_instances": least,
            "warm_instances": spare,
        }
        if len(kinds) == 2:
            spec |= {"on_demand_base": base, "on_demand_fallback": stand_ins}
        both = (offer(SPOT, usd="0.40"), offer(ON_DEMAND))
        self.world = PoolWorld(offers=both, max_instances=limit, capacity_types=kinds, **spec)
        self.world.acknowledges = False
        self.replicas: dict[str, list[str]] = {name: [] for name in DEPLOYMENTS}
        self.count = 0
        self.was_on: dict[str, str] = {}

    @rule(name=st.sampled_from(DEPLOYMENTS))
    def want_one_more(self, name: str) -> None:
        self.count += 1
        self.replicas[name].append(f"{name}{self.count}")
        self._say(name)

    @precondition(lambda self: any(self.replicas.values()))
    @rule(name=st.sampled_from(DEPLOYMENTS), data=st.data())
    def withdraw(self, name: str, data: st.DataObject) -> None:
        if self.replicas[name]:
            gone = data.draw(st.sampled_from(self.replicas[name]))
            self.replicas[name].remove(gone)
            self._say(name)

    def _say(self, name: str) -> None:
        self.world.want(name, *self.replicas[name], resources=HALF)

    @rule(name=st.sampled_from(DEPLOYMENTS))
    def acknowledge(self, name: str) -> None:
        if name in self.world.placed:
            self.world.acknowledge(name)

    @rule(seconds=st.sampled_from([0, 1, 20, 400]))
    def pass_time(self, seconds: int) -> None:
        self.world.run(timedelta(seconds=seconds))

    @rule(status=st.sampled_from(BAD), data=st.data())
    def break_a_node(self, status: NodeStatus, data: st.DataObject) -> None:
        if self.world.living():
            group = data.draw(st.sampled_from(self.world.living()))
            self.world.break_node(group.token, status)

    @precondition(lambda self: self.world.living())
    @rule(data=st.data())
    def give_notice(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.world.living()))
        self.world.notice(group.token)

    @rule(
        code=st.sampled_from([ErrorCode.INSUFFICIENT_CAPACITY, ErrorCode.PROVIDER_AUTH, None]),
        kinds=st.sampled_from([(SPOT,), (ON_DEMAND,), (SPOT, ON_DEMAND)]),
    )
    def change_the_stock(self, code: ErrorCode | None, kinds: tuple[CapacityType, ...]) -> None:
        self.world.stock = refuse(code, "no", *kinds) if code else lambda _: None

    @rule(answers=st.booleans(), boots=st.booleans())
    def change_the_provider(self, answers: bool, boots: bool) -> None:
        self.world.answers, self.world.boots = answers, boots

    @invariant()
    def the_limit_holds(self) -> None:
        assert len(self.world.state.machines) <= self.limit
        assert self.world.peak <= self.limit

    @invariant()
    def nothing_is_given_back_under_a_replica(self) -> None:
        """Who was told of a place, and has neither withdrawn it nor lost it, has it still."""
        state = self.world.state
        for name, told in self.world.placed.items():
            for place in told.placements:
                if (
                    place.state is not PlacementState.PLACED
                    or place.replica not in state.customers[name].seats
                ):
                    continue
                machine = state.machines.get(place.machine or "")
                gone = machine is None or machine.state is MachineState.TERMINATING
                seat = state.customers[name].seats[place.replica]
                assert seat.lost if gone else seat.machine == place.machine

    @invariant()
    def nothing_is_over_committed(self) -> None:
        state = self.world.state
        for machine in state.machines.values():
            held = [
                seat.demand.resources.cpu_milli
                for customer in state.customers.values()
                for seat in customer.seats.values()
                if seat.machine == machine.name
            ]
            assert sum(held) <= machine.offer.capacity.cpu_milli
            assert not held or machine.name in used_machines(state)

    def teardown(self) -> None:
        """Once all is well again and nobody wants anything, only what must stay is left."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.stock, world.boots, world.answers = (lambda _: None), True, True
        world.acknowledges = True
        for group in world.living():
            world.break_node(group.token, NodeStatus.RUNNING)
        for name in DEPLOYMENTS:
            self.replicas[name] = []
            self._say(name)
        world.run(timedelta(hours=2))
        wanted = min(self.limit, self.least)
        assert len(world.living()) == wanted == world.status().desired
        world.delete()
        world.run(timedelta(hours=1))
        assert (world.living(), world.state.machines, world.state.left) == ([], {}, True)


PoolLife.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestPoolLife = PoolLife.TestCase
