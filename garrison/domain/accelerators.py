"""One name for each accelerator, however it is written.

`h100`, `NVIDIA H100 80GB HBM3`, `H100_SXM`, `nvidia-h100` and `8xH100` all mean the catalogue's
`H100`. Where a name fits several kinds (an `A100` has 40 or 80 GB, `RTX 6000` is sold in
variants) the answer is the list of choices, not a guess; a memory size in the name settles it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from garrison.errors import InvalidSpec, Problem
from garrison.models.offer import Offer
from garrison.models.problems import shown, suggestion

MEMORY_TOLERANCE = Decimal("0.08")
"""Sellers say 24 GB, providers 22.35 GiB: sizes this close are the same part."""

MAX_COUNT = 1024

_NOISE = re.compile(
    "NVIDIA|AMD|GOOGLE|TESLA|GPU|HGX|DGX|TENSOR|CORE|SXM[2-6]?|PCIE?|NVL72|INF|HBM[23]E?|GDDR[67]"
    "|BLACKWELL|SERVER|EDITION"
)
_ALIASES = {"A10": "A10G"}
"""Names used for a part that the catalogue knows by another, if it does not know them."""

_MAKERS = {"AMD": "MI", "GOOGLE": "TPU"}
"""Makers, and how the names of their kinds begin; all other kinds are NVIDIA's."""

_MEMORY = re.compile(r"(\d{1,4}(?:\.\d{1,2})?)(?:G|GB|GI|GIB)")
_COUNT_AFTER = re.compile(r"(.*?\S)(?:\s*[:*]\s*|\s+[xX]\s*)(\d{1,9})")
_COUNT_BEFORE = re.compile(r"(\d{1,9})\s*[xX*]\s*(\D.*)")
_SEPARATORS = re.compile(r"[\s_\-/,()]+")


@dataclass(frozen=True, slots=True)
class Variant:
    """A kind of accelerator: its canonical name and the memory of one."""

    name: str
    memory_gib: Decimal | None

    def __str__(self) -> str:
        name = self.name.replace(" ", "-")
        if self.memory_gib is None:
            return name
        return f"{name}-{self.memory_gib.normalize():f}GB"

    def is_in(self, offer: Offer) -> bool:
        """Whether a machine has this kind."""
        return offer.accelerator == self.name and _same(
            self.memory_gib, offer.accelerator_memory_gib
        )


@dataclass(frozen=True, slots=True)
class Wish:
    """What a name can mean.

    Attributes:
        variants: At least one.
        count: Accelerators per machine, where the name has one (`H100:8`).
    """

    text: str
    variants: tuple[Variant, ...]
    count: int | None = None

    def fits(self, offer: Offer) -> bool:
        """Whether a machine has one of the kinds."""
        return any(variant.is_in(offer) for variant in self.variants)

    def among(self, offers: Sequence[Offer]) -> Wish:
        """Return the wish for those of its kinds that are on offer; itself if none is."""
        left = tuple(v for v in self.variants if any(v.is_in(offer) for offer in offers))
        return replace(self, variants=left or self.variants)


def read_accelerator(text: str, offers: Iterable[Offer]) -> Wish:
    """Return every kind that a name can mean among what is sold.

    Raises:
        InvalidSpec: Nothing sold has that name; the nearest names are in the message.
    """
    known = variants_of(offers)
    name, count = _split_count(text.strip())
    words, memory = _words(name)
    named = _matching(words, known) if words else []
    fitting = [v for v in named if memory is None or _same(memory, v.memory_gib)]
    if count is not None and not 1 <= count <= MAX_COUNT:
        raise _refused(f"{shown(text)}: the count must be 1 to {MAX_COUNT}")
    if not fitting:
        raise _refused(_unknown(text, words, named, known))
    return Wish(text, tuple(fitting), count)


def resolve_accelerator(text: str, offers: Iterable[Offer]) -> Wish:
    """Return the one kind that a name means among what is sold.

    Raises:
        InvalidSpec: Nothing has that name, or several kinds do; they are in the message.
    """
    wish = read_accelerator(text, offers)
    if len(wish.variants) > 1:
        raise _refused(ambiguity(wish))
    return wish


def ambiguity(wish: Wish) -> str:
    """Return the sentence that asks which kind is meant."""
    choices = ", ".join(str(variant) for variant in wish.variants)
    return f"{shown(wish.text)} can be several accelerators; say one of: {choices}"


