"""The `simulated` provider: a cloud on paper with a scripted character.

One SQLite file is one account at this cloud. Any number of processes and installations may share
it; each sees its own machines only. Machines boot, fail and end by the clock. Incidents are
scripted through `SimulatedConsole`; `vendor.py` has the table of error codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from garrison.errors import (
    ErrorCode,
    InvalidSpec,
    NameConflict,
    PriceChanged,
    Problem,
    Unsupported,
    error_of,
)
from garrison.models.group import Group, GroupRequest, Refusal, RestartResult
from garrison.models.offer import CapacityType, Offer, OfferQuery
from garrison.models.provider import Capabilities, ProviderFacts, WorkloadSupport
from garrison.providers.simulated import machines, orders, vendor
from garrison.providers.simulated.desk import Desk, Limit, Visit
from garrison.providers.simulated.faults import (
    DEFAULT_NOTICE,
    Call,
    Fault,
    FaultRule,
    Hits,
    Target,
    singles_out,
)
from garrison.providers.simulated.listing import Listing, read_listing
from garrison.providers.simulated.pricelist import PriceList
from garrison.providers.simulated.store import Clock, Store, Tx, now_utc, span
from garrison.providers.simulated.workloads import PaperWorkloads, describe_node, is_hidden

MAX_TOKEN_LENGTH = 64
MAX_COUNT = 1000
REGIONS = ("sim-a", "sim-b", "sim-c")


class SimulatedProvider:
    """One installation's access to the cloud in a file; implements `Provider`."""

    def __init__(
        self,
        path: Path,
        *,
        installation: str,
        name: str = "simulated",
        regions: Sequence[str] = REGIONS,
        offers: Sequence[Offer] = (),
        clock: Clock = now_utc,
        boot: timedelta = timedelta(seconds=2),
        delete_takes: timedelta = timedelta(0),
        settle: timedelta = timedelta(0),
        effect_bound: timedelta = timedelta(seconds=10),
        calls_per_second: float | None = None,
        retry_after: timedelta = timedelta(seconds=1),
        start_timeout: timedelta = timedelta(minutes=20),
    ) -> None:
        """Open the account, and create its file if it is missing.

        Args:
            path: The file that is the account.
            installation: The tag without which no machine is ours.
            name: The provider's name in the settings, given to every offer.
            regions: Where machines are sold.
            offers: The catalogue; each priced machine in it is sold at its lowest price.
            clock: Decides when delayed things happen; waiting of callers is real time.
            boot: From purchase, or restart, to `running`.
            delete_takes: From an accepted deletion until the machine is gone.
            settle: Declared lateness of lists; rules script the actual one.
            effect_bound: Declared bound of delayed effects; rules may break it.
            calls_per_second: Rate limit of the account, None for none.
            retry_after: What an answer beyond the limit says to wait.
            start_timeout: Declared bound of a boot.
        """
        store = Store(path)
        self._installation = installation
        self._boot = span(boot)
        self._delete_takes = span(delete_takes)
        self._prices = PriceList(offers, provider=name, regions=regions)
        self._desk = Desk(store, clock, Limit(calls_per_second, retry_after))
        self._workloads = PaperWorkloads(self._desk, installation)
        self._facts = ProviderFacts(
            name=name,
            type="simulated",
            regions=tuple(regions),
            capabilities=Capabilities(
                gang=True,
                restart=True,
                spot=True,
                live_price=True,
                workload=WorkloadSupport.SSH,
            ),
            settle=settle,
            effect_bound=effect_bound,
            start_timeout=start_timeout,
            calls_per_second=calls_per_second,
            simulated=True,
        )

    @property
    def facts(self) -> ProviderFacts:
        """What this cloud promises."""
        return self._facts

    @property
    def workloads(self) -> PaperWorkloads:
        """Workloads on paper."""
        return self._workloads

    async def list_offers(self, query: OfferQuery) -> Sequence[Offer]:
        """Return what is sold, cheapest first; every offer has a price."""

        def effect(visit: Visit) -> list[Offer]:
            visit.hits.check_before()
            return self._prices.offers(visit.tx, query, visit.now)

        return await self._desk.call(lambda _: (Target(Call.LIST_OFFERS), False), effect)

    async def launch_group(self, request: GroupRequest) -> Group | Refusal:
        """Buy machines, or return what the same token bought before."""

        def describe(tx: Tx) -> tuple[Target, bool]:
            target = Target(
                Call.LAUNCH,
                token=request.token,
                owner=request.owner,
                region=request.region,
                nodes=tuple(("", rank) for rank in range(min(request.count, MAX_COUNT))),
                spot=request.capacity_type is CapacityType.SPOT,
            )
            return target, machines.find_purchase(tx, request.token) is not None

        return await self._desk.call(describe, lambda visit: self._launch(visit, request))

    async def list_groups(self) -> Sequence[Group]:
        """Return everything that this installation owns."""

        def effect(visit: Visit) -> Listing:
            visit.hits.check_before()
            return read_listing(visit, self._installation)

        listing = await self._desk.call(lambda _: (Target(Call.LIST), False), effect)
        return await asyncio.to_thread(listing.groups)

    async def other_installations(self) -> Mapping[str, int]:
        """Return how many machines each other installation has in this account."""

        def effect(visit: Visit) -> dict[str, int]:
            visit.hits.check_before()
            return machines.count_others(visit.tx, visit.now, installation=self._installation)

        return await self._desk.call(lambda _: (Target(Call.LIST), False), effect)

    async def restart_node(self, provider_id: str, token: str) -> RestartResult:
        """Boot a stopped, failed or hidden machine again, in place."""

        def describe(tx: Tx) -> tuple[Target, bool]:
            target = describe_node(tx, Call.RESTART, provider_id, self._installation)
            return target, orders.restarted_machine(tx, token) is not None

        return await self._desk.call(
            describe, lambda visit: self._restart(visit, provider_id, token)
        )

    async def terminate_group(self, token: str) -> None:
        """Delete all machines of a token; a token that bought nothing is success."""
        await self._desk.call(
            lambda tx: (self._describe_group(tx, token), False),
            lambda visit: self._terminate(visit, token),
        )

    def _launch(self, visit: Visit, request: GroupRequest) -> Group | Refusal:
        known = machines.find_purchase(visit.tx, request.token)
        refusing = visit.hits.failing_before()
        if refusing is not None and not (refusing.spoils_one_node or refusing.lacks_capacity):
            raise refusing.error()
        if known is None:
            refusal = self._buy(visit, request, refusing)
            if refusal is not None:
                return refusal
        return self._bought(visit, request)

    def _buy(
        self, visit: Visit, request: GroupRequest, refusing: FaultRule | None
    ) -> Refusal | None:
        self._check(request)
        if refusing is not None and not refusing.spoils_one_node:
            return Refusal(message=refusing.text)
        order = self._order(visit, request, refusing)
        visit.delay(order)
        return orders.buy(visit.tx, order, visit.now)

    def _bought(self, visit: Visit, request: GroupRequest) -> Group | Refusal:
        """Return what a token has bought, or why it was refused in part."""
        purchase = machines.find_purchase(visit.tx, request.token)
        if purchase is None or purchase.installation != self._installation:
            raise NameConflict(f"token {request.token} belongs to another installation")
        _check_same(purchase, request)
        if purchase.refused_code is not None:
            return _refused(purchase)
        found = machines.machines_of(visit.tx, purchase.id)
        nodes = [machines.node_of(m, machines.status_at(m, visit.now)) for m in found]
        return machines.group_of(purchase, nodes)

    def _check(self, request: GroupRequest) -> None:
        """Refuse what this cloud cannot sell, every mistake at once."""
        if request.capacity_type is CapacityType.RESERVED:
            raise Unsupported("the simulated provider sells no reserved machines")
        problems = [
            Problem(field, message)
            for field, wrong, message in (
                ("token", not _is_token(request.token), "needs 1 to 64 ASCII characters"),
                ("count", not 1 <= request.count <= MAX_COUNT, f"needs 1 to {MAX_COUNT} machines"),
                ("region", request.region not in self._prices.regions, self._unknown_region()),
                ("zone", request.zone is not None, "the simulated provider has no zones"),
                (
                    "instance_type",
                    not self._prices.sells(request.instance_type),
                    f"no priced machine is called {request.instance_type[:64]!r}",
                ),
                ("options", bool(request.options), "the simulated provider has no options"),
            )
            if wrong
        ]
        if problems:
            raise InvalidSpec("InvalidParameterValue", problems=tuple(problems))

    def _unknown_region(self) -> str:
        return f"is none of {', '.join(self._prices.regions)}"

    def _order(
        self, visit: Visit, request: GroupRequest, refusing: FaultRule | None
    ) -> orders.LaunchOrder:
        """Fix price and scripted fate of a purchase.

        Raises:
            PriceChanged: The live price is above the accepted one.
        """
        price = self._prices.price(
            visit.tx, request.region, request.instance_type, request.capacity_type
        )
        if price > request.max_usd_per_node_hour:
            raise PriceChanged(
                f"{request.instance_type} in {request.region} costs {price} USD/h, above the"
                f" accepted {request.max_usd_per_node_hour} USD/h; nothing was bought"
            )
        order = orders.LaunchOrder(
            request=request,
            installation=self._installation,
            usd=price,
            boot=self._boot,
            late=span(visit.hits.seconds(Fault.LATE_LIST)),
            failures=_failures(visit.hits),
            reclaims=_reclaims(visit.hits),
        )
        if refusing is None:
            return order
        return order.model_copy(
            update={
                "stop_rank": refusing.rank or 0,
                "stop_code": vendor.failure_of(refusing.code or vendor.NO_CAPACITY),
                "stop_message": f"node {refusing.rank}: {refusing.text}",
            }
        )

    def _restart(self, visit: Visit, provider_id: str, token: str) -> RestartResult:
        refusing = visit.hits.failing_before()
        if refusing is not None:
            return _restart_answer(refusing)
        spent_on = orders.restarted_machine(visit.tx, token)
        if spent_on not in {None, provider_id}:
            raise InvalidSpec(f"restart token {token} was used for {spent_on}")
        order = orders.RestartOrder(
            installation=self._installation,
            provider_id=provider_id,
            token=token,
            boot=self._boot,
            hung=is_hidden(visit),
        )
        visit.delay(order)
        return orders.restart(visit.tx, order, visit.now)

    def _terminate(self, visit: Visit, token: str) -> bool:
        refusing = visit.hits.failing_before()
        if refusing is not None and vendor.kind_of(refusing.code or "") is vendor.Kind.GONE:
            refusing = None  # the vendor's word for what we wanted
        if refusing is not None and not refusing.spoils_one_node:
            raise refusing.error()
        order = orders.TerminateOrder(
            installation=self._installation,
            token=token,
            takes=self._delete_takes,
            late=span(visit.hits.seconds(Fault.LATE_LIST)),
            spared=_spared(refusing, visit.target),
        )
        visit.delay(order)
        orders.terminate(visit.tx, order, visit.now)
        if refusing is not None:
            raise refusing.error()
        return True

    def _describe_group(self, tx: Tx, token: str) -> Target:
        purchase = machines.find_purchase(tx, token)
        if purchase is None or purchase.installation != self._installation:
            return Target(Call.TERMINATE, token=token)
        living = [m for m in machines.machines_of(tx, purchase.id) if m.ending_at is None]
        return Target(
            Call.TERMINATE,
            token=token,
            owner=purchase.owner,
            region=purchase.region,
            nodes=tuple((m.provider_id, m.rank) for m in living),
        )


