"""What several routers count together, and what it means that one of them is silent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from garrison.load.routers import GONE_AFTER, Routers, RouterSource
from garrison.models.deployment_state import DeploymentEndpoints
from garrison.models.load import Followed, LoadCounts, RouterLoad

CHAT = Followed(
    id="chat",
    workflow_id="deployment/chat",
    uid="u1",
    created_at=datetime(2026, 12, 1, tzinfo=UTC),
    version=1,
    endpoints=DeploymentEndpoints(id="chat", uid="u1", enabled=True, desired=1, generation=1),
)


class PaperRouters(Routers):
    """Answer what a test sets."""

    def __init__(self) -> None:
        super().__init__(())
        self.now = 0.0
        self.answers: Sequence[RouterLoad | None] = ()

    async def loads(self) -> list[RouterLoad | None]:
        return list(self.answers)

    def clock(self) -> float:
        return self.now


def said(router: str, running: float, arrivals: float) -> RouterLoad:
    counts = LoadCounts(
        running=running, queued=0, arrivals=arrivals, completions=arrivals - running
    )
    return RouterLoad(router=router, deployments={"chat": counts})


async def read(source: RouterSource) -> LoadCounts | None:
    return (await source.read([CHAT])).get("chat")


async def test_routers_are_added_up_and_one_begun_anew_goes_on_where_it_ended() -> None:
    routers = PaperRouters()
    source = RouterSource(routers, clock=routers.clock)

    routers.answers = [said("a", 1, 10), said("b", 2, 20)]
    both = await read(source)
    routers.answers = [said("a2", 0, 1), said("b", 2, 21)]
    anew = await read(source)

    assert both is not None
    assert anew is not None
    assert (both.running, both.arrivals, both.partial) == (3, 30, False)
    assert (anew.running, anew.arrivals, anew.partial) == (2, 32, False)


async def test_a_silent_router_leaves_a_lower_bound_and_is_not_counted_twice_when_it_is_back() -> (
    None
):
    routers = PaperRouters()
    source = RouterSource(routers, clock=routers.clock)
    routers.answers = [said("a", 1, 10), said("b", 2, 20)]
    await read(source)

    routers.answers = [said("a", 1, 12), None]
    bound = await read(source)
    routers.answers = [said("a", 1, 12), said("b", 0, 25)]
    back = await read(source)

    assert bound is not None
    assert back is not None
    assert (bound.running, bound.arrivals, bound.partial) == (1, 32, True)
    assert (back.running, back.arrivals, back.partial) == (1, 37, False)


async def test_a_router_that_stays_silent_counts_as_gone_and_all_silent_is_missing() -> None:
    routers = PaperRouters()
    source = RouterSource(routers, clock=routers.clock)
    routers.answers = [said("a", 0, 10), None]
    await read(source)

    routers.now = GONE_AFTER
    gone = await read(source)
    routers.answers = [None, None]
    nobody = await read(source)

    assert gone is not None
    assert not gone.partial
    assert nobody is None
