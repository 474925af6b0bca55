"""What becomes of a cluster's calls in a paper world: they work, fail, or only seem to.

`how` is a number, so that hypothesis can shrink it: most of them let the call work.
"""

from __future__ import annotations

from garrison.errors import (
    InvalidSpec,
    PriceChanged,
    ProviderAuth,
    ProviderUnreachable,
    QuotaExceeded,
)
from garrison.models.cluster import ShapeLimits
from garrison.models.cluster_messages import (
    DeleteAnswer,
    PlaceAnswer,
    PrepareAnswer,
    PurchaseAnswer,
    QuoteTerms,
    RestartAnswer,
    SaveLogsAnswer,
    StartWorkloadsAnswer,
)
from garrison.models.group import NodeStatus, Refusal, RestartResult
from garrison.models.observation import Observation
from tests.workflows.by_hand import Asked, ByHand
from tests.workflows.paper_world import FACTS, PLACES, World

OWNER = "cluster/life"
TERMINATED = 9
"""How a purchase goes that was cancelled, and of which nobody knows what will come."""


class Calls:
    """Carries out the activities of one workflow in one world, well or badly."""

    world: World
    flow: ByHand
    uid: str

    def _look(self, provider: str, late: float) -> Observation:
        return self.world.look(self.uid, OWNER, provider, late)

    def _open(self, name: str) -> list[Asked]:
        return [asked for asked in self.flow.activities.values() if asked.name == name]

    def answer(self, asked: Asked, how: int, late: float) -> None:
        """Let something come of an open call."""
        getattr(self, f"_answer_{asked.name}")(asked, how, late)

    def _answer_quote_terms(self, asked: Asked, how: int, late: float) -> None:
        names = sorted(FACTS, key=lambda name: name != PLACES[self.world.first])
        facts = {name: FACTS[name] for name in names}
        self.flow.succeed(asked, QuoteTerms(providers=facts, limits=ShapeLimits()))

    def _answer_place_cluster(self, asked: Asked, how: int, late: float) -> None:
        if how in {5, 6}:
            self.flow.fail(asked, ProviderUnreachable("nobody answers"))
            return
        offers = self.world.offers(asked.request.provider)
        answer = PlaceAnswer(provider=asked.request.provider, offers=offers, gpus_per_node=8)
        self.flow.succeed(asked, answer)

    def _answer_purchase_group(self, asked: Asked, how: int, late: float) -> None:
        request, bound = asked.request.request, FACTS[asked.request.provider].effect_bound
        known = request.token in self.world.bought

        def buy_late() -> None:
            self.world.later(min(late, bound.total_seconds()), lambda: self.world.launch(request))

        if asked.tries and how < 14 and self._adopted(asked):
            return
        match how:
            case 1:  # it works, and nobody hears of it
                self.world.launch(request)
                asked.tries += 1
            case 2:
                asked.tries += 1
            case 3:  # the request is under way for a while, and so is the next one
                buy_late()
                asked.tries += 1
            case 4 | 5 | 6 if not known:
                self.world.launch(request, made=request.count - 1) if how == 6 else None
                self._refuse(asked)
            case 7 | 8:
                error = QuotaExceeded("no more of these") if how == 7 else ProviderAuth("who?")
                self.flow.fail(asked, error)
            case 9 | 10 if asked.cancelling:
                buy_late() if how == TERMINATED else None
                self.flow.end_cancelled(asked)
            case _:
                self._buy(asked)

    def _adopted(self, asked: Asked) -> bool:
        """What a second try does first: it takes what an earlier one bought, if it is listed."""
        request = asked.request.request
        seen = self._look(asked.request.provider, 0)
        for group in seen.groups:
            if group.token == request.token and len(group.nodes) == request.count:
                self._bought(asked)
                return True
        return False

    def _buy(self, asked: Asked) -> None:
        request = asked.request.request
        made = self.world.launch(request)
        if request.token not in self.world.bought:
            self.flow.fail(asked, PriceChanged("dearer than accepted"))
        elif len(made) < request.count:
            self._refuse(asked)
        else:
            self._bought(asked)

    def _bought(self, asked: Asked) -> None:
        group = self.world.group(asked.request.request)
        self._say(asked, PurchaseAnswer(group=group, ended_at=self.flow.now))

    def _refuse(self, asked: Asked) -> None:
        refusal = Refusal(message="no capacity")
        self._say(asked, PurchaseAnswer(refusal=refusal, ended_at=self.flow.now))

    def _say(self, asked: Asked, answer: PurchaseAnswer) -> None:
        if asked.tries:
            until = self.flow.now + FACTS[asked.request.provider].effect_bound
            answer = answer.model_copy(update={"effects_until": until})
        self.flow.succeed(asked, answer)

    def _answer_prepare_nodes(self, asked: Asked, how: int, late: float) -> None:
        if how == 1:
            self.flow.fail(asked, InvalidSpec("a key that no node takes"))
        elif how > 2:
            self.flow.succeed(asked, PrepareAnswer(nodes=asked.request.nodes))

    def _answer_start_workloads(self, asked: Asked, how: int, late: float) -> None:
        ranks = tuple(target.node.rank for target in asked.request.nodes)
        if how == 1:
            self.flow.fail(asked, ProviderAuth("who are you"))
        elif how == 2:
            failed = {ranks[0]: "no such command"}
            self.flow.succeed(asked, StartWorkloadsAnswer(started=ranks[1:], failed=failed))
        elif how > 4:
            self.flow.succeed(asked, StartWorkloadsAnswer(started=ranks))

    def _answer_restart_node(self, asked: Asked, how: int, late: float) -> None:
        match how:
            case 1:
                self._restart(asked)
            case 2:
                pass
            case 3:
                bound = FACTS[asked.request.provider].effect_bound.total_seconds()
                self.world.later(min(late, bound), lambda: self._restart(asked))
            case 4:
                self._restarted(asked, RestartResult.NO_CAPACITY)
            case 5:
                self._restarted(asked, RestartResult.UNSUPPORTED)
            case 6:
                self.flow.fail(asked, ProviderAuth("who are you"))
            case _:
                self._restarted(asked, self._restart(asked))

    def _restarted(self, asked: Asked, result: RestartResult) -> None:
        self.flow.succeed(asked, RestartAnswer(result=result, ended_at=self.flow.now))

    def _restart(self, asked: Asked) -> RestartResult:
        found = [m for m in self.world.living() if m.provider_id == asked.request.provider_id]
        if not found:
            return RestartResult.GONE
        if asked.request.token in self.world.restarted:
            return RestartResult.RESTARTED
        if found[0].at(self.world.now)[0] is NodeStatus.RUNNING and not found[0].hidden:
            return RestartResult.ALREADY_RUNNING
        self.world.restarted.add(asked.request.token)
        self.world.boot_again(found[0])
        return RestartResult.RESTARTED

    def _answer_save_logs(self, asked: Asked, how: int, late: float) -> None:
        if how < 5:
            self.flow.fail(asked, ProviderUnreachable("no answer"))
        else:
            self.flow.succeed(asked, SaveLogsAnswer())

    def _answer_delete_groups(self, asked: Asked, how: int, late: float) -> None:
        def effect() -> None:
            for token in asked.request.tokens:
                self.world.terminate(token)

        match how:
            case 1:
                self.flow.fail(asked, ProviderUnreachable("no answer"))
            case 2:
                effect()
                self.flow.fail(asked, ProviderUnreachable("the answer was lost"))
            case 3:
                bound = FACTS[asked.request.provider].effect_bound.total_seconds()
                self.world.later(min(late, bound), effect)
                self.flow.fail(asked, ProviderUnreachable("no answer"))
            case _:
                effect()
                self.flow.succeed(asked, DeleteAnswer(ended_at=self.flow.now))

    def _answer_ensure_watch(self, asked: Asked, how: int, late: float) -> None:
        if how:
            self.flow.succeed(asked, None)