def _is_token(token: str) -> bool:
    return token.isascii() and 1 <= len(token) <= MAX_TOKEN_LENGTH


def _check_same(purchase: machines.Purchase, request: GroupRequest) -> None:
    """Refuse a token that comes back with another order."""
    before = (purchase.uid, purchase.region, purchase.instance_type, purchase.capacity_type)
    after = (request.uid, request.region, request.instance_type, request.capacity_type)
    if before != after or purchase.wanted != request.count:
        raise InvalidSpec(
            f"IdempotentParameterMismatch: token {request.token} bought {purchase.wanted} x"
            f" {purchase.instance_type} in {purchase.region} before"
        )


def _refused(purchase: machines.Purchase) -> Refusal:
    code = ErrorCode(purchase.refused_code or ErrorCode.INSUFFICIENT_CAPACITY)
    message = purchase.refused_message or ""
    if code is ErrorCode.INSUFFICIENT_CAPACITY:
        return Refusal(message=message)
    raise error_of(code, message)


def _failures(hits: Hits) -> tuple[orders.NodeFailure, ...]:
    return tuple(
        orders.NodeFailure(
            after=span(rule.seconds),
            rank=rule.rank,
            code=vendor.failure_of(rule.code or vendor.NO_CAPACITY),
            message=rule.message or "failed: no capacity",
        )
        for rule in hits.rules
        if rule.what is Fault.NODE_FAILS
    )


def _reclaims(hits: Hits) -> tuple[orders.NodeReclaim, ...]:
    return tuple(
        orders.NodeReclaim(
            after=span(rule.seconds),
            lasts=span(DEFAULT_NOTICE if rule.notice_seconds is None else rule.notice_seconds),
            rank=rule.rank,
        )
        for rule in hits.rules
        if rule.what is Fault.RECLAIM
    )


def _restart_answer(refusing: FaultRule) -> RestartResult:
    if refusing.code == vendor.UNSUPPORTED:
        return RestartResult.UNSUPPORTED
    if refusing.lacks_capacity:
        return RestartResult.NO_CAPACITY
    if refusing.what is Fault.ERROR and vendor.kind_of(refusing.code or "") is vendor.Kind.GONE:
        return RestartResult.GONE
    raise refusing.error()


def _spared(refusing: FaultRule | None, target: Target) -> tuple[str, ...]:
    if refusing is None:
        return ()
    return tuple(pid for pid, rank in target.nodes if singles_out(refusing, pid, rank))