def variants_of(offers: Iterable[Offer]) -> tuple[Variant, ...]:
    """Return the kinds that whole machines are sold with; slices have only part of the memory."""
    found: list[Variant] = []
    pairs = {
        (offer.accelerator, offer.accelerator_memory_gib)
        for offer in offers
        if offer.accelerator is not None and offer.accelerator_count >= 1
    }
    for name, memory in sorted(pairs, key=lambda pair: (pair[0], pair[1] or Decimal(0))):
        # Nominal sizes (80) are the ones people write, and the larger ones of a near pair.
        same = [v for v in found if v.name == name and _same(v.memory_gib, memory)]
        for variant in same:
            found.remove(variant)
        found.append(Variant(name, memory))
    return tuple(found)


def names_kind(text: str, kind: str, memory_gib: Decimal | None = None) -> bool:
    """Return whether a name means a kind: `a10` the `NVIDIA-A10G`, `NVIDIA-*` every NVIDIA.

    Unlike in a search nothing is guessed: a name with fewer words means another kind.

    Args:
        text: What is asked for; `*` stands for any characters.
        kind: What a machine has.
        memory_gib: Of one such accelerator, None where it is not known.
    """
    words, memory = _words(text)
    if "*" in text or not words:
        wanted = _dashed(text) if "*" in text else f"{_dashed(text)}-*"
        pattern = ".*".join(re.escape(part) for part in wanted.split("*"))
        return any(re.fullmatch(pattern, name) for name in _spellings(kind))
    same = _plain(words) == _plain(_words(kind)[0])
    return same and (memory is None or _same(memory, memory_gib))


def _dashed(text: str) -> str:
    return "-".join(filter(None, _SEPARATORS.split(text.upper())))


def _spellings(kind: str) -> tuple[str, str]:
    """Return a kind's name without and with its maker, which the catalogue leaves out."""
    name = _dashed(kind)
    makers = (maker for maker, start in _MAKERS.items() if name.startswith((maker, start)))
    maker = next(makers, "NVIDIA")
    bare = name.removeprefix(f"{maker}-")
    return bare, f"{maker}-{bare}"


def _plain(words: Iterable[str]) -> set[str]:
    return {_ALIASES.get(word, word) for word in words}


def _split_count(text: str) -> tuple[str, int | None]:
    if match := _COUNT_AFTER.fullmatch(text):
        return match[1], int(match[2])
    if match := _COUNT_BEFORE.fullmatch(text):
        return match[2], int(match[1])
    return text, None


def _words(text: str) -> tuple[tuple[str, ...], Decimal | None]:
    """Return the telling words of a name, and the memory size if it has one."""
    upper = re.sub(r"(\d)\s+(?=G(?:I?B)?\b)", r"\1", text.upper())
    words: list[str] = []
    memory: Decimal | None = None
    for word in filter(None, _SEPARATORS.split(upper)):
        if match := _MEMORY.fullmatch(word):
            memory = Decimal(match[1])
        elif not _NOISE.fullmatch(word):
            words += _split_rtx(word)
    if "RTX" in words and "ADA" in words:
        # The Ada generation is sold under the plain name; its size tells it from the others.
        words.remove("ADA")
        memory = memory or Decimal(48)
    return tuple(words), memory


def _split_rtx(word: str) -> list[str]:
    match = re.fullmatch(r"(RTX)(PRO)?(\d*)", word) or re.fullmatch(r"()(PRO)(\d+)", word)
    return [part for part in match.groups() if part] if match else [word]


def _matching(words: tuple[str, ...], known: Iterable[Variant]) -> list[Variant]:
    """Return the kinds whose names have all the words: `RTX 6000` also is in `RTX PRO 6000`."""
    by_words = [(set(_words(variant.name)[0]), variant) for variant in known]
    wanted = set(words)
    if not any(wanted <= theirs for theirs, _ in by_words):
        wanted = {_ALIASES.get(word, word) for word in words}
    return [variant for theirs, variant in by_words if wanted <= theirs]


def _same(left: Decimal | None, right: Decimal | None) -> bool:
    if left is None or right is None:
        return True
    return abs(left - right) <= MEMORY_TOLERANCE * max(left, right)


def _unknown(
    text: str, words: tuple[str, ...], named: list[Variant], known: tuple[Variant, ...]
) -> str:
    if named:
        sizes = ", ".join(str(variant) for variant in named)
        return f"no {shown(text)} is sold; there is: {sizes}"
    names = {variant.name for variant in known}
    return f"no accelerator is called {shown(text)}; {suggestion(' '.join(words) or text, names)}"


def _refused(message: str) -> InvalidSpec:
    return InvalidSpec("is not valid", problems=(Problem("accelerator", message),))
