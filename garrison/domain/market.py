"""What a cluster's shape means among the machines that are sold.

Names are looked up, contradictions found, and the number of accelerators settled. `local` and
`simulated` are on the market only when named, so that nobody who asks for an H100 gets one on
paper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from garrison.domain.accelerators import Wish, ambiguity, read_accelerator
from garrison.errors import Faulty, InvalidShape, InvalidSpec, Problem
from garrison.models.cluster import ClusterShape, ShapeLimits
from garrison.models.offer import Offer
from garrison.models.problems import shown, suggestion
from garrison.models.provider import ProviderFacts

Understood: TypeAlias = tuple[Wish | None, int]
"""What the accelerator means, None when none is named; and how many each machine has."""

_MAX_PLACES = 20


class Market:
    """The offers in view of one shape.

    Attributes:
        facts: The configured providers.
        everything: All offers.
        pool: Those of the named provider, or of all real ones, each in every region where it is
            sold.
        here: Those of `pool` in the wanted place.
        elsewhere: Those of `everything` that are not in `here`.
    """

    def __init__(
        self, shape: ClusterShape, offers: Sequence[Offer], facts: Mapping[str, ProviderFacts]
    ) -> None:
        self.facts = facts
        self.everything = offers
        self.pool: list[Offer] = []
        self.here: list[Offer] = []
        self.elsewhere: list[Offer] = []
        for offer in offers:
            placed = _placed(offer, facts[offer.provider]) if _asked(offer, shape, facts) else []
            located = [there for place in placed for there in _located(place, shape)]
            self.pool += placed
            self.here += located
            self.elsewhere += [] if located else [offer]

    def sold(self) -> Sequence[Offer]:
        """Return the offers in which names are looked up."""
        return self.pool or self.everything

    def regions(self) -> set[str] | None:
        """Return the regions that can be named, None where any can."""
        if any(offer.region is None for offer in self.pool):
            return None
        return {offer.region for offer in self.pool if offer.region is not None}

    def machine(self, shape: ClusterShape) -> Offer | None:
        """Return any offer of the named instance type."""
        wanted = shape.instance_type
        offers = (*self.here, *self.sold())
        return next((o for o in offers if wanted and o.instance_type == wanted), None)


def settle(shape: ClusterShape, market: Market, limits: ShapeLimits) -> Understood:
    """Return what a shape means, if it means something that is allowed and sold.

    Raises:
        InvalidSpec: With every unknown name and contradiction, and what is wrong with the size.
        InvalidShape: Only the size is wrong: a limit is passed, or no machine has it.
    """
    places = _unknown_places(shape, market)
    wish, names = _read_names(shape, market)
    gpus: int | None = None
    sizes: list[Faulty] = []
    if not names:
        # Where the region is a mistake, the size is looked up wherever it is sold.
        sized = shape.model_copy(update={"region": None, "zone": None}) if places else shape
        view = Market(sized, market.everything, market.facts) if places else market
        gpus, sizes = _size(sized, view, wish)
    counts = (gpus, shape.gpus_per_node, wish.count if wish is not None else None)
    count = next((count for count in counts if count is not None), None)
    over = limit_problems(shape.nodes, count, limits)
    spec = [*places, *names, *(p for error in sizes if _of_spec(error) for p in error.problems)]
    size = [*over, *(p for error in sizes if not _of_spec(error) for p in error.problems)]
    if spec:
        raise _misplaced(in_cluster([*spec, *size]))
    if size or gpus is None:
        raise _misshapen(in_cluster(size))
    return wish, gpus


def in_cluster(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems of a shape's fields as those of a `cluster:` file."""
    return [replace(problem, field=f"cluster.{problem.field}") for problem in problems]


def _of_spec(error: Faulty) -> bool:
    return isinstance(error, InvalidSpec)


def _size(
    shape: ClusterShape, market: Market, wish: Wish | None
) -> tuple[int | None, list[Faulty]]:
    try:
        return settle_size(shape, market, wish), []
    except (InvalidShape, InvalidSpec) as error:
        return None, [error]


def understand(shape: ClusterShape, market: Market) -> Wish | None:
    """Return what the accelerator means, None when none is named.

    Raises:
        InvalidSpec: With every name that is unknown and every contradiction.
    """
    wish, problems = _read_names(shape, market)
    problems = _unknown_places(shape, market) + problems
    if problems:
        raise _misplaced(problems)
    return wish


