"""What the simulated cloud sells: the catalogue's machines at their lowest price, everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

from garrison.models.offer import CapacityType, Offer, OfferQuery, Stock
from garrison.providers.simulated.machines import free_stock
from garrison.providers.simulated.store import Tx

SPOT_SHARE = Decimal("0.4")
EVERYWHERE = ""
_LOW_STOCK = 8
_SOLD = (CapacityType.ON_DEMAND, CapacityType.SPOT)


class PriceList:
    """Instance types by name, each with the catalogue's lowest on-demand price."""

    def __init__(self, offers: Iterable[Offer], *, provider: str, regions: Sequence[str]) -> None:
        self._provider = provider
        self._regions = tuple(regions)
        self._types: dict[str, Offer] = {}
        for offer in offers:
            self._take(offer)
        self._usual = {name: self._offers_of(kind) for name, kind in self._types.items()}

    @property
    def regions(self) -> tuple[str, ...]:
        """Where machines are sold."""
        return self._regions

    def sells(self, instance_type: str) -> bool:
        """Return whether there is such a machine."""
        return instance_type in self._types

    def price(self, tx: Tx, region: str, instance_type: str, capacity: CapacityType) -> Decimal:
        """Return the live price of one machine; spot follows the on-demand price."""
        said = _overridden(tx, region, instance_type, capacity)
        if said is not None:
            return said
        if capacity is CapacityType.SPOT:
            return SPOT_SHARE * self.price(tx, region, instance_type, CapacityType.ON_DEMAND)
        return _price_of(self._types[instance_type])

    def offers(self, tx: Tx, query: OfferQuery, now: int) -> list[Offer]:
        """Return what is sold now and matches, cheapest first."""
        changed = _changed_types(tx)
        found = [
            self._as_changed(tx, offer, now) if name in changed else offer
            for name, offers in self._usual.items()
            for offer in offers
        ]
        return sorted(
            (offer for offer in found if matches(offer, query)),
            key=lambda o: (_price_of(o), o.instance_type, o.region or "", o.capacity_type),
        )

    def _take(self, offer: Offer) -> None:
        if not offer.whole_machine or offer.capacity_type is not CapacityType.ON_DEMAND:
            return
        if not _is_price(offer.usd_per_hour):
            return
        known = self._types.get(offer.instance_type)
        if known is None or _price_of(offer) < _price_of(known):
            self._types[offer.instance_type] = offer

    def _offers_of(self, kind: Offer) -> list[Offer]:
        """Return a machine's offers as long as nobody sets its price or stock."""
        usd = _price_of(kind)
        usual = {
            "provider": self._provider,
            "zone": None,
            "cluster_usd_per_hour": None,
            "price_is_ceiling": False,
            "root_disk_usd_per_gb_month": None,
            "stock": _stock(None),
            "simulated": True,
            "provider_type": "simulated",
        }
        return [
            kind.model_copy(
                update={
                    **usual,
                    "region": region,
                    "capacity_type": capacity,
                    "usd_per_hour": SPOT_SHARE * usd if capacity is CapacityType.SPOT else usd,
                }
            )
            for region in self._regions
            for capacity in _SOLD
        ]

    def _as_changed(self, tx: Tx, offer: Offer, now: int) -> Offer:
        region = offer.region or EVERYWHERE
        price = self.price(tx, region, offer.instance_type, offer.capacity_type)
        stock = _stock(free_stock(tx, region, offer.instance_type, now))
        return offer.model_copy(update={"usd_per_hour": price, "stock": stock})


def matches(offer: Offer, query: OfferQuery) -> bool:
    """Return whether an offer passes every filter that is set."""
    equal = (
        (query.provider, offer.provider),
        (query.region, offer.region),
        (query.instance_type, offer.instance_type),
        (query.accelerator, offer.accelerator),
        (query.capacity_type, offer.capacity_type),
    )
    return (
        all(wanted is None or _same(wanted, found) for wanted, found in equal)
        and (not query.cpu_only or offer.accelerator is None)
        and (query.min_gpus is None or offer.accelerator_count >= query.min_gpus)
        and _at_least(offer.memory_gib, query.min_memory_gib)
        and (query.max_usd_per_hour is None or _price_of(offer) <= query.max_usd_per_hour)
        and _mentions(offer, query.search)
    )


def _same(wanted: str, found: str | None) -> bool:
    return found is not None and wanted.casefold() == found.casefold()


def _at_least(found: Decimal | None, wanted: Decimal | None) -> bool:
    return wanted is None or (found is not None and found >= wanted)


def _mentions(offer: Offer, search: str | None) -> bool:
    words = (offer.provider, offer.region, offer.instance_type, offer.accelerator)
    return search is None or search.casefold() in " ".join(filter(None, words)).casefold()


def _is_price(value: Decimal | None) -> bool:
    return value is not None and value.is_finite() and value > 0


def _price_of(offer: Offer) -> Decimal:
    return offer.usd_per_hour if offer.usd_per_hour is not None else Decimal(0)


def _stock(free: int | None) -> Stock:
    if free is None or free >= _LOW_STOCK:
        return Stock.HIGH
    return Stock.LOW if free else Stock.NONE


def _overridden(tx: Tx, region: str, instance_type: str, capacity: CapacityType) -> Decimal | None:
    # The longer region, which is the named one, goes before `EVERYWHERE`.
    row = tx.execute(
        "SELECT usd FROM prices WHERE region IN (?, ?) AND instance_type = ?"
        " AND capacity_type = ? ORDER BY length(region) DESC LIMIT 1",
        (region, EVERYWHERE, instance_type, capacity),
    ).fetchone()
    return Decimal(row[0]) if row else None


def _changed_types(tx: Tx) -> set[str]:
    rows = tx.execute("SELECT instance_type FROM prices UNION SELECT instance_type FROM stock")
    return {name for (name,) in rows}
