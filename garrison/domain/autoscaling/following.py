"""The deployments that the watch of a load follows, as they last said of themselves."""

from __future__ import annotations

from collections.abc import Iterable

from garrison.models.load import Followed, FollowedChanges


class Following:
    """Numbered, so that a reader gets only what changed since it last read."""

    def __init__(self, followed: Iterable[Followed] = ()) -> None:
        self._known: dict[str, tuple[int, Followed]] = {}
        self._last = 0
        for one in followed:
            self.take(one)

    @property
    def all(self) -> tuple[Followed, ...]:
        """Those that are not closed."""
        return tuple(one for _, one in self._known.values() if not one.closed)

    def take(self, said: Followed) -> None:
        """Take a deployment's word, unless a newer one is known."""
        known = self._known.get(said.id)
        if known is not None and _age(said) < _age(known[1]):
            return
        self._last += 1
        self._known[said.id] = (self._last, said)

    def forget(self, lives: Iterable[str]) -> None:
        """Follow lives no longer, by uid."""
        gone = frozenset(lives)
        self._known = {
            key: (number, one) for key, (number, one) in self._known.items() if one.uid not in gone
        }

    def changes(self, since: int, *, renew: bool) -> FollowedChanges:
        """Return what changed after a number; a closed one is told once and then forgotten."""
        changed = tuple(one for number, one in self._known.values() if number > since)
        return FollowedChanges(changed=changed, last=self._last, renew=renew)


def _age(said: Followed) -> tuple[object, int]:
    return said.created_at, said.version