def _read_names(shape: ClusterShape, market: Market) -> tuple[Wish | None, list[Problem]]:
    """Return what the accelerator means, and what is wrong with it and the instance type."""
    problems = _unknown_type(shape, market)
    wish: Wish | None = None
    only_cpu = bool(market.pool) and not any(offer.accelerator for offer in market.pool)
    if shape.accelerator is not None and only_cpu:
        sellers = ", ".join(sorted({offer.provider for offer in market.pool}))
        message = (
            f"{sellers} sells only machines without accelerators, so no {shown(shape.accelerator)}"
        )
        problems.append(Problem("accelerator", message))
    elif shape.accelerator is not None:
        try:
            wish = read_accelerator(shape.accelerator, market.sold())
        except InvalidSpec as error:
            problems += error.problems
    if wish is not None:
        wish = wish.among(market.here)
    return wish, problems + _contradictions(shape, market.machine(shape), wish)


def settle_size(shape: ClusterShape, market: Market, wish: Wish | None) -> int:
    """Return the number of accelerators in each machine.

    Raises:
        InvalidShape: No machine has it, or several sizes exist and none was named.
        InvalidSpec: Nothing says what kind of machine is wanted.
    """
    offers = [offer for offer in market.here if is_kind(offer, shape, wish)]
    sizes = sorted({int(offer.accelerator_count) for offer in offers if offer.whole_machine})
    name = _kind_name(shape, wish)
    if not sizes:
        message = _no_machine(name, shape, market, wish, sliced=bool(offers))
        raise _misshapen([Problem(_kind_field(shape), message)])
    wanted = shape.gpus_per_node
    if wanted is None and wish is not None:
        wanted = wish.count
    _check_named(shape, wish, wanted, offers)
    listed = ", ".join(str(size) for size in sizes)
    if wanted is None and len(sizes) > 1:
        message = f"is needed: {name} is sold with {listed} per machine"
        raise _misshapen([Problem("gpus_per_node", message)])
    if wanted is not None and wanted not in sizes:
        message = f"no machine has {wanted} x {name}; it is sold with {listed} per machine"
        field = "accelerator" if shape.gpus_per_node is None else "gpus_per_node"
        raise _misshapen([Problem(field, message)])
    return sizes[0] if wanted is None else wanted


def limit_problems(nodes: int, gpus: int | None, limits: ShapeLimits) -> list[Problem]:
    """Return where a shape is larger than the operator allows; names the setting to change.

    Args:
        nodes: How many machines.
        gpus: In each, None when nobody said.
        limits: The operator's bounds.
    """
    return [
        Problem(what, f"{value} exceeds the limit {limit} (setting limits.max_{what})")
        for what, value, limit in (
            ("nodes", nodes, limits.max_nodes),
            ("gpus_per_node", gpus or 0, limits.max_gpus_per_node),
        )
        if value > limit
    ]


def unknown_provider(name: str, known: Collection[str]) -> Problem:
    """Return what is wrong with the name of a provider that is not configured."""
    hint = suggestion(name, known)
    return Problem("provider", f"no provider {shown(name)} is configured; {hint}")


def is_kind(offer: Offer, shape: ClusterShape, wish: Wish | None) -> bool:
    """Whether an offer is of the named instance type, else of the named accelerator."""
    if shape.instance_type is not None:
        return offer.instance_type == shape.instance_type
    return wish is None or wish.fits(offer)


def gpu_count(offer: Offer) -> int | None:
    """Return the accelerators of a whole machine, None for a slice or a price by the GPU."""
    return int(offer.accelerator_count) if offer.whole_machine else None


def _asked(offer: Offer, shape: ClusterShape, facts: Mapping[str, ProviderFacts]) -> bool:
    provider = facts.get(offer.provider)
    if provider is None:
        return False
    if shape.provider is not None:
        return offer.provider == shape.provider
    return not (provider.simulated or offer.simulated)


def _placed(offer: Offer, provider: ProviderFacts) -> list[Offer]:
    """Return an offer in each region where its provider may buy."""
    if not provider.regions:
        return [offer]
    if offer.region is None:
        return [offer.model_copy(update={"region": region}) for region in provider.regions]
    return [offer] if offer.region in provider.regions else []


def _located(offer: Offer, shape: ClusterShape) -> list[Offer]:
    """Return the offer in the wanted region and zone, or nothing."""
    wanted = {"region": shape.region, "zone": shape.zone}
    wanted = {field: value for field, value in wanted.items() if value is not None}
    if any(getattr(offer, field) not in (None, value) for field, value in wanted.items()):
        return []
    return [offer.model_copy(update=wanted) if wanted else offer]


def _unknown_places(shape: ClusterShape, market: Market) -> list[Problem]:
    if shape.provider is not None and shape.provider not in market.facts:
        return [unknown_provider(shape.provider, market.facts)]
    known = market.regions()
    if shape.region is None or not known or shape.region in known:
        return []
    hint = suggestion(shape.region, known)
    return [Problem("region", f"nothing is sold in {shown(shape.region)}; {hint}")]


def _unknown_type(shape: ClusterShape, market: Market) -> list[Problem]:
    wanted = shape.instance_type
    known = {offer.instance_type for offer in market.sold()}
    if wanted is None or wanted in known:
        return []
    message = f"no instance type is called {shown(wanted)}; {suggestion(wanted, known)}"
    return [Problem("instance_type", message)]


def _contradictions(shape: ClusterShape, machine: Offer | None, wish: Wish | None) -> list[Problem]:
    problems: list[Problem] = []
    if wish is not None and machine is not None and not wish.fits(machine):
        problems.append(Problem("accelerator", f"{machine.instance_type} has no {wish.text}"))
    if wish is not None and shape.instance_type is None and len(wish.variants) > 1:
        problems.append(Problem("accelerator", ambiguity(wish)))
    if wish is not None and shape.gpus_per_node == 0:
        message = "0 is a machine without accelerators, but an accelerator is named"
        return [*problems, Problem("gpus_per_node", message)]
    counts = {
        "accelerator": wish.count if wish is not None else None,
        "gpus_per_node": shape.gpus_per_node,
        "instance_type": gpu_count(machine) if machine is not None else None,
    }
    given = {field: count for field, count in counts.items() if count is not None}
    if len(set(given.values())) > 1:
        said = ", ".join(f"{field} says {count}" for field, count in given.items())
        field = "gpus_per_node" if "gpus_per_node" in given else "accelerator"
        problems.append(Problem(field, f"contradiction: {said}"))
    return problems


def _check_named(
    shape: ClusterShape, wish: Wish | None, wanted: int | None, offers: Iterable[Offer]
) -> None:
    if wish is not None or shape.instance_type is not None or wanted == 0:
        return
    kinds = {o.accelerator or o.instance_type for o in offers if wanted in (None, gpu_count(o))}
    if len(kinds) > 1:
        message = "name an accelerator or an instance type, or say gpus_per_node: 0"
        raise _misplaced([Problem("accelerator", f"{message}; {suggestion('', kinds)}")])


def _kind_name(shape: ClusterShape, wish: Wish | None) -> str:
    if wish is not None:
        return wish.variants[0].name
    return shape.instance_type or "accelerators"


def _no_machine(
    name: str, shape: ClusterShape, market: Market, wish: Wish | None, *, sliced: bool
) -> str:
    if sliced:
        return f"{name} is sold only in slices or by the GPU here, not as whole machines"
    kind = [offer for offer in market.pool if is_kind(offer, shape, wish)]
    places = sorted({offer.zone or offer.region or offer.provider for offer in kind})
    if places:
        return f"{name} is not sold there; it is in: {', '.join(places[:_MAX_PLACES])}"
    configured = ", ".join(sorted(market.facts)) or "none"
    return (
        f"no provider sells {name} (configured: {configured}); one on paper or on this computer "
        "is used only when it is named"
    )


def _kind_field(shape: ClusterShape) -> str:
    if shape.instance_type is not None:
        return "instance_type"
    return "accelerator" if shape.accelerator is not None else "provider"


def _misplaced(problems: Sequence[Problem]) -> InvalidSpec:
    return InvalidSpec("the cluster cannot be placed", problems=tuple(problems))


def _misshapen(problems: Sequence[Problem]) -> InvalidShape:
    return InvalidShape("the cluster cannot have this shape", problems=tuple(problems))
